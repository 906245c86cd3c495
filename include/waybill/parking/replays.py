"""Replays: taking the segments that one is of, marking those that were sent, ending it.

States of a replay: running, then done or cancelled. Of its segments: parked, replaying, replayed;
a cancelled replay's rest goes back to parked and keeps its ``replay_id``, so that a segment which
was already whole in the producer's log can still be marked replayed, unless it was taken or
discarded. What was cut or rewritten meanwhile is marked where it is now: ``source_id`` says so.

Beginning one. What a condition cuts through is cut first (``splits``), each segment in a
transaction of its own; then, while the partition's row is held, it is looked at whether all
segments lie on one side of the conditions, and those inside are taken. A kill before leaves
segments that are cut and parked: the same events. What is parked after the begin is left to the
next replay.

Segments that are damaged, so that nobody knows which of their events were asked for, are
quarantined in the transaction that takes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    any_,
    cast,
    func,
    not_,
    or_,
    select,
    true,
    tuple_,
    update,
)

from waybill.access import required_text, write_audit
from waybill.errors import InputError, NotFoundError, RetryError
from waybill.parking.event import ParkedEvent
from waybill.parking.model import Replay, ReplayConditions, Segment
from waybill.parking.packed import CorruptSegmentError
from waybill.parking.quarantine import quarantine
from waybill.parking.reading import merged, read_segment_events, slice_of, slices
from waybill.parking.selection import (
    REPLAY_ORDER,
    inside,
    may_match,
    read_replay,
    select_segments,
    to_segment,
)
from waybill.parking.splits import Sides, cut
from waybill.parking.states import IS_UNMARKED_ALONE, lock_group, move
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import replays, segments

Beside = Callable[[Connection, int], None]
"""Writes what else a mark says, in its transaction; told how many events it marked."""
_PAGE = 500
_SLICE = REPLAY_ORDER[:3]
_ABOUT = 1.5


def mark_replayed(
    tracker: TrackerStore,
    replay_id: UUID,
    segment_ids: Sequence[int],
    beside: Beside | None = None,
) -> bool:
    """Mark segments sent; see ``Parking.mark_replayed``."""
    with tracker.transaction() as connection:
        replay = _locked(connection, replay_id)
        own = segments.c.replay_id == replay_id
        named = segments.c.id.in_(list(segment_ids))
        sent = move(connection, "replaying", "replayed", own, named).events
        late = replay.state == "cancelled"
        if late:
            now = segments.c.id.in_(_where_now(segment_ids))
            sent += move(connection, "parked", "replayed", own, now).events
        if sent:
            connection.execute(
                update(replays).where(replays.c.id == replay_id).values(sent=replays.c.sent + sent)
            )
        if late and sent:
            # the entry of the cancellation counts what was marked until then
            now_sent = read_known(connection, replay_id)
            _write(connection, now_sent, "sent_before_cancel", who=replay.requested_by)
        if beside is not None:
            beside(connection, sent)
    return replay.state == "running"


def _where_now(segment_ids: Sequence[int]) -> Select[Any]:
    """Return a query for segments and all that they were cut into, or rewritten as."""
    named = cast(list(segment_ids), ARRAY(BigInteger))
    found = select(func.unnest(named).label("id")).cte("found", recursive=True)
    parts = select(segments.c.id).join_from(segments, found, segments.c.source_id == found.c.id)
    return select(found.union(parts).c.id)


def finish_replay(tracker: TrackerStore, replay_id: UUID) -> Replay:
    """End a replay whose segments are all sent; see ``Parking.finish_replay``."""
    with tracker.transaction(long_statements=True) as connection:
        replay = _locked(connection, replay_id)
        if replay.state == "cancelled":
            raise was_cancelled(replay)
        if replay.state == "done":
            return replay
        left = select(func.count()).where(
            segments.c.replay_id == replay_id, segments.c.state == "replaying"
        )
        number = connection.execute(left).scalar_one()
        if number:
            raise RetryError(f"replay {replay_id} has {number} segments still to send")
        return _end(connection, replay, "done", who=replay.requested_by)


def cancel_replay(tracker: TrackerStore, replay_id: UUID, *, who: str) -> Replay:
    """Stop a replay and put the rest back; see ``Parking.cancel_replay``."""
    asked_by = required_text(who, "who")
    with tracker.transaction(long_statements=True) as connection:
        replay = _locked(connection, replay_id)
        if replay.state == "cancelled":
            return replay
        if replay.state == "done":
            raise InputError(f"replay {replay_id} is done; there is nothing left to cancel")
        own = segments.c.replay_id == replay_id
        move(connection, "replaying", "parked", own)
        return _end(connection, replay, "cancelled", who=asked_by)


def _end(connection: Connection, replay: Replay, state: str, *, who: str) -> Replay:
    connection.execute(
        update(replays)
        .where(replays.c.id == replay.id)
        .values(state=state, finished_at=func.clock_timestamp())
    )
    ended = read_known(connection, replay.id)
    _write(connection, ended, "finish_replay" if state == "done" else "cancel_replay", who=who)
    return ended


def _write(connection: Connection, replay: Replay, action: str, *, who: str) -> None:
    write_audit(
        connection,
        who=who,
        action=action,
        target=f"partition {replay.partition_id}",
        replay_id=str(replay.id),
        run_id=replay.run_id,
        events=replay.events,
        sent=replay.sent,
    )


def _locked(connection: Connection, replay_id: UUID) -> Replay:
    """Return a replay as it stands once its partition's row is held."""
    found = read_known(connection, replay_id)
    lock_group(connection, found.partition_id)
    return read_known(connection, replay_id)


