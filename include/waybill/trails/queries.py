"""Questions about traces in the tracker: asked, worked on, answered, kept for a while.

States: queued, running; then done, failed or cancelled. A runner that works on a question says so
anew every second or so (``beat``). One that has not for ``STALE_S`` is dead: any runner takes its
question up. What a runner writes holds only while the question is its own, so one that wakes up
late changes nothing. A question that outlived three runners fails: it may be what killed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, or_, select, update

from waybill.access import write_audit
from waybill.errors import RetryError
from waybill.events import rfc3339
from waybill.storage import AdvisoryLock, TrackerStore
from waybill.storage.tracker import json_value, text_value
from waybill.storage.tracker import trace_queries as queries
from waybill.trails.question import Question

State = Literal["queued", "running", "done", "failed", "cancelled"]
STALE_S = 15.0
MOST_TRIES = 3
MOST_WAITING = 20
"""Questions of one person that are queued or running."""
MOST_KEYS_A_MINUTE = 30
"""Personal keys that one person may ask for, so that going through a list of them is slow."""
MOST_LISTED = 200
_DEEPEST = 32
_MOST_ERROR = 1000
_OPEN = ("queued", "running")


class TooManyQuestionsError(RetryError):
    """Somebody has many questions open already; ask again once some are answered."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and how it stands."""

    id: UUID
    asked_by: str
    asked_at: datetime
    question: Question
    state: State
    backend: str
    runner: str
    external_id: str
    cancel_asked: bool
    objects_read: int
    objects: int
    bytes_scanned: int
    started_at: datetime | None
    finished_at: datetime | None
    error: str
    answer: dict[str, Any] | None
    """None also in a list, where it is not read."""

    @property
    def ended(self) -> bool:
        """True: nothing changes any more."""
        return self.state not in _OPEN

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, without the answer."""
        return {
            "id": str(self.id),
            "asked_by": self.asked_by,
            "asked_at": rfc3339(self.asked_at),
            "question": self.question.to_json(),
            "words": self.question.words,
            "state": self.state,
            "backend": self.backend,
            "cancel_asked": self.cancel_asked,
            "objects_read": self.objects_read,
            "objects": self.objects,
            "bytes_scanned": self.bytes_scanned,
            "started_at": None if self.started_at is None else rfc3339(self.started_at),
            "finished_at": None if self.finished_at is None else rfc3339(self.finished_at),
            "error": self.error,
        }


_FIELDS = tuple(queries.c[name] for name in Asked.__slots__ if name != "answer")


def ask(
    tracker: TrackerStore,
    question: Question,
    *,
    who: str,
    runner: str = "",
    masked: bool = False,
    most_keys: int | None = None,
) -> UUID:
    """Write a question down, with its entry in the audit log; returns its id.

    Args:
        tracker: the table.
        question: what is asked.
        who: asks.
        runner: works on it from now on; empty: whichever takes it up.
        masked: the audit log does not quote the key, which is personal.
        most_keys: questions for keys that this person may ask in a minute; None: any number.

    Raises:
        TooManyQuestionsError: this person has ``MOST_WAITING`` questions open, or has asked for
            ``most_keys`` within a minute.
    """
    query_id = uuid4()
    values: dict[str, Any] = {"id": query_id, "asked_by": text_value(who), "state": "queued"}
    values["question"] = question.to_json()
    if runner:
        now = func.clock_timestamp()
        values |= {"state": "running", "runner": runner, "tries": 1}
        values |= {"started_at": now, "seen_at": now}
    own = and_(queries.c.asked_by == values["asked_by"], queries.c.state.in_(_OPEN))
    keys = and_(
        queries.c.asked_by == values["asked_by"],
        queries.c.asked_at > func.now() - timedelta(minutes=1),
        func.jsonb_typeof(queries.c.question["key"]) == "object",
    )
    with tracker.transaction() as connection:
        AdvisoryLock.QUESTION.take(connection, values["asked_by"])
        waiting = connection.execute(select(func.count()).select_from(queries).where(own))
        if int(waiting.scalar_one()) >= MOST_WAITING:
            raise TooManyQuestionsError(
                f"{who} has {MOST_WAITING} questions open; wait for them, or cancel some"
            )
        if most_keys is not None:
            asked = connection.execute(select(func.count()).select_from(queries).where(keys))
            if int(asked.scalar_one()) >= most_keys:
                raise TooManyQuestionsError(
                    f"{who} has asked for {most_keys} keys within a minute; ask again in a minute"
                )
        connection.execute(queries.insert().values(values))
        write_audit(
            connection,
            who=who,
            action="ask_trail",
            target="events",
            query_id=str(query_id),
            **_audited(question, masked=masked),
        )
    return query_id


def _audited(question: Question, *, masked: bool) -> dict[str, Any]:
    if question.key is None:
        return {"events": len(question.ids), "ids": list(question.ids[:20])}
    values = "*" if masked else list(question.key.values)
    detail = {"pipeline_id": question.key.pipeline_id, "key": values}
    return detail | {"event_name": question.key.event_name}


def claim(tracker: TrackerStore, *, runner: str) -> Asked | None:
    """Take up the oldest question that nobody works on; None: there is none.

    Two runners never take the same one. A dead runner's keeps its external id, by which the
    execution it began is found again.
    """
    with tracker.transaction() as connection:
        _give_up(connection)
        free = select(queries.c.id).where(_is_free()).order_by(queries.c.asked_at).limit(1)
        found = connection.execute(free.with_for_update(skip_locked=True)).scalar()
        if found is None:
            return None
        now = func.clock_timestamp()
        values = {"state": "running", "runner": runner, "tries": queries.c.tries + 1}
        mine = update(queries).where(queries.c.id == found)
        mine = mine.values(started_at=func.coalesce(queries.c.started_at, now), seen_at=now)
        row = connection.execute(mine.values(values).returning(*_FIELDS)).one()
    return _asked(row)


def _is_free() -> ColumnElement[bool]:
    return or_(queries.c.state == "queued", _is_stale())


def _is_stale() -> ColumnElement[bool]:
    long_ago = func.clock_timestamp() - timedelta(seconds=STALE_S)
    return and_(queries.c.state == "running", queries.c.seen_at < long_ago)


def _give_up(connection: Connection) -> None:
    """End what is stale and was to be cancelled, or outlived too many runners."""
    now = func.clock_timestamp()
    stale = update(queries).where(_is_stale())
    connection.execute(
        stale.where(queries.c.cancel_asked).values(state="cancelled", finished_at=now)
    )
    words = f"{MOST_TRIES} processes died while they worked on it; their logs may say why"
    tired = stale.where(queries.c.tries >= MOST_TRIES)
    connection.execute(tired.values(state="failed", finished_at=now, error=words))


@dataclass(frozen=True, slots=True)
class Beat:
    """What a runner says of its work."""

    objects_read: int = 0
    objects: int = 0
    bytes_scanned: int = 0
    external_id: str = ""
    backend: str = ""


def beat(tracker: TrackerStore, query_id: UUID, beat: Beat, *, runner: str) -> bool | None:
    """Say that the work goes on; True: it is to be cancelled; None: it is another runner's now."""
    values: dict[str, Any] = {name: getattr(beat, name) for name in Beat.__slots__}
    own = _mine(query_id, runner).values(values | {"seen_at": func.clock_timestamp()})
    with tracker.transaction() as connection:
        return connection.execute(own.returning(queries.c.cancel_asked)).scalar()


