"""What a user asks of a replay or a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from waybill.parking import (
    MOST_EVENTS,
    EntryRequest,
    ParkedEventsRequest,
    ParkedFilter,
    ParkedGroupRequest,
)
from waybill.request import Request

MOST_GROUPS_PER_RUN = 1_000


class DryRunRequest(ParkedEventsRequest):
    """Which parked events to try, and with which version."""

    proposed: Path | None = Field(
        None,
        description="Folder, or name, of the pipeline as it would be. Without it: as it is active.",
    )
    sample: int | None = Field(
        None,
        ge=1,
        le=MOST_EVENTS,
        description="Try this many events, some of each fingerprint. Without it: all.",
    )
    good: int = Field(
        500,
        ge=0,
        le=MOST_EVENTS,
        description="With --proposed: how many recent good events to try as well; 0: none.",
    )
    seed: int | None = Field(None, ge=0, le=MOST_EVENTS, description="Draw the same sample again.")


class ReplayOptions(Request):
    """How parked events go back."""

    rate_per_s: int | None = Field(
        None,
        ge=1,
        le=MOST_EVENTS,
        title="Events a second",
        description="At most this many events a second. Empty: no limit.",
    )
    governed: bool = Field(
        default=True,
        title="Governed",
        description="Live traffic goes first: the rate is limited so that its p95 latency grows by "
        "at most 10 %. Off: as fast as Kafka accepts them.",
    )
    canary: bool = Field(
        default=False,
        title="Canary",
        description="Send 1 %, then 10 %, then all; stop when too many events park again.",
    )
    dry_run: bool = Field(
        default=False, title="Dry run", description="Say what would pass; write nothing."
    )


class ReplayRequest(ReplayOptions, ParkedEventsRequest):
    """Which parked events of a group go back to their topic, and how."""

    sample: int | None = Field(
        None,
        ge=1,
        le=MOST_EVENTS,
        title="Sample of the dry run",
        description="How many events to try, some of each fingerprint. Empty: all.",
    )

    def as_dry_run(self, *, proposed: Path | None = None) -> DryRunRequest:
        """Return the dry run of the same events."""
        shared = {name: getattr(self, name) for name in ParkedEventsRequest.model_fields}
        return DryRunRequest(**shared, proposed=proposed, sample=self.sample)


class CampaignRequest(ReplayOptions, EntryRequest, ParkedFilter):
    """Which parked groups are replayed, how, and how many of them by a run.

    ``enter`` is for what parked at mapping: all other groups enter at the stage that parked them.
    """

    limit: int | None = Field(
        None,
        ge=1,
        le=MOST_EVENTS,
        title="Most groups",
        description="At most this many groups; a further campaign takes the rest. Empty: all.",
    )
    max_unfinished: int = Field(
        8,
        ge=1,
        le=256,
        title="Unfinished runs",
        description="The campaign has at most this many runs that wait or run; the next one starts "
        "as one ends.",
    )

    groups_per_run: int = Field(
        1,
        ge=1,
        le=MOST_GROUPS_PER_RUN,
        title="Groups a run",
        description="A run replays at most this many groups, one after the other, with one "
        "producer. 1: each has a run of its own. More is proposed above 5,000 groups.",
    )
    why: str | None = Field(
        None, max_length=2_000, title="Why", description="The reason, for the audit log."
    )

    who: str | None = Field(
        None,
        max_length=200,
        title="Who",
        description="Your name, if not that of the user who runs it. Nobody verifies it: the audit "
        "log has Airflow's user, and this name beside it.",
    )

    def of_group(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the params of the DAG `replay` for one group, by its four names, as JSON."""
        own = self.model_dump(mode="json", include=_SHARED)
        if names["stage"] != "mapping":
            own["enter"] = None
        return {**names, **own}


class BatchRequest(Request):
    """Which groups of a campaign a run of the DAG `replay` has, beside the one that it names."""

    campaign: str | None = Field(
        None,
        min_length=1,
        max_length=250,
        title="Campaign",
        description="Set by a campaign: its own run. The group above is the first of a batch.",
    )
    batch: int | None = Field(
        None,
        ge=0,
        le=MOST_EVENTS,
        title="Batch",
        description="Set by a campaign: which of its batches, counted from 0.",
    )


_SHARED = (
    ReplayRequest.model_fields.keys()
    & CampaignRequest.model_fields.keys() - ParkedGroupRequest.model_fields.keys()
)
"""What each run of a campaign takes over."""