def decide_entry(tracker: TrackerStore, replay_id: UUID, entry: str) -> str:
    """Write down where a replay's events enter; see ``Parking.decide_entry``."""
    undecided = replays.c.id == replay_id, replays.c.entry == ""
    with tracker.transaction() as connection:
        connection.execute(update(replays).where(*undecided).values(entry=entry))
        return str(read_known(connection, replay_id).entry)


def read_ended(tracker: TrackerStore, partition_ids: Sequence[int]) -> dict[int, str]:
    """Return {partition id: id of its replay that ended last}; without one it is left out."""
    query = (
        select(replays.c.partition_id, replays.c.id)
        .where(replays.c.partition_id.in_(list(partition_ids)), replays.c.state != "running")
        .order_by(replays.c.finished_at)
    )
    with tracker.transaction() as connection:
        return {int(row[0]): str(row[1]) for row in connection.execute(query)}


def read_step(tracker: TrackerStore, partition_id: int, run_id: str, step: str) -> Replay | None:
    """Return a step of a run; see ``Parking.replay_step``."""
    wanted = (
        replays.c.partition_id == partition_id,
        replays.c.run_id == required_text(run_id, "run_id"),
        replays.c.step == step,
    )
    with tracker.transaction() as connection:
        return read_replay(connection, *wanted)


def read_known(connection: Connection, replay_id: UUID) -> Replay:
    """Return a replay.

    Raises:
        InputError: there is none with this id.
    """
    found = read_replay(connection, replays.c.id == replay_id)
    if found is None:
        raise NotFoundError(f"there is no replay {replay_id}")
    return found


def was_cancelled(replay: Replay) -> InputError:
    """Return the error for a replay that goes on no more."""
    return InputError(
        f"replay {replay.id} of run {replay.run_id!r} was cancelled after {replay.sent} of "
        f"{replay.events} events; start a new run to replay what is parked"
    )


@dataclass(frozen=True, slots=True)
class ReplayAsked:
    """Who begins a replay, and how it is to go."""

    partition_id: int
    who: str
    run_id: str
    conditions: ReplayConditions
    rate_per_s: int | None = None
    step: str = ""


@dataclass(slots=True)
class _Known:
    """What was found out by reading segments that conditions cut through."""

    as_of: datetime
    sides: Sides = field(default_factory=dict)
    damaged: dict[int, CorruptSegmentError] = field(default_factory=dict)
    limit: _Limit | None = None


@dataclass(frozen=True, slots=True)
class _Limit:
    """Where ``max_events`` ends: whole slices before one, and segments of that one."""

    slice: tuple[int, str, int]
    segments: tuple[int, ...]
    """Ids, those of the slice that are wanted."""


def begin_replay(tracker: TrackerStore, objects: ObjectStore, asked: ReplayAsked) -> Replay:
    """Take the parked segments that were asked for; see ``Parking.begin_replay``."""
    _check(asked)
    with tracker.transaction() as connection:
        as_of: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    known = _Known(as_of)
    while True:
        with tracker.transaction(long_statements=True) as connection:
            lock_group(connection, asked.partition_id)
            found = _already(connection, asked)
            if found is not None:
                return found
            doubtful = _doubtful(connection, asked, known)
            if not doubtful:
                cut_through = _cut_through_limit(connection, asked, known)
                if cut_through is None:
                    return _take(connection, asked, known)
        if doubtful:
            _resolve(tracker, objects, doubtful, asked.conditions.event_filter(), known)
        else:
            assert cut_through is not None  # noqa: S101 - narrows a type
            _cut_at_limit(tracker, objects, cut_through, known)


