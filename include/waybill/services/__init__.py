"""Wiring: opens what a use case stands on from the settings, runs it, closes everything.

The CLI, the Airflow operators and tests call these; nothing here decides anything.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.services.applications import ProcessBackend as ProcessBackend
    from waybill.services.applications import application_last_words as application_last_words
    from waybill.services.applications import application_script as application_script
    from waybill.services.applications import application_status as application_status
    from waybill.services.applications import start_application as start_application
    from waybill.services.applications import stop_application as stop_application
    from waybill.services.applications import supervise_application as supervise_application
    from waybill.services.audit_log import seal_audit_log as seal_audit_log
    from waybill.services.audit_log import verify_audit_log as verify_audit_log
    from waybill.services.bucket import BucketReport as BucketReport
    from waybill.services.bucket import bucket_owner as bucket_owner
    from waybill.services.bucket import claim_bucket as claim_bucket
    from waybill.services.campaigns import advance_campaign as advance_campaign
    from waybill.services.campaigns import await_campaign as await_campaign
    from waybill.services.campaigns import campaign_groups as campaign_groups
    from waybill.services.campaigns import campaign_of_run as campaign_of_run
    from waybill.services.campaigns import campaign_results as campaign_results
    from waybill.services.campaigns import cancel_campaign as cancel_campaign
    from waybill.services.campaigns import dry_run_campaign as dry_run_campaign
    from waybill.services.campaigns import entry_problems as entry_problems
    from waybill.services.campaigns import foresee_campaign as foresee_campaign
    from waybill.services.campaigns import freeze_campaign as freeze_campaign
    from waybill.services.campaigns import has_open_campaigns as has_open_campaigns
    from waybill.services.campaigns import note_failed_replay as note_failed_replay
    from waybill.services.campaigns import pause_campaign as pause_campaign
    from waybill.services.campaigns import replay_campaign as replay_campaign
    from waybill.services.campaigns import replay_campaigns as replay_campaigns
    from waybill.services.campaigns import resume_campaign as resume_campaign
    from waybill.services.capacity import capacity_status as capacity_status
    from waybill.services.capacity import measure_delays as measure_delays
    from waybill.services.capacity import run_enhancer as run_enhancer
    from waybill.services.capacity import scale_nodes as scale_nodes
    from waybill.services.capacity import share_slots as share_slots
    from waybill.services.clusters import cluster_status as cluster_status
    from waybill.services.clusters import create_cluster as create_cluster
    from waybill.services.clusters import delete_cluster as delete_cluster
    from waybill.services.clusters import drain_cluster as drain_cluster
    from waybill.services.clusters import move_team as move_team
    from waybill.services.clusters import other_clusters as other_clusters
    from waybill.services.clusters import pin_team as pin_team
    from waybill.services.clusters import restart_cluster as restart_cluster
    from waybill.services.clusters import run_coordinator as run_coordinator
    from waybill.services.clusters import set_cluster as set_cluster
    from waybill.services.clusters import start_cluster as start_cluster
    from waybill.services.clusters import stop_cluster as stop_cluster
    from waybill.services.clusters import unpin_team as unpin_team
    from waybill.services.collector import run_collector as run_collector
    from waybill.services.dag_health import DagHealth as DagHealth
    from waybill.services.dag_health import DagWork as DagWork
    from waybill.services.dag_health import stream_dag as stream_dag
    from waybill.services.dag_health import work_health as work_health
    from waybill.services.deployments import VersionDiff as VersionDiff
    from waybill.services.deployments import active_beside as active_beside
    from waybill.services.deployments import deploy_history as deploy_history
    from waybill.services.deployments import past_undeployments as past_undeployments
    from waybill.services.deployments import run_deploy as run_deploy
    from waybill.services.deployments import run_rollback as run_rollback
    from waybill.services.deployments import version_diff as version_diff
    from waybill.services.destination_queries import Shell as Shell
    from waybill.services.destination_queries import destination_shell as destination_shell
    from waybill.services.destination_queries import query_destination as query_destination
    from waybill.services.destination_request import DestinationRequest as DestinationRequest
    from waybill.services.destination_settings import DestinationChange as DestinationChange
    from waybill.services.destination_settings import add_destination as add_destination
    from waybill.services.destination_settings import change_destination as change_destination
    from waybill.services.destination_settings import remove_destination as remove_destination
    from waybill.services.environment import current_user as current_user
    from waybill.services.environment import migrate as migrate
    from waybill.services.environment import opened_parked_events as opened_parked_events
    from waybill.services.environment import opened_parking as opened_parking
    from waybill.services.ingestion import AskedRun as AskedRun
    from waybill.services.ingestion import IngestProgress as IngestProgress
    from waybill.services.ingestion import check_values as check_values
    from waybill.services.ingestion import deployed_names as deployed_names
    from waybill.services.ingestion import deployed_pipeline as deployed_pipeline
    from waybill.services.ingestion import deployed_pipelines as deployed_pipelines
    from waybill.services.ingestion import ingest_progress as ingest_progress
    from waybill.services.ingestion import ingestible_pipeline as ingestible_pipeline
    from waybill.services.ingestion import run_ingest as run_ingest
    from waybill.services.ingestion import settle_log as settle_log
    from waybill.services.ingestion import tables_loaded_by as tables_loaded_by
    from waybill.services.ingestion import write_ahead_log as write_ahead_log
    from waybill.services.ingestion import write_ahead_logs as write_ahead_logs
    from waybill.services.kafka_access import KafkaAccess as KafkaAccess
    from waybill.services.kafka_access import apply_kafka_rules as apply_kafka_rules
    from waybill.services.kafka_access import show_kafka_rules as show_kafka_rules
    from waybill.services.loading import check_destination as check_destination
    from waybill.services.loading import destinations as destinations
    from waybill.services.loading import lost_object_ids as lost_object_ids
    from waybill.services.loading import lost_objects as lost_objects
    from waybill.services.loading import park_destination as park_destination
    from waybill.services.loading import recover_lost_objects as recover_lost_objects
    from waybill.services.loading import rewound_destinations as rewound_destinations
    from waybill.services.loading import settle_destination as settle_destination
    from waybill.services.loading import settle_lost_objects as settle_lost_objects
    from waybill.services.loading import unpark_destination as unpark_destination
    from waybill.services.loading import waiting_destinations as waiting_destinations
    from waybill.services.mappings import infer_mappings as infer_mappings
    from waybill.services.mappings import mapping_differences as mapping_differences
    from waybill.services.mappings import shown_mappings as shown_mappings
    from waybill.services.mappings import write_examples as write_examples
    from waybill.services.mappings import write_mappings as write_mappings
    from waybill.services.parked_events import clean_up_parked_files as clean_up_parked_files
    from waybill.services.parked_events import due_auto_replays as due_auto_replays
    from waybill.services.parked_events import ended_replays as ended_replays
    from waybill.services.parked_events import held_to_replay as held_to_replay
    from waybill.services.parked_events import keep_auto_replays as keep_auto_replays
    from waybill.services.parked_events import lost_parked as lost_parked
    from waybill.services.parked_events import lost_parked_ids as lost_parked_ids
    from waybill.services.parked_events import parked_partitions as parked_partitions
    from waybill.services.parked_events import probe_held_pipelines as probe_held_pipelines
    from waybill.services.parked_events import recheck_quarantine as recheck_quarantine
    from waybill.services.parked_events import recover_lost_parked as recover_lost_parked
    from waybill.services.parked_events import refresh_tracker as refresh_tracker
    from waybill.services.parked_events import send_notices as send_notices
    from waybill.services.parked_events import send_test_notice as send_test_notice
    from waybill.services.parked_events import sent_notices as sent_notices
    from waybill.services.parked_events import set_auto_replay as set_auto_replay
    from waybill.services.parked_events import waiting_notices as waiting_notices
    from waybill.services.pipeline_trial import DeepCheck as DeepCheck
    from waybill.services.pipeline_trial import TrialFailedError as TrialFailedError
    from waybill.services.pipeline_trial import deep_check as deep_check
    from waybill.services.reconciliation import audit_round as audit_round
    from waybill.services.reconciliation import balance as balance
    from waybill.services.reconciliation import breach as breach
    from waybill.services.reconciliation import breaches as breaches
    from waybill.services.reconciliation import close_breach as close_breach
    from waybill.services.reconciliation import compact_traces as compact_traces
    from waybill.services.reconciliation import name_breaches as name_breaches
    from waybill.services.reconciliation import run_audit as run_audit
    from waybill.services.reconciliation import tell_task_failed as tell_task_failed
    from waybill.services.reconciliation import trace_table_updates as trace_table_updates
    from waybill.services.reconciliation import trace_tables as trace_tables
    from waybill.services.reconciliation import watch as watch
    from waybill.services.replay import replay_outcome as replay_outcome
    from waybill.services.replay import replayable as replayable
    from waybill.services.replay import run_dry_run as run_dry_run
    from waybill.services.replay import run_replay as run_replay
    from waybill.services.replay import run_replay_batch as run_replay_batch
    from waybill.services.retention import apply_retention as apply_retention
    from waybill.services.retention import retention_failed as retention_failed
    from waybill.services.retention import retention_rules as retention_rules
    from waybill.services.servers import ServerAnswer as ServerAnswer
    from waybill.services.servers import ask_servers as ask_servers
    from waybill.services.source_addresses import closed_sources as closed_sources
    from waybill.services.sources import discover_source as discover_source
    from waybill.services.sources import source_kinds as source_kinds
    from waybill.services.sources import source_status as source_status
    from waybill.services.sources import stop_source as stop_source
    from waybill.services.sources import try_source as try_source
    from waybill.services.topics import ask_rereads as ask_rereads
    from waybill.services.topics import configure_topic as configure_topic
    from waybill.services.topics import grow_topic as grow_topic
    from waybill.services.topics import plan_growth as plan_growth
    from waybill.services.topics import settle_topic as settle_topic
    from waybill.services.topics import settlement as settlement
    from waybill.services.topics import stopped_topics as stopped_topics
    from waybill.services.topics import topic_config_faults as topic_config_faults
    from waybill.services.topics import topic_lines as topic_lines
    from waybill.services.trails import opened_trails as opened_trails
    from waybill.services.undeployment import UndeployReport as UndeployReport
    from waybill.services.undeployment import UndeployWatch as UndeployWatch
    from waybill.services.undeployment import finish_drops as finish_drops
    from waybill.services.undeployment import run_undeploy as run_undeploy
    from waybill.services.undeployment import undeployable as undeployable
    from waybill.services.upkeep import UpkeepParts as UpkeepParts
    from waybill.services.upkeep import pause_job as pause_job
    from waybill.services.upkeep import resume_job as resume_job
    from waybill.services.upkeep import run_upkeep as run_upkeep
    from waybill.services.upkeep import run_upkeep_job as run_upkeep_job
    from waybill.services.upkeep import upkeep_jobs as upkeep_jobs

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "applications": [
            "ProcessBackend",
            "application_last_words",
            "application_script",
            "application_status",
            "start_application",
            "stop_application",
            "supervise_application",
        ],
        "audit_log": ["seal_audit_log", "verify_audit_log"],
        "bucket": ["BucketReport", "bucket_owner", "claim_bucket"],
        "campaigns": [
            "advance_campaign",
            "await_campaign",
            "campaign_groups",
            "campaign_of_run",
            "campaign_results",
            "cancel_campaign",
            "dry_run_campaign",
            "entry_problems",
            "foresee_campaign",
            "freeze_campaign",
            "note_failed_replay",
            "has_open_campaigns",
            "pause_campaign",
            "replay_campaign",
            "replay_campaigns",
            "resume_campaign",
        ],
        "capacity": [
            "capacity_status",
            "measure_delays",
            "run_enhancer",
            "scale_nodes",
            "share_slots",
        ],
        "clusters": [
            "cluster_status",
            "create_cluster",
            "delete_cluster",
            "drain_cluster",
            "move_team",
            "other_clusters",
            "pin_team",
            "restart_cluster",
            "run_coordinator",
            "set_cluster",
            "start_cluster",
            "stop_cluster",
            "unpin_team",
        ],
        "collector": ["run_collector"],
        "dag_health": ["DagHealth", "DagWork", "stream_dag", "work_health"],
        "deployments": [
            "VersionDiff",
            "active_beside",
            "deploy_history",
            "past_undeployments",
            "run_deploy",
            "run_rollback",
            "version_diff",
        ],
        "destination_queries": ["Shell", "destination_shell", "query_destination"],
        "destination_request": ["DestinationRequest"],
        "destination_settings": [
            "DestinationChange",
            "add_destination",
            "change_destination",
            "remove_destination",
        ],
        "environment": ["current_user", "migrate", "opened_parked_events", "opened_parking"],
        "ingestion": [
            "AskedRun",
            "IngestProgress",
            "ingest_progress",
            "deployed_names",
            "check_values",
            "deployed_pipeline",
            "deployed_pipelines",
            "ingestible_pipeline",
            "run_ingest",
            "settle_log",
            "tables_loaded_by",
            "write_ahead_log",
            "write_ahead_logs",
        ],
        "kafka_access": ["KafkaAccess", "apply_kafka_rules", "show_kafka_rules"],
        "loading": [
            "check_destination",
            "destinations",
            "lost_object_ids",
            "lost_objects",
            "park_destination",
            "recover_lost_objects",
            "rewound_destinations",
            "settle_destination",
            "settle_lost_objects",
            "unpark_destination",
            "waiting_destinations",
        ],
        "mappings": [
            "infer_mappings",
            "mapping_differences",
            "shown_mappings",
            "write_examples",
            "write_mappings",
        ],
        "parked_events": [
            "clean_up_parked_files",
            "due_auto_replays",
            "ended_replays",
            "held_to_replay",
            "keep_auto_replays",
            "lost_parked",
            "lost_parked_ids",
            "parked_partitions",
            "probe_held_pipelines",
            "recheck_quarantine",
            "recover_lost_parked",
            "refresh_tracker",
            "send_notices",
            "send_test_notice",
            "set_auto_replay",
            "sent_notices",
            "waiting_notices",
        ],
        "pipeline_trial": ["DeepCheck", "TrialFailedError", "deep_check"],
        "reconciliation": [
            "audit_round",
            "balance",
            "breach",
            "breaches",
            "close_breach",
            "compact_traces",
            "name_breaches",
            "run_audit",
            "tell_task_failed",
            "trace_table_updates",
            "trace_tables",
            "watch",
        ],
        "replay": [
            "replay_outcome",
            "replayable",
            "run_dry_run",
            "run_replay",
            "run_replay_batch",
        ],
        "retention": ["apply_retention", "retention_failed", "retention_rules"],
        "servers": ["ServerAnswer", "ask_servers"],
        "source_addresses": ["closed_sources"],
        "sources": [
            "discover_source",
            "source_kinds",
            "source_status",
            "stop_source",
            "try_source",
        ],
        "topics": [
            "ask_rereads",
            "configure_topic",
            "grow_topic",
            "plan_growth",
            "settle_topic",
            "settlement",
            "stopped_topics",
            "topic_config_faults",
            "topic_lines",
        ],
        "trails": ["opened_trails"],
        "undeployment": [
            "UndeployReport",
            "UndeployWatch",
            "finish_drops",
            "run_undeploy",
            "undeployable",
        ],
        "upkeep": [
            "UpkeepParts",
            "pause_job",
            "resume_job",
            "run_upkeep",
            "run_upkeep_job",
            "upkeep_jobs",
        ],
    },
)
