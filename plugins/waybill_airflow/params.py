"""Params that several DAGs take."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d"


def window(**more: Any) -> dict[str, Param]:
    """Return ``since`` and ``until``: event times, each optional."""
    words = {"since": ("From", "at or after"), "until": ("Until", "before")}
    return {
        name: Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=_TIME,
            title=title,
            description=f"Only events {when} this time.",
            **more,
        )
        for name, (title, when) in words.items()
    }


def replay_options() -> dict[str, Param]:
    """Return ``rate_per_s``, ``governed``, ``canary`` and ``dry_run`` of a replay."""
    return {
        "rate_per_s": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Events a second",
            description="Most of one replay. Empty: no such limit.",
        ),
        "governed": Param(
            default=True,
            type="boolean",
            title="Governed",
            description="Live traffic goes first: the rate is held so that its p95 latency grows "
            "by at most 10 %. Off: as fast as Kafka takes them.",
        ),
        "canary": Param(
            default=False,
            type="boolean",
            title="Canary",
            description="Send 1 %, then 10 %, then all; stop when too much is parked again.",
        ),
        "dry_run": Param(default=False, type="boolean", title="Dry run"),
    }


def replay_conditions() -> dict[str, Param]:
    """Return what else a replay of one partition may be narrowed by."""
    parked = {
        name: Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=_TIME,
            title=title,
            description=f"Only events that were parked {when} this time.",
        )
        for name, title, when in (
            ("parked_since", "Parked from", "at or after"),
            ("parked_until", "Parked until", "before"),
        )
    }
    return parked | {
        "fingerprint": Param(
            None,
            type=["null", "string"],
            pattern="^[0-9a-f]{16}$",
            title="Fingerprint",
            description="Only events of this cause.",
        ),
        "max_events": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Most events",
            description="The first so many, in the order in which they were parked.",
        ),
        "enter": Param(
            None,
            type=["null", "string"],
            enum=[None, "transformation"],
            title="Enter at",
            description="The transformation, with what events parked at mapping were made from; "
            "only where the pipeline keeps sources. Empty: the stage that parked.",
        ),
    }


def dry_run_options() -> dict[str, Param]:
    """Return ``sample`` of a dry run."""
    return {
        "sample": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Sample of the dry run",
            description="Events to try, some of each fingerprint. Empty: every one.",
        )
    }


def grace(title: str, setting: str) -> dict[str, Param]:
    """Return ``grace_s``, which overrides a setting."""
    return {
        "grace_s": Param(
            None,
            type=["null", "number"],
            minimum=0,
            title=title,
            description=f"Empty: the setting {setting}.",
        )
    }


__all__ = ["dry_run_options", "grace", "replay_conditions", "replay_options", "window"]
