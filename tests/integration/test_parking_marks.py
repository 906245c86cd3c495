"""Discards of many whole partitions: a mark a partition, which every reader and writer respects."""

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill

from waybill.access import Decision
from waybill.parking import (
    ObjectDescriptor,
    Packer,
    ParkedGroupFilter,
    ReplayConditions,
    identify,
    new_key,
)

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ALL = ParkedGroupFilter(pipeline_id="pl-1")
BY = Decision("ann", "test data")


@pytest.fixture(autouse=True)
def _many(monkeypatch):
    monkeypatch.setattr("waybill.parking.discards.MANY", 0)


def rows(lot):
    return dict(lot.sql("SELECT state, sum(count)::int FROM segments GROUP BY state"))


def begin(lot, run_id="r"):
    return lot.parking.begin_replay(lot.only().id, who="ann", run_id=run_id)


def test_a_mark_writes_no_segment_and_an_undo_takes_it_away(lot):
    for number in range(3):
        lot.park([make_event(number), make_event(number, name="other")], number)
    before = lot.parking.partitions()
    report = lot.parking.discard(ALL, BY)
    assert (report.partitions, report.segments, report.events) == (2, 6, 6)
    assert report.bytes == sum(one.bytes for one in before)
    assert (rows(lot), lot.states()) == ({"parked": 6}, {"discarded": 6})
    assert lot.parking.partitions(ParkedGroupFilter(held=True)) == []
    partition = before[0].id
    assert list(lot.parking.events(partition, states=("parked",))) == []
    assert len(list(lot.parking.events(partition, states=("discarded",)))) == 3
    assert lot.parking.causes(partition) == []
    lot.check()
    assert lot.parking.refresh(grace_s=1e9).aggregates_corrected == 0
    assert lot.parking.discard(ALL, BY).segments == 0
    undone = lot.parking.undo_discard(ALL, BY)
    assert undone.to_json() == report.to_json()
    assert lot.parking.partitions() == before
    assert lot.states() == {"parked": 6}


def test_what_parks_after_a_mark_is_parked_and_discards_add_up(lot):
    lot.park([make_event(1)], 1)
    lot.parking.discard(ALL, BY)
    lot.park([make_event(2)], 2)
    assert lot.states() == {"discarded": 1, "parked": 1}
    held = ParkedGroupFilter(held=True, since="2013-01-01T00:30Z", until="2013-01-01T01:30Z")
    assert lot.parking.page(held).partitions == ()
    assert lot.parking.partitions(held) == []
    assert len(lot.parking.page(ParkedGroupFilter(held=True, since="2013-01-01")).partitions) == 1
    assert [event.kafka_offset for event in lot.parking.events(lot.only().id)] == [2]
    assert lot.parking.discard(ALL, BY).segments == 1
    assert lot.states() == {"discarded": 2}
    assert lot.parking.undo_discard(ALL, BY).segments == 2
    assert lot.states() == {"parked": 2}


def test_a_replay_takes_nothing_marked_and_what_it_gives_back_is_parked(lot):
    lot.park([make_event(1)], 1)
    lot.parking.discard(ALL, BY)
    lot.park([make_event(2)], 2)
    replay = begin(lot)
    assert replay.events == 1
    assert rows(lot) == {"discarded": 1, "replaying": 1}
    lot.park([make_event(3)], 3)
    held = lot.only().bytes
    report = lot.parking.discard(ALL, BY)
    assert (report.segments, report.events) == (1, 1)
    assert rows(lot) == {"discarded": 1, "replaying": 1, "parked": 1}
    assert lot.states() == {"discarded": 2, "replaying": 1}
    assert lot.only().bytes == held - report.bytes > 0
    assert [one.events for one in lot.parking.causes(lot.only().id)] == [1]
    assert len(lot.parking.partitions(ParkedGroupFilter(held=True, since="2013-01-01"))) == 1
    lot.check()
    lot.parking.cancel_replay(replay.id, who="ann")
    assert rows(lot) == lot.states() == {"discarded": 2, "parked": 1}
    assert [event.kafka_offset for event in lot.parking.events(lot.only().id)] == [2]
    assert lot.parking.undo_discard(ALL, BY).segments == 2