def _check(asked: ReplayAsked) -> None:
    required_text(asked.who, "who")
    required_text(asked.run_id, "run_id")
    most = asked.conditions.max_events
    if most is not None and most < 1:
        raise InputError(f"max_events: a replay sends at least 1 event, not {most}")
    _ = asked.conditions.window, asked.conditions.parked_window


def _already(connection: Connection, asked: ReplayAsked) -> Replay | None:
    known = read_replay(
        connection,
        replays.c.partition_id == asked.partition_id,
        replays.c.run_id == required_text(asked.run_id, "run_id"),
        replays.c.step == asked.step,
    )
    if known is not None and known.state == "cancelled":
        raise was_cancelled(known)
    if known is not None:
        return known
    running = read_replay(
        connection, replays.c.partition_id == asked.partition_id, replays.c.state == "running"
    )
    if running is not None:
        raise RetryError(
            f"partition {asked.partition_id} is being replayed by run {running.run_id!r} (replay "
            f"{running.id}, asked for by {running.requested_by!r}); wait for its end or cancel it"
        )
    return None


# Which segments


def _maybe(asked: ReplayAsked, known: _Known) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment: it is parked, and some of it may be wanted."""
    return [
        *may_match(asked.partition_id, asked.conditions),
        segments.c.state == "parked",
        segments.c.parked_at <= known.as_of,
    ]


def count_parked(tracker: TrackerStore, partition_id: int, conditions: ReplayConditions) -> int:
    """Count the events of segments that may be wanted; see ``Parking.count_parked``."""
    with tracker.transaction() as connection:
        as_of: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        asked = ReplayAsked(partition_id, "", "", conditions)
        query = select(func.coalesce(func.sum(segments.c.count), 0))
        wanted = (*_maybe(asked, _Known(as_of)), IS_UNMARKED_ALONE)
        return int(connection.execute(query.where(*wanted)).scalar_one())


def _surely(conditions: ReplayConditions) -> ColumnElement[bool]:
    """Return the condition on a segment that may be wanted: all of it is."""
    found = inside(*conditions.window)
    if conditions.fingerprint is not None:
        found.append(segments.c.fingerprint == conditions.fingerprint)
    return and_(true(), *found)


def _doubtful(connection: Connection, asked: ReplayAsked, known: _Known) -> list[Segment]:
    """Return segments that a condition may cut through, and that nobody has looked into."""
    query = select_segments(
        *_maybe(asked, known),
        not_(_surely(asked.conditions)),
        not_(_among([*known.sides, *known.damaged])),
    )
    return [to_segment(row) for row in connection.execute(query.limit(_PAGE))]


def _wanted(asked: ReplayAsked, known: _Known) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment that is wanted, without the limit."""
    inside_ids = [number for number, side in known.sides.items() if side == "in"]
    outside_ids = [number for number, side in known.sides.items() if side == "out"]
    return [
        *_maybe(asked, known),
        or_(_surely(asked.conditions), _among(inside_ids)),
        not_(_among([*outside_ids, *known.damaged])),
    ]


def _among(ids: Sequence[int]) -> ColumnElement[bool]:
    return segments.c.id == any_(cast(list(ids), ARRAY(BigInteger)))


def _resolve(
    tracker: TrackerStore,
    objects: ObjectStore,
    doubtful: Sequence[Segment],
    is_wanted: Callable[[ParkedEvent], bool],
    known: _Known,
) -> None:
    for segment in doubtful:
        try:
            known.sides |= cut(tracker, objects, segment, lambda _, event: is_wanted(event))
        except CorruptSegmentError as error:
            known.damaged[segment.id] = error


# The limit


