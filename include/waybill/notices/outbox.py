"""The outbox in SQL: messages are put together, claimed, and acknowledged or put off.

Order of locks: notices, then messages. A message is deleted after its notices are marked, in one
transaction; so whoever puts the next one together either finds the old one still there, or finds
its notices marked. ``FOR UPDATE SKIP LOCKED`` on the notices makes sure: rows that are being marked
are left out, rows that were marked since the statement began are looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from waybill.notices.rendering import MOST_NAMED, Message, NamedCounts, summary
from waybill.notices.writing import KINDS, NOBODY, Owned, by_owner, owners
from waybill.storage import TrackerStore

_LONGEST_PROBLEM = 500

_DROP_SINKS = text("DELETE FROM notice_messages WHERE sink <> ALL(:sinks)")
_SETTLE = text("""
    UPDATE notices SET sent_at = clock_timestamp() WHERE sent_at IS NULL AND reached @> :sinks
""")
_FORGET = text("""
    DELETE FROM notices WHERE sent_at < clock_timestamp() - make_interval(secs => :keep)
""")
_UNSENT = text("SELECT DISTINCT pipeline_id FROM notices WHERE sent_at IS NULL")
_PUT_TOGETHER = text("""
    INSERT INTO notice_messages (owner, sink, id, notice_ids)
    SELECT :owner, :sink, :id, array_agg(id ORDER BY id) FROM (
        SELECT id FROM notices
        WHERE sent_at IS NULL AND NOT :sink = ANY(reached) AND pipeline_id = ANY(:pipelines)
        FOR UPDATE SKIP LOCKED) taken
    HAVING count(*) > 0
    ON CONFLICT (owner, sink) DO NOTHING
""")
_CLAIM = text("""
    UPDATE notice_messages m SET attempts = m.attempts + 1,
        next_try_at = clock_timestamp() + make_interval(secs => :lease)
    FROM (
        SELECT owner, sink FROM notice_messages
        WHERE sink = :sink AND next_try_at <= clock_timestamp() AND id <> ALL(:tried)
        ORDER BY next_try_at, owner LIMIT 1 FOR UPDATE SKIP LOCKED) due
    WHERE m.owner = due.owner AND m.sink = due.sink
    RETURNING m.owner, m.sink, m.id, m.notice_ids, m.attempts, m.made_at
""")
_COUNTS = text("SELECT kind, count(*) FROM notices WHERE id = ANY(:ids) GROUP BY kind")
_NAMED = text("""
    SELECT n.id, n.kind, n.pipeline_id, n.detail, n.made_at,
           p.event_name, p.stage, p.error_type, p.parked
    FROM notices n LEFT JOIN parked_partitions p ON p.id = n.partition_id
    WHERE n.id = ANY(:ids)
    ORDER BY array_position(CAST(:kinds AS text[]), n.kind), n.id LIMIT :most
""")
_WITHOUT_PERSONAL = text("""
    SELECT pipeline_id FROM pipeline_versions
    WHERE pipeline_id = ANY(:pipelines)
    GROUP BY pipeline_id
    HAVING NOT bool_or(declaration @? '$.events.*.personal[*]')
""")
_MARK = text("""
    UPDATE notices SET
        reached = reached || ARRAY[:sink],
        sent_at = CASE WHEN reached || ARRAY[:sink] @> :sinks THEN clock_timestamp() END
    WHERE id = ANY(:ids) AND NOT :sink = ANY(reached)
""")
_GONE = text("DELETE FROM notice_messages WHERE owner = :owner AND sink = :sink AND id = :id")
_PUT_OFF = text("""
    UPDATE notice_messages SET problem = :problem,
        next_try_at = clock_timestamp() + make_interval(secs => :wait)
    WHERE owner = :owner AND sink = :sink AND id = :id
""")
_MESSAGES = text("""
    SELECT owner, sink, id, cardinality(notice_ids) AS notices, attempts, problem, made_at,
           next_try_at
    FROM notice_messages ORDER BY made_at, owner, sink
""")
_SENT = text("""
    SELECT date_trunc('minute', sent_at) AS sent_at, pipeline_id, kind, reached,
           count(*) AS notices, max(id) AS newest
    FROM notices WHERE sent_at IS NOT NULL
    GROUP BY 1, 2, 3, 4 ORDER BY 1 DESC, 2, 3 LIMIT :most