def test_a_mark_is_undone_while_others_are_being_replayed(lot):
    lot.park([make_event(1)], 1)
    replay = begin(lot)
    lot.park([make_event(2)], 2)
    before = lot.only()
    lot.parking.discard(ALL, BY)
    assert lot.parking.undo_discard(ALL, BY).segments == 1
    assert lot.only() == before
    lot.parking.discard(ALL, BY)
    ids = [one.id for one in lot.parking.replay_segments(replay.id)]
    assert lot.parking.mark_replayed(replay.id, ids)
    assert lot.parking.finish_replay(replay.id).state == "done"
    assert lot.states() == rows(lot) == {"discarded": 1, "replayed": 1}


def test_what_a_cancelled_replay_sent_late_is_not_taken_from_a_mark(lot):
    lot.park([make_event(1)], 1)
    replay = begin(lot)
    ids = [one.id for one in lot.parking.replay_segments(replay.id)]
    lot.parking.cancel_replay(replay.id, who="ann")
    lot.parking.discard(ALL, BY)
    assert (lot.parking.replay_segments(replay.id), lot.parking.replay_size(replay.id)) == ([], 0)
    assert not lot.parking.mark_replayed(replay.id, ids)
    assert lot.states() == {"discarded": 1}
    assert lot.parking.clean_up(grace_s=0).objects == 1
    assert (lot.only().discarded, lot.only().replayed) == (1, 0)
    lot.check()


def test_a_replay_counts_and_takes_none_of_what_a_mark_discards(lot):
    lot.park([make_event(1)], 1)
    lot.parking.discard(ALL, BY)
    assert lot.parking.count_parked(lot.only().id, ReplayConditions()) == 0
    assert begin(lot).events == 0


def park_once(lot, event, number):
    """Park an event that has an identity; returns how many copies were left out."""
    packer = Packer()
    known = identify("id", source_version=1, intake_version=1, minute=1, replay_id=None)
    packer.add(event, known)
    done = packer.finish()
    item = ObjectDescriptor(new_key(), len(done.body), done.segments)
    lot.objects.put(item.key, done.body)
    with lot.tracker.transaction() as connection:
        copies = lot.parking.record_once(connection, [item], scope="w", commit_number=number)
    return sum(copies.values())


def test_a_copy_of_a_discarded_event_is_parked_again(lot):
    assert park_once(lot, make_event(1), 1) == 0
    lot.parking.discard(ALL, BY)
    assert park_once(lot, make_event(1), 2) == 0
    assert lot.states() == {"discarded": 1, "parked": 1}
    assert park_once(lot, make_event(1), 3) == 1


def test_an_object_with_marks_within_the_grace_is_not_rewritten(lot):
    """Its parked rest is to move; what a mark discards must neither move nor stop it for good."""
    lot.park([make_event(1), make_event(2, name="b"), make_event(3, name="c")], 1)
    lot.parking.discard(ParkedGroupFilter(event_name="flight"), BY)
    moment = lot.sql("SELECT clock_timestamp()")[0][0]
    lot.parking.discard(ParkedGroupFilter(event_name="b"), BY)
    given = {"now": moment, "grace_s": 0, "rewrite_below": 1.0}
    assert lot.parking.clean_up(**given).rewritten == 0
    assert lot.states() == {"discarded": 2, "parked": 1}
    assert rows(lot) == {"discarded": 1, "parked": 2}
    report = lot.parking.clean_up(grace_s=0, rewrite_below=1.0)
    assert (report.rewritten, report.moved_segments) == (1, 1)
    assert lot.states() == {"discarded": 2, "parked": 1, "replaced": 1}


def test_a_window_cuts_through_what_a_mark_discards(lot):
    lot.park([make_event(n) for n in range(4)], 1)
    lot.parking.discard(ALL, BY)
    window = ParkedGroupFilter(pipeline_id="pl-1", since="2013-01-01T02:00Z")
    assert lot.parking.undo_discard(window, BY).events == 2
    assert lot.states() == rows(lot) == {"replaced": 4, "discarded": 2, "parked": 2}


