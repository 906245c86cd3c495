"""The waiting room: a record that failed blocks its key, the others follow once it works."""

from waybill.producer.client import FailureKind
from waybill.producer.retry_queue import Entry, WaitingRoom

PLACE = ("t", b"k")


def enter(room, lsn, *, key=b"k", failed_at=None, due=0.0):
    entry = Entry(lsn, "t", key, None)
    if failed_at is not None:
        entry.failure, entry.failed_at, entry.due = FailureKind.UNCERTAIN, failed_at, due
    room.enter(entry)
    return entry


def lsns(entries):
    return [entry.lsn for entry in entries]


def test_only_the_first_failed_record_of_a_key_is_tried_and_not_before_its_time():
    room = WaitingRoom()
    for lsn in (1, 2):
        enter(room, lsn, failed_at=0.0, due=5.0)
    enter(room, 3)
    enter(room, 4, key=b"other")
    enter(room, 5, key=None, failed_at=0.0, due=1.0)
    assert lsns(room.due(1.0)) == [4, 5]
    assert lsns(room.due(5.0)) == [1, 4, 5]


def test_while_the_probe_is_on_its_way_nothing_of_its_key_is_tried():
    room = WaitingRoom()
    probe = enter(room, 1, failed_at=0.0)
    enter(room, 2)
    assert lsns(room.due(1.0)) == [1]
    room.send_off(probe)
    room.handed(probe)
    assert lsns(room.due(9.0)) == []
    assert PLACE in room.held
    room.take_back(probe)
    assert lsns(room.due(9.0)) == [1]


def test_once_the_probe_is_taken_all_others_follow_in_order_at_once():
    room = WaitingRoom()
    probe = enter(room, 1, failed_at=0.0)
    for lsn in (2, 3):
        enter(room, lsn, failed_at=0.5, due=99.0)
    enter(room, 4)
    room.due(1.0)
    room.send_off(probe)
    room.leave(probe, 1.0)
    assert lsns(room.due(1.1)) == [2, 3, 4]


def test_a_key_is_free_when_all_that_waited_was_handed_over():
    """Under constant traffic of one key it would never be free if it waited for their reports."""
    room = WaitingRoom()
    entries = [enter(room, lsn) for lsn in (1, 2)]
    for entry in room.due(1.0):
        room.send_off(entry)
        assert PLACE in room.held
        room.handed(entry)
    assert not room.held
    entries[0].failure, entries[0].failed_at = FailureKind.UNCERTAIN, 2.0
    room.take_back(entries[0])
    assert PLACE in room.held
    room.leave(entries[1], 3.0)
    assert PLACE in room.held
    assert lsns(room.due(3.0)) == [1]
    room.send_off(entries[0])
    room.leave(entries[0], 4.0)
    room.handed(entries[0])
    assert not room.held
    assert not len(room)


def test_a_report_that_is_faster_than_the_hand_over_counts_once():
    room = WaitingRoom()
    entry = enter(room, 1)
    other = enter(room, 2)
    room.due(1.0)
    room.send_off(entry)
    room.take_back(entry)
    room.handed(entry)
    assert room.held[PLACE] == 2
    room.send_off(entry)
    room.leave(entry, 2.0)
    room.handed(entry)
    assert room.held[PLACE] == 1
    room.leave(other, 3.0)
    assert not room.held
