"""A disk that refuses a sync: the records are rewritten elsewhere, the file is never trusted again."""

import errno
import os
import random
import threading
import time

import pytest
from tests.support.memory_logs import FOLDER, checkpoint, fresh, names, open_log, put, values

from waybill.errors import StopError
from waybill.producer.wal import WalFullError, WriteAheadLog
from waybill.producer.wal.memory_disk import Killed
from waybill.settings import WalSettings

VALUE = b"v" * 900


def test_records_of_a_refused_sync_are_on_disk_when_sync_returns():
    disk = fresh()
    log, *_ = open_log(disk)
    for _ in range(6):
        put(log, VALUE)
    bad = [disk._names[FOLDER / name] for name in names(disk)]
    disk.refuse("sync", times=2)
    log.sync()
    assert log.synced_lsn == 6
    assert log.poisoned == 2
    assert not {id(node) for node in bad} & {id(disk._names[FOLDER / n]) for n in names(disk)}
    assert [name[:9] for name in disk.names(FOLDER / "quarantine")] == ["poisoned-"] * 2
    assert put(log, b"next") == 7
    assert log.segment_id == 3
    log.sync()
    disk.power_cut(random.Random(1))
    log, *_ = open_log(disk)
    assert values(log) == [(n, VALUE) for n in range(1, 7)] + [(7, b"next")]
    assert not log.damage
    assert not log.gaps


def test_a_refused_file_is_not_synced_again_even_when_its_copy_fails():
    disk = fresh()
    log, *_ = open_log(disk)
    put(log, VALUE)
    disk.refuse("sync", times=2)
    with pytest.raises(StopError, match="refused"):
        log.sync()
    steps = disk.steps
    for _ in range(2):
        with pytest.raises(StopError, match="refused"):
            log.sync()
    assert disk.steps == steps
    assert log.synced_lsn == log.poisoned == 0
    assert names(disk, "copy-") == []
    assert values(log) == [(1, VALUE)]
    disk.kill()
    assert values(open_log(disk)[0]) == [(1, VALUE)]


@pytest.mark.parametrize("refused", ["make", "link", "rename", "sync_directory", "mkdir"])
def test_whatever_refuses_the_rewriting_stops_the_log_and_loses_nothing(refused):
    disk = fresh()
    log, *_ = open_log(disk)
    put(log, VALUE)
    disk.refuse("sync")
    disk.refuse(refused, times=9)
    with pytest.raises(StopError, match="refused"):
        log.sync()
    assert log.synced_lsn == 0
    assert values(log) == [(1, VALUE)]
    disk.kill()
    log, *_ = open_log(disk)
    assert values(log) == [(1, VALUE)]
    assert not log.damage
    log.sync()
    disk.power_cut(random.Random(2))
    assert values(open_log(disk)[0]) == [(1, VALUE)]


def test_a_full_disk_takes_a_free_file_for_the_copy():
    disk = fresh()
    log, file, *_ = open_log(disk)
    for _ in range(6):
        put(log, VALUE)
    checkpoint(log, file, 5)
    disk.capacity_bytes = 0
    disk.refuse("sync")
    log.sync()
    assert (log.synced_lsn, log.poisoned) == (6, 1)
    disk.power_cut(random.Random(3))
    log, *_ = open_log(disk)
    assert values(log) == [(5, VALUE), (6, VALUE)]
    assert not log.damage


def test_pages_that_are_not_in_memory_any_more_are_not_taken_for_records():
    disk = fresh()
    log, *_ = open_log(disk)
    put(log, VALUE)
    (path,) = [FOLDER / name for name in names(disk)]
    disk.refuse("sync")
    node = disk._names[path]
    node.data[200] ^= 1  # read again from the disk, which has something else
    with pytest.raises(StopError, match="not in memory any more"):
        log.sync()
    assert log.synced_lsn == 0


