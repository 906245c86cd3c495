"""Breaches: opened once, updated while they change, ended by themselves or by somebody's name.

One breach of a key is open at a time. What ended stays as it was. A breach that was closed by name,
or explained as harmless, *stands*: the same gap does not open another one, a new gap does, and so
does the next time after it was settled.

A breach opens in a transaction of its caller, with the notice that tells of it; so a SIGKILL leaves
both or neither.

What a round writes of breaches: opened, updated, explained; and told, many in one notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, text

from waybill.access import Decision, write_audit
from waybill.errors import InputError, NotFoundError
from waybill.ledger import MinuteKey
from waybill.notices import write_notice
from waybill.reconciliation.verdicts import Gap, minute_words
from waybill.storage import TrackerStore
from waybill.storage.tracker import json_value

KINDS = (
    "on_the_way",
    "in_stage",
    "ids",
    "parked",
    "replays",
    "offsets",
    "source_count",
    "put_back",
)
"""Those of the auditor: events missed or doubled between a stage and the one before; inside a
stage; ids that differ where the numbers agree; segments that hold other numbers than were counted
as parked; replays; offset ranges of committed batches; what the source counted; a destination that
lacks what it took."""
_LONGEST = 2000
_DEEPEST = 5
_KEY = (
    "pipeline_id = :pipeline_id AND event_name = :event_name AND stage = :stage "
    "AND minute = :minute AND kind = :kind"
)
_STANDS = text(f"""
SELECT id FROM breaches WHERE {_KEY} AND state <> 'open' AND gap = :gap
  AND detail ->> 'stands' = 'true' AND id = (SELECT max(id) FROM breaches WHERE {_KEY})
""")
_OPEN = text("""
INSERT INTO breaches (pipeline_id, event_name, stage, minute, kind, gap, detail)
VALUES (:pipeline_id, :event_name, :stage, :minute, :kind, :gap, CAST(:detail AS jsonb))
ON CONFLICT (pipeline_id, event_name, stage, minute, kind) WHERE state = 'open' DO UPDATE SET
  gap = excluded.gap, detail = breaches.detail || excluded.detail, last_seen_at = clock_timestamp(),
  named_at = CASE WHEN breaches.gap = excluded.gap THEN breaches.named_at END
RETURNING id, (xmax = 0) AS new
""")
_SETTLE = text(f"""
UPDATE breaches SET state = 'explained', reason = :reason, ended_at = clock_timestamp(),
  ended_by = 'auditor', detail = detail || jsonb_build_object('stands', CAST(:stands AS boolean))
WHERE {_KEY} AND state = 'open' RETURNING id
""")
_OVER = text(f"""
UPDATE breaches SET detail = detail - 'stands'
WHERE {_KEY} AND state <> 'open' AND detail ->> 'stands' = 'true'
""")
_CLOSE = text("""
UPDATE breaches SET state = 'closed', reason = :reason, ended_at = clock_timestamp(),
  ended_by = :who, detail = detail || '{"stands": true}'
WHERE id = :id AND state = 'open' RETURNING pipeline_id
""")
_AGAIN = text("""
UPDATE audit_minutes SET changed = changed + 1
WHERE pipeline_id = :pipeline_id AND event_name = :event_name AND minute = :minute
""")
_READ = text("""
SELECT breaches.*, coalesce(pipelines.name, pipeline_id) AS pipeline,
  coalesce(pipelines.team, '') AS team
FROM breaches LEFT JOIN pipelines ON pipelines.id = breaches.pipeline_id
WHERE (CAST(:id AS bigint) IS NULL OR breaches.id = :id)
  AND (CAST(:pipelines AS text[]) IS NULL OR pipeline_id = ANY(:pipelines))
  AND (CAST(:states AS text[]) IS NULL OR state = ANY(:states))
  AND (CAST(:since AS timestamptz) IS NULL OR last_seen_at >= :since)
  AND (CAST(:before AS bigint) IS NULL OR breaches.id < :before)
