"""The log on a real disk: segments are made, filled, read again, given free; limits hold."""

import errno
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from waybill.errors import InputError, StopError
from waybill.producer.wal import DATA, MARK, WalFullError, WriteAheadLog
from waybill.settings import WalSettings

SEGMENT = 64 * 1024


def settings(**values):
    defaults = {"segment_bytes": SEGMENT, "disk_threshold_bytes": 2**30, "disk_floor_bytes": 0}
    return WalSettings(**{**defaults, **values})


def put(log, value, *, kind=DATA, key=b"k"):
    return log.append(kind, 1, b"topic", key, value, b"")


def values(log, from_lsn=1):
    return [(record.lsn, record.value) for record in log.records(from_lsn)]


def segments(directory):
    return sorted(path.name for path in directory.glob("seg-*.wal"))


def test_records_are_read_back_in_order_across_segments_and_openings(tmp_path):
    random_ = random.Random(1)
    wanted = []
    for _ in range(3):
        log = WriteAheadLog(tmp_path, settings())
        for _ in range(400):
            value = random_.randbytes(random_.randrange(500))
            wanted.append((put(log, value), value))
        log.close()
    log = WriteAheadLog(tmp_path, settings())
    assert [lsn for lsn, _ in wanted] == list(range(1, 1201))
    assert values(log) == wanted
    assert values(log, 777) == wanted[776:]
    assert values(log, 5000) == []
    assert not log.damage
    assert not log.gaps