def test_the_next_process_does_not_believe_the_clean_pages_of_a_refused_sync():
    disk = fresh()
    log, *_ = open_log(disk)
    put(log, VALUE)
    disk.refuse("sync", times=2)
    with pytest.raises(StopError):
        log.sync()
    disk.kill()
    log, *_ = open_log(disk)
    log.sync()
    assert log.synced_lsn == 1
    disk.power_cut(random.Random(4))
    assert values(open_log(disk)[0]) == [(1, VALUE)]


def test_a_poisoned_segment_that_is_settled_meanwhile_is_never_a_free_file():
    disk = fresh()
    log, file, *_ = open_log(disk)
    for _ in range(6):
        put(log, VALUE)
    disk.refuse("sync")
    disk.refuse("make", times=9)
    with pytest.raises(StopError):
        log.sync()
    disk.refuse("make", 0)
    checkpoint(log, file, 5)
    assert names(disk, "free-") == []
    assert len(disk.names(FOLDER / "quarantine")) == 1


def test_appends_of_another_thread_go_on_while_a_segment_is_rewritten(tmp_path, monkeypatch):
    log = WriteAheadLog(tmp_path, WalSettings(segment_bytes=2**20, disk_floor_bytes=0))
    gate, done = threading.Lock(), threading.Event()
    appended = []

    def produce():
        while not done.is_set():
            with gate:
                appended.append(put(log, b"%d" % log.next_lsn))
            time.sleep(0.0001)  # on a busy machine the other thread would never get the gate

    real, refusals = os.fdatasync, []

    def refusing(fd):
        if refusals:
            refusals.pop()
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", refusing)
    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for _ in range(10):
            time.sleep(0.02)
            count = len(appended)
            while thread.is_alive() and len(appended) == count:
                time.sleep(0.001)  # without a record there is nothing to sync, and to refuse
            before = log.next_lsn - 1
            refusals.append(1)
            log.sync(gate)
            assert log.synced_lsn >= before
            assert not refusals
    finally:
        done.set()
        thread.join()
    assert log.poisoned >= 1
    assert values(log) == [(lsn, b"%d" % lsn) for lsn in appended]
    log.close()
    again = WriteAheadLog(tmp_path, WalSettings(segment_bytes=2**20))
    assert values(again) == [(lsn, b"%d" % lsn) for lsn in appended]
    assert not again.damage
    again.close()


def test_what_stays_after_closing_is_on_disk_unless_only_the_process_may_die():
    for durability, left in [("group", [(1, VALUE)]), ("each", [(1, VALUE)])]:
        disk = fresh()
        log, *_ = open_log(disk, durability=durability)
        put(log, VALUE)
        log.close()
        disk.power_cut(random.Random(5))
        assert values(open_log(disk)[0]) == left


def test_a_full_disk_at_an_append_is_refused_and_the_log_goes_on():
    disk = fresh()
    log, *_ = open_log(disk)
    disk.refuse("make")
    with pytest.raises(WalFullError):
        put(log, VALUE)
    assert put(log, VALUE) == 1


def test_the_copy_s_name_is_on_disk_when_sync_returns():
    for seed in range(10):
        disk = fresh()
        log, *_ = open_log(disk)
        put(log, VALUE)
        disk.refuse("sync")
        log.sync()
        disk.power_cut(random.Random(seed))
        assert values(open_log(disk)[0]) == [(1, VALUE)]


def test_a_process_that_finds_a_renamed_copy_has_its_name_on_disk_when_it_synced():
    for seed in range(10):
        disk = fresh()
        log, *_ = open_log(disk)
        put(log, VALUE)
        disk.refuse("sync")
        disk.kill_at(10, after=True)
        with pytest.raises(Killed):
            log.sync()
        assert names(disk, "copy-") == []  # that was the rename
        assert len(disk._pending) == 1
        disk.kill()
        log, *_ = open_log(disk)
        log.sync()
        disk.power_cut(random.Random(seed))
        assert values(open_log(disk)[0]) == [(1, VALUE)]
