"""The ledger: the books, and the commit point of everything that moves.

Invariants
  I1  A micro-batch takes effect in one transaction, or not at all.
  I2  Each topic partition moves from exactly the offset where it stood (compare-and-set), under the
      consumer's lease epoch; so does a destination's load position and a connector's cursor.
  I3  Commit numbers are dense per destination and become visible in order.
  I4  Counts come from records; a ledger row is written once per (reference, pipeline).
  I5  A commit whose answer was lost is read back by its own identity before it is tried again.
  I6  A message that Kafka refused is parked, and counted, once per (write-ahead log, lsn).
  I7  What comes in of a replay is counted by replay too, in the transaction that takes it in, and
      so is what its marks name, in the one that marks it.
  I8  A source is read under one log's lease, which each page's transaction checks; its cursor
      follows delivery: what it passed is in Kafka, or parked.
  I9  Below its intake watermark a pipeline's minutes are whole: counted, and in Kafka or parked.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.ledger.balance import LOST as LOST
    from waybill.ledger.balance import BalanceRow as BalanceRow
    from waybill.ledger.balance import MinuteKey as MinuteKey
    from waybill.ledger.balance import ParkedEvents as ParkedEvents
    from waybill.ledger.balance import StageCounts as StageCounts
    from waybill.ledger.balance import add_in_flight as add_in_flight
    from waybill.ledger.balance import add_lost_in_flight as add_lost_in_flight
    from waybill.ledger.balance import begin_snapshot as begin_snapshot
    from waybill.ledger.balance import fold as fold
    from waybill.ledger.balance import read_balance as read_balance
    from waybill.ledger.balance import read_books as read_books
    from waybill.ledger.balance import read_lost_in_flight as read_lost_in_flight
    from waybill.ledger.balance import read_minutes as read_minutes
    from waybill.ledger.balance import read_parked as read_parked
    from waybill.ledger.balance import read_staged as read_staged
    from waybill.ledger.balance import read_totals as read_totals
    from waybill.ledger.collector_logs import CollectedPage as CollectedPage
    from waybill.ledger.collector_logs import LogMinute as LogMinute
    from waybill.ledger.collector_logs import OpenedLog as OpenedLog
    from waybill.ledger.collector_logs import close_collector_log as close_collector_log
    from waybill.ledger.collector_logs import commit_collected as commit_collected
    from waybill.ledger.collector_logs import open_collector_log as open_collector_log
    from waybill.ledger.commit import STAGED as STAGED
    from waybill.ledger.commit import BatchCommit as BatchCommit
    from waybill.ledger.commit import FencedError as FencedError
    from waybill.ledger.commit import LoadCommit as LoadCommit
    from waybill.ledger.commit import OffsetRange as OffsetRange
    from waybill.ledger.commit import OffsetsMovedError as OffsetsMovedError
    from waybill.ledger.commit import PackedCounts as PackedCounts
    from waybill.ledger.commit import StagedObject as StagedObject
    from waybill.ledger.commit import check_lease as check_lease
    from waybill.ledger.commit import commit_batch as commit_batch
    from waybill.ledger.commit import commit_load as commit_load
    from waybill.ledger.commit import last_commit_of_topic as last_commit_of_topic
    from waybill.ledger.commit import next_commit_number as next_commit_number
    from waybill.ledger.commit import tell_staged as tell_staged
    from waybill.ledger.commit import write_copies as write_copies
    from waybill.ledger.commit import write_counts as write_counts
    from waybill.ledger.commit import write_replayed_earlier as write_replayed_earlier
    from waybill.ledger.generations import LogBefore as LogBefore
    from waybill.ledger.generations import TopicGeneration as TopicGeneration
    from waybill.ledger.generations import all_generations as all_generations
    from waybill.ledger.generations import end_generation as end_generation
    from waybill.ledger.generations import ended_at as ended_at
    from waybill.ledger.generations import flip_generation as flip_generation
    from waybill.ledger.generations import follow_generation as follow_generation
    from waybill.ledger.generations import generation_of_log as generation_of_log
    from waybill.ledger.generations import generations_of as generations_of
    from waybill.ledger.generations import is_drained as is_drained
    from waybill.ledger.generations import is_left as is_left
    from waybill.ledger.generations import live_names as live_names
    from waybill.ledger.generations import lock_generations as lock_generations
    from waybill.ledger.generations import mark_deleted as mark_deleted
    from waybill.ledger.generations import names_that_exist as names_that_exist
    from waybill.ledger.generations import note_partitions as note_partitions
    from waybill.ledger.generations import reading_generation as reading_generation
    from waybill.ledger.generations import refuse_when_left_behind as refuse_when_left_behind
    from waybill.ledger.generations import writing_generation as writing_generation
    from waybill.ledger.generations import writing_name as writing_name
    from waybill.ledger.intake import CursorReset as CursorReset
    from waybill.ledger.intake import IntakeCommit as IntakeCommit
    from waybill.ledger.intake import Position as Position
    from waybill.ledger.intake import Refusal as Refusal
    from waybill.ledger.intake import ask_reread as ask_reread
    from waybill.ledger.intake import begin_position as begin_position
    from waybill.ledger.intake import commit_intake as commit_intake
    from waybill.ledger.intake import commit_refusal as commit_refusal
    from waybill.ledger.intake import is_reset as is_reset
    from waybill.ledger.intake import knows_refusal as knows_refusal
    from waybill.ledger.intake import note_run as note_run
    from waybill.ledger.intake import read_position as read_position
    from waybill.ledger.intake import refused_lsns as refused_lsns
    from waybill.ledger.positions import WAITING_COUNTS as WAITING_COUNTS
    from waybill.ledger.positions import BatchProgress as BatchProgress
    from waybill.ledger.positions import ConsumerProgress as ConsumerProgress
    from waybill.ledger.positions import LastRead as LastRead
    from waybill.ledger.positions import StagedReference as StagedReference
    from waybill.ledger.positions import StagedSum as StagedSum
    from waybill.ledger.positions import TopicPosition as TopicPosition
    from waybill.ledger.positions import acquire_lease as acquire_lease
    from waybill.ledger.positions import commit_age_s as commit_age_s
    from waybill.ledger.positions import committed as committed
    from waybill.ledger.positions import consumer_progress as consumer_progress
    from waybill.ledger.positions import last_commit_number as last_commit_number
    from waybill.ledger.positions import lease_holder as lease_holder
    from waybill.ledger.positions import load_position as load_position
    from waybill.ledger.positions import read_positions as read_positions
    from waybill.ledger.positions import release_lease as release_lease
    from waybill.ledger.positions import staged_after as staged_after
    from waybill.ledger.positions import staged_references as staged_references
    from waybill.ledger.positions import staged_sums as staged_sums
    from waybill.ledger.positions import topic_positions as topic_positions
    from waybill.ledger.positions import unloaded_commits as unloaded_commits
    from waybill.ledger.positions import waiting_asked as waiting_asked
    from waybill.ledger.replay_entries import ReplayEntry as ReplayEntry
    from waybill.ledger.replay_entries import add_entries as add_entries
    from waybill.ledger.replay_entries import count_entries as count_entries
    from waybill.ledger.source_runs import SILENT_S as SILENT_S
    from waybill.ledger.source_runs import WAITS_FOR as WAITS_FOR
    from waybill.ledger.source_runs import AskedOfRun as AskedOfRun
    from waybill.ledger.source_runs import RunFigures as RunFigures
    from waybill.ledger.source_runs import SlotUser as SlotUser
    from waybill.ledger.source_runs import SourceFilter as SourceFilter
    from waybill.ledger.source_runs import SourceLine as SourceLine
    from waybill.ledger.source_runs import SourcePage as SourcePage
    from waybill.ledger.source_runs import SourceState as SourceState
    from waybill.ledger.source_runs import any_run as any_run
    from waybill.ledger.source_runs import ask_leave as ask_leave
    from waybill.ledger.source_runs import ask_stop as ask_stop
    from waybill.ledger.source_runs import begin_run as begin_run
    from waybill.ledger.source_runs import end_run as end_run
    from waybill.ledger.source_runs import end_wait as end_wait
    from waybill.ledger.source_runs import last_turns as last_turns
    from waybill.ledger.source_runs import read_slot_users as read_slot_users
    from waybill.ledger.source_runs import read_sources as read_sources
    from waybill.ledger.source_runs import resume_run as resume_run
    from waybill.ledger.source_runs import source_state as source_state
    from waybill.ledger.source_runs import tell_run as tell_run
    from waybill.ledger.source_runs import wait_run as wait_run
    from waybill.ledger.table_loads import TableLoad as TableLoad
    from waybill.ledger.table_loads import TableLoads as TableLoads
    from waybill.ledger.table_loads import TableName as TableName
    from waybill.ledger.watermarks import IntakeWatermark as IntakeWatermark
    from waybill.ledger.watermarks import PageMark as PageMark
    from waybill.ledger.watermarks import read_watermarks as read_watermarks
    from waybill.ledger.write_ahead_logs import HeldRecords as HeldRecords
    from waybill.ledger.write_ahead_logs import LogElsewhereError as LogElsewhereError
    from waybill.ledger.write_ahead_logs import LogIdentity as LogIdentity
    from waybill.ledger.write_ahead_logs import LogLine as LogLine
    from waybill.ledger.write_ahead_logs import LogProgress as LogProgress
    from waybill.ledger.write_ahead_logs import ReplacedLog as ReplacedLog
    from waybill.ledger.write_ahead_logs import SourceLease as SourceLease
    from waybill.ledger.write_ahead_logs import claim_source as claim_source
    from waybill.ledger.write_ahead_logs import close_source as close_source
    from waybill.ledger.write_ahead_logs import count_copies as count_copies
    from waybill.ledger.write_ahead_logs import end_log as end_log
    from waybill.ledger.write_ahead_logs import has_ended as has_ended
    from waybill.ledger.write_ahead_logs import open_source as open_source
    from waybill.ledger.write_ahead_logs import read_logs as read_logs
    from waybill.ledger.write_ahead_logs import register_log as register_log
    from waybill.ledger.write_ahead_logs import release_source as release_source
    from waybill.ledger.write_ahead_logs import replaced_log as replaced_log
    from waybill.ledger.write_ahead_logs import replaced_logs as replaced_logs
    from waybill.ledger.write_ahead_logs import settle_log as settle_log
    from waybill.ledger.write_ahead_logs import tell_log as tell_log
    from waybill.ledger.write_ahead_logs import tell_progress as tell_progress

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "balance": [
            "BalanceRow",
            "LOST",
            "MinuteKey",
            "ParkedEvents",
            "StageCounts",
            "add_in_flight",
            "add_lost_in_flight",
            "begin_snapshot",
            "fold",
            "read_balance",
            "read_books",
            "read_lost_in_flight",
            "read_minutes",
            "read_parked",
            "read_staged",
            "read_totals",
        ],
        "commit": [
            "BatchCommit",
            "FencedError",
            "LoadCommit",
            "OffsetRange",
            "OffsetsMovedError",
            "PackedCounts",
            "STAGED",
            "StagedObject",
            "check_lease",
            "commit_batch",
            "commit_load",
            "last_commit_of_topic",
            "next_commit_number",
            "tell_staged",
            "write_copies",
            "write_counts",
            "write_replayed_earlier",
        ],
        "generations": [
            "LogBefore",
            "TopicGeneration",
            "all_generations",
            "end_generation",
            "ended_at",
            "flip_generation",
            "follow_generation",
            "generation_of_log",
            "generations_of",
            "is_drained",
            "is_left",
            "live_names",
            "lock_generations",
            "mark_deleted",
            "names_that_exist",
            "note_partitions",
            "reading_generation",
            "refuse_when_left_behind",
            "writing_generation",
            "writing_name",
        ],
        "intake": [
            "IntakeCommit",
            "Position",
            "Refusal",
            "CursorReset",
            "ask_reread",
            "begin_position",
            "commit_intake",
            "commit_refusal",
            "is_reset",
            "knows_refusal",
            "note_run",
            "read_position",
            "refused_lsns",
        ],
        "positions": [
            "BatchProgress",
            "ConsumerProgress",
            "LastRead",
            "StagedReference",
            "StagedSum",
            "TopicPosition",
            "WAITING_COUNTS",
            "acquire_lease",
            "commit_age_s",
            "committed",
            "consumer_progress",
            "last_commit_number",
            "lease_holder",
            "load_position",
            "read_positions",
            "release_lease",
            "staged_after",
            "staged_references",
            "staged_sums",
            "topic_positions",
            "unloaded_commits",
            "waiting_asked",
        ],
        "replay_entries": ["ReplayEntry", "add_entries", "count_entries"],
        "source_runs": [
            "SILENT_S",
            "WAITS_FOR",
            "AskedOfRun",
            "RunFigures",
            "SlotUser",
            "SourceFilter",
            "SourceLine",
            "SourcePage",
            "SourceState",
            "any_run",
            "ask_leave",
            "ask_stop",
            "begin_run",
            "end_run",
            "end_wait",
            "last_turns",
            "read_slot_users",
            "read_sources",
            "resume_run",
            "source_state",
            "tell_run",
            "wait_run",
        ],
        "table_loads": ["TableLoad", "TableLoads", "TableName"],
        "collector_logs": [
            "CollectedPage",
            "LogMinute",
            "OpenedLog",
            "close_collector_log",
            "commit_collected",
            "open_collector_log",
        ],
        "watermarks": ["IntakeWatermark", "PageMark", "read_watermarks"],
        "write_ahead_logs": [
            "HeldRecords",
            "LogElsewhereError",
            "LogIdentity",
            "LogLine",
            "LogProgress",
            "ReplacedLog",
            "SourceLease",
            "claim_source",
            "close_source",
            "count_copies",
            "end_log",
            "has_ended",
            "open_source",
            "read_logs",
            "register_log",
            "release_source",
            "replaced_log",
            "replaced_logs",
            "settle_log",
            "tell_log",
            "tell_progress",
        ],
    },
)