def test_an_opening_never_appends_to_what_it_found(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    put(log, b"a")
    log.close()
    (first,) = tmp_path.glob("seg-*.wal")
    before = first.read_bytes()
    log = WriteAheadLog(tmp_path, settings())
    assert put(log, b"b") == 2
    assert first.read_bytes() == before
    assert len(segments(tmp_path)) == 2
    assert [record.segment_id for record in log.records(1)] == [1, 2]


def test_an_opening_that_appends_nothing_leaves_nothing(tmp_path):
    WriteAheadLog(tmp_path, settings()).close()
    assert list(tmp_path.iterdir()) == []


def test_a_record_larger_than_a_segment_gets_its_own(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    put(log, b"small")
    put(log, bytes(3 * SEGMENT))
    put(log, b"small")
    log.close()
    log = WriteAheadLog(tmp_path, settings())
    assert [len(value) for _, value in values(log)] == [5, 3 * SEGMENT, 5]


def test_segments_below_the_floor_are_used_again_and_others_are_kept(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    while log.next_segment < 6:
        put(log, bytes(1000))
    last = log.next_lsn - 1
    log.recycle(last)
    assert [record.lsn for record in log.records(1)][-1] == last
    held = log.first_lsn
    assert held <= last
    grown = log.size_bytes
    for _ in range(100):
        put(log, b"x" * 1000)
    assert log.size_bytes == grown  # free files, no new ones
    assert [value[:1] for lsn, value in values(log) if lsn > last] == [b"x"] * 100
    log.close()
    again = WriteAheadLog(tmp_path, settings())
    assert [value for lsn, value in values(again) if lsn > last] == [b"x" * 1000] * 100
    assert not again.damage


def test_a_free_file_full_of_old_frames_shows_none_of_them_in_its_next_life(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    while log.next_segment < 3:
        put(log, b"old" * 100)
    log.recycle(log.next_lsn)
    while log.next_segment < 4:
        put(log, b"new" * 100)
    first_new = log.next_lsn - 1
    log.close()
    log = WriteAheadLog(tmp_path, settings())
    assert [lsn for lsn, _ in values(log)][-1] == first_new
    assert not log.damage


def test_what_closing_leaves_is_only_what_is_still_needed(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    while log.next_segment < 4:
        put(log, bytes(1000))
    floor = log.next_lsn - 1
    log.close(floor)
    assert len(list(tmp_path.iterdir())) == 1
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size < SEGMENT  # its unused rest is given back
    log = WriteAheadLog(tmp_path, settings())
    assert [lsn for lsn, _ in values(log)] == [floor]
    log.close(floor + 1)
    assert list(tmp_path.iterdir()) == []


def test_lsns_and_segment_ids_go_on_where_the_checkpoint_says_when_no_segment_is_left(tmp_path):
    log = WriteAheadLog(tmp_path, settings(), wal_id=b"i" * 16, next_lsn=50, next_segment=9)
    assert put(log, b"a") == 50
    assert log.segment_id == 9
    assert log.wal_id == b"i" * 16


def test_the_threshold_refuses_a_new_segment_and_appends_nothing(tmp_path):
    log = WriteAheadLog(tmp_path, settings(disk_threshold_bytes=1024**2))
    with pytest.raises(WalFullError, match="DISK_THRESHOLD"):
        while True:
            put(log, bytes(1000))
    full = log.next_lsn
    assert log.size_bytes <= 1024**2
    with pytest.raises(WalFullError):
        put(log, bytes(1000))
    assert log.next_lsn == full
    log.recycle(full)
    assert put(log, bytes(1000)) == full


def test_the_floor_refuses_a_new_segment(tmp_path):
    log = WriteAheadLog(tmp_path, settings(disk_floor_bytes=2**60))
    with pytest.raises(WalFullError, match="DISK_FLOOR"):
        put(log, b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_leaves_no_file(tmp_path, monkeypatch):
    def no_space(fd, at, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = WriteAheadLog(tmp_path, settings())
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(WalFullError, match="No space"):
        put(log, b"x")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert put(log, b"x") == 1


def test_a_record_that_can_never_fit_is_bad_input(tmp_path):
    log = WriteAheadLog(tmp_path, settings(disk_threshold_bytes=1024**2))
    with pytest.raises(InputError, match="larger than the log"):
        put(log, bytes(2 * 1024**2))


def test_a_threshold_below_two_segments_is_refused(tmp_path):
    with pytest.raises(InputError, match="at least twice"):
        WriteAheadLog(tmp_path, WalSettings(disk_threshold_bytes=1024**2))


def test_a_failed_sync_is_never_tried_again(tmp_path, monkeypatch):
    log = WriteAheadLog(tmp_path, settings())
    put(log, b"x")
    log.sync()
    assert log.synced_lsn == 1
    put(log, b"y")

    def failing(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(StopError, match="refused"):
        log.sync()
    monkeypatch.undo()
    with pytest.raises(StopError, match="refused"):
        log.sync()
    assert log.synced_lsn == 1


def test_every_flipped_bit_of_a_segment_file_loses_at_most_its_own_record(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    for value in (b"one", b"two", b"three"):
        put(log, value)
    log.close()
    (path,) = tmp_path.glob("seg-*.wal")
    good = path.read_bytes()
    end = good.rstrip(b"\0")
    for bit in range(8 * len(end)):
        broken = bytearray(good)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        log = WriteAheadLog(tmp_path, settings())
        assert len(values(log)) >= 2, bit
        assert {value for _, value in values(log)} <= {b"one", b"two", b"three"}, bit
        log.close()


def test_a_damaged_segment_goes_to_quarantine_whole_once_nobody_needs_it(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    for n in range(100):
        put(log, b"%d" % n * 50)
    log.close()
    (path,) = tmp_path.glob("seg-*.wal")
    broken = bytearray(path.read_bytes())
    broken[len(broken) // 2] ^= 1
    path.write_bytes(broken)
    log = WriteAheadLog(tmp_path, settings())
    assert [found.missing for _, found in log.damage] == [1]
    assert len(values(log)) == 99
    log.recycle(log.next_lsn)
    assert (tmp_path / "quarantine" / path.name).read_bytes() == bytes(broken)
    assert segments(tmp_path) == []


def test_a_lost_segment_is_a_gap(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    while log.next_segment < 4:
        put(log, bytes(1000))
    log.close()
    lost = sorted(tmp_path.glob("seg-*.wal"))[1]
    lost.unlink()
    log = WriteAheadLog(tmp_path, settings())
    ((begin, end),) = log.gaps
    assert [lsn for lsn, _ in values(log)] == [*range(1, begin), *range(end, log.next_lsn)]


def test_marks_are_found_among_data(tmp_path):
    log = WriteAheadLog(tmp_path, settings())
    put(log, b"a")
    put(log, b"page 1", kind=MARK)
    put(log, b"b")
    log.close()
    log = WriteAheadLog(tmp_path, settings())
    assert log.marks(1) == [(2, b"page 1")]
    assert log.marks(3) == []


APPENDER = """
import sys
from pathlib import Path
from waybill.producer.wal import DATA, WriteAheadLog
from waybill.settings import WalSettings
log = WriteAheadLog(Path(sys.argv[1]), WalSettings(segment_bytes=65536))
out = sys.stdout
while True:
    lsn = log.append(DATA, 1, b"t", b"k", b"%d" % log.next_lsn, b"")
    out.write(f"{lsn}\\n")
    out.flush()
    if lsn % 500 == 0:
        log.recycle(lsn - 250)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_process_left_every_record_whose_append_returned(tmp_path, seed):
    child = subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(tmp_path)], stdout=subprocess.PIPE, env=_environment()
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    assert first == b"1\n"
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    child.send_signal(signal.SIGKILL)
    said = child.stdout.read().split(b"\n")
    child.wait(300)
    last = max([1, *(int(line) for line in said[:-1] if line)])
    log = WriteAheadLog(tmp_path, settings())
    found = values(log)
    assert not log.damage
    assert not log.gaps
    assert found[-1][0] >= last
    assert found == [(lsn, b"%d" % lsn) for lsn in range(log.first_lsn, found[-1][0] + 1)]
    assert log.first_lsn <= max(1, last - 249)


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.mark.parametrize("size", [0, 1, 4095, 5000])
def test_a_file_cut_to_any_size_is_opened(tmp_path, size):
    log = WriteAheadLog(tmp_path, settings())
    put(log, b"a" * 4000)
    put(log, b"b" * 4000)
    log.close()
    (path,) = tmp_path.glob("seg-*.wal")
    os.truncate(path, size)
    log = WriteAheadLog(tmp_path, settings())
    assert [value[:1] for _, value in values(log)] == [b"a"][: size > 4090]
    assert [found.missing for _, found in log.damage] == [0]
    log.close()
