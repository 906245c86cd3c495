from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.unit.tracing_files.acts import append_on
from tests.unit.tracing_files.dying import FORKED, deaths
from tests.unit.tracing_files.names_of_dead import name_of_dead

from waybill.errors import InputError, RetryError
from waybill.tracing.files import (
    FRAMES,
    LINES,
    DamagedFileError,
    Framing,
    RollingFile,
    Spool,
    appended_spool,
)

BOTH = pytest.mark.parametrize("framing", [FRAMES, LINES], ids=lambda one: one.ending)


def records_of(spool: Spool, framing: Framing) -> list[bytes]:
    return [record for file in spool.files() for record in framing.read(file.path)]


@BOTH
def test_records_come_back_in_their_order_over_files(tmp_path: Path, framing: Framing) -> None:
    with RollingFile(tmp_path, framing, roll_bytes=100) as file:
        for number in range(0, 50, 2):
            file.append([b"record %d" % number, b"record %d" % (number + 1)])
    assert records_of(file.spool, framing) == [b"record %d" % number for number in range(50)]
    assert len(file.spool.files()) > 3
    assert list(file.spool.open_files()) == []


def test_frames_hold_any_bytes(tmp_path: Path) -> None:
    records = [b"", b"\n", bytes(range(256)), b"\x00" * 100, b"x" * 200_000]
    with RollingFile(tmp_path, FRAMES) as file:
        file.append(records)
    assert records_of(file.spool, FRAMES) == records


def test_a_line_break_in_a_line_is_refused_with_all_that_came_along(tmp_path: Path) -> None:
    with RollingFile(tmp_path, LINES) as file:
        with pytest.raises(InputError, match="line break"):
            file.append([b"good", b"b\nad"])
    assert file.spool.files() == []


def test_a_file_is_finished_when_it_is_old_though_nobody_appends(tmp_path: Path) -> None:
    file = RollingFile(tmp_path, LINES, roll_s=2.0)
    file.append([b"one"])
    assert file.spool.files() == []
    deadline = time.monotonic() + 300
    while not file.spool.files():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    file.append([b"two"])
    file.close()
    assert records_of(file.spool, LINES) == [b"one", b"two"]


def test_nothing_appended_leaves_no_file(tmp_path: Path) -> None:
    with RollingFile(tmp_path, LINES) as file:
        file.append([])
    assert file.spool.files() == []
    assert list(file.spool.open_files()) == []


def test_a_child_begins_a_file_of_its_own_and_does_not_hold_its_parents(tmp_path: Path) -> None:
    file = RollingFile(tmp_path, LINES, roll_s=3600)
    file.append([b"parent"])
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        file.append([b"child"])
        file.close()
        os.write(write_end, b"done")
        os._exit(0)
    os.read(read_end, 4)
    assert os.waitpid(pid, 0)[1] == 0
    assert records_of(file.spool, LINES) == [b"child"]
    file.append([b"again"])
    file.close()
    assert sorted(records_of(file.spool, LINES)) == [b"again", b"child", b"parent"]


def test_a_disk_that_is_full_halfway_takes_all_or_nothing(tmp_path: Path, monkeypatch) -> None:
    file = RollingFile(tmp_path, FRAMES)
    file.append([b"first"])
    real = os.pwrite

    def full(descriptor, body, position):
        real(descriptor, bytes(body)[:5], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RetryError, match="No space left"):
        file.append([b"lost " * 100])
    monkeypatch.setattr(os, "pwrite", real)
    file.append([b"last"])
    file.close()
    assert records_of(file.spool, FRAMES) == [b"first", b"last"]


def test_a_file_that_cannot_be_finished_loses_nothing_and_is_finished_later(
    tmp_path: Path, monkeypatch
) -> None:
    file = RollingFile(tmp_path, FRAMES, roll_bytes=1)
    real = os.fsync

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    file.append([b"first"])
    with pytest.raises(RetryError, match="Input/output"):
        file.roll()
    monkeypatch.setattr(os, "fsync", real)
    file.append([b"second"])
    assert records_of(file.spool, FRAMES) == [b"first", b"second"]


def test_a_spool_that_stays_full_refuses_and_appends_nothing(tmp_path: Path) -> None:
    file = RollingFile(tmp_path, LINES, threshold_bytes=20, full_wait_s=0)
    file.append([b"0123456789"])
    with pytest.raises(RetryError, match="more do not fit"):
        file.append([b"0123456789"])
    file.close()
    assert records_of(file.spool, LINES) == [b"0123456789"]


@pytest.mark.parametrize("tail", [b"\x05", b"\x05\x00\x00\x00abcdhel", b"\x00" * 64, b"noise" * 9])
def test_a_torn_tail_is_cut_and_set_aside(tmp_path: Path, tail: bytes) -> None:
    name = name_of_dead()
    (tmp_path / f"{name}.open").write_bytes(FRAMES.encode([b"one", b"two"]) + tail)
    spool = appended_spool(tmp_path, FRAMES)
    (one,) = spool.take_over()
    assert one.size_bytes - one.kept_bytes == len(tail)
    assert records_of(spool, FRAMES) == [b"one", b"two"]
    assert (tmp_path / "damaged" / f"{name}.tail").read_bytes() == tail


def test_what_follows_a_damaged_record_is_set_aside_not_lost(tmp_path: Path) -> None:
    name = name_of_dead()
    body = bytearray(FRAMES.encode([b"one", b"two", b"three"]))
    body[len(FRAMES.encode([b"one"])) + 9] ^= 1
    (tmp_path / f"{name}.open").write_bytes(body)
    spool = appended_spool(tmp_path, FRAMES)
    spool.take_over()
    assert records_of(spool, FRAMES) == [b"one"]
    tail = (tmp_path / "damaged" / f"{name}.tail").read_bytes()
    assert tail.endswith(FRAMES.encode([b"three"]))


@BOTH
def test_a_finished_file_that_is_damaged_says_so(tmp_path: Path, framing: Framing) -> None:
    with RollingFile(tmp_path, framing) as file:
        file.append([b"one", b"two"])
    (path,) = [one.path for one in file.spool.files()]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError):
        list(framing.read(path))


def test_lines_longer_than_a_block_are_found_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"a\n" + b"b" * 200_000)
    assert LINES.sound(path).kept_bytes == 2
    path.write_bytes(b"b" * 200_000)
    assert LINES.sound(path).kept_bytes == 0


@BOTH
def test_a_writer_killed_at_any_line_leaves_a_row_of_whole_records(
    tmp_path: Path, framing: Framing
) -> None:
    """What ``append`` returned for is there, nothing twice, nothing in between is missing."""
    seen = 0

    for number, when in deaths(append_on, tmp_path / "now", framing, context=FORKED):
        spool_dir = tmp_path / f"{number}-{when}"
        spool_dir.mkdir()
        if (tmp_path / "now").exists():
            (tmp_path / "now").rename(spool_dir)
        told = int((spool_dir / "told").read_text() or 0) if (spool_dir / "told").exists() else 0
        spool = appended_spool(spool_dir, framing)
        spool.take_over()
        found = records_of(spool, framing)
        assert found == [b"record %d" % n for n in range(len(found))], (number, when)
        assert told <= len(found) <= told + 2, (number, when)
        assert list(spool.open_files()) == []
        shutil.rmtree(spool_dir)
        seen += 1
    assert seen > 30