def _cut_through_limit(
    connection: Connection, asked: ReplayAsked, known: _Known
) -> tuple[list[Segment], int] | None:
    """Find where the limit ends; return the slice that it cuts through, and how much of it is in.

    None: nothing has to be cut. Then ``known.limit`` says what to take, or is None: all.
    """
    most = asked.conditions.max_events
    if most is None:
        return None
    before = 0
    query = select_segments(*_wanted(asked, known)).execution_options(yield_per=_PAGE)
    for some in slices(to_segment(row) for row in connection.execute(query)):
        number = sum(segment.count for segment in some)
        if before + number >= most:
            return _within(some, before, most, asked.conditions, known)
        before += number
    known.limit = None
    return None


def _within(
    some: list[Segment], before: int, most: int, conditions: ReplayConditions, known: _Known
) -> tuple[list[Segment], int] | None:
    """Settle the limit inside of one slice, or return it to be cut."""
    number = sum(segment.count for segment in some)
    place = slice_of(some[0])
    if before + number == most or (conditions.about and before + number <= most * _ABOUT):
        everything = tuple(segment.id for segment in some)
        known.limit = _Limit(place, everything)
        return None
    limit = known.limit
    if limit is not None and limit.slice == place:
        chosen = [segment for segment in some if segment.id in limit.segments]
        if before + sum(segment.count for segment in chosen) == most:
            return None
    return some, most - before


def _cut_at_limit(
    tracker: TrackerStore, objects: ObjectStore, found: tuple[list[Segment], int], known: _Known
) -> None:
    """Cut a slice behind its first events, in merged order, and note which segments are in."""
    some, number = found
    quotas = dict.fromkeys((segment.id for segment in some), 0)
    readable = [segment for segment in some if _is_readable(tracker, objects, segment, known)]
    if len(readable) < len(some):
        return
    stream = merged(some, lambda segment: read_segment_events(tracker, objects, segment))
    for _, (segment, _event) in zip(range(number), stream, strict=False):
        quotas[segment.id] += 1
    chosen: list[int] = []
    for segment in some:
        sides = _cut_first(tracker, objects, segment, quotas[segment.id])
        chosen += [part for part, side in sides.items() if side == "in"]
        known.sides |= {part: "in" for part in sides if segment.id in known.sides}
    known.limit = _Limit(slice_of(some[0]), tuple(chosen))


def _is_readable(
    tracker: TrackerStore, objects: ObjectStore, segment: Segment, known: _Known
) -> bool:
    try:
        for _ in read_segment_events(tracker, objects, segment):
            pass
    except CorruptSegmentError as error:
        known.damaged[segment.id] = error
        return False
    return True


def _cut_first(tracker: TrackerStore, objects: ObjectStore, segment: Segment, quota: int) -> Sides:
    return cut(tracker, objects, segment, lambda index, _event: index < quota)


# Taking them


def _take(connection: Connection, asked: ReplayAsked, known: _Known) -> Replay:
    conditions, replay_id = asked.conditions, uuid4()
    since, until = conditions.window
    who, run_id = required_text(asked.who, "who"), required_text(asked.run_id, "run_id")
    connection.execute(
        replays.insert().values(
            id=replay_id,
            partition_id=asked.partition_id,
            state="running",
            requested_by=who,
            run_id=run_id,
            since=since,
            until=until,
            rate_per_s=asked.rate_per_s,
            fingerprint=conditions.fingerprint,
            max_events=conditions.max_events,
            step=asked.step,
            entry="",
        )
    )
    wanted = _wanted(asked, known)
    if known.limit is not None:
        before = tuple_(*_SLICE) < tuple_(*known.limit.slice)
        wanted.append(or_(before, _among(known.limit.segments)))
    taken = move(connection, "parked", "replaying", *wanted, replay_id=replay_id)
    connection.execute(update(replays).where(replays.c.id == replay_id).values(events=taken.events))
    for segment_id, error in known.damaged.items():
        quarantine(connection, replay_id, segment_id, error, source="parked", who=who)
    write_audit(
        connection,
        who=who,
        action="begin_replay",
        target=f"partition {asked.partition_id}",
        replay_id=str(replay_id),
        run_id=run_id,
        segments=taken.segments,
        events=taken.events,
        **_said(conditions, asked.step),
    )
    return read_known(connection, replay_id)


def _said(conditions: ReplayConditions, step: str) -> dict[str, Any]:
    said = {
        "since": conditions.since,
        "until": conditions.until,
        "parked_since": conditions.parked_since,
        "parked_until": conditions.parked_until,
        "fingerprint": conditions.fingerprint,
        "max_events": conditions.max_events,
        "step": step,
    }
    return {name: str(value) for name, value in said.items() if value not in (None, "")}
