"""The tracker's engine and tables: PostgreSQL, always.

Only this package knows how to connect and what the tables are; the packages that keep books in them
(ledger, parking) write their own statements over ``tables``.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.storage.tracker.columns import json_value as json_value
    from waybill.storage.tracker.columns import text_value as text_value
    from waybill.storage.tracker.engine import TrackerStore as TrackerStore
    from waybill.storage.tracker.engine import open_tracker as open_tracker
    from waybill.storage.tracker.notified_versions import NOTIFYING_ERRORS as NOTIFYING_ERRORS
    from waybill.storage.tracker.notified_versions import Notifications as Notifications
    from waybill.storage.tracker.notified_versions import NotifiedVersions as NotifiedVersions
    from waybill.storage.tracker.outcomes import AT_THE_DESTINATION as AT_THE_DESTINATION
    from waybill.storage.tracker.outcomes import COPY as COPY
    from waybill.storage.tracker.outcomes import HELD_AGAIN as HELD_AGAIN
    from waybill.storage.tracker.outcomes import add_outcomes as add_outcomes
    from waybill.storage.tracker.outcomes import parked_before as parked_before
    from waybill.storage.tracker.tables import COUNT_COLUMNS as COUNT_COLUMNS
    from waybill.storage.tracker.tables import applications as applications
    from waybill.storage.tracker.tables import audit_log as audit_log
    from waybill.storage.tracker.tables import audit_seals as audit_seals
    from waybill.storage.tracker.tables import auto_replays as auto_replays
    from waybill.storage.tracker.tables import batches as batches
    from waybill.storage.tracker.tables import campaign_groups as campaign_groups
    from waybill.storage.tracker.tables import campaigns as campaigns
    from waybill.storage.tracker.tables import capacity_acks as capacity_acks
    from waybill.storage.tracker.tables import capacity_nodes as capacity_nodes
    from waybill.storage.tracker.tables import capacity_rounds as capacity_rounds
    from waybill.storage.tracker.tables import capacity_thresholds as capacity_thresholds
    from waybill.storage.tracker.tables import capacity_versions as capacity_versions
    from waybill.storage.tracker.tables import cluster_assignments as cluster_assignments
    from waybill.storage.tracker.tables import cluster_loads as cluster_loads
    from waybill.storage.tracker.tables import cluster_pins as cluster_pins
    from waybill.storage.tracker.tables import commit_sequences as commit_sequences
    from waybill.storage.tracker.tables import connector_positions as connector_positions
    from waybill.storage.tracker.tables import consumers as consumers
    from waybill.storage.tracker.tables import cursor_resets as cursor_resets
    from waybill.storage.tracker.tables import deployment as deployment
    from waybill.storage.tracker.tables import destination_rewinds as destination_rewinds
    from waybill.storage.tracker.tables import destination_states as destination_states
    from waybill.storage.tracker.tables import ledger as ledger
    from waybill.storage.tracker.tables import load_positions as load_positions
    from waybill.storage.tracker.tables import loaded_tables as loaded_tables
    from waybill.storage.tracker.tables import mapping_versions as mapping_versions
    from waybill.storage.tracker.tables import notices as notices
    from waybill.storage.tracker.tables import parked_objects as parked_objects
    from waybill.storage.tracker.tables import parked_partitions as parked_partitions
    from waybill.storage.tracker.tables import pipeline_holds as pipeline_holds
    from waybill.storage.tracker.tables import pipeline_versions as pipeline_versions
    from waybill.storage.tracker.tables import pipelines as pipelines
    from waybill.storage.tracker.tables import refused_messages as refused_messages
    from waybill.storage.tracker.tables import replay_outcomes as replay_outcomes
    from waybill.storage.tracker.tables import replays as replays
    from waybill.storage.tracker.tables import segments as segments
    from waybill.storage.tracker.tables import staged_objects as staged_objects
    from waybill.storage.tracker.tables import task_waits as task_waits
    from waybill.storage.tracker.tables import team_loads as team_loads
    from waybill.storage.tracker.tables import topic_generations as topic_generations
    from waybill.storage.tracker.tables import topic_looks as topic_looks
    from waybill.storage.tracker.tables import topic_offsets as topic_offsets
    from waybill.storage.tracker.tables import topic_stops as topic_stops
    from waybill.storage.tracker.tables import trace_queries as trace_queries
    from waybill.storage.tracker.tables import undeployments as undeployments
    from waybill.storage.tracker.tables import upkeep_jobs as upkeep_jobs
    from waybill.storage.tracker.tables import virtual_clusters as virtual_clusters

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "columns": ["json_value", "text_value"],
        "engine": ["TrackerStore", "open_tracker"],
        "notified_versions": ["NOTIFYING_ERRORS", "Notifications", "NotifiedVersions"],
        "outcomes": ["AT_THE_DESTINATION", "COPY", "HELD_AGAIN", "add_outcomes", "parked_before"],
        "tables": [
            "COUNT_COLUMNS",
            "applications",
            "audit_log",
            "audit_seals",
            "auto_replays",
            "batches",
            "campaign_groups",
            "campaigns",
            "capacity_acks",
            "capacity_nodes",
            "capacity_rounds",
            "capacity_thresholds",
            "capacity_versions",
            "cluster_assignments",
            "cluster_loads",
            "cluster_pins",
            "commit_sequences",
            "connector_positions",
            "consumers",
            "cursor_resets",
            "deployment",
            "destination_rewinds",
            "destination_states",
            "ledger",
            "load_positions",
            "loaded_tables",
            "mapping_versions",
            "notices",
            "parked_objects",
            "parked_partitions",
            "pipeline_holds",
            "pipeline_versions",
            "undeployments",
            "pipelines",
            "refused_messages",
            "replay_outcomes",
            "replays",
            "segments",
            "staged_objects",
            "task_waits",
            "team_loads",
            "topic_looks",
            "topic_generations",
            "topic_offsets",
            "topic_stops",
            "trace_queries",
            "upkeep_jobs",
            "virtual_clusters",
        ],
    },
)
