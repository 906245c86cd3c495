"""Discards of many whole partitions: a mark a partition, which every reader and writer respects."""

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill

from waybill.parking import PartitionFilter

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ALL = PartitionFilter(pipeline_id="pl-1")
BY = {"who": "ann", "why": "test data"}


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
    report = lot.parking.discard(ALL, **BY)
    assert (report.partitions, report.segments, report.events) == (2, 6, 6)
    assert report.bytes == sum(one.bytes for one in before)
    assert (rows(lot), lot.states()) == ({"parked": 6}, {"discarded": 6})
    assert lot.parking.partitions(PartitionFilter(held=True)) == []
    partition = before[0].id
    assert list(lot.parking.events(partition, states=("parked",))) == []
    assert len(list(lot.parking.events(partition, states=("discarded",)))) == 3
    assert lot.parking.groups(partition) == []
    lot.check()
    assert lot.parking.refresh(grace_s=1e9).aggregates_corrected == 0
    assert lot.parking.discard(ALL, **BY).segments == 0
    undone = lot.parking.undo_discard(ALL, **BY)
    assert undone.to_json() == report.to_json()
    assert lot.parking.partitions() == before
    assert lot.states() == {"parked": 6}


def test_what_parks_after_a_mark_is_parked_and_discards_add_up(lot):
    lot.park([make_event(1)], 1)
    lot.parking.discard(ALL, **BY)
    lot.park([make_event(2)], 2)
    assert lot.states() == {"discarded": 1, "parked": 1}
    held = PartitionFilter(held=True, since="2013-01-01T00:30Z", until="2013-01-01T01:30Z")
    assert lot.parking.page(held).partitions == ()
    assert lot.parking.partitions(held) == []
    assert len(lot.parking.page(PartitionFilter(held=True, since="2013-01-01")).partitions) == 1
    assert [event.kafka_offset for event in lot.parking.events(lot.only().id)] == [2]
    assert lot.parking.discard(ALL, **BY).segments == 1
    assert lot.states() == {"discarded": 2}
    assert lot.parking.undo_discard(ALL, **BY).segments == 2
    assert lot.states() == {"parked": 2}


def test_a_replay_takes_nothing_marked_and_gives_nothing_back_to_a_mark(lot):
    lot.park([make_event(1)], 1)
    lot.parking.discard(ALL, **BY)
    lot.park([make_event(2)], 2)
    replay = begin(lot)
    assert replay.events == 1
    assert rows(lot) == {"discarded": 1, "replaying": 1}
    lot.park([make_event(3)], 3)
    assert lot.parking.discard(ALL, **BY).segments == 1
    assert rows(lot) == {"discarded": 2, "replaying": 1}
    lot.parking.cancel_replay(replay.id, who="ann")
    assert lot.states() == {"discarded": 2, "parked": 1}
    assert lot.parking.undo_discard(ALL, **BY).segments == 2


def test_marks_and_rows_are_undone_together_and_counted_once(lot):
    lot.park([make_event(1)], 1)
    window = PartitionFilter(pipeline_id="pl-1", until="2014-01-01")
    assert lot.parking.discard(window, **BY).segments == 1
    lot.park([make_event(2)], 2)
    lot.parking.discard(ALL, **BY)
    assert rows(lot) == {"discarded": 1, "parked": 1}
    undone = lot.parking.undo_discard(ALL, **BY)
    assert (undone.partitions, undone.segments) == (1, 2)
    lot.parking.discard(ALL, **BY)
    assert lot.parking.undo_discard(window, **BY).segments == 2
    assert rows(lot) == {"parked": 2}


def test_a_clean_up_settles_past_the_grace_killed_or_not(lot):
    killed_at = 0
    for kill_at in range(1, 100):
        lot.sql("TRUNCATE parked_partitions, parked_objects, segments, replays CASCADE")
        lot.park([make_event(1), make_event(2, name="other")], 1)
        lot.parking.discard(ALL, **BY)
        assert lot.parking.clean_up(grace_s=1e6).objects == 0
        assert rows(lot) == {"parked": 2}
        if not run_and_kill(lot, lambda parking: parking.clean_up(grace_s=0), kill_at):
            break
        killed_at = kill_at
        lot.parking.clean_up(grace_s=0)
        lot.check()
        assert (lot.keys(), rows(lot)) == (set(), {"deleted": 2})
        assert [one.discarded for one in lot.parking.partitions()] == [1, 1]
        assert lot.parking.undo_discard(ALL, **BY).segments == 0
    assert killed_at > 20
