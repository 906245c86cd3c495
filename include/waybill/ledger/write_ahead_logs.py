"""Write-ahead logs known to the tracker, and by them who reads a source.

A run of ingestion claims its pipeline's source for its log, before it sends anything. The log's row
is the lease: each page's transaction changes it, and fails once another log has claimed the source;
so does each that opens, tells or closes the intake watermark.

    open         a run has it, or died with it; of a source that can be read again there is one
    closed       its run ended, or failed, with nothing in it unsettled
    taken_over   another log claimed the source: what this one holds is read again there
    ended        taken over, and it sends nothing more; or settled by name

A row that was taken over or ended is kept for good: else its disk, if it comes back, would be sent.

A replay's log is no lease: it is registered when it is opened, and only its name can be settled.
Then it is not opened again, and a run that still has it ends at its next mark.

A log that knows a later mark to be committed than ``committed_lsn`` of its row shows that the
tracker lost commits: an older copy of it was restored, or a standby that lagged took over. Such a
log is replaced by a new one on its own node. The row says where in Kafka begins what the tracker
does not know of: it is counted as that of any log that was taken over, and the source is read on
from the tracker's cursor.

What a log that was taken over had sent beyond its last committed page is found in Kafka by the
header that names the log: behind ``offsets``, with an lsn above ``committed_lsn``. It is counted
then, once: ``counted_to`` says up to which offsets that was done. What it had parked (Kafka refused
it) is counted in the claim itself; from then on the log's refusals fail.

``last_version`` is above every intake version that the log's runs may have given: they reserve some
ahead of the machine's clock, so that who claims the source goes on above them, on any node.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from waybill.errors import InputError, RetryError, StopError
from waybill.ledger.commit import FencedError, PackedCounts, write_counts
from waybill.ledger.generations import LogBefore, claim_generation, refuse_beyond
from waybill.ledger.watermarks import (
    close_watermark,
    hold_watermark,
    open_watermark,
    share_watermark,
    tell_waiting,
)
from waybill.notices import write_notice
from waybill.storage import AdvisoryLock
from waybill.storage.tracker import COUNT_COLUMNS, TrackerStore, audit_log, text_value

_KEEP_DAYS = 30
"""Closed logs are forgotten after that. Not those that were taken over or settled: their disk may
come back, and the row is all that says that nothing of them is sent."""
_LATE_S = 3600.0
"""So long the runs of a pipeline look for what a log that was taken over still sends."""
_ENDED = frozenset({"taken_over", "ended"})
"""States of a log of which nothing is sent any more."""
Offsets = Mapping[int, int]
"""{partition: offset}."""
Ends = Mapping[str, Offsets]
"""{name of a topic's generation: offsets}."""

_OWN = text("SELECT * FROM write_ahead_logs WHERE wal_id = :wal_id FOR UPDATE")
_OTHERS = text("""
SELECT * FROM write_ahead_logs WHERE pipeline_id = :pipeline_id AND wal_id <> :wal_id
  AND state = 'open' AND purpose = 'ingestion' AND rereadable FOR UPDATE
""")
_HIGHEST = text("""
SELECT coalesce(max(epoch), 0) AS epoch, coalesce(max(last_version), 0) AS version
FROM write_ahead_logs WHERE pipeline_id = :pipeline_id
""")
_OPEN = text("""
INSERT INTO write_ahead_logs AS known (wal_id, pipeline_id, purpose, name, node, path, topic,
  rereadable, epoch, last_version, committed_lsn, offsets)
VALUES (:wal_id, :pipeline_id, :purpose, :name, :node, :path, :topic, :rereadable, :epoch, :version,
  :committed_lsn, :offsets)
ON CONFLICT (wal_id) DO UPDATE SET state = 'open', epoch = :epoch, last_version = :version,
  node = :node, path = :path, topic = :topic,
  offsets = CASE WHEN known.state = 'closed' THEN :offsets ELSE known.offsets END,
  seen_at = CASE WHEN known.state = 'closed' THEN clock_timestamp() ELSE known.seen_at END,
  ended_at = NULL, reason = ''
""").bindparams(bindparam("offsets", type_=JSONB))
_HOLD = text("""
UPDATE write_ahead_logs SET unsettled = :unsettled, reason = :reason WHERE wal_id = :wal_id
""")
_TAKE_OVER = text("""
UPDATE write_ahead_logs SET state = 'taken_over', counted_to = offsets,
  ended_at = clock_timestamp(), ended_by = :by, reason = :reason
WHERE wal_id = :wal_id
""")
_REFUSED = text("""
SELECT refused.lsn, ledger.counts FROM refused_messages AS refused
JOIN ledger ON ledger.reference = 'refused:' || refused.wal_id || ':' || refused.lsn
  AND ledger.pipeline_id = :pipeline_id
WHERE refused.wal_id = :wal_id AND refused.lsn > :committed_lsn ORDER BY refused.lsn
""")
_FORGET = text("""
DELETE FROM write_ahead_logs WHERE pipeline_id = :pipeline_id AND wal_id <> :wal_id
  AND state = 'closed'
  AND coalesce(ended_at, seen_at) < clock_timestamp() - make_interval(days => :days)
""")
_PROGRESS = text("""
UPDATE write_ahead_logs SET last_version = greatest(last_version, :last_version),
  committed_lsn = coalesce(:committed_lsn, committed_lsn), offsets = offsets || :offsets,
  unsettled = :unsettled, seen_at = clock_timestamp()
WHERE wal_id = :wal_id AND epoch = :epoch AND state = 'open'
""").bindparams(bindparam("offsets", type_=JSONB))
_CLOSE = text("""
UPDATE write_ahead_logs SET state = 'closed', unsettled = 0, last_version = :last_version,
  seen_at = clock_timestamp(), ended_at = clock_timestamp()
WHERE wal_id = :wal_id AND epoch = :epoch AND state = 'open'
""")
_RELEASE = text("""
UPDATE write_ahead_logs SET state = 'closed', unsettled = 0, seen_at = clock_timestamp(),
  ended_at = clock_timestamp()
WHERE wal_id = :wal_id AND epoch = :epoch AND state = 'open'
""")
_REREAD = text("""
UPDATE write_ahead_logs SET reread = true
WHERE pipeline_id = :pipeline_id AND state IN ('taken_over', 'ended') AND NOT reread
""")
_REPLACED = text("""
SELECT * FROM write_ahead_logs
WHERE pipeline_id = :pipeline_id AND state IN ('taken_over', 'ended')
  AND (NOT reread OR (state = 'taken_over'
    AND ended_at > clock_timestamp() - make_interval(secs => :late_s)))
ORDER BY epoch
""")
_COUNTED = text("""
UPDATE write_ahead_logs SET counted_to = counted_to || :counted_to, adoptions = adoptions + 1
WHERE wal_id = :wal_id AND adoptions = :adoptions
""").bindparams(bindparam("counted_to", type_=JSONB))
_END = text("""
UPDATE write_ahead_logs SET state = 'ended', seen_at = clock_timestamp()
WHERE wal_id = :wal_id AND state = 'taken_over'
""")
_SETTLE = text("""
UPDATE write_ahead_logs SET state = 'ended', ended_at = clock_timestamp(), ended_by = :who,
  reason = :reason, counted_to = CASE WHEN state = 'open' THEN offsets ELSE counted_to END
WHERE wal_id = :wal_id
""")
_FENCE = text("SELECT state FROM write_ahead_logs WHERE wal_id = :wal_id FOR SHARE")
_READ = text("""
SELECT logs.*, coalesce(pipelines.name, logs.pipeline_id) AS pipeline,
  extract(epoch FROM clock_timestamp() - logs.seen_at)::float AS unseen_s
FROM write_ahead_logs AS logs LEFT JOIN pipelines ON pipelines.id = logs.pipeline_id
WHERE (:every OR logs.state IN ('open', 'taken_over'))
  AND (CAST(:wal_id AS text) IS NULL OR starts_with(logs.wal_id, :wal_id))
ORDER BY logs.seen_at DESC
""")


class LogElsewhereError(InputError):
    """Another log has the source, and this run is not to take it over."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """A write-ahead log, where it lies, and what it is for."""

    wal_id: str
    """32 hex digits."""
    pipeline_id: str
    purpose: str
    """``ingestion`` or ``replay``."""
    name: str
    """Of the producer: its folder."""
    node: str
    path: str
    topic: str
    """events.<team>.<destination>; the tracker says which of its generations."""
    rereadable: bool = True
    """What it holds can be had from its source again."""


@dataclass(frozen=True, slots=True)
class HeldRecords:
    """Records of a log behind its last confirmed mark."""

    number: int = 0
    topic: str = ""
    """What the newest record that may have to be sent is for, as Kafka names it; empty: none."""
    committed_lsn: int = 0
    """Of the last mark that the log knows to be committed."""


@dataclass(frozen=True, slots=True)
class SourceLease:
    """That one log has a pipeline's source."""

    wal_id: str
    pipeline_id: str
    epoch: int
    """Rises with each claim."""
    last_version: int
    """No intake version above it was given before the claim."""
    topic: str = ""
    """The generation that the log writes to, as Kafka names it: see ``ledger.generations``."""


@dataclass(frozen=True, slots=True)
class LogProgress:
    """What a transaction says of the log whose lease it is under."""

    lease: SourceLease
    last_version: int
    """Versions up to here may be given from now on."""
    unsettled: int
    """Events in the log whose page is not committed."""
    committed_lsn: int | None = None
    """Of the mark that this transaction commits; None: it commits none."""
    offsets: Offsets = field(default_factory=dict)
    """Nothing behind that mark stands before them; partitions that are not named stay."""


@dataclass(frozen=True, slots=True)
class ReplacedLog:
    """A log that was taken over."""

    wal_id: str
    pipeline_id: str
    topic: str
    node: str
    committed_lsn: int
    offsets: Offsets
    """What it had sent beyond ``committed_lsn`` stands from here on."""
    counted_to: Offsets
    """What stands before is counted."""
    adoptions: int
    """How often that was looked for."""
    reread: bool
    """A run has read the source to its end since: what this log held was met again."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log as the tracker knows it."""

    wal_id: str
    pipeline: str
    pipeline_id: str
    purpose: str
    name: str
    node: str
    path: str
    topic: str
    rereadable: bool
    state: str
    unsettled: int
    """Events whose page was not committed when it was told last."""
    opened_at: datetime
    seen_at: datetime
    unseen_s: float
    ended_at: datetime | None
    ended_by: str
    reason: str
    """Why it ended, or, of one that is open, why it cannot be opened again."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def claim_source(
    tracker: TrackerStore,
    log: LogIdentity,
    *,
    ends: Ends,
    empty: bool = True,
    held: HeldRecords = HeldRecords(),
    takes_over: bool = True,
) -> SourceLease | None:
    """Take a pipeline's source for a log, from whatever log has it.

    Every later transaction of a log that had it fails. Its owner is told, unless that log was
    closed. Logs of what can be had only once (the collector's) stand beside each other: none takes
    another's place.

    Args:
        tracker: the books.
        log: which.
        ends: where the generations of its topic end; the log has sent nothing yet that the tracker
            does not know of.
        empty: it holds no record.
        held: how far it knows to be committed; and, of a log whose events can be had only once,
            what it holds: it goes on with the generation that they are for where the tracker has
            no row of it, as it was restored to an older point.
        takes_over: from whatever log has it; False: from none that is open.

    Returns:
        None: the log was taken over, or settled by name, before, the tracker lost commits of it, or
        does not know for which generation of the topic its records are: what it holds must not be
        sent.

    Raises:
        LogElsewhereError: another log has the source, and is not to be taken over.
        StopError: the log holds events that can be had only once, and the tracker does not know the
            generation that they are for. The log stays as it is; its owner is told, once.
    """
    with tracker.transaction() as connection:
        AdvisoryLock.SOURCE_LEASE.take(connection, log.pipeline_id)
        if log.rereadable and _lost_commits(connection, log, held.committed_lsn):
            return None
        own = connection.execute(_OWN, {"wal_id": log.wal_id}).mappings().first()
        generation = _claim_generation(connection, log, own, empty=empty, written=held.topic)
        if generation is not None:
            others = _others(connection, log, takes_over=takes_over)
            written = replace(log, topic=generation)
            return _claim(connection, written, others, ends.get(generation, {}), held)
        if log.rereadable or not held.number or (own is not None and own["state"] in _ENDED):
            return None
        if own is None:
            _hold(connection, log, held)
    raise StopError(_why_held(log, held))


def _others(connection: Connection, log: LogIdentity, *, takes_over: bool) -> Sequence[RowMapping]:
    """Return the logs that have the source: they are to be taken over."""
    if not log.rereadable:
        return ()
    values = {"wal_id": log.wal_id, "pipeline_id": log.pipeline_id}
    others = connection.execute(_OTHERS, values).mappings().all()
    if others and not takes_over:
        raise LogElsewhereError(
            f"log {others[0]['wal_id']} of {others[0]['node']} has the source of "
            f"{log.pipeline_id!r}; it is not taken over from {log.node}"
        )
    return others


def _claim(
    connection: Connection,
    log: LogIdentity,
    others: Sequence[RowMapping],
    ends: Offsets,
    held: HeldRecords,
) -> SourceLease:
    values = {"wal_id": log.wal_id, "pipeline_id": log.pipeline_id}
    highest = connection.execute(_HIGHEST, values).one()
    epoch, version = int(highest.epoch) + 1, int(highest.version)
    for other in others:
        _take_over(connection, other, log)
    _write_open(connection, log, epoch, version, held.committed_lsn, ends)
    connection.execute(_FORGET, {**values, "days": _KEEP_DAYS})
    return SourceLease(log.wal_id, log.pipeline_id, epoch, version, log.topic)


def _claim_generation(
    connection: Connection,
    log: LogIdentity,
    own: RowMapping | None,
    *,
    empty: bool,
    written: str = "",
) -> str | None:
    """Return the name of the generation that a log is to write to; None: it must not be opened."""
    before = None if own is None else LogBefore(own["topic"], own["state"])
    found = claim_generation(connection, log.topic, before, empty=empty, written=written)
    return None if found is None else found.name


def _why_held(log: LogIdentity, held: HeldRecords) -> str:
    return (
        f"log {log.wal_id} on {log.node} holds {held.number:,} events that cannot be had again, "
        f"for topic {held.topic}, which this tracker does not know as a generation of {log.topic}: "
        "it was restored to an older point. They are kept, and not sent. `waybill topics grow "
        f"{log.topic}` until it has that generation again, and they are sent there; `waybill logs "
        "settle` gives them up"
    )


def _hold(connection: Connection, log: LogIdentity, held: HeldRecords) -> None:
    """Write down, as open, a log that is not opened: it is listed, and can be settled by name."""
    highest = connection.execute(_HIGHEST, {"pipeline_id": log.pipeline_id}).one()
    written = replace(log, topic=held.topic)
    _write_open(connection, written, highest.epoch + 1, highest.version, held.committed_lsn, {})
    what = _why_held(log, held)
    values = {"wal_id": log.wal_id, "unsettled": held.number, "reason": text_value(what)}
    connection.execute(_HOLD, values)
    write_notice(connection, kind="log", pipeline_id=log.pipeline_id, what=what)
    detail = {"unsettled": held.number, "node": text_value(log.node), "reason": text_value(what)}
    _write_audit(connection, "waybill", "hold_log", log.wal_id, detail)


def _write_open(
    connection: Connection,
    log: LogIdentity,
    epoch: int,
    version: int,
    committed_lsn: int,
    ends: Offsets,
) -> None:
    names = ("wal_id", "pipeline_id", "purpose", "name", "node", "path", "topic")
    values = {name: text_value(getattr(log, name)) for name in names}
    more: dict[str, Any] = {"rereadable": log.rereadable, "epoch": epoch, "version": version}
    more |= {"committed_lsn": committed_lsn, "offsets": _keys(ends)}
    connection.execute(_OPEN, values | more)


def _take_over(connection: Connection, other: RowMapping, log: LogIdentity) -> None:
    reason = f"the source was taken over by log {log.wal_id} on {log.node}"
    what = (
        f"a run of ingestion on {other['node']} died or stands still: its write-ahead log "
        f"{other['wal_id']} held {other['unsettled']:,} unsettled events when it was told last; "
        f"{log.node} reads them from the source again"
    )
    _replace(connection, other, log, reason, what)


def _lost_commits(connection: Connection, log: LogIdentity, committed_lsn: int) -> bool:
    """Take a log over on its own node where the tracker lost commits of it; tell whether it did."""
    own = connection.execute(_OWN, {"wal_id": log.wal_id}).mappings().first()
    if own is None or own["state"] in _ENDED or committed_lsn <= own["committed_lsn"]:
        return False
    reason = (
        f"the tracker lost commits of it: it knows them up to lsn {own['committed_lsn']}, the log "
        f"up to {committed_lsn}"
    )
    what = (
        f"the tracker lost commits of ingestion, as where an older copy of it is restored: it does "
        f"not know all that write-ahead log {log.wal_id} on {log.node} had sent. That is counted, "
        "and the source is read on from where the tracker stands"
    )
    _replace(connection, own, log, reason, what)
    return True


def _replace(
    connection: Connection, other: RowMapping, log: LogIdentity, reason: str, what: str
) -> None:
    values = {"wal_id": other["wal_id"], "by": log.wal_id, "reason": text_value(reason)}
    connection.execute(_TAKE_OVER, values)
    _count_refused(connection, other)
    write_notice(connection, kind="log", pipeline_id=log.pipeline_id, what=what)
    detail = {"unsettled": other["unsettled"], "node": text_value(log.node), "to": log.wal_id}
    _write_audit(connection, "waybill", "take_over_log", other["wal_id"], detail)


def _count_refused(connection: Connection, other: RowMapping) -> None:
    """Count as taken in what a log parked of pages that it did not commit: nobody else does."""
    asked = {name: other[name] for name in ("wal_id", "pipeline_id", "committed_lsn")}
    rows: list[list[Any]] = []
    for refused in connection.execute(_REFUSED, asked):
        for event_name, stage, minute, counts in refused.counts:
            if counts[COUNT_COLUMNS.index("in_replayed")]:
                continue
            row = [0] * len(COUNT_COLUMNS)
            for name in ("in_first", "passed", "out"):
                row[COUNT_COLUMNS.index(name)] = 1
            rows.append([event_name, stage, minute, row])
    if rows:
        reference = f"intake:{other['pipeline_id']}:refused-{other['wal_id']}"
        write_counts(connection, reference, [(other["pipeline_id"], rows)])


def move_lease(connection: Connection, progress: LogProgress) -> None:
    """Say how far a log is, in a transaction that only its lease's holder may do.

    Raises:
        FencedError: another run has the source.
    """
    lease = progress.lease
    values = {
        "wal_id": lease.wal_id,
        "epoch": lease.epoch,
        "last_version": progress.last_version,
        "committed_lsn": progress.committed_lsn,
        "offsets": _keys(progress.offsets),
        "unsettled": progress.unsettled,
    }
    if connection.execute(_PROGRESS, values).rowcount != 1:
        raise _fenced(lease)


def open_source(tracker: TrackerStore, progress: LogProgress, *, minute: int) -> int | None:
    """Open the intake watermark before a run makes its first event; see ``open_watermark``.

    Raises:
        FencedError: another run has the source.
    """
    with tracker.transaction() as connection:
        move_lease(connection, progress)
        return open_watermark(connection, progress.lease.pipeline_id, minute=minute)


def tell_progress(
    tracker: TrackerStore, progress: LogProgress, *, waiting: int | None = None
) -> None:
    """Do ``move_lease`` in a transaction of its own.

    Args:
        tracker: the books.
        progress: of the log.
        waiting: events that Kafka has not acknowledged, for the watermark; None: not told.

    Raises:
        FencedError: another run has the source.
    """
    with tracker.transaction() as connection:
        move_lease(connection, progress)
        if waiting is not None:
            tell_waiting(connection, progress.lease.pipeline_id, waiting)


def close_source(
    tracker: TrackerStore,
    lease: SourceLease,
    *,
    last_version: int,
    minute: int,
    left: int | None,
    at_end: bool = True,
) -> None:
    """Give a source back and close its watermark: the run ended, and all of its log is settled.

    Args:
        tracker: the books.
        lease: the run's.
        last_version: the highest intake version that was given.
        minute: of now, by the clock that stamps events.
        left: records that the source says were not read; None: it cannot count.
        at_end: the source was read to its end; False: the run was stopped before. What logs that
            were taken over had sent is then still to be met again.

    Raises:
        FencedError: another run has the source.
    """
    values = {"wal_id": lease.wal_id, "epoch": lease.epoch, "last_version": last_version}
    with tracker.transaction() as connection:
        if connection.execute(_CLOSE, values).rowcount != 1:
            raise _fenced(lease)
        if at_end:
            connection.execute(_REREAD, {"pipeline_id": lease.pipeline_id})
        close_watermark(connection, lease.pipeline_id, minute=minute, left=left)


def release_source(tracker: TrackerStore, lease: SourceLease, *, minute: int) -> bool:
    """Give a source back, and close its watermark, where a run failed and its log is settled.

    So the next run, on whatever node, has nothing to take over.

    Args:
        tracker: the books.
        lease: the run's.
        minute: of now.

    Returns:
        Whether the run still had the source.
    """
    with tracker.transaction() as connection:
        values = {"wal_id": lease.wal_id, "epoch": lease.epoch}
        if connection.execute(_RELEASE, values).rowcount != 1:
            return False
        close_watermark(connection, lease.pipeline_id, minute=minute, left=None)
    return True


def _fenced(lease: SourceLease) -> FencedError:
    return FencedError(
        f"the source of pipeline {lease.pipeline_id!r} was taken over from log {lease.wal_id} by "
        "another run, which reads again what this one had not committed: nothing is lost; this "
        "run ends here. `waybill logs list` shows who has it"
    )


def replaced_logs(tracker: TrackerStore, pipeline_id: str) -> list[ReplacedLog]:
    """Return the logs of a pipeline that were taken over, and that may have sent something since.

    Those of which what they held was not met again by a run that came to its end, and for an hour
    those that were not seen to end.
    """
    asked = {"pipeline_id": pipeline_id, "late_s": _LATE_S}
    with tracker.transaction() as connection:
        return [_replaced(row) for row in connection.execute(_REPLACED, asked).mappings()]


def replaced_log(tracker: TrackerStore, wal_id: str) -> ReplacedLog | None:
    """Return a log that was taken over; None: it was not."""
    with tracker.transaction() as connection:
        row = connection.execute(_OWN, {"wal_id": wal_id}).mappings().first()
    if row is None or row["state"] not in _ENDED:
        return None
    return _replaced(row)


def count_copies(
    tracker: TrackerStore,
    log: ReplacedLog,
    *,
    reference: str,
    counts: PackedCounts,
    counted_to: Offsets,
) -> None:
    """Count what a log that was taken over had sent, up to some offsets of its topic.

    Raises:
        RetryError: somebody else counted meanwhile, or the generation of the topic has ended before
            these offsets; nothing was written.
    """
    asked = {"wal_id": log.wal_id, "adoptions": log.adoptions, "counted_to": _keys(counted_to)}
    with tracker.transaction() as connection:
        if connection.execute(_COUNTED, asked).rowcount != 1:
            raise RetryError(f"what log {log.wal_id} had sent was counted by another run meanwhile")
        refuse_beyond(connection, log.topic, counted_to)
        write_counts(connection, reference, counts)


def end_log(tracker: TrackerStore, wal_id: str, **detail: int) -> None:
    """Say that a log that was taken over sends nothing more; the audit log has ``detail``."""
    with tracker.transaction() as connection:
        if connection.execute(_END, {"wal_id": wal_id}).rowcount == 1 or detail:
            _write_audit(connection, "waybill", "end_log", wal_id, dict(detail))


def has_ended(connection: Connection, wal_id: str) -> bool:
    """Tell whether a log was taken over, or settled by name; holds its row until the commit."""
    return connection.execute(_FENCE, {"wal_id": wal_id}).scalar() in _ENDED


def refuse_when_taken_over(connection: Connection, wal_id: str) -> None:
    """Refuse a transaction of a log that was taken over; holds its row until the commit.

    Raises:
        FencedError: it was.
    """
    if has_ended(connection, wal_id):
        raise FencedError(
            f"log {wal_id} was taken over, or settled by name: the next run, or the one that took "
            "it over, reads the event again"
        )


def register_log(tracker: TrackerStore, log: LogIdentity, *, empty: bool = True) -> str | None:
    """Note a log that is no lease: of a replay, or of what can be had only once.

    Args:
        tracker: the books.
        log: which.
        empty: it holds no record.

    Returns:
        The generation of its topic that it writes to, as Kafka names it. None: it was settled by
        name before, or the tracker does not know for which generation its records are: what it
        holds must not be sent.
    """
    with tracker.transaction() as connection:
        own = connection.execute(_OWN, {"wal_id": log.wal_id}).mappings().first()
        generation = _claim_generation(connection, log, own, empty=empty)
        if generation is not None:
            _write_open(connection, replace(log, topic=generation), 0, 0, 0, {})
    return generation


def tell_log(tracker: TrackerStore, wal_id: str, *, unsettled: int, closed: bool = False) -> None:
    """Say what such a log holds; ``closed``: its run ended, with nothing left in it."""
    changed = text("""
    UPDATE write_ahead_logs SET unsettled = :unsettled, seen_at = clock_timestamp(),
      state = CASE WHEN :closed THEN 'closed' ELSE state END,
      ended_at = CASE WHEN :closed THEN clock_timestamp() END
    WHERE wal_id = :wal_id AND state = 'open'
    """)
    asked = {"wal_id": wal_id, "unsettled": unsettled, "closed": closed}
    with tracker.transaction() as connection:
        connection.execute(changed, asked)


def read_logs(
    tracker: TrackerStore, *, wal_id: str | None = None, every: bool = False
) -> list[LogLine]:
    """Return logs, the last seen first.

    Args:
        tracker: the books.
        wal_id: only those whose id begins so.
        every: those that are closed or ended as well.
    """
    with tracker.transaction() as connection:
        rows = connection.execute(_READ, {"wal_id": wal_id, "every": every}).mappings()
        names = LogLine.__slots__
        return [LogLine(**{name: row[name] for name in names}) for row in rows]


def settle_log(tracker: TrackerStore, wal_id: str, *, who: str, reason: str) -> str:
    """End a log by name: it is not waited for any more, and what it holds is never sent.

    Returns:
        Its purpose.

    Raises:
        InputError: there is none of this id, or it is closed or ended.
    """
    with tracker.transaction() as connection:
        row = connection.execute(_OWN, {"wal_id": wal_id}).mappings().first()
        if row is None or row["state"] in {"closed", "ended"}:
            state = f"is {row['state']} already" if row else "is not known"
            raise InputError(f"log {wal_id} {state}; `waybill logs list` shows those that are not")
        values = {"wal_id": wal_id, "who": text_value(who), "reason": text_value(reason)}
        connection.execute(_SETTLE, values)
        if row["open_from_minute"] is not None:
            minute = int(time.time() // 60)
            hold_watermark(connection, row["pipeline_id"], minute=minute)
            share_watermark(connection, row["pipeline_id"], minute=minute)
        if row["state"] == "open" and row["purpose"] == "ingestion":
            _count_refused(connection, row)
        detail = {name: row[name] for name in ("unsettled", "state", "node")}
        detail["reason"] = text_value(reason)
        _write_audit(connection, who, "settle_log", wal_id, detail)
        return str(row["purpose"])


def _write_audit(
    connection: Connection, who: str, action: str, wal_id: str, detail: Mapping[str, Any]
) -> None:
    values = {"who": text_value(who), "action": action, "target": f"log {wal_id}", "detail": detail}
    connection.execute(audit_log.insert().values(**values))


def _replaced(row: RowMapping) -> ReplacedLog:
    same = ("wal_id", "pipeline_id", "topic", "node", "committed_lsn", "adoptions", "reread")
    return ReplacedLog(
        offsets=_numbers(row["offsets"]),
        counted_to=_numbers(row["counted_to"]),
        **{name: row[name] for name in same},
    )


def _keys(offsets: Offsets) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


def _numbers(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.items()}
