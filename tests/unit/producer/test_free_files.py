"""Free files: as many as were in use between two checkpoints are kept, and go when it is quiet."""

import pytest
from tests.support.memory_logs import FOLDER, SEGMENT, checkpoint, fresh, names, open_log, put

from waybill.producer.wal.segment import LEAST_FREE

VALUE = b"v" * 900
BURST = 20


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def opened():
    disk, clock = fresh(), Clock()
    log, file, *_ = open_log(disk)
    log._free._clock = clock
    return disk, clock, log, file


def burst(log):
    for _ in range(4 * BURST):
        put(log, VALUE)


def files(disk):
    return {id(disk._names[FOLDER / name]) for name in [*names(disk), *names(disk, "free-")]}


def test_a_steady_load_makes_no_file_after_its_first_burst(opened):
    disk, clock, log, file = opened
    burst(log)
    known = None
    for _ in range(50):
        checkpoint(log, file, log.next_lsn)
        clock.now += 5
        burst(log)
        known = known or files(disk)
        assert files(disk) == known
    assert len(known) <= BURST + 1


def test_files_that_nobody_needs_for_a_minute_are_removed(opened):
    disk, clock, log, file = opened
    burst(log)
    checkpoint(log, file, log.next_lsn)
    assert len(names(disk, "free-")) == BURST - 1
    for _ in range(13):
        clock.now += 5
        put(log, b"little")
        checkpoint(log, file, log.next_lsn)
    assert len(names(disk, "free-")) == LEAST_FREE
    assert log.size_bytes == (LEAST_FREE + 1) * SEGMENT


def test_a_smaller_load_keeps_only_what_it_uses(opened):
    disk, clock, log, file = opened
    burst(log)
    for _ in range(40):
        checkpoint(log, file, log.next_lsn)
        clock.now += 5
        for _ in range(4 * 5):
            put(log, VALUE)
    checkpoint(log, file, log.next_lsn)
    assert 5 <= len(names(disk, "free-")) <= 6


def test_a_disk_short_of_space_gets_all_but_the_least_back_at_once():
    disk = fresh()
    disk.capacity_bytes = 40 * SEGMENT
    log, file, *_ = open_log(disk, disk_floor_bytes=10 * SEGMENT)
    burst(log)
    disk.capacity_bytes = 25 * SEGMENT  # somebody else wrote
    checkpoint(log, file, log.next_lsn)
    assert len(names(disk, "free-")) == LEAST_FREE


def test_live_and_free_files_together_stay_below_the_threshold():
    disk = fresh()
    log, file, *_ = open_log(disk, disk_threshold_bytes=12 * SEGMENT)
    for _ in range(300):
        if log.size_bytes > 8 * SEGMENT:
            checkpoint(log, file, log.next_lsn)
        put(log, VALUE if log.next_lsn % 40 else bytes(3 * SEGMENT))
        assert log.size_bytes <= 12 * SEGMENT
