"""Virtual clusters: how they are, what people decide, the coordinator's rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.clusters import (
        Assignment,
        ClusterRequest,
        ClusterStatus,
        CoordinatorReport,
        DrainRequest,
        PlaceRequest,
        VirtualCluster,
    )


def run_coordinator(settings: Settings) -> CoordinatorReport:
    """Run one round of the coordinator; capacity is asked for in the log only."""
    from waybill.clusters import DryRunInfra, coordinate

    with open_tracker(settings.tracker) as tracker:
        return coordinate(tracker, open_log(settings.kafka), DryRunInfra())


def cluster_status(settings: Settings, name: str | None = None) -> ClusterStatus:
    """Return how virtual clusters are, or one."""
    from waybill import clusters

    with open_tracker(settings.tracker) as tracker:
        return clusters.cluster_status(tracker, name)


def other_clusters(settings: Settings) -> list[str]:
    """Return the names of the clusters beside ``default``, in order."""
    from waybill.clusters import DEFAULT_CLUSTER, cluster_names

    with open_tracker(settings.tracker) as tracker:
        return [name for name in cluster_names(tracker) if name != DEFAULT_CLUSTER]


def create_cluster(
    settings: Settings, request: ClusterRequest, decision: Decision
) -> VirtualCluster:
    """Make a virtual cluster."""
    from waybill import clusters

    with open_tracker(settings.tracker) as tracker:
        return clusters.create_cluster(tracker, request, decision)


def set_cluster(settings: Settings, request: ClusterRequest, decision: Decision) -> VirtualCluster:
    """Change settings of a virtual cluster."""
    from waybill import clusters

    with open_tracker(settings.tracker) as tracker:
        return clusters.set_cluster(tracker, request, decision)


def drain_cluster(settings: Settings, request: DrainRequest, decision: Decision) -> Assignment:
    """Have a cluster's teams leave, or let it take teams in again."""
    from waybill import clusters

    with open_tracker(settings.tracker) as tracker:
        return clusters.drain_cluster(tracker, request, decision)


def pin_team(settings: Settings, request: PlaceRequest, decision: Decision) -> Assignment:
    """Put a team into a cluster for good."""
    from waybill import clusters

    with open_tracker(settings.tracker) as tracker:
        return clusters.pin_team(tracker, request, decision)


def unpin_team(settings: Settings, team: str, decision: Decision) -> Assignment:
    """Let the coordinator place a team again."""
    from waybill import clusters

    with open_tracker(settings.tracker) as tracker:
        return clusters.unpin_team(tracker, team, decision)


def move_team(settings: Settings, request: PlaceRequest, decision: Decision) -> Assignment:
    """Move a team now."""
    from waybill import clusters

    with open_tracker(settings.tracker) as tracker:
        return clusters.move_team(tracker, request, decision)
