"""A discard's window is exact, whatever segments it cuts through; so is the way back."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill

from waybill.access import Decision
from waybill.parking import ParkedGroupFilter
from waybill.parking.reading import segments_in_order
from waybill.storage.tracker.tables import segments

lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
pytestmark = pytest.mark.serves
BY = Decision("ann", "test data")


def hours(since=None, until=None, **more):
    def edge(hour):
        return None if hour is None else f"2013-01-01T{hour:02}:00Z"

    return ParkedGroupFilter(event_name="flight", since=edge(since), until=edge(until), **more)


def park(lot, *commits):
    for number, numbers in enumerate(commits, 1):
        lot.park([make_event(n) for n in numbers], number)


def numbers(lot, *states):
    wanted = states or ("parked",)
    return [event.kafka_offset for event in lot.parking.events(lot.only().id, states=wanted)]


def damage(lot, key):
    lot.objects.put(key, b"x" * 5000)


def test_a_window_discards_exactly_what_is_inside(lot):
    park(lot, range(5), range(5, 10), [1, 20], [3, 9])
    report = lot.parking.discard(hours(3, 8), BY)
    assert (report.segments, report.events, report.left_segments) == (3, 6, 0)
    assert numbers(lot) == [0, 1, 2, 8, 9, 1, 20, 9]
    assert numbers(lot, "discarded") == [3, 4, 5, 6, 7, 3]
    assert lot.parking.discard(hours(3, 8), BY).events == 0
    again = lot.parking.undo_discard(hours(3, 8), BY)
    assert (again.events, again.left_segments) == (6, 0)
    assert sorted(numbers(lot)) == sorted([*range(10), 1, 20, 3, 9])


def test_a_narrower_window_brings_back_exactly_what_is_inside(lot):
    park(lot, range(8))
    lot.parking.discard(hours(), BY)
    report = lot.parking.undo_discard(hours(2, 5), BY)
    assert (report.segments, report.events, report.left_segments) == (1, 3, 0)
    assert (numbers(lot), numbers(lot, "discarded")) == ([2, 3, 4], [0, 1, 5, 6, 7])
    lot.check()
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 0


def test_a_copy_outside_the_window_keeps_no_event_inside_it(lot):
    park(lot, [1, 2, 9])
    lot.sql("UPDATE segments SET copies = '{2}', count = 2")
    lot.sql("UPDATE parked_partitions SET parked = 2")
    report = lot.parking.discard(hours(1, 5), BY)
    assert (report.events, report.left_segments) == (2, 0)


def test_other_conditions_choose_what_is_cut(lot):
    park(lot, range(4))
    lot.park([make_event(n, name="other") for n in range(4)], 2)
    report = lot.parking.discard(hours(2, parked_until="2020-01-01"), BY)
    assert (report.events, report.left_segments) == (0, 0)
    lot.parking.discard(hours(2), BY)
    assert lot.states() == {"parked": 6, "discarded": 2, "replaced": 4}


def test_what_is_damaged_where_the_window_cuts_is_left_and_counted(lot):
    park(lot, range(4))
    damage(lot, lot.park([make_event(n) for n in range(4)], 2))
    report = lot.parking.discard(hours(2), BY)
    assert (report.events, report.left_segments, report.left_events) == (2, 1, 4)
    lot.parking.undo_discard(hours(2), BY)
    lot.parking.discard(hours(), BY)
    report = lot.parking.undo_discard(hours(3), BY)
    assert (report.events, report.left_segments, report.left_events) == (1, 1, 4)


def test_what_a_clean_up_took_is_told_when_it_is_wanted_back(lot):
    park(lot, range(4))
    lot.parking.discard(hours(), BY)
    lot.sql("UPDATE parked_objects SET state = 'deleting'")
    lot.objects.delete(sorted(lot.keys()))
    report = lot.parking.undo_discard(hours(2), BY)
    assert (report.events, report.left_segments, report.left_events) == (0, 1, 4)
    lot.parking.clean_up(grace_s=0)
    assert lot.states() == {"deleted": 4}


@pytest.mark.parametrize("back", [False, True])
def test_a_kill_anywhere_loses_no_event(lot, back):
    kill_at = 0
    act = (lambda parking: parking.undo_discard) if back else (lambda parking: parking.discard)
    park(lot, range(6), range(6))
    if back:
        lot.parking.discard(hours(), BY)
    while True:
        kill_at += 1
        if not run_and_kill(lot, lambda parking: act(parking)(hours(2, 5), BY), kill_at):
            break
        lot.check()
        total = {state: n for state, n in lot.states().items() if state != "replaced"}
        assert sum(total.values()) == 12
        inside, outside = numbers(lot, "discarded"), numbers(lot)
        inside, outside = (outside, inside) if back else (inside, outside)
        assert set(inside) <= {2, 3, 4}
        assert {0, 1, 5} <= set(outside)
    assert kill_at > 10
    assert sorted(numbers(lot, "parked" if back else "discarded")) == [2, 2, 3, 3, 4, 4]
    lot.parking.clean_up(grace_s=0)
    lot.parking.refresh(grace_s=0)
    left = {row[0] for row in lot.sql("SELECT key FROM parked_objects WHERE state <> 'deleted'")}
    assert lot.keys() == left


def test_discards_of_crossing_windows_at_once_take_each_event_once(lot):
    for _ in range(5):
        lot.sql("TRUNCATE parked_partitions, parked_objects, segments, replays CASCADE")
        park(lot, range(8), range(8), range(8))
        with ThreadPoolExecutor(2) as pool:
            calls = [
                pool.submit(lot.parking.discard, hours(*edges), BY) for edges in ((0, 5), (3, 8))
            ]
        reports = [call.result() for call in calls]
        taken = sum(report.events for report in reports)
        assert lot.states().get("discarded", 0) == taken
        assert taken + len(numbers(lot)) == 24
        lot.check()


def test_a_reader_follows_a_segment_that_was_cut_and_cleaned_up(lot):
    park(lot, range(6))
    page = list(segments_in_order(lot.tracker, segments.c.state == "parked"))
    lot.parking.discard(hours(2, 4), BY)
    lot.parking.undo_discard(hours(2, 3), BY)
    lot.parking.clean_up(grace_s=0)
    assert page[0].object_key not in lot.keys()
    assert [event.kafka_offset for event in lot.parking.read(page[0])] == [0, 1, 2, 3, 4, 5]
    lot.parking.discard(hours(4), BY)
    lot.parking.discard(hours(0, 1), BY)
    lot.parking.clean_up(grace_s=0)
    still_there = [0, 1, 2, 3]  # 0 is discarded, in an object that 1 keeps
    assert [event.kafka_offset for event in lot.parking.read(page[0])] == still_there


def test_a_reader_gives_no_event_twice_when_segments_are_cut_between_its_pages(lot, monkeypatch):
    monkeypatch.setattr("waybill.parking.reading._PAGE", 1)
    park(lot, range(6), range(6, 9))
    events = lot.parking.events(lot.only().id)
    given = [next(events).kafka_offset]
    lot.parking.discard(hours(3, 4), BY)
    given += [event.kafka_offset for event in events]
    assert given == list(range(9))
