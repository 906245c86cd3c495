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

from waybill.ledger.balance import BalanceRow, ParkedEvents, StageCounts, fold, read_balance
from waybill.ledger.commit import (
    BatchCommit,
    FencedError,
    LoadCommit,
    OffsetRange,
    OffsetsMovedError,
    commit_batch,
    commit_load,
    write_replayed_earlier,
)
from waybill.ledger.intake import (
    IntakeCommit,
    Position,
    ask_reread,
    begin_position,
    commit_intake,
    note_run,
    read_position,
)
from waybill.ledger.positions import (
    LastRead,
    TopicPosition,
    acquire_lease,
    committed,
    committed_batches,
    last_commit_number,
    load_position,
    read_positions,
    staged_after,
    topic_positions,
)
from waybill.ledger.progress import BatchProgress, ConsumerProgress, consumer_progress
from waybill.ledger.refusals import Refusal, commit_refusal, knows_refusal, refused_lsns
from waybill.ledger.replay_entries import ReplayEntry, add_entries, count_entries
from waybill.ledger.watermarks import IntakeWatermark, PageMark, read_watermarks
from waybill.ledger.write_ahead_logs import (
    LogIdentity,
    LogLine,
    LogProgress,
    ReplacedLog,
    SourceLease,
    claim_source,
    close_source,
    count_copies,
    end_log,
    has_ended,
    open_source,
    read_logs,
    register_log,
    replaced_log,
    replaced_logs,
    settle_log,
    tell_log,
    tell_progress,
)

__all__ = [
    "BalanceRow",
    "BatchCommit",
    "BatchProgress",
    "ConsumerProgress",
    "FencedError",
    "IntakeCommit",
    "IntakeWatermark",
    "LastRead",
    "LoadCommit",
    "LogIdentity",
    "LogLine",
    "LogProgress",
    "OffsetRange",
    "OffsetsMovedError",
    "PageMark",
    "ParkedEvents",
    "Position",
    "Refusal",
    "ReplacedLog",
    "ReplayEntry",
    "SourceLease",
    "StageCounts",
    "TopicPosition",
    "acquire_lease",
    "add_entries",
    "ask_reread",
    "begin_position",
    "claim_source",
    "close_source",
    "commit_batch",
    "commit_intake",
    "commit_load",
    "commit_refusal",
    "committed",
    "committed_batches",
    "consumer_progress",
    "count_copies",
    "count_entries",
    "end_log",
    "fold",
    "has_ended",
    "knows_refusal",
    "last_commit_number",
    "load_position",
    "note_run",
    "open_source",
    "read_balance",
    "read_logs",
    "read_position",
    "read_positions",
    "read_watermarks",
    "refused_lsns",
    "register_log",
    "replaced_log",
    "replaced_logs",
    "settle_log",
    "staged_after",
    "tell_log",
    "tell_progress",
    "topic_positions",
    "write_replayed_earlier",
]