ORDER BY breaches.id DESC LIMIT :limit
""")
_COUNT = text("""
SELECT count(*) FROM breaches
WHERE (CAST(:pipelines AS text[]) IS NULL OR pipeline_id = ANY(:pipelines))
  AND (CAST(:states AS text[]) IS NULL OR state = ANY(:states))
""")


@dataclass(frozen=True, slots=True)
class BreachKey:
    """What a breach is of; one of a key is open at a time."""

    pipeline_id: str
    kind: str
    """One of ``KINDS``, or another check's own word."""
    event_name: str = ""
    stage: str = ""
    minute: int = 0
    """Intake minute; 0: of no one minute."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A breach that is open."""

    id: int
    new: bool
    """It was not open before."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One breach, open or ended."""

    id: int
    key: BreachKey
    pipeline: str
    """Its name."""
    team: str
    """Whose that is; empty: nobody deployed it."""
    gap: int
    """Events: positive: missing, negative: too many."""
    state: str
    """open, explained or closed."""
    detail: Mapping[str, Any]
    """``words``: what is wrong, for people; and what the check adds."""
    missing: tuple[str, ...]
    """Event ids, once the minute's traces were in."""
    doubled: tuple[str, ...]
    first_seen_at: datetime
    last_seen_at: datetime
    named_at: datetime | None
    ended_at: datetime | None
    ended_by: str
    reason: str

    @property
    def words(self) -> str:
        """Return what is wrong."""
        return str(self.detail.get("words", ""))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        key = self.key
        times = {
            name: moment and moment.isoformat()
            for name in ("first_seen_at", "last_seen_at", "named_at", "ended_at")
            for moment in [getattr(self, name)]
        }
        return {
            "id": self.id,
            "pipeline": self.pipeline,
            "pipeline_id": key.pipeline_id,
            "event_name": key.event_name,
            "stage": key.stage,
            "minute": key.minute,
            "kind": key.kind,
            "gap": self.gap,
            "state": self.state,
            "words": self.words,
            "detail": {n: v for n, v in self.detail.items() if n not in {"words", "stands"}},
            "missing": list(self.missing),
            "doubled": list(self.doubled),
            **times,
            "ended_by": self.ended_by,
            "reason": self.reason,
        }


def open_breach(
    connection: Connection,
    key: BreachKey,
    *,
    words: str,
    gap: int = 0,
    detail: Mapping[str, Any] | None = None,
    tell: bool = True,
) -> Opened | None:
    """Open a breach, or update the one that is open.

    Args:
        connection: a transaction; the owner's notice of a new breach is written in it.
        key: what it is of.
        words: what is wrong: which stage, how many, when.
        gap: events, positive: missing; 0 where it is not about a number of events.
        detail: more, as JSON.
        tell: write the notice; False: the caller tells of many in one.

    Returns:
        None: it ended with this gap before, by name or as harmless, and still stands so.
    """
    values = {**_values(key), "gap": gap}
    if connection.execute(_STANDS, values).first() is not None:
        return None
    said = {**(detail or {}), "words": words}
    values["detail"] = _json(said)
    row = connection.execute(_OPEN, values).one()
    if row.new and tell:
        tell_of(connection, key, words=words, event="opened", gap=gap)
    return Opened(int(row.id), bool(row.new))


def settle(
    connection: Connection, key: BreachKey, *, reason: str, stands: bool = False, tell: bool = True
) -> int | None:
    """End the open breach of a key as explained; returns its id, None when none was open.

    Args:
        connection: a transaction.
        key: what it is of.
        reason: why it is none any more, for people.
        stands: the gap is there still, but harmless: it does not open again while it is the same.
            False: all is well, so that the next time opens another, also where one was closed.
        tell: write the owner's notice.
    """
    values = _values(key)
    if not stands:
        connection.execute(_OVER, values)
    found = connection.execute(_SETTLE, {**values, "reason": reason, "stands": stands}).scalar()
    if found is not None and stands:
        connection.execute(_AGAIN, values)
    if found is not None and tell:
        tell_of(connection, key, words=reason, event="explained")
    return None if found is None else int(found)


