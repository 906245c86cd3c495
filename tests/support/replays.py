"""Replays and dry runs by their fields, as tests write them."""

from __future__ import annotations

from typing import Any

from waybill import services
from waybill.replay import DryRunRequest, ReplayRequest
from waybill.settings import Settings

FIELDS = ("pipeline", "event_name", "stage", "error_type")


def run_replay(settings: Settings, *, who: str = "test", run_id: str = "r1", **fields: Any) -> Any:
    """Replay what the fields of a ``ReplayRequest`` say; return the report."""
    return services.run_replay(settings, ReplayRequest(**fields), who=who, run_id=run_id)


def dry_run_request(*names: str, **options: Any) -> DryRunRequest:
    """Return the dry run of the partition with these four names."""
    return DryRunRequest(**dict(zip(FIELDS, names, strict=True)), **options)
