"""Sequences that a reader of the code found: between two writes, between two threads."""

import threading
from pathlib import Path

import pytest
from tests.support.topics import small_log

from waybill.producer import LosslessProducer
from waybill.producer.delivery import Callbacks, Deliveries
from waybill.producer.retry_log import Note, RetryLog
from waybill.producer.wal import DATA, WalFullError, WalRecord
from waybill.producer.wal.memory_disk import MemoryDisk

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def record(lsn):
    return WalRecord(lsn, 1, DATA, "t", b"k", b"v", [], 5, -1)


def test_an_lsn_that_is_struck_out_beside_the_log_is_never_given_again(tmp_path):
    """After a power cut the main log may end below it; a new record must not count as taken."""
    aside = RetryLog(tmp_path / "parked", small_log(tmp_path))
    for lsn in (50, 900):
        aside.put(record(lsn), Note())
    aside.settle([900])
    assert aside.next_lsn == 901
    aside.close()
    aside = RetryLog(tmp_path / "parked", small_log(tmp_path))
    assert (aside.next_lsn, aside.settled) == (901, {900})
    aside.put(record(900), Note())
    assert (aside.settled, aside.lsns) == (set(), [50, 900])
    aside.close()


def test_a_mark_is_kept_while_the_main_log_may_show_its_record():
    disk = MemoryDisk()
    aside = RetryLog(Path("/logs/parked"), small_log(Path("/logs")), disk)
    aside.put(record(7), Note())
    aside.settle([7])
    kept = aside.extent(7)
    aside.recycle(kept[0])
    assert kept == (2, 3)
    assert aside.settled == {7}
    gone = aside.extent(8)
    aside.recycle(gone[0])
    assert gone == (3, 3)
    assert aside.settled == set()
    assert disk.names(Path("/logs")) == []


def test_a_put_that_the_disk_refuses_leaves_the_mark_of_its_lsn_needed(tmp_path, monkeypatch):
    aside = RetryLog(tmp_path / "parked", small_log(tmp_path))
    aside.put(record(7), Note())
    aside.settle([7])

    def full(*_):
        raise WalFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(aside._log, "append", full)
        with pytest.raises(WalFullError):
            aside.put(record(7), Note())
    assert aside.settled == {7}
    assert aside.extent(7) == (2, 3)
    aside.close()


def test_the_least_lsn_beside_the_log(tmp_path):
    aside = RetryLog(tmp_path / "retry", small_log(tmp_path))
    assert aside.least_lsn(9) == 9
    aside.put(record(12), Note())
    assert aside.least_lsn(9) == 9
    aside.put(record(4), Note())
    assert aside.least_lsn(9) == 4
    aside.close()


def test_failures_that_come_after_the_question_are_left_for_the_next_one():
    """Theirs are records behind ``next_lsn``: counted with the others they would settle strangers."""

    class Refused:
        def topic(self):
            return "t"

        key = value = topic

    deliveries = Deliveries({})
    epoch = deliveries.open_next(1)
    epoch.report("error", Refused())
    ((found, count),) = deliveries.failed(2)
    epoch.report("error of record 2", Refused())
    assert (found, count) == (epoch, 1)


def test_the_producer_s_own_thread_does_not_wait_for_a_callable_of_another():
    callbacks = Callbacks()
    inside, go_on = threading.Event(), threading.Event()

    def slow(_error, _message):
        inside.set()
        assert go_on.wait(300)

    callbacks.add(slow, None, None)
    caller = threading.Thread(target=callbacks.serve)
    caller.start()
    assert inside.wait(300)
    told = []
    callbacks.add(lambda e, m: told.append(1), None, None)
    callbacks.serve_aside()  # returns at once
    assert told == []
    go_on.set()
    caller.join(300)
    assert told == [1]


@pytest.mark.parametrize("seed", range(5))
def test_two_that_close_at_once_close_once(tmp_path, seed):
    producer = LosslessProducer(small_log(tmp_path), NOWHERE, name="p")
    producer.produce("t", b"in doubt")
    left, odd = [], []

    def close():
        try:
            left.append(producer.close(0.05 * seed))
        except BaseException as error:
            odd.append(error)
            raise

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert odd == []
    assert sorted(left) == [0, 0, 0, 1]