def close_breach(tracker: TrackerStore, breach_id: int, decision: Decision) -> Breach:
    """Close an open breach by name; the audit log has who and why.

    Raises:
        InputError: there is none of this number, or it ended before.
    """
    why = decision.require_why()
    with tracker.transaction() as connection:
        asked = {"id": breach_id, "who": decision.who, "reason": why}
        ended = connection.execute(_CLOSE, asked).first()
        rows = connection.execute(_READ, _asked(breach_id)).mappings().all()
        if ended is None:
            state = f"is {rows[0]['state']} already" if rows else "does not exist"
            error = InputError if rows else NotFoundError
            raise error(f"breach {breach_id} {state}; `waybill audit breaches` lists them")
        closed = _breach(rows[0])
        connection.execute(_AGAIN, _values(closed.key))
        write_audit(
            connection,
            who=decision.who,
            action="close_breach",
            target=f"breach {breach_id}",
            why=why,
            gap=closed.gap,
            words=closed.words,
            **_values(closed.key),
            **decision.beside_who(),
        )
        words = f"closed by {decision.who}: {why}"
        tell_of(connection, closed.key, words=words, event="closed", gap=closed.gap)
    return closed


def read_breaches(
    tracker: TrackerStore,
    *,
    pipeline_ids: Sequence[str] | None = None,
    states: Sequence[str] | None = None,
    since: datetime | None = None,
    before: int | None = None,
    limit: int = 1000,
) -> list[Breach]:
    """Return breaches, the newest first.

    Args:
        tracker: the books.
        pipeline_ids: only of these; None: of all.
        states: only these: ``open``, ``explained``, ``closed``; None: all.
        since: only those seen since then.
        before: only those older than this one: to go on behind it.
        limit: at most so many.
    """
    asked = _asked(None) | {"since": since, "before": before, "limit": limit}
    asked |= _which(pipeline_ids, states)
    with tracker.transaction() as connection:
        return [_breach(row) for row in connection.execute(_READ, asked).mappings()]


def read_breach(tracker: TrackerStore, breach_id: int) -> Breach | None:
    """Return one breach; None: there is none of this number."""
    with tracker.transaction() as connection:
        row = connection.execute(_READ, _asked(breach_id)).mappings().one_or_none()
    return None if row is None else _breach(row)


def count_breaches(
    tracker: TrackerStore,
    *,
    pipeline_ids: Sequence[str] | None = None,
    states: Sequence[str] | None = None,
) -> int:
    """Return how many breaches there are of these pipelines, in these states; None: of all."""
    with tracker.transaction() as connection:
        return int(connection.execute(_COUNT, _which(pipeline_ids, states)).scalar_one())


def tell_of(
    connection: Connection,
    key: BreachKey,
    *,
    words: str,
    event: str,
    **more: Any,
) -> None:
    """Write the owner's notice that a breach was opened, named, explained or closed."""
    write_notice(
        connection,
        kind="breach",
        pipeline_id=key.pipeline_id,
        event_name=key.event_name,
        stage=key.stage,
        what=words,
        breach=f"{key.kind}, {event}",
        **more,
    )


def _values(key: BreachKey) -> dict[str, Any]:
    return {
        "pipeline_id": key.pipeline_id,
        "event_name": key.event_name,
        "stage": key.stage,
        "minute": key.minute,
        "kind": key.kind,
    }


def _asked(breach_id: int | None) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(("pipelines", "states", "since", "before"))
    return {**nothing, "id": breach_id, "limit": 1}


def _which(
    pipeline_ids: Sequence[str] | None, states: Sequence[str] | None
) -> dict[str, list[str] | None]:
    return {
        "pipelines": None if pipeline_ids is None else list(pipeline_ids),
        "states": None if states is None else list(states),
    }


def _json(value: Mapping[str, Any]) -> str:
    import orjson

    return orjson.dumps(json_value(dict(value), deepest=_DEEPEST, longest=_LONGEST)).decode()


def _breach(row: RowMapping) -> Breach:
    ids = row["ids"] or {}
    names = ("pipeline_id", "kind", "event_name", "stage", "minute")
    same = (
        *("id", "pipeline", "team", "gap", "state", "detail", "ended_by", "reason"),
        *("first_seen_at", "last_seen_at", "named_at", "ended_at"),
    )
    return Breach(
        key=BreachKey(**{name: row[name] for name in names}),
        missing=tuple(ids.get("missing", ())),
        doubled=tuple(ids.get("doubled", ())),
        **{name: row[name] for name in same},
    )


