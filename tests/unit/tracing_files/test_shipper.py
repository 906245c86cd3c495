"""Plain files, shipped as they are: what is discovered, sent, brought back, forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.tracing_files.folder_store import FolderStore
from tests.unit.tracing_files.names_of_dead import name_of_dead
from tests.unit.tracing_files.plain import ENDING, plain_shipper, plain_spool, stored

from waybill.errors import InputError, RetryError, ThrottledError
from waybill.tracing.files import BOOKS, FileManager, FileRecord, Shipper, Spool, ask_for_retry
from waybill.tracing.files.spool import new_name


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return plain_spool(tmp_path / "spool")


@pytest.fixture
def files(spool: Spool) -> Iterator[FileManager]:
    with FileManager(spool.directory / BOOKS) as manager:
        yield manager


@pytest.fixture
def shipper(spool: Spool, files: FileManager, store: FolderStore) -> Shipper:
    return plain_shipper(spool, files, store)


def test_each_file_is_an_object_of_its_name(
    shipper: Shipper, spool: Spool, files: FileManager, store: FolderStore
) -> None:
    paths = [spool.store(b"%d." % n) for n in range(3)]
    report = shipper.step()
    assert report is not None
    assert (report.files, report.objects, report.sent_bytes) == (3, 3, 6)
    assert stored(store) == {path.name: b"%d." % n for n, path in enumerate(paths)}
    assert spool.files() == []
    assert files.counts()["shipped"] == 3


def test_known_files_are_moved_out_of_the_way_of_new_ones(
    shipper: Shipper, spool: Spool, files: FileManager, store: FolderStore
) -> None:
    store.fail_at = set(range(1, 100))
    path = spool.store(b"one.")
    with pytest.raises(RetryError):
        shipper.step()
    assert list(spool.new_files()) == []
    assert [file.id for file in spool.tracked_files()] == [path.stem]
    assert spool.path(path.stem).read_bytes() == b"one."
    assert spool.used_bytes() == 4
    store.fail_at = set()
    shipper.step()
    assert spool.used_bytes() == 0


def test_a_shipment_that_is_tried_again_sends_only_what_was_not_confirmed(
    shipper: Shipper, spool: Spool, store: FolderStore
) -> None:
    for n in range(4):
        spool.store(b"%d." % n)
    store.fail_at = {3}
    with pytest.raises(RetryError):
        shipper.step()
    shipper.step()
    assert len(store.puts) == 5
    assert len(set(store.puts)) == 4


def test_an_object_that_is_refused_is_sent_again_in_its_place_at_half_the_rate(
    shipper: Shipper, spool: Spool, store: FolderStore
) -> None:
    for n in range(3):
        spool.store(b"%d." % n)
    store.slow_at = {2, 3}
    assert shipper.step() is not None
    assert store.puts[1] == store.puts[2] == store.puts[3]
    assert len(stored(store)) == 3


def test_a_store_that_only_refuses_puts_the_shipment_off(
    spool: Spool, files: FileManager, store: FolderStore
) -> None:
    from tests.unit.tracing_files.test_pace import Clock, pace_of

    shipper = plain_shipper(spool, files, store, pace=pace_of(Clock()))
    spool.store(b"1.")
    store.slow_at = set(range(1, 100))
    with pytest.raises(ThrottledError):
        shipper.step()
    assert len(store.puts) == 5
    assert files.counts()["shipping"] == 1


def test_a_file_that_is_being_written_is_in_the_books_as_open_then_closed(
    shipper: Shipper, spool: Spool, files: FileManager, monkeypatch
) -> None:
    descriptor_path = spool.create()
    later = time.time_ns() + 2 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    shipper.step()
    (record,) = files.files(state="open")
    assert record.id == descriptor_path[1].stem
    descriptor_path[1].write_bytes(b"now whole.")
    spool.finish(descriptor_path[1])
    report = shipper.step()
    assert report is not None
    assert report.files == 1
    assert [(f.id, f.size_bytes) for f in files.files(state="shipped")] == [(record.id, 10)]


def test_an_open_file_that_is_removed_by_hand_is_failed_not_forgotten(
    shipper: Shipper, spool: Spool, files: FileManager, monkeypatch
) -> None:
    _, path = spool.create()
    later = time.time_ns() + 2 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    shipper.step()
    path.unlink()
    shipper.step()
    (record,) = files.files(state="failed")
    assert "gone from the disk" in record.error


def test_books_that_were_lost_are_made_anew_from_the_disk(
    spool: Spool, store: FolderStore, tmp_path: Path
) -> None:
    path = spool.store(b"one.")
    store.fail_at = {1}
    with FileManager(tmp_path / "first") as files, pytest.raises(RetryError):
        plain_shipper(spool, files, store).step()
    assert list(spool.new_files()) == []
    with FileManager(tmp_path / "second") as files:
        assert plain_shipper(spool, files, store).step() is not None
    assert stored(store) == {path.name: b"one."}


def test_a_failed_file_comes_back_when_somebody_asks(
    shipper: Shipper, spool: Spool, files: FileManager, store: FolderStore
) -> None:
    path = spool.store(b"one.")
    files.add([FileRecord(path.stem, 5, "failed", error="damaged")])
    assert shipper.step() is None
    ask_for_retry(spool.directory, path.stem, who="ann", why="the disk was mended")
    assert shipper.step() is not None
    (record,) = files.files(state="shipped")
    assert (record.note, record.error) == ("ann: the disk was mended", "")
    assert stored(store) == {path.name: b"one."}
    assert list((spool.directory / "asks").iterdir()) == []


def test_a_failed_shipment_comes_back_whole_under_its_keys(
    shipper: Shipper, spool: Spool, files: FileManager, store: FolderStore
) -> None:
    paths = [spool.store(b"%d." % n) for n in range(2)]
    store.fail_at = {2}
    with pytest.raises(RetryError):
        shipper.step()
    kept = spool.path(paths[1].stem)
    body = kept.read_bytes()
    kept.unlink()
    assert shipper.step() is None
    assert files.counts()["failed"] == 2
    kept.write_bytes(body)
    ask_for_retry(spool.directory, paths[0].stem, who="ann", why="copied back")
    report = shipper.step()
    assert report is not None
    assert report.files == 2
    assert len(set(store.puts)) == 2


def test_an_ask_for_a_file_that_did_not_fail_changes_nothing(
    shipper: Shipper, spool: Spool, files: FileManager
) -> None:
    path = spool.store(b"one.")
    shipper.step()
    for file_id in (path.stem, "unknown"):
        ask_for_retry(spool.directory, file_id, who="ann", why="by mistake")
    assert shipper.step() is None
    assert files.counts()["shipped"] == 1
    with pytest.raises(InputError, match="not failed"):
        files.retry(path.stem, note="")


def test_shipped_files_are_forgotten_a_day_after_they_were_shipped_however_old_they_are(
    spool: Spool, files: FileManager, store: FolderStore, monkeypatch
) -> None:
    spool.directory.mkdir(exist_ok=True)
    old = f"{1_500_000_000_000_000:016d}-1-1-abc"
    (spool.directory / f"{old}{ENDING}").write_bytes(b"old.")
    plain_shipper(spool, files, store).step()
    plain_shipper(spool, files, store).step()
    assert files.counts()["shipped"] == 1
    later = time.time_ns() + 25 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    plain_shipper(spool, files, store).step()
    assert files.counts()["shipped"] == 0


def test_a_backlog_costs_a_step_no_more_than_its_shipment(
    spool: Spool, files: FileManager, store: FolderStore, monkeypatch
) -> None:
    files.add(FileRecord(f"waits-{n:06d}", n, size_bytes=1) for n in range(20_000))
    shipper = plain_shipper(spool, files, store)
    read = []
    real = files.get_many
    monkeypatch.setattr(files, "get_many", lambda some: read.append(len(some)) or real(some))
    due = shipper._due(everything=True)
    assert [record.id for record in due] == [f"waits-{n:06d}" for n in range(2000)]
    assert sum(read) <= 3000


def test_a_torn_file_that_was_in_the_books_as_open_fails(
    shipper: Shipper, spool: Spool, files: FileManager
) -> None:
    name = name_of_dead()
    files.add([FileRecord(name, 5, "open")])
    spool.directory.mkdir(exist_ok=True)
    (spool.directory / f"{name}.open").write_bytes(b"half")
    shipper.step()
    (record,) = files.files(state="failed")
    assert "torn" in record.error


def test_files_of_the_living_are_left_alone(shipper: Shipper, spool: Spool) -> None:
    spool.directory.mkdir(exist_ok=True)
    path = spool.directory / f"{new_name()}.open"
    path.write_bytes(b"whole.")
    assert shipper.step() is None
    assert path.exists()
