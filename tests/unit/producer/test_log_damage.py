"""Every truncation and every flipped bit of a small segment and of a checkpoint: found, kept, counted."""

import pytest
from tests.support.memory_logs import FOLDER, checkpoint, fresh, names, open_log, put, values

from waybill.producer.checkpoint import Checkpoint, CheckpointFile, encode
from waybill.producer.recovery import survey
from waybill.producer.wal import DATA, MARK

FIRST = [(DATA, b"one"), (MARK, b"cursor"), (DATA, b""), (DATA, b"x" * 300)]
SECOND = [(DATA, b"later")]
STATE = Checkpoint(wal_id=b"w" * 16, low_lsn=7, next_segment=3, offsets={"events.a.b": {0: 17}})


def two_segments():
    """Return a disk, the path of the first segment, and where each of its frames ends."""
    disk = fresh()
    log, *_ = open_log(disk)
    ends = []
    for kind, value in FIRST:
        put(log, value, kind=kind)
        ends.append(log.writer.end)
    log.retire()
    for kind, value in SECOND:
        put(log, value, kind=kind)
    log.close()
    return disk, FOLDER / names(disk)[0], ends


def whole(kept):
    return [(n + 1, value) for n, (_, value) in enumerate(FIRST) if n in kept] + [(5, b"later")]


def check_quarantined(disk, path, content):
    log, file, *_ = open_log(disk)
    checkpoint(log, file, log.next_lsn)
    assert disk.read(FOLDER / "quarantine" / path.name) == content
    assert names(disk) == []
    disk.kill()
    assert not open_log(disk)[0].damage


def cut_sizes():
    ends = two_segments()[2]
    return [*range(ends[-1] + 20), 4095]


@pytest.mark.parametrize("size", cut_sizes())
def test_a_segment_cut_at_any_byte_gives_its_whole_records_and_counts_the_others(size):
    disk, path, ends = two_segments()
    content = disk.read(path)[:size]
    file = disk.open(path)
    file.resize(size)
    file.sync()
    log, _, found, _ = open_log(disk)
    kept = {n for n, end in enumerate(ends) if end <= size}
    assert values(log) == whole(kept)
    assert log.next_lsn == 6
    lost = len(FIRST) - len(kept)
    assert survey(log, found).quarantined == lost
    cut = size < ends[-1] + 8
    assert bool(log.damage) == cut
    disk.kill()
    if cut:
        check_quarantined(disk, path, content)


def test_every_flipped_bit_costs_its_own_record_at_most_and_is_counted():
    ends = two_segments()[2]
    for bit in range(8 * (ends[-1] + 8)):
        disk, path, _ = two_segments()
        disk.flip(path, bit)
        log, _, found, _ = open_log(disk)
        hit = next((n for n, end in enumerate(ends) if bit // 8 < end), None)
        kept = {n for n in range(len(FIRST)) if n != hit}
        assert values(log) == whole(kept), bit
        assert survey(log, found).quarantined == len(FIRST) - len(kept), bit
        assert log.damage, bit


@pytest.mark.parametrize("bit", range(0, 8 * 100, 37))
def test_a_segment_with_a_flipped_bit_is_kept_as_it_was_found(bit):
    disk, path, _ = two_segments()
    disk.flip(path, bit)
    content = disk.read(path)
    check_quarantined(disk, path, content)


@pytest.mark.parametrize("size", range(len(encode(STATE))))
def test_a_checkpoint_cut_at_any_byte_is_put_aside_and_counted(size):
    disk = fresh()
    disk.write(FOLDER / "checkpoint", encode(STATE)[:size])
    check_put_aside(disk, encode(STATE)[:size])


def test_a_checkpoint_with_any_bit_flipped_is_put_aside_and_counted():
    for bit in range(8 * len(encode(STATE))):
        disk = fresh()
        disk.write(FOLDER / "checkpoint", encode(STATE))
        disk.flip(FOLDER / "checkpoint", bit)
        check_put_aside(disk, disk.read(FOLDER / "checkpoint"))


def check_put_aside(disk, content):
    file = CheckpointFile(FOLDER, disk)
    assert file.load() == (Checkpoint(), True)
    (name,) = disk.names(FOLDER / "quarantine")
    assert disk.read(FOLDER / "quarantine" / name) == content
    assert file.load() == (Checkpoint(), False)
    file.save(STATE)
    assert CheckpointFile(FOLDER, disk).load() == (STATE, False)


@pytest.mark.parametrize("times", [1, 2])
def test_a_refused_checkpoint_leaves_the_one_before_and_the_next_one_is_written(times):
    disk = fresh()
    file = CheckpointFile(FOLDER, disk)
    file.save(STATE)
    for refused in ("write", "sync", "rename"):
        disk.refuse(refused, times)
        for _ in range(times):
            with pytest.raises(OSError, match="Input/output"):
                file.save(Checkpoint(low_lsn=8))
        assert CheckpointFile(FOLDER, disk).load() == (STATE, False)
        assert disk.names(FOLDER).count("checkpoint.new") == (refused == "rename")
    file.save(Checkpoint(low_lsn=8))
    assert CheckpointFile(FOLDER, disk).load()[0].low_lsn == 8
