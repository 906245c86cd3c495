from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

import pytest
from tests.unit.tracing.samples import batch, ids
from tests.unit.tracing_files.names_of_dead import name_of_dead

from waybill.errors import RetryError
from waybill.tracing import Recorder, trace_spool
from waybill.tracing.files.spool import new_name
from waybill.tracing.parquet import read_whole


@pytest.fixture
def body(tmp_path: Path) -> bytes:
    path = Recorder(tmp_path / "other").write([batch(ids(500))])
    assert path is not None
    return path.read_bytes()


def test_files_come_oldest_first_with_their_size(tmp_path: Path, body: bytes) -> None:
    spool = trace_spool(tmp_path / "spool")
    assert spool.files() == []
    paths = [spool.store(body) for _ in range(3)]
    assert [file.path for file in spool.files()] == paths
    assert {file.size_bytes for file in spool.files()} == {len(body)}
    assert spool.used_bytes() == 3 * len(body)


def test_a_whole_file_of_a_dead_process_is_finished(tmp_path: Path, body: bytes) -> None:
    spool = trace_spool(tmp_path)
    name = name_of_dead()
    (tmp_path / f"{name}.open").write_bytes(body)
    assert [(one.id, one.finished) for one in spool.take_over()] == [(name, True)]
    assert [file.id for file in spool.files()] == [name]
    assert spool.take_over() == []


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_torn_file_of_a_dead_process_is_removed(tmp_path: Path, body: bytes, kept: float) -> None:
    name = name_of_dead()
    (tmp_path / f"{name}.open").write_bytes(body[: int(len(body) * kept)])
    assert [(one.id, one.finished) for one in trace_spool(tmp_path).take_over()] == [(name, False)]
    assert list(tmp_path.glob("*.open")) == []


def test_a_file_with_one_flipped_byte_is_not_taken_for_whole(tmp_path: Path, body: bytes) -> None:
    damaged = bytearray(body)
    damaged[len(body) // 3] ^= 0xFF
    (tmp_path / f"{name_of_dead()}.open").write_bytes(damaged)
    assert [one.finished for one in trace_spool(tmp_path).take_over()] == [False]


def test_a_file_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / f"{new_name()}.open"
    path.write_bytes(b"half")
    assert trace_spool(tmp_path).take_over() == []
    assert path.exists()


def test_a_pid_that_was_given_to_another_process_counts_as_dead(tmp_path: Path) -> None:
    created, pid, start_ms, rest = new_name().split("-")
    path = tmp_path / f"{created}-{pid}-{int(start_ms) - 60_000}-{rest}.open"
    path.write_bytes(b"half")
    assert [one.finished for one in trace_spool(tmp_path).take_over()] == [False]


def test_a_locked_file_is_left_alone_though_its_pid_is_not_here(tmp_path: Path) -> None:
    path = tmp_path / f"{name_of_dead()}.open"
    path.write_bytes(b"half")
    with path.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert trace_spool(tmp_path).take_over() == []
    assert len(trace_spool(tmp_path).take_over()) == 1


def test_files_of_others_are_neither_listed_nor_removed(tmp_path: Path) -> None:
    for name in ("notes.parquet", "x.open", "1-2-3.open"):
        (tmp_path / name).write_bytes(b"mine")
    assert trace_spool(tmp_path).files() == []
    assert trace_spool(tmp_path).take_over() == []
    assert len(list(tmp_path.iterdir())) == 3


_CALLS = [("os", "open"), ("fcntl", "flock"), ("os", "write"), ("os", "fsync"), ("Path", "rename")]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "call"), _CALLS)
def test_a_writer_killed_at_any_call_leaves_a_whole_file_or_none(
    tmp_path: Path, body: bytes, owner: str, call: str, when: str
) -> None:
    spool = trace_spool(tmp_path)
    kept = spool.store(body)
    pid = os.fork()
    if pid == 0:
        _die_at({"os": os, "fcntl": fcntl, "Path": Path}[owner], call, when)
        spool.store(body)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    spool.take_over()
    assert list(tmp_path.glob("*.open")) == []
    assert kept in [file.path for file in spool.files()]
    for file in spool.files():
        assert read_whole(file.path).num_rows == 500


def _die_at(owner: object, call: str, when: str) -> None:
    real = getattr(owner, call)

    def dying(*arguments, **more):
        if when == "after":
            real(*arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, call, dying)


def test_a_full_disk_is_a_retry_and_leaves_nothing(
    tmp_path: Path, body: bytes, monkeypatch
) -> None:
    real = os.write

    def full(descriptor, data):
        real(descriptor, bytes(data[:10]))
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "spool").mkdir()
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RetryError, match="No space left"):
        trace_spool(tmp_path / "spool").store(body)
    assert list((tmp_path / "spool").iterdir()) == []
