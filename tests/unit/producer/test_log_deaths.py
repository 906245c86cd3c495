"""A SIGKILL or a power cut before and after every operation of the disk, in every call of the log."""

import random

import pytest
from tests.support.memory_logs import (
    FOLDER,
    SEGMENT,
    checkpoint,
    fresh,
    names,
    open_log,
    put,
    values,
)

from waybill.errors import RetryError
from waybill.producer.checkpoint import Checkpoint, CheckpointFile
from waybill.producer.wal.memory_disk import Killed

VALUE = b"v" * 900
LAST = 9
FLOOR = 7


def filled(disk):
    """Return an open log of two full segments (1-4, 5-8) and one with record 9, synced."""
    log, file, _, _ = open_log(disk)
    for _ in range(LAST):
        put(log, VALUE)
    log.sync()
    return log, file


def roll(log, file):
    log.roll(100)


def recycle(log, file):
    checkpoint(log, file, FLOOR)


def recycle_and_roll(log, file):
    checkpoint(log, file, FLOOR)
    log.roll(100)


def close(log, file):
    checkpoint(log, file, FLOOR)
    log.close(FLOOR)


def quarantine(log, file):
    first = log._segments[0]
    first.damage.append(None)
    checkpoint(log, file, FLOOR)


def rewrite(log, file):
    log._disk.refuse("sync")
    log.sync()


def rewrite_closed_ones(log, file):
    log._disk.refuse("sync", times=3)
    for segment in list(log._segments)[:-1]:
        log._syncer.add(segment)
    log.sync()


CALLS = [roll, recycle, recycle_and_roll, close, quarantine, rewrite, rewrite_closed_ones]


def steps_of(call):
    disk = fresh()
    log, file = filled(disk)
    before = disk.steps
    call(log, file)
    return disk.steps - before


MOMENTS = [
    pytest.param(call, step, after, id=f"{call.__name__}-{step}-{'after' if after else 'before'}")
    for call in CALLS
    for step in range(1, steps_of(call) + 1)
    for after in (False, True)
]


def die(call, step, after):
    disk = fresh()
    log, file = filled(disk)
    disk.kill_at(step, after=after)
    with pytest.raises(Killed):
        call(log, file)
    return disk


def check_whole(disk):
    log, file, found, damaged = open_log(disk)
    assert not damaged
    assert not log.damage
    assert not log.gaps
    held = values(log)
    floor = found.low_lsn
    assert [lsn for lsn, _ in held][-1] == LAST
    assert [lsn for lsn, _ in held] == list(range(held[0][0], LAST + 1))
    assert held[0][0] <= floor
    assert {value for _, value in held} == {VALUE}
    assert len({name.split("-")[2] for name in names(disk)}) == len(names(disk))
    assert names(disk, "copy-") == []
    again = put(log, b"new")
    assert again == LAST + 1
    log.sync()
    checkpoint(log, file, LAST)
    disk.power_cut(random.Random(0))
    last, _, _, _ = open_log(disk)
    assert values(last, LAST) == [(LAST, VALUE), (LAST + 1, b"new")]
    assert not last.damage


@pytest.mark.parametrize(("call", "step", "after"), MOMENTS)
def test_a_kill_at_any_operation_leaves_every_record_once(call, step, after):
    disk = die(call, step, after)
    disk.kill()
    check_whole(disk)


@pytest.mark.parametrize(("call", "step", "after"), MOMENTS)
def test_a_power_cut_at_any_operation_leaves_every_synced_record_once(call, step, after):
    for seed in range(8):
        disk = die(call, step, after)
        disk.power_cut(random.Random(seed))
        check_whole(disk)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 12))
def test_a_kill_at_any_operation_of_an_opening_leaves_every_record_once(step, after):
    disk = die(recycle_and_roll, 8, after=True)
    disk.kill()
    disk.make(FOLDER / "copy-broken-off.wal", SEGMENT)
    disk.make(FOLDER / "free-of-another-size.wal", SEGMENT // 2)
    disk.kill_at(step, after=after)
    try:
        open_log(disk)[0].sync()
    except Killed:
        pass
    disk.kill()
    check_whole(disk)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 7))
@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_a_checkpoint_is_the_old_one_or_the_new_one_at_any_operation(step, after, end):
    for seed in range(8):
        disk = fresh()
        CheckpointFile(FOLDER, disk).save(Checkpoint(low_lsn=5))
        disk.kill_at(step, after=after)
        said = False
        try:
            CheckpointFile(FOLDER, disk).save(Checkpoint(low_lsn=6))
            said = True
        except Killed:
            pass
        disk.kill() if end == "kill" else disk.power_cut(random.Random(seed))
        found, damaged = CheckpointFile(FOLDER, disk).load()
        assert not damaged
        assert found.low_lsn in ([6] if said else [5, 6])


def test_a_free_file_that_still_begins_with_an_old_frame_shows_nothing_in_its_next_life():
    disk = fresh()
    log, file = filled(disk)
    checkpoint(log, file, 5)
    (free,) = names(disk, "free-")
    old = disk.read(FOLDER / names(disk)[0])[:8]
    disk.open(FOLDER / free).data[:8] = old  # the process died before it wrote the zeros
    disk.kill()
    log, *_ = open_log(disk)
    log.roll(10)
    assert not log.damage
    disk.kill()
    log, *_ = open_log(disk)
    assert not log.damage
    assert [lsn for lsn, _ in values(log)] == [5, 6, 7, 8, 9]


def test_a_segment_that_lost_all_its_records_never_gives_its_id_to_another():
    disk = fresh()
    log, file, *_ = open_log(disk)
    checkpoint(log, file, 1)  # knows of no segment
    put(log, VALUE)
    disk.kill()
    disk.flip(FOLDER / names(disk)[0], 100)
    log, *_ = open_log(disk)
    log.close(1)
    log, *_ = open_log(disk)
    assert put(log, b"another") == 1
    assert log.segment_id == 2


def test_a_segment_left_by_a_refused_roll_neither_hides_records_nor_makes_a_gap():
    disk = fresh()
    log, *_ = open_log(disk)
    put(log, VALUE)
    disk.refuse("sync_directory")
    disk.refuse("remove")
    with pytest.raises(RetryError):
        log.roll(100)
    assert len(names(disk)) == 2
    for _ in range(5):
        put(log, VALUE)
    disk.kill()
    log, *_ = open_log(disk)
    assert values(log) == [(lsn, VALUE) for lsn in range(1, 7)]
    assert not log.gaps
    assert (log.last_lsn, log.next_lsn) == (6, 7)
    last = log._segments.pop()  # as if killed before the last roll
    assert last.base_lsn == 5
    assert (log.last_lsn, log.next_lsn) == (4, 7)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, steps_of(quarantine) + 1))
def test_a_damaged_segment_is_somewhere_whatever_power_cut_meets_its_quarantine(step, after):
    for seed in range(8):
        disk = fresh()
        log, file = filled(disk)
        content = disk.read(FOLDER / names(disk)[0])
        disk.kill_at(step, after=after)
        with pytest.raises(Killed):
            quarantine(log, file)
        disk.power_cut(random.Random(seed))
        folders = (FOLDER, FOLDER / "quarantine")
        assert content in [disk.read(f / n) for f in folders for n in disk.names(f) if "seg-" in n]
