"""What processes do that die in a test, or must not share its RocksDB."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.unit.tracing_files.folder_store import FolderStore

from waybill.tracing.files import (
    BOOKS,
    FRAMES,
    FileManager,
    FileReader,
    Framing,
    RollingFile,
    Shipper,
    Spool,
    WholeFilePacker,
    appended_spool,
)
from waybill.tracing.files.manager import Discovery

RECORDS = [b"%d" % number for number in range(3)]
BODY = FRAMES.encode(RECORDS)


def append_on(directory: Path, framing: Framing) -> None:
    """Append two records at a time, tell after each, roll after three times, then close."""
    directory.mkdir(parents=True)
    told = os.open(directory / "told", os.O_CREAT | os.O_WRONLY)
    file = RollingFile(directory, framing, roll_bytes=len(framing.encode([b"record 0"] * 6)))
    for number in range(0, 16, 2):
        file.append([b"record %d" % number, b"record %d" % (number + 1)])
        os.lseek(told, 0, os.SEEK_SET)
        os.write(told, b"%d" % (number + 2))
    file.close()


def fail(directory: Path, file_id: str) -> None:
    with FileManager(directory / BOOKS) as files:
        Discovery(appended_spool(directory, FRAMES), files).run()
        files.update(file_id, state="failed", error="damaged")


def _shipper(spool: Spool, files: FileManager, store: FolderStore) -> Shipper:
    return Shipper(spool, files, store, WholeFilePacker("bin/"), roll_s=0, roll_bytes=90)


def ship_and_forget(directory: Path, store_dir: Path) -> None:
    """Ship everything, two files a shipment; then, a day later, forget it."""
    spool = appended_spool(directory, FRAMES)
    with FileManager(directory / BOOKS) as files:
        shipper = _shipper(spool, files, FolderStore(store_dir))
        while shipper.step(everything=True):
            pass
        later = time.time_ns() + 25 * 3600 * 10**9
        time.time_ns = lambda: later
        _shipper(spool, files, FolderStore(store_dir)).step()


def stored(store_dir: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in (store_dir / "bin").glob("*")}


def check_the_dead(directory: Path, store_dir: Path, expected: set[str], point: str) -> None:
    """What was told to be shipped is stored; what is not stored is on the disk, whole."""
    kept = stored(store_dir)
    with FileReader(directory / BOOKS) as books:
        shipped = {record.id for record in books.files(state="shipped")}
    assert shipped <= set(kept), point
    spool = appended_spool(directory, FRAMES)
    on_disk = {file.id: file.path for file in (*spool.files(), *spool.open_files())}
    for file_id in expected - set(kept):
        assert on_disk[file_id].read_bytes().startswith(BODY), point


def check_the_end(directory: Path, point: str) -> None:
    spool = appended_spool(directory, FRAMES)
    assert [*spool.files(), *spool.open_files()] == [], point
    assert spool.used_bytes() == 0, point
    assert list((directory / "asks").iterdir()) == [], point
    with FileReader(directory / BOOKS) as books:
        left = list(books.files())
        assert books.counts()["failed"] == sum(books.counts().values()) == len(left) <= 1, point
    assert all("torn" in record.error for record in left), point
    tails = [path.read_bytes() for path in sorted((directory / "damaged").iterdir())]
    assert sorted(tails) == [b"\x09", b"torn"], point


def recover(directory: Path, store_dir: Path, expected: set[str], point: str) -> None:
    """Look at what a dead shipper left, ship the rest, look at the end."""
    check_the_dead(directory, store_dir, expected, point)
    ship_and_forget(directory, store_dir)
    assert stored(store_dir) == dict.fromkeys(expected, BODY), point
    check_the_end(directory, point)
