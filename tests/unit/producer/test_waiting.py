"""Records that wait: one that failed blocks its key, the others follow once it works."""

from waybill.producer.client import FailureKind
from waybill.producer.retry_queue import Entry, PendingRecords

PLACE = ("t", b"k")


def enter(pending, lsn, *, key=b"k", failed_at=None, due=0.0):
    entry = Entry(lsn, "t", key, None)
    if failed_at is not None:
        entry.failure, entry.failed_at, entry.due = FailureKind.UNCERTAIN, failed_at, due
    pending.enter(entry)
    return entry


def lsns(entries):
    return [entry.lsn for entry in entries]


def test_only_the_first_failed_record_of_a_key_is_tried_and_not_before_its_time():
    pending = PendingRecords()
    for lsn in (1, 2):
        enter(pending, lsn, failed_at=0.0, due=5.0)
    enter(pending, 3)
    enter(pending, 4, key=b"other")
    enter(pending, 5, key=None, failed_at=0.0, due=1.0)
    assert lsns(pending.due(1.0)) == [4, 5]
    assert lsns(pending.due(5.0)) == [1, 4, 5]


def test_while_the_probe_is_on_its_way_nothing_of_its_key_is_tried():
    pending = PendingRecords()
    probe = enter(pending, 1, failed_at=0.0)
    enter(pending, 2)
    assert lsns(pending.due(1.0)) == [1]
    pending.send_off(probe)
    pending.handed(probe)
    assert lsns(pending.due(9.0)) == []
    assert PLACE in pending.held
    pending.take_back(probe)
    assert lsns(pending.due(9.0)) == [1]


def test_once_the_probe_is_taken_all_others_follow_in_order_at_once():
    pending = PendingRecords()
    probe = enter(pending, 1, failed_at=0.0)
    for lsn in (2, 3):
        enter(pending, lsn, failed_at=0.5, due=99.0)
    enter(pending, 4)
    pending.due(1.0)
    pending.send_off(probe)
    pending.leave(probe, 1.0)
    assert lsns(pending.due(1.1)) == [2, 3, 4]


def test_a_key_is_free_when_all_that_waited_was_handed_over():
    """Under constant traffic of one key it would never be free if it waited for their reports."""
    pending = PendingRecords()
    entries = [enter(pending, lsn) for lsn in (1, 2)]
    for entry in pending.due(1.0):
        pending.send_off(entry)
        assert PLACE in pending.held
        pending.handed(entry)
    assert not pending.held
    entries[0].failure, entries[0].failed_at = FailureKind.UNCERTAIN, 2.0
    pending.take_back(entries[0])
    assert PLACE in pending.held
    pending.leave(entries[1], 3.0)
    assert PLACE in pending.held
    assert lsns(pending.due(3.0)) == [1]
    pending.send_off(entries[0])
    pending.leave(entries[0], 4.0)
    pending.handed(entries[0])
    assert not pending.held
    assert not len(pending)


def test_a_report_that_is_faster_than_the_hand_over_counts_once():
    pending = PendingRecords()
    entry = enter(pending, 1)
    other = enter(pending, 2)
    pending.due(1.0)
    pending.send_off(entry)
    pending.take_back(entry)
    pending.handed(entry)
    assert pending.held[PLACE] == 2
    pending.send_off(entry)
    pending.leave(entry, 2.0)
    pending.handed(entry)
    assert pending.held[PLACE] == 1
    pending.leave(other, 3.0)
    assert not pending.held
