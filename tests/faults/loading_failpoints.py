"""Failpoints of the loading application's driver."""

from __future__ import annotations

from tests.faults import failpoints
from tests.faults.failpoints import before, behind

LOAD = (
    "load begun",
    "rows merged",
    "destination committed",
    "position moved",
    "load acknowledged",
)
"""Steps of a load. The second one is before the destination's commit, where it has one for all; the
fourth is inside the tracker's transaction."""


def role_of(cluster: str) -> str:
    """Return the role of a cluster's loading application."""
    return f"loading-{cluster}"


def in_loading(cluster: str) -> None:
    """Put failpoints into the driver in this process."""
    from waybill.loading import delivery, loader

    failpoints.take_role(role_of(cluster))
    before(loader, "deliver", "load begun")
    before(delivery, "_trace", "rows merged")
    behind(loader, "deliver", "destination committed")
    before(loader, "note_lost", "position moved")
    behind(loader, "commit_load", "load acknowledged")