def test_an_object_that_is_gone_under_a_mark_is_told_as_discarded(lot):
    key = lot.park([make_event(1)], 1)
    lot.parking.discard(ALL, BY)
    lot.objects.delete([key])
    assert list(lot.parking.events(lot.only().id, states=("discarded",))) == []
    assert lot.parking.refresh(grace_s=1e9).missing == (key,)
    held = lot.sql("SELECT (detail->>'events_held')::int FROM notices WHERE kind = 'missing'")
    assert held == [(0,)]
    lot.sql("TRUNCATE segments, parked_partitions, parked_objects, replays CASCADE")


@pytest.mark.parametrize("work", ["discard", "undo_discard", "begin", "cancel"])
def test_killed_between_two_writes_all_of_it_is_done_or_nothing(lot, work):
    """Points: before, at the end of, and after each transaction."""
    doing = {
        "discard": lambda parking: parking.discard(ALL, BY),
        "undo_discard": lambda parking: parking.undo_discard(ALL, BY),
        "begin": lambda parking: parking.begin_replay(1, who="ann", run_id="late"),
        "cancel": lambda parking: parking.cancel_replay(replay.id, who="ann"),
    }[work]
    killed_at = 0
    for kill_at in range(1, 100):
        lot.sql(
            "TRUNCATE parked_partitions, parked_objects, segments, replays RESTART IDENTITY CASCADE"
        )
        lot.park([make_event(1)], 1)
        replay = begin(lot)
        lot.park([make_event(2)], 2)
        if work == "begin":
            lot.parking.cancel_replay(replay.id, who="ann")
        if work != "discard":
            lot.parking.discard(ALL, BY)
        if work == "begin":
            lot.park([make_event(3)], 3)
        before = lot.states()
        if not run_and_kill(lot, doing, kill_at):
            break
        killed_at = kill_at
        lot.check()
        after = {
            "discard": {"replaying": 1, "discarded": 1},
            "undo_discard": {"replaying": 1, "parked": 1},
            "begin": {"discarded": 2, "replaying": 1},
            "cancel": {"discarded": 1, "parked": 1},
        }[work]
        assert lot.states() in (before, after)
        doing(lot.parking)
        assert lot.states() == after
        lot.check()
    assert killed_at >= 3


def test_marks_and_rows_are_undone_together_and_counted_once(lot):
    lot.park([make_event(1)], 1)
    window = ParkedGroupFilter(pipeline_id="pl-1", until="2014-01-01")
    assert lot.parking.discard(window, BY).segments == 1
    lot.park([make_event(2)], 2)
    lot.parking.discard(ALL, BY)
    assert rows(lot) == {"discarded": 1, "parked": 1}
    undone = lot.parking.undo_discard(ALL, BY)
    assert (undone.partitions, undone.segments) == (1, 2)
    lot.parking.discard(ALL, BY)
    assert lot.parking.undo_discard(window, BY).segments == 2
    assert rows(lot) == {"parked": 2}


def test_a_clean_up_settles_past_the_grace_killed_or_not(lot):
    killed_at = 0
    for kill_at in range(1, 100):
        lot.sql("TRUNCATE parked_partitions, parked_objects, segments, replays CASCADE")
        lot.park([make_event(1), make_event(2, name="other")], 1)
        lot.parking.discard(ALL, BY)
        assert lot.parking.clean_up(grace_s=1e6).objects == 0
        assert rows(lot) == {"parked": 2}
        if not run_and_kill(lot, lambda parking: parking.clean_up(grace_s=0), kill_at):
            break
        killed_at = kill_at
        lot.parking.clean_up(grace_s=0)
        lot.check()
        assert (lot.keys(), rows(lot)) == (set(), {"deleted": 2})
        assert [one.discarded for one in lot.parking.partitions()] == [1, 1]
        assert lot.parking.undo_discard(ALL, BY).segments == 0
    assert killed_at > 20
