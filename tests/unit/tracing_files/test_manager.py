from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from waybill.errors import InputError, RetryError, StopError
from waybill.tracing.files import FileManager, FileReader, FileRecord, Shipment


def _plain(record: FileRecord | None) -> FileRecord | None:
    """A record without the time of its last change."""
    return None if record is None else replace(record, changed_us=0)


def _records(count: int) -> list[FileRecord]:
    return [FileRecord(f"f{n}", 1000 + n, size_bytes=10 * n) for n in range(count)]


@pytest.fixture
def books(tmp_path: Path):
    with FileManager(tmp_path / "books") as manager:
        yield manager


def test_files_are_found_by_id_and_by_time_oldest_first(books: FileManager) -> None:
    books.add(reversed(_records(10)))
    assert _plain(books.get("f3")) == FileRecord("f3", 1003, size_bytes=30)
    assert books.get("f99") is None
    found = [file.id for file in books.files(since_us=1002, until_us=1005)]
    assert found == ["f2", "f3", "f4", "f5"]


def test_any_text_is_an_id(books: FileManager) -> None:
    names = ["../a", "a/b", "é🛫", "", "a\x00b"]
    books.add(FileRecord(name, 5) for name in names)
    assert {file.id for file in books.files()} == set(names)


def test_a_known_file_is_not_taken_up_again(books: FileManager) -> None:
    books.add(_records(2))
    books.update("f0", state="failed", error="torn")
    assert [record.id for record in books.add(_records(3))] == ["f2"]
    assert _plain(books.get("f0")) == FileRecord("f0", 1000, "failed", 0, error="torn")


def test_a_file_is_listed_under_its_present_state_only(books: FileManager) -> None:
    books.add([FileRecord("a", 1, "open"), FileRecord("b", 2, "open")])
    books.update("a", state="closed", size_bytes=7)
    assert [file.id for file in books.files(state="open")] == ["b"]
    assert [file.id for file in books.files(state="closed")] == ["a"]
    assert books.counts() == {"open": 1, "closed": 1, "shipping": 0, "shipped": 0, "failed": 0}


def test_a_shipment_goes_from_begun_over_postponed_to_finished(books: FileManager) -> None:
    books.add(_records(3))
    books.begin(Shipment("s", 5, ("f0", "f2"), ("k1", "k2"), {"buckets": 16}))
    assert [file.id for file in books.files(state="shipping")] == ["f0", "f2"]
    books.postpone("s", error="away", next_attempt_us=99)
    waiting = books.unfinished()
    assert [(s.attempts, s.next_attempt_us, s.error) for s in waiting] == [(1, 99, "away")]
    assert waiting[0].keys == ("k1", "k2")
    books.finish("s")
    assert books.unfinished() == []
    assert [(f.id, f.shipment) for f in books.files(state="shipped")] == [("f0", "s"), ("f2", "s")]


def test_a_failed_shipment_keeps_its_files_as_failed(books: FileManager) -> None:
    books.add(_records(1))
    books.begin(Shipment("s", 5, ("f0",), ("k",)))
    books.fail("s", error="damaged")
    assert _plain(books.get("f0")) == FileRecord("f0", 1000, "failed", 0, "s", "damaged")
    assert books.unfinished() == []


def test_a_shipment_takes_only_closed_files_or_nothing_at_all(books: FileManager) -> None:
    books.add([*_records(1), FileRecord("busy", 1, "open")])
    for wrong in ("busy", "unknown"):
        with pytest.raises(InputError, match=wrong):
            books.begin(Shipment("s", 5, ("f0", wrong), ()))
    assert _plain(books.get("f0")) == _records(1)[0]
    assert books.unfinished() == []


def test_what_does_not_change_cannot_be_changed(books: FileManager) -> None:
    books.add(_records(1))
    with pytest.raises(InputError, match="do not change"):
        books.update("f0", created_us=3)
    with pytest.raises(InputError, match="sent"):
        books.update("f0", state="sent")
    with pytest.raises(InputError, match="f9"):
        books.update("f9", state="failed")


def test_only_processed_files_are_forgotten(books: FileManager) -> None:
    books.add(_records(2))
    books.begin(Shipment("s", 5, ("f0",), ("k",)))
    books.finish("s")
    with pytest.raises(InputError, match="still needed"):
        books.prune(["f0", "f1"])
    books.prune(["f0"])
    assert books.get("f0") is None
    assert books.shipment("s") is None
    assert [file.id for file in books.files()] == ["f1"]


def test_books_read_while_the_owner_writes_and_after_it_closed(tmp_path: Path) -> None:
    with FileManager(tmp_path) as books, FileReader(tmp_path) as reader:
        books.add(_records(3))
        reader.refresh()
        assert [file.id for file in reader.files()] == ["f0", "f1", "f2"]
        with FileReader(tmp_path) as late:
            assert late.counts()["closed"] == 3
    with FileReader(tmp_path) as reader:
        assert reader.counts()["closed"] == 3


def test_no_books_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file manager"):
        FileReader(tmp_path)


_OWNER = """
import sys, time
sys.path[:0] = ["include"]
from pathlib import Path
from waybill.tracing.files import FileManager, FileRecord
books = FileManager(Path(sys.argv[1]))
for n in range(1_000_000):
    books.add([FileRecord(f"f{n}", n)])
    print(n, flush=True)
"""


def test_a_second_owner_is_refused_until_the_first_is_killed_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    last = int(owner.stdout.readline())
    with pytest.raises(RetryError, match="another process"):
        FileManager(tmp_path)
    time.sleep(0.1)
    os.kill(owner.pid, signal.SIGKILL)
    last = max([last, *(int(line) for line in owner.stdout.read().splitlines())])
    owner.wait()
    with FileManager(tmp_path) as books:
        found = [int(file.id[1:]) for file in books.files()]
    assert found[: last + 1] == list(range(last + 1))


def test_damaged_books_stop_with_advice(tmp_path: Path) -> None:
    FileManager(tmp_path).close()
    (tmp_path / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(StopError, match="move the folder away"):
        FileManager(tmp_path)


def test_a_hundred_thousand_files_are_kept_and_reopened_fast(tmp_path: Path) -> None:
    began = time.process_time()  # of this process alone: the machine may be busy
    with FileManager(tmp_path) as books:
        for start in range(0, 100_000, 1000):
            books.add(FileRecord(f"f{n}", n) for n in range(start, start + 1000))
    kept_s = time.process_time() - began
    began = time.process_time()
    with FileManager(tmp_path) as books:
        page = [file.id for file in books.files(since_us=50_000, until_us=50_009)]
    assert page == [f"f{n}" for n in range(50_000, 50_010)]
    assert kept_s < 60
    assert time.process_time() - began < 10
