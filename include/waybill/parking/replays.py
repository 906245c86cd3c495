"""Replays once they are begun: marking segments sent, ending; how one begins is in ``taking``.

States of a replay: running, then done or cancelled. Of its segments: parked, replaying, replayed;
a cancelled replay's rest goes back to parked and keeps its ``replay_id``, so that a segment which
was already whole in the producer's log can still be marked replayed, unless it was taken or
discarded. What was cut or rewritten meanwhile is marked where it is now: ``source_id`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Connection, Select, cast, func, select, update

from waybill.access import required_text, write_audit
from waybill.errors import InputError, RetryError
from waybill.parking.model import Replay
from waybill.parking.moves import move
from waybill.parking.selection import lock_partition, read_replay
from waybill.storage.tracker import TrackerStore, replays, segments

Beside = Callable[[Connection, int], None]
"""Writes what else a mark says, in its transaction; told how many events it marked."""


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
    lock_partition(connection, found.partition_id)
    return read_known(connection, replay_id)


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
        raise InputError(f"there is no replay {replay_id}")
    return found


def was_cancelled(replay: Replay) -> InputError:
    """Return the error for a replay that goes on no more."""
    return InputError(
        f"replay {replay.id} of run {replay.run_id!r} was cancelled after {replay.sent} of "
        f"{replay.events} events; start a new run to replay what is parked"
    )