""")
_LOOSE = text("""
    SELECT n.pipeline_id, n.kind, count(*) AS notices, min(n.made_at) AS made_at
    FROM notices n
    WHERE n.sent_at IS NULL
      AND n.id NOT IN (SELECT unnest(notice_ids) FROM notice_messages)
    GROUP BY n.pipeline_id, n.kind ORDER BY n.pipeline_id, n.kind
""")


@dataclass(frozen=True, slots=True)
class Claim:
    """One message to send now; nobody else takes it until its lease is over."""

    owner: str
    sink: str
    id: UUID
    notice_ids: Sequence[int]
    attempts: int
    """This one counted."""
    made_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingNotice:
    """Notices that no sink, or not all of them, took: in a message, or not yet."""

    owner: str
    notices: int
    since: datetime
    """When the message was put together, or the first of them written."""
    sink: str = ""
    """Empty: in no message yet."""
    message_id: str = ""
    kind: str = ""
    """Of what is in no message yet."""
    pipeline: str = ""
    attempts: int = 0
    problem: str = ""
    next_try_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        found = asdict(self)
        for name in ("since", "next_try_at"):
            found[name] = None if found[name] is None else found[name].isoformat()
        return found


@dataclass(frozen=True, slots=True)
class SentNotice:
    """Notices of one kind about one pipeline that all sinks took in the same minute."""

    sent_at: datetime
    """To the minute."""
    owner: str
    """Of the pipeline now."""
    pipeline: str
    kind: str
    notices: int
    sinks: tuple[str, ...]
    """Those that took them; empty: none was set, or all were taken out meanwhile."""
    newest: str = ""
    """What the newest of them says, on one line, messages hidden as in what was sent."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"sent_at": self.sent_at.isoformat()}


def settle(tracker: TrackerStore, sinks: Sequence[str], *, keep_sent_s: float) -> None:
    """Follow a change of the configured sinks, and forget what was sent long ago."""
    with tracker.transaction() as connection:
        connection.execute(_DROP_SINKS, {"sinks": list(sinks)})
        connection.execute(_SETTLE, {"sinks": list(sinks)})
        connection.execute(_FORGET, {"keep": keep_sent_s})


def put_together(tracker: TrackerStore, sinks: Sequence[str]) -> None:
    """Put what waits together: a message for each owner and sink that has none on its way."""
    with tracker.transaction() as connection:
        known = owners(connection)
        waits = by_owner(connection.execute(_UNSENT).scalars(), known)
    for owner, pipeline_ids in waits.items():
        for sink in sinks:
            with tracker.transaction() as connection:
                values = {"owner": owner, "sink": sink, "id": uuid4(), "pipelines": pipeline_ids}
                connection.execute(_PUT_TOGETHER, values)


def claim(
    connection: Connection, sink: str, tried: Collection[UUID], *, lease_s: float
) -> Claim | None:
    """Take the next message that is due, unless it was tried or somebody else sends it.

    The lease is a try that may fail: a process that dies or hangs while it sends leaves a message
    that is due again ``lease_s`` seconds later, behind those of others.
    """
    values = {"sink": sink, "tried": list(tried), "lease": lease_s}
    row = connection.execute(_CLAIM, values).first()
    return None if row is None else Claim(*row)


def read_message(
    connection: Connection, claimed: Claim, *, error_messages: bool, personal_messages: bool
) -> Message:
    """Return what a claimed message tells: the first 20 notices, the rest counted.

    Args:
        connection: reads.
        claimed: which.
        error_messages: off, all messages of errors are left out.
        personal_messages: off, those that may quote personal values are hidden: of pipelines of
            which any version declares a personal field, or that nobody declared.
    """
    ids = list(claimed.notice_ids)
    counts = {row[0]: int(row[1]) for row in connection.execute(_COUNTS, {"ids": ids})}
    named = _named(
        connection,
        ids,
        owners(connection),
        most=MOST_NAMED,
        error_messages=error_messages,
        personal_messages=personal_messages,
    )
    return Message(claimed.id, claimed.owner, tuple(named.values()), counts, claimed.attempts - 1)


