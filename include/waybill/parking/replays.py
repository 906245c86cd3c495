"""Replays: taking a partition's segments, marking them sent, ending.

States of a replay: running, then done or cancelled. Of its segments: parked, replaying, replayed;
a cancelled replay's rest goes back to parked and keeps its ``replay_id``, so that a segment which
was already whole in the producer's log can still be marked replayed, unless it was taken or
discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid4

from sqlalchemy import Connection, func, select, update

from waybill.errors import InputError, RetryError
from waybill.parking.instants import window_edge
from waybill.parking.model import Replay
from waybill.parking.moves import Moved, move, words, write_audit
from waybill.parking.selection import lock_partition, overlaps, read_replay
from waybill.storage.tracker import TrackerStore
from waybill.storage.tracker.tables import replays, segments


def begin_replay(  # noqa: PLR0913 - a replay's conditions
    tracker: TrackerStore,
    partition_id: int,
    *,
    who: str,
    run_id: str,
    since: datetime | str | None,
    until: datetime | str | None,
    rate_per_s: int | None,
) -> Replay:
    """Take the partition's parked segments for a replay; see ``Parking.begin_replay``."""
    asked_by, run = words(who, "who"), words(run_id, "run_id")
    edges = window_edge(since, "since"), window_edge(until, "until")
    with tracker.transaction() as connection:
        lock_partition(connection, partition_id)
        known = _known_run(connection, partition_id, run)
        if known is not None:
            return known
        _refuse_second(connection, partition_id)
        replay_id = uuid4()
        values = {
            "id": replay_id,
            "partition_id": partition_id,
            "state": "running",
            "requested_by": asked_by,
            "run_id": run,
            "since": edges[0],
            "until": edges[1],
            "rate_per_s": rate_per_s,
        }
        connection.execute(replays.insert().values(**values))
        taken = _take(connection, partition_id, replay_id, edges)
        connection.execute(
            update(replays).where(replays.c.id == replay_id).values(events=taken.events)
        )
        write_audit(
            connection,
            who=asked_by,
            action="begin_replay",
            target=f"partition {partition_id}",
            replay_id=str(replay_id),
            run_id=run,
            segments=taken.segments,
            events=taken.events,
        )
        return _read(connection, replay_id)


def _known_run(connection: Connection, partition_id: int, run_id: str) -> Replay | None:
    known = read_replay(
        connection, replays.c.partition_id == partition_id, replays.c.run_id == run_id
    )
    if known is not None and known.state == "cancelled":
        raise _was_cancelled(known)
    return known


def _refuse_second(connection: Connection, partition_id: int) -> None:
    running = read_replay(
        connection, replays.c.partition_id == partition_id, replays.c.state == "running"
    )
    if running is not None:
        raise RetryError(
            f"partition {partition_id} is being replayed by run {running.run_id!r} (replay "
            f"{running.id}, asked for by {running.requested_by!r}); wait for its end or cancel it"
        )


def _take(
    connection: Connection,
    partition_id: int,
    replay_id: UUID,
    window: tuple[datetime | None, datetime | None],
) -> Moved:
    conditions = [segments.c.partition_id == partition_id, *overlaps(*window)]
    return move(connection, "parked", "replaying", *conditions, replay_id=replay_id)


def mark_replayed(tracker: TrackerStore, replay_id: UUID, segment_ids: Sequence[int]) -> bool:
    """Mark segments sent; see ``Parking.mark_replayed``."""
    with tracker.transaction() as connection:
        replay = _locked(connection, replay_id)
        own = (segments.c.id.in_(list(segment_ids)), segments.c.replay_id == replay_id)
        sent = move(connection, "replaying", "replayed", *own).events
        if replay.state == "cancelled":
            sent += move(connection, "parked", "replayed", *own).events
        if sent:
            connection.execute(
                update(replays).where(replays.c.id == replay_id).values(sent=replays.c.sent + sent)
            )
    return replay.state == "running"


def finish_replay(tracker: TrackerStore, replay_id: UUID) -> Replay:
    """End a replay whose segments are all sent; see ``Parking.finish_replay``."""
    with tracker.transaction() as connection:
        replay = _locked(connection, replay_id)
        if replay.state == "cancelled":
            raise _was_cancelled(replay)
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
    asked_by = words(who, "who")
    with tracker.transaction() as connection:
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
    ended = _read(connection, replay.id)
    write_audit(
        connection,
        who=who,
        action="finish_replay" if state == "done" else "cancel_replay",
        target=f"partition {replay.partition_id}",
        replay_id=str(replay.id),
        run_id=replay.run_id,
        events=ended.events,
        sent=ended.sent,
    )
    return ended


def _locked(connection: Connection, replay_id: UUID) -> Replay:
    """Return a replay as it stands once its partition's row is held."""
    found = _read(connection, replay_id)
    lock_partition(connection, found.partition_id)
    return _read(connection, replay_id)


def _read(connection: Connection, replay_id: UUID) -> Replay:
    found = read_replay(connection, replays.c.id == replay_id)
    if found is None:
        raise InputError(f"there is no replay {replay_id}")
    return found


def _was_cancelled(replay: Replay) -> InputError:
    return InputError(
        f"replay {replay.id} of run {replay.run_id!r} was cancelled after {replay.sent} of "
        f"{replay.events} events; start a new run to replay what is parked"
    )
