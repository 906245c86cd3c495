"""Virtual clusters: which Spark application serves which team, and the coordinator that decides it.

Each minute the coordinator looks at every team (how much comes in, what an event costs, what waits
and for how long), decides which cluster serves it (``packing``), writes that down as the next
version of the assignment, computes the cores that each cluster needs (``capacity``), asks for the
sum, and gives a topic that needs it more partitions (``growth``). Applications follow the newest
version (``watching``).

Invariants
  I1  A version never changes; the newest is in force. It names each team at most once, so that no
      team is two clusters'. Who it does not name is ``default``'s, unless no cluster has room.
  I2  The assignment is advice about who *should* read. Who may commit is the lease's business
      (``ledger``): two clusters that both serve a team for a moment fence each other, and lose and
      double nothing.
  I3  What nobody configured is as before: one cluster, ``default``, serves all teams.
  I4  Deciding is pure: the same measurements, clusters, pins and time give the same assignment.
  I5  Every change that a person makes is in the audit log, in its transaction; every move has its
      reason in the version that made it, and every topic that grew in the audit log.
  I6  Teams stay where they are while the coordinator is away.

A cluster's two applications have a row each (``applications``) with epoch, heartbeat and what they
should do; how they are kept running is in ``supervision``.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.clusters.announcements import ANNOUNCED as ANNOUNCED
    from waybill.clusters.announcements import Acknowledgement as Acknowledgement
    from waybill.clusters.announcements import acknowledge as acknowledge
    from waybill.clusters.announcements import application_name as application_name
    from waybill.clusters.announcements import newest_announcement as newest_announcement
    from waybill.clusters.announcements import read_acknowledgements as read_acknowledgements
    from waybill.clusters.announcements import read_announced as read_announced
    from waybill.clusters.applications import PROCESS as PROCESS
    from waybill.clusters.applications import Application as Application
    from waybill.clusters.applications import ApplicationKind as ApplicationKind
    from waybill.clusters.applications import ApplicationLease as ApplicationLease
    from waybill.clusters.applications import Heartbeat as Heartbeat
    from waybill.clusters.applications import application_state as application_state
    from waybill.clusters.applications import ask_restart as ask_restart
    from waybill.clusters.applications import read_application as read_application
    from waybill.clusters.applications import read_applications as read_applications
    from waybill.clusters.applications import want_application as want_application
    from waybill.clusters.capacity import CapacityDemand as CapacityDemand
    from waybill.clusters.capacity import ClusterCapacity as ClusterCapacity
    from waybill.clusters.capacity import DryRunInfra as DryRunInfra
    from waybill.clusters.capacity import InfraCoordinator as InfraCoordinator
    from waybill.clusters.coordinator import CoordinatorReport as CoordinatorReport
    from waybill.clusters.coordinator import coordinate as coordinate
    from waybill.clusters.decisions import create_cluster as create_cluster
    from waybill.clusters.decisions import delete_cluster as delete_cluster
    from waybill.clusters.decisions import drain_cluster as drain_cluster
    from waybill.clusters.decisions import move_team as move_team
    from waybill.clusters.decisions import pin_team as pin_team
    from waybill.clusters.decisions import restart_cluster as restart_cluster
    from waybill.clusters.decisions import set_cluster as set_cluster
    from waybill.clusters.decisions import start_cluster as start_cluster
    from waybill.clusters.decisions import stop_cluster as stop_cluster
    from waybill.clusters.decisions import unpin_team as unpin_team
    from waybill.clusters.forecast import Forecast as Forecast
    from waybill.clusters.growth import GrowthPolicy as GrowthPolicy
    from waybill.clusters.growth import PartitionBacklog as PartitionBacklog
    from waybill.clusters.growth import TopicGrowth as TopicGrowth
    from waybill.clusters.growth import TopicLoad as TopicLoad
    from waybill.clusters.growth import decide_growth as decide_growth
    from waybill.clusters.history import MOST_TEAMS as MOST_TEAMS
    from waybill.clusters.history import History as History
    from waybill.clusters.history import HistorySpan as HistorySpan
    from waybill.clusters.history import cluster_history as cluster_history
    from waybill.clusters.history import team_history as team_history
    from waybill.clusters.loads import HotPartition as HotPartition
    from waybill.clusters.loads import LoadSample as LoadSample
    from waybill.clusters.loads import TopicLook as TopicLook
    from waybill.clusters.loads import team_load as team_load
    from waybill.clusters.model import DEFAULT_CLUSTER as DEFAULT_CLUSTER
    from waybill.clusters.model import NO_ASSIGNMENT as NO_ASSIGNMENT
    from waybill.clusters.model import SET_BY_WAYBILL as SET_BY_WAYBILL
    from waybill.clusters.model import Assignment as Assignment
    from waybill.clusters.model import Move as Move
    from waybill.clusters.model import Placement as Placement
    from waybill.clusters.model import TeamLoad as TeamLoad
    from waybill.clusters.model import VirtualCluster as VirtualCluster
    from waybill.clusters.packing import PackingPolicy as PackingPolicy
    from waybill.clusters.packing import assign as assign
    from waybill.clusters.packing import check_pin as check_pin
    from waybill.clusters.processes import process_identity as process_identity
    from waybill.clusters.processes import process_place as process_place
    from waybill.clusters.processes import process_state as process_state
    from waybill.clusters.records import COORDINATOR as COORDINATOR
    from waybill.clusters.records import read_capacities as read_capacities
    from waybill.clusters.records import read_clusters as read_clusters
    from waybill.clusters.records import read_consumers as read_consumers
    from waybill.clusters.records import read_topic_looks as read_topic_looks
    from waybill.clusters.request import ClusterRequest as ClusterRequest
    from waybill.clusters.request import DrainRequest as DrainRequest
    from waybill.clusters.request import PlaceRequest as PlaceRequest
    from waybill.clusters.serving import HeldConsumer as HeldConsumer
    from waybill.clusters.serving import Serving as Serving
    from waybill.clusters.serving import held_words as held_words
    from waybill.clusters.serving import serving_words as serving_words
    from waybill.clusters.status import ClusterLine as ClusterLine
    from waybill.clusters.status import ClusterStatus as ClusterStatus
    from waybill.clusters.status import cluster_status as cluster_status
    from waybill.clusters.supervision import Action as Action
    from waybill.clusters.supervision import Backend as Backend
    from waybill.clusters.supervision import Look as Look
    from waybill.clusters.supervision import Word as Word
    from waybill.clusters.supervision import decide as decide
    from waybill.clusters.supervision import needs_look as needs_look
    from waybill.clusters.supervision import supervise as supervise
    from waybill.clusters.watching import AssignmentWatcher as AssignmentWatcher
    from waybill.clusters.watching import ServedTopics as ServedTopics
    from waybill.clusters.watching import cluster_names as cluster_names
    from waybill.clusters.watching import cluster_settings as cluster_settings
    from waybill.clusters.watching import destinations_served as destinations_served
    from waybill.clusters.watching import topics_of_cluster as topics_of_cluster
    from waybill.clusters.watching import topics_served as topics_served

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "announcements": [
            "ANNOUNCED",
            "Acknowledgement",
            "acknowledge",
            "application_name",
            "newest_announcement",
            "read_acknowledgements",
            "read_announced",
        ],
        "applications": [
            "Application",
            "ApplicationKind",
            "ApplicationLease",
            "Heartbeat",
            "PROCESS",
            "application_state",
            "ask_restart",
            "read_application",
            "read_applications",
            "want_application",
        ],
        "capacity": ["CapacityDemand", "ClusterCapacity", "DryRunInfra", "InfraCoordinator"],
        "coordinator": ["CoordinatorReport", "coordinate"],
        "decisions": [
            "create_cluster",
            "delete_cluster",
            "drain_cluster",
            "move_team",
            "pin_team",
            "restart_cluster",
            "set_cluster",
            "start_cluster",
            "stop_cluster",
            "unpin_team",
        ],
        "forecast": ["Forecast"],
        "growth": [
            "GrowthPolicy",
            "PartitionBacklog",
            "TopicGrowth",
            "TopicLoad",
            "decide_growth",
        ],
        "history": [
            "History",
            "HistorySpan",
            "MOST_TEAMS",
            "cluster_history",
            "team_history",
        ],
        "loads": ["HotPartition", "LoadSample", "TopicLook", "team_load"],
        "model": [
            "Assignment",
            "DEFAULT_CLUSTER",
            "Move",
            "NO_ASSIGNMENT",
            "SET_BY_WAYBILL",
            "Placement",
            "TeamLoad",
            "VirtualCluster",
        ],
        "packing": ["PackingPolicy", "assign", "check_pin"],
        "processes": ["process_identity", "process_place", "process_state"],
        "records": [
            "COORDINATOR",
            "read_capacities",
            "read_clusters",
            "read_consumers",
            "read_topic_looks",
        ],
        "request": ["ClusterRequest", "DrainRequest", "PlaceRequest"],
        "serving": ["HeldConsumer", "Serving", "held_words", "serving_words"],
        "status": ["ClusterLine", "ClusterStatus", "cluster_status"],
        "supervision": [
            "Action",
            "Backend",
            "Look",
            "Word",
            "decide",
            "needs_look",
            "supervise",
        ],
        "watching": [
            "AssignmentWatcher",
            "ServedTopics",
            "cluster_names",
            "cluster_settings",
            "destinations_served",
            "topics_of_cluster",
            "topics_served",
        ],
    },
)