_OPEN_KEYS = text("""
SELECT pipeline_id, event_name, stage, minute, kind FROM breaches WHERE state = 'open'
""")
_BALANCED_AGAIN = "the books balance again"
_OF_COUNTS = ("on_the_way", "in_stage")


@dataclass(frozen=True, slots=True)
class Found:
    """One equation that holds (gap 0) or does not."""

    pipeline_id: str
    kind: str
    gap: int
    words: str
    event_name: str = ""
    stage: str = ""
    minute: int = 0

    @property
    def key(self) -> BreachKey:
        """Return what it is of."""
        return BreachKey(self.pipeline_id, self.kind, self.event_name, self.stage, self.minute)


class Writer:
    """Writes breaches in one transaction; ``tell`` writes the notices, one for each cause."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        rows = connection.execute(_OPEN_KEYS)
        self._open = {BreachKey(r[0], r[4], r[1], r[2], r[3]) for r in rows}
        self._new: dict[tuple[str, str, str], list[Found]] = {}
        self._ended: dict[tuple[str, str, str], list[BreachKey]] = {}
        self.explained = 0

    def minute(self, key: MinuteKey, gaps: Sequence[Gap]) -> list[Gap]:
        """Write what the counts of a minute say; returns the gaps that ended, and stand so."""
        pipeline_id, event_name, minute = key
        stand, found = [], set()
        for gap in gaps:
            one = Found(pipeline_id, gap.kind, gap.gap, gap.words, event_name, gap.stage, minute)
            found.add(one.key)
            if not self.open(one):
                stand.append(gap)
        for known in self._open_of(key) - found:
            self._settle(known)
        return stand

    def one(self, found: Found) -> None:
        """Write one equation: a gap opens its breach, no gap settles it."""
        if found.gap:
            self.open(found)
        elif found.key in self._open:
            self._settle(found.key)

    def open(self, found: Found) -> bool:
        """Open or update a breach; False: it ended with this gap before, and stands so."""
        done = open_breach(
            self._connection, found.key, words=found.words, gap=found.gap, tell=False
        )
        if done is not None and done.new:
            cause = (found.pipeline_id, found.stage, found.kind)
            self._new.setdefault(cause, []).append(found)
        return done is not None

    def tell(self) -> list[str]:
        """Write the notices; returns the words of the breaches that are new."""
        for found in self._new.values():
            self._tell_new(found)
        for keys in self._ended.values():
            words = f"{_BALANCED_AGAIN}{_more(len(keys) - 1)}"
            tell_of(self._connection, keys[0], words=words, event="explained")
        return [one.words for found in self._new.values() for one in found]

    def _tell_new(self, found: Sequence[Found]) -> None:
        first = found[0]
        more = _more(len(found) - 1, (one.minute for one in found))
        gap = sum(one.gap for one in found)
        words = first.words + more
        tell_of(self._connection, first.key, words=words, event="opened", gap=gap)

    def _settle(self, key: BreachKey) -> None:
        if settle(self._connection, key, reason=_BALANCED_AGAIN, tell=False) is not None:
            self.explained += 1
            cause = (key.pipeline_id, key.stage, key.kind)
            self._ended.setdefault(cause, []).append(key)

    def _open_of(self, key: MinuteKey) -> set[BreachKey]:
        pipeline_id, event_name, minute = key
        return {
            known
            for kind in _OF_COUNTS
            for stage in ("ingestion", "transformation", "mapping", "destination")
            for known in [BreachKey(pipeline_id, kind, event_name, stage, minute)]
            if known in self._open
        }


def _more(number: int, minutes: Iterable[int] = ()) -> str:
    if number <= 0:
        return ""
    words = f"; and {number:,} more like it"
    if len(known := {minute for minute in minutes if minute}) > 1:
        words += f", from {minute_words(min(known))} to {minute_words(max(known))}"
    return words