def finish(
    tracker: TrackerStore,
    query_id: UUID,
    *,
    runner: str,
    state: Literal["done", "failed", "cancelled"],
    answer: dict[str, Any] | None = None,
    error: str = "",
) -> bool:
    """End a question; False: it is another runner's now, and nothing was changed."""
    ended = _mine(query_id, runner).values(
        state=state,
        answer=None if answer is None else json_value(answer, deepest=_DEEPEST),
        error=text_value(error, longest=_MOST_ERROR),
        finished_at=func.clock_timestamp(),
    )
    with tracker.transaction() as connection:
        return bool(connection.execute(ended).rowcount)


def give_back(tracker: TrackerStore, query_id: UUID, *, runner: str) -> None:
    """Let another runner take up a question: this one ends."""
    free = _mine(query_id, runner).values(state="queued", runner="", tries=queries.c.tries - 1)
    with tracker.transaction() as connection:
        connection.execute(free)


def _mine(query_id: UUID, runner: str) -> Any:
    return update(queries).where(
        queries.c.id == query_id, queries.c.runner == runner, queries.c.state == "running"
    )


def cancel(tracker: TrackerStore, query_id: UUID, *, who: str) -> Asked | None:
    """Ask for a question's end; one that nobody works on ends now. None: there is no such one."""
    with tracker.transaction() as connection:
        locked = select(*_FIELDS).where(queries.c.id == query_id).with_for_update()
        row = connection.execute(locked).first()
        if row is None:
            return None
        if row.state in _OPEN and not row.cancel_asked:
            values: dict[str, Any] = {"cancel_asked": True}
            if row.state == "queued":
                values |= {"state": "cancelled", "finished_at": func.clock_timestamp()}
            connection.execute(update(queries).where(queries.c.id == query_id).values(values))
            write_audit(connection, who=who, action="cancel_trail", target=f"query {query_id}")
        return _asked(connection.execute(select(*_FIELDS).where(queries.c.id == query_id)).one())


def read(tracker: TrackerStore, query_id: UUID) -> Asked | None:
    """Return a question with its answer; None: there is none, or it was removed since."""
    query = select(*_FIELDS, queries.c.answer).where(queries.c.id == query_id)
    with tracker.transaction() as connection:
        row = connection.execute(query).first()
    return None if row is None else _asked(row, answer=row.answer)


def newest(tracker: TrackerStore, *, asked_by: str | None, limit: int) -> list[Asked]:
    """Return the newest questions without their answers: one person's, or everybody's."""
    query = select(*_FIELDS).order_by(queries.c.asked_at.desc(), queries.c.id)
    if asked_by is not None:
        query = query.where(queries.c.asked_by == text_value(asked_by))
    with tracker.transaction() as connection:
        rows: Sequence[Row[Any]] = connection.execute(query.limit(min(limit, MOST_LISTED))).all()
    return [_asked(row) for row in rows]


def expire(tracker: TrackerStore, *, keep_days: float) -> int:
    """Remove questions that ended longer ago; returns how many."""
    before = func.clock_timestamp() - timedelta(days=keep_days)
    old = delete(queries).where(queries.c.asked_at < before, queries.c.state.not_in(_OPEN))
    with tracker.transaction() as connection:
        return int(connection.execute(old).rowcount)


def _asked(row: Any, answer: dict[str, Any] | None = None) -> Asked:
    values = {name: getattr(row, name) for name in Asked.__slots__ if name != "answer"}
    values["question"] = Question.from_json(values["question"])
    return Asked(**values, answer=answer)