def _named(
    connection: Connection,
    ids: Sequence[int],
    known: dict[str, Owned],
    *,
    most: int | None = None,
    error_messages: bool,
    personal_messages: bool,
) -> dict[int, NamedCounts]:
    """Return {id: notice}, the most urgent first, with the messages that may be shown."""
    values = {"ids": list(ids), "kinds": list(KINDS), "most": most}
    rows = connection.execute(_NAMED, values).all()
    quoted = {row.pipeline_id for row in rows}
    if not personal_messages:
        quoted = {*connection.execute(_WITHOUT_PERSONAL, {"pipelines": [*quoted]}).scalars()}
    named = {row.id: _read(row, known, quoted) for row in rows}
    if error_messages:
        return named
    return {number: item.without_messages() for number, item in named.items()}


def _read(row: Any, known: dict[str, Owned], quoted: Collection[str]) -> NamedCounts:
    owned = known.get(row.pipeline_id)
    names = {name: getattr(row, name) for name in ("event_name", "stage", "error_type")}
    detail = {name: value for name, value in names.items() if value is not None} | row.detail
    if row.kind == "first" and row.parked is not None:
        detail["parked_now"] = row.parked
    found = NamedCounts(row.kind, owned.name if owned else row.pipeline_id, row.made_at, detail)
    return found if row.pipeline_id in quoted else found.with_messages_hidden()


def mark_sent(connection: Connection, claimed: Claim, sinks: Sequence[str]) -> None:
    """Acknowledge a message that its sink took."""
    values = {"sink": claimed.sink, "sinks": list(sinks), "ids": list(claimed.notice_ids)}
    connection.execute(_MARK, values)
    connection.execute(_GONE, {"owner": claimed.owner, "sink": claimed.sink, "id": claimed.id})


def put_off(connection: Connection, claimed: Claim, problem: str, *, wait_s: float) -> None:
    """Keep a message that its sink did not take, to be tried again after a wait."""
    words = problem.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\0")
    values = {"owner": claimed.owner, "sink": claimed.sink, "id": claimed.id, "wait": wait_s}
    connection.execute(_PUT_OFF, {**values, "problem": words[:_LONGEST_PROBLEM]})


def sent_notices(
    tracker: TrackerStore, most: int, *, error_messages: bool, personal_messages: bool
) -> list[SentNotice]:
    """Return what was sent, the newest first; kept for ``notices.keep_sent_days``.

    Args:
        tracker: all.
        most: lines at most. All that is kept is read and summed.
        error_messages: as of ``read_message``.
        personal_messages: as of ``read_message``.
    """
    with tracker.transaction() as connection:
        known = owners(connection)
        rows = connection.execute(_SENT, {"most": most}).all()
        named = _named(
            connection,
            [row.newest for row in rows],
            known,
            error_messages=error_messages,
            personal_messages=personal_messages,
        )
        return [
            SentNotice(
                row.sent_at,
                known[row.pipeline_id].owner if row.pipeline_id in known else NOBODY,
                known[row.pipeline_id].name if row.pipeline_id in known else row.pipeline_id,
                row.kind,
                row.notices,
                tuple(row.reached),
                summary(named[row.newest]) if row.newest in named else "",
            )
            for row in rows
        ]


def waiting_notices(tracker: TrackerStore) -> list[WaitingNotice]:
    """Return what is on its way, then what is in no message yet. Changes nothing."""
    with tracker.transaction() as connection:
        known = owners(connection)
        found = [
            WaitingNotice(
                owner=row.owner,
                notices=row.notices,
                since=row.made_at,
                sink=row.sink,
                message_id=str(row.id),
                attempts=row.attempts,
                problem=row.problem,
                next_try_at=row.next_try_at,
            )
            for row in connection.execute(_MESSAGES)
        ]
        for row in connection.execute(_LOOSE):
            owned = known.get(row.pipeline_id)
            found.append(
                WaitingNotice(
                    owner=owned.owner if owned else NOBODY,
                    notices=row.notices,
                    since=row.made_at,
                    kind=row.kind,
                    pipeline=owned.name if owned else row.pipeline_id,
                )
            )
    return found
