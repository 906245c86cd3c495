"""Virtual clusters: how they are, what people decide, the coordinator's rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from waybill.access import Decision
    from waybill.clusters import (
        ApplicationKind,
        Assignment,
        ClusterRequest,
        ClusterStatus,
        CoordinatorReport,
        DrainRequest,
        PlaceRequest,
        TopicGrowth,
        VirtualCluster,
    )
    from waybill.storage import TrackerStore

R = TypeVar("R")
T = TypeVar("T")


def run_coordinator(settings: Settings) -> CoordinatorReport:
    """Run one round of the coordinator; capacity is asked for in the log only."""
    from waybill import topics
    from waybill.access import Decision
    from waybill.clusters import COORDINATOR, DryRunInfra, GrowthPolicy, coordinate
    from waybill.errors import InputError

    log = open_log(settings.kafka)
    policy = GrowthPolicy(
        settings.kafka.max_topic_partitions, default_cores=settings.spark.processing_max_cores
    )
    with open_tracker(settings.tracker) as tracker:

        def grow(growth: TopicGrowth) -> int:
            asked = topics.GrowRequest(topic=growth.topic, partitions=growth.partitions)
            plan = topics.plan_growth(tracker, log, asked, adopts=policy.limit)
            if plan.throttled:
                raise InputError(
                    f"what comes in meanwhile would wait for a slice of {'; '.join(plan.throttled)}"
                )
            made = topics.grow(tracker, log, plan, Decision(COORDINATOR, growth.reason))
            return made.partitions

        return coordinate(tracker, log, DryRunInfra(), grow, policy=policy)


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

    return _decided(clusters.create_cluster, settings, request, decision)


def set_cluster(settings: Settings, request: ClusterRequest, decision: Decision) -> VirtualCluster:
    """Change settings of a virtual cluster."""
    from waybill import clusters

    return _decided(clusters.set_cluster, settings, request, decision)


def drain_cluster(settings: Settings, request: DrainRequest, decision: Decision) -> Assignment:
    """Have a cluster's teams leave, or let it take teams in again."""
    from waybill import clusters

    return _decided(clusters.drain_cluster, settings, request, decision)


def delete_cluster(settings: Settings, name: str, decision: Decision) -> bool:
    """Take a virtual cluster away that serves nobody; False: there is none of this name."""
    from waybill import clusters

    return _decided(clusters.delete_cluster, settings, name, decision)


def stop_cluster(settings: Settings, name: str, decision: Decision) -> bool:
    """Have a cluster's applications end, and be kept so; False: the same person said so already."""
    from waybill import clusters

    return _decided(clusters.stop_cluster, settings, name, decision)


def start_cluster(settings: Settings, name: str, decision: Decision) -> bool:
    """Have a cluster's applications run again; False: the same person said so already."""
    from waybill import clusters

    return _decided(clusters.start_cluster, settings, name, decision)


def restart_cluster(settings: Settings, name: str, decision: Decision) -> list[ApplicationKind]:
    """Have a cluster's applications be replaced by new ones; which are."""
    from waybill import clusters

    return _decided(clusters.restart_cluster, settings, name, decision)


def pin_team(settings: Settings, request: PlaceRequest, decision: Decision) -> Assignment:
    """Put a team into a cluster for good."""
    from waybill import clusters

    return _decided(clusters.pin_team, settings, request, decision)


def unpin_team(settings: Settings, team: str, decision: Decision) -> Assignment:
    """Let the coordinator place a team again."""
    from waybill import clusters

    return _decided(clusters.unpin_team, settings, team, decision)


def move_team(settings: Settings, request: PlaceRequest, decision: Decision) -> Assignment:
    """Move a team now."""
    from waybill import clusters

    return _decided(clusters.move_team, settings, request, decision)


def _decided(
    decide: Callable[[TrackerStore, R, Decision], T],
    settings: Settings,
    request: R,
    decision: Decision,
) -> T:
    """Open the tracker for one decision."""
    with open_tracker(settings.tracker) as tracker:
        return decide(tracker, request, decision)
