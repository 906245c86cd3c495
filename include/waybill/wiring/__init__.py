"""Wiring: opens what a use case stands on from the settings, runs it, closes everything.

The CLI, the Airflow operators and tests call these; nothing here decides anything.
"""

from waybill.wiring.auditing import (
    audit_round,
    breach,
    breaches,
    close_breach,
    name_breaches,
    run_audit,
    tell_audit_failed,
)
from waybill.wiring.books import (
    balance,
    compact_traces,
    trace_tables,
)
from waybill.wiring.bucket import bucket_owner, claim_bucket
from waybill.wiring.destinations import (
    check_destination,
    destinations,
    lost_object_ids,
    lost_objects,
    park_destination,
    recover_lost_objects,
    rewound_destinations,
    settle_destination,
    settle_lost_objects,
    unpark_destination,
    waiting_destinations,
)
from waybill.wiring.intake import (
    deployed_pipelines,
    run_deploy,
    run_ingest,
)
from waybill.wiring.logs import (
    settle_log,
    write_ahead_log,
    write_ahead_logs,
)
from waybill.wiring.mappings import (
    infer_mappings,
    mapping_differences,
    shown_mappings,
    write_mappings,
)
from waybill.wiring.opening import (
    current_user,
    migrate,
    opened_desk,
    opened_parking,
)
from waybill.wiring.parked import (
    clean_up_parked_files,
    due_auto_replays,
    ended_replays,
    held_pipelines,
    keep_auto_replays,
    lost_parked,
    lost_parked_ids,
    parked_partitions,
    probe_held_pipelines,
    recheck_quarantine,
    recover_lost_parked,
    refresh_tracker,
    send_notices,
    send_test_notice,
    set_auto_replay,
    waiting_notices,
)
from waybill.wiring.replays import (
    replay_outcome,
    replayable,
    run_dry_run,
    run_replay,
)
from waybill.wiring.running import (
    application_last_words,
    application_status,
    start_application,
    stop_application,
)
from waybill.wiring.topics import (
    ask_rereads,
    configure_topic,
    settle_topic,
    settlement,
    stopped_topics,
    topic_config_faults,
    topic_lines,
)
from waybill.wiring.trails import (
    opened_trails,
)
from waybill.wiring.watching import watch

__all__ = [
    "application_last_words",
    "application_status",
    "ask_rereads",
    "audit_round",
    "balance",
    "breach",
    "breaches",
    "bucket_owner",
    "check_destination",
    "claim_bucket",
    "clean_up_parked_files",
    "close_breach",
    "compact_traces",
    "configure_topic",
    "current_user",
    "deployed_pipelines",
    "destinations",
    "due_auto_replays",
    "ended_replays",
    "held_pipelines",
    "infer_mappings",
    "keep_auto_replays",
    "lost_object_ids",
    "lost_objects",
    "lost_parked",
    "lost_parked_ids",
    "mapping_differences",
    "migrate",
    "name_breaches",
    "opened_desk",
    "opened_parking",
    "opened_trails",
    "park_destination",
    "parked_partitions",
    "probe_held_pipelines",
    "recheck_quarantine",
    "recover_lost_objects",
    "recover_lost_parked",
    "refresh_tracker",
    "replay_outcome",
    "replayable",
    "rewound_destinations",
    "run_audit",
    "run_deploy",
    "run_dry_run",
    "run_ingest",
    "run_replay",
    "send_notices",
    "send_test_notice",
    "set_auto_replay",
    "settle_destination",
    "settle_log",
    "settle_lost_objects",
    "settle_topic",
    "settlement",
    "shown_mappings",
    "start_application",
    "stop_application",
    "stopped_topics",
    "tell_audit_failed",
    "topic_config_faults",
    "topic_lines",
    "trace_tables",
    "unpark_destination",
    "waiting_destinations",
    "waiting_notices",
    "watch",
    "write_ahead_log",
    "write_ahead_logs",
    "write_mappings",
]
