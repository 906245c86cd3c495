"""Marks that are settled after their replay was cancelled: they find where the events are now."""

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill

from waybill.access import Decision
from waybill.parking import ParkedGroupFilter, ReplayConditions
from waybill.parking.replays import read_ended

lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
pytestmark = pytest.mark.serves
BY = Decision("ann", "test data")


def cancelled(lot, *commits):
    """Park, begin a replay of all of it and cancel it; return it and the ids it was to send."""
    for number, numbers in enumerate(commits, 1):
        lot.park([make_event(n) for n in numbers], number)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    ids = [segment.id for segment in lot.parking.replay_segments(replay.id)]
    lot.parking.cancel_replay(replay.id, who="ann")
    return replay.id, ids


def hours(since=None, until=None):
    edges = [None if hour is None else f"2013-01-01T{hour:02}:00Z" for hour in (since, until)]
    return ParkedGroupFilter(event_name="flight", since=edges[0], until=edges[1])


def rewrite(lot):
    assert lot.parking.clean_up(grace_s=0, rewrite_below=0.999).moved_segments


def mark(lot, replay_id, ids):
    """Mark, and return how many events that marked."""
    told = []
    assert not lot.parking.mark_replayed(replay_id, ids, lambda _connection, n: told.append(n))
    return told[0]


def test_the_parts_of_what_was_cut_and_rewritten_are_marked(lot):
    replay_id, ids = cancelled(lot, range(6), range(6, 12))
    lot.parking.discard(hours(1, 3), BY)
    lot.parking.discard(hours(5, 6), BY)
    lot.parking.undo_discard(hours(1, 2), BY)
    rewrite(lot)
    assert lot.states()["parked"] == 10
    assert mark(lot, replay_id, ids[:1]) == 3, "0, 3 and 4: of 1 somebody decided since"
    assert mark(lot, replay_id, ids[:1]) == 0
    found = lot.only()
    assert (found.parked, found.replayed, found.discarded) == (7, 3, 2)
    assert mark(lot, replay_id, ids) == 6
    segments = lot.parking.replay_segments(replay_id)
    assert sum(segment.count for segment in segments) == 9
    assert lot.parking.replay_size(replay_id) == len(segments)
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 0


def test_what_another_replay_took_is_not_marked(lot):
    replay_id, ids = cancelled(lot, range(6))
    other = lot.parking.begin_replay(
        lot.only().id, who="bob", run_id="r2", conditions=ReplayConditions(max_events=2)
    )
    assert mark(lot, replay_id, ids) == 4
    assert lot.states() == {"replaying": 2, "replayed": 4, "replaced": 6}
    lot.parking.cancel_replay(other.id, who="bob")


def test_a_kill_anywhere_in_a_late_mark_marks_all_or_nothing(lot):
    replay_id, ids = cancelled(lot, range(6))
    lot.parking.discard(hours(4), BY)
    for kill_at in range(1, 10):
        killed = run_and_kill(lot, lambda p: p.mark_replayed(replay_id, ids), kill_at)
        assert lot.states() in (
            {"parked": 4, "discarded": 2, "replaced": 6},
            {"replayed": 4, "discarded": 2, "replaced": 6},
        )
        lot.check()
        if not killed:
            break
    assert lot.states()["replayed"] == 4
    assert lot.sql("SELECT sent FROM replays") == [(4,)]


def test_a_replay_that_was_cancelled_before_it_sent_is_one_that_ended(lot):
    """What launches replays salts their run ids with it, so that the next one is another run."""
    lot.park([make_event(1)])
    place = lot.only().id
    assert read_ended(lot.tracker, [place]) == {}
    for run in ("r1", "r2"):
        begun = lot.parking.begin_replay(place, who="ann", run_id=run)
        before = read_ended(lot.tracker, [place])
        lot.parking.cancel_replay(begun.id, who="ann")
        assert read_ended(lot.tracker, [place, place + 1]) == {place: str(begun.id)} != before


def test_what_is_marked_after_the_cancellation_is_in_the_audit_log_too(lot):
    replay_id, ids = cancelled(lot, range(6), range(6, 12))
    assert mark(lot, replay_id, ids[:1]) == 6
    assert mark(lot, replay_id, ids[:1]) == 0
    said = lot.sql("SELECT action, who, detail->>'sent' FROM audit_log ORDER BY id")
    assert said[-2:] == [("cancel_replay", "ann", "0"), ("sent_before_cancel", "ann", "6")]
