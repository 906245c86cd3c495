"""The file manager at 1,000,000 tracked files: files/s, memory, reopening, range search.

(a) Files through all their states in the books: open, closed, shipping, shipped. Each change is one
    atomic, synced write, of 500 files at once (a shipper takes as many as are new, or due, at once;
    at most 1,000 and 2,000). ``files_per_s`` counts files that have gone all the way; also with
    one file a write.
(b) As many files on the disk, taken up as a shipper does: found, put in the books, moved.
(c) A new process takes over: opens the books, looks for what is new, and names its first shipment.
    ``reopen_1m_files_s`` is that, at ``tracked_files``: half of them shipped, half waiting on the
    disk. That each of these is in the books is seen bit by bit, at each step; all of it is a row.
(d) Range searches of 100 files by creation time, of all files and of one state's, by another
    process beside one that writes without a pause; ``range_p99_ms``.
``files_rss_mb`` is the most that a process of these took. ``QUICK=1``: 40,000 files.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.benchmarks.home import opened_home

from waybill.tracing.files import (
    BOOKS,
    FileManager,
    FileReader,
    FileRecord,
    Shipment,
    Shipper,
    Sound,
    Spool,
    WholeFilePacker,
)
from waybill.tracing.files.manager import Discovery

PROCESSES = get_context("spawn")
_AT_ONCE = 500
_BEGAN_US = 1_790_000_000_000_000
_GAP_US = 357
"""Between two files, as 2,800 a second."""


@dataclass(frozen=True)
class Size:
    """How much one form of the benchmark does."""

    files: int
    """In the books at the end; half of them went all the way, half wait on the disk."""
    alone: int
    """Files that go one a write."""
    searches: int


FULL = Size(1_000_000, 2_000, 4_000)
QUICK = Size(40_000, 200, 400)


def measure(*, quick: bool, home: Path) -> dict[str, Any]:
    """Measure in a folder, on the disk that is meant; ``rows`` are for people."""
    size = QUICK if quick else FULL
    spool = home / "spool"
    filled = _in_process(fill, spool, size)
    taken = _in_process(take_up, spool, size)
    reopened = _in_process(reopen, spool, size)
    searched = search(spool, size)
    runs = (filled, taken, reopened, searched)
    most_mb = max(run["rss_mb"] for run in (filled, taken, reopened))
    rows = [row for run in runs for row in run["rows"]]
    return {
        "files_per_s": filled["per_s"],
        "files_rss_mb": most_mb,
        "reopen_1m_files_s": reopened["seconds"],
        "range_p99_ms": searched["p99_ms"],
        "tracked_files": reopened["tracked"],
        "rows": [*rows, ("most memory of one process", f"{most_mb} MB")],
    }


def fill(spool: Path, size: Size) -> dict[str, Any]:
    """(a): files that go all the way, in the books."""
    with FileManager(spool / BOOKS) as books:
        began = time.perf_counter()
        for start in range(0, size.alone):
            go_all_the_way(books, [name(start, "alone")])
        alone_per_s = round(size.alone / (time.perf_counter() - began))
        count = size.files // 2 - size.alone
        began = time.perf_counter()
        for start in range(0, count, _AT_ONCE):
            go_all_the_way(books, [name(n) for n in range(start, min(start + _AT_ONCE, count))])
        per_s = round(count / (time.perf_counter() - began))
    return {
        "per_s": per_s,
        "rows": [
            (f"files/s through all states, {_AT_ONCE} a write", f"{per_s:,}"),
            ("files/s through all states, one a write", f"{alone_per_s:,}"),
        ],
    }


def go_all_the_way(books: FileManager, ids: list[str]) -> None:
    """Take files from creation to shipped: four synced writes."""
    books.add(FileRecord(one, int(one[:16]), "open") for one in ids)
    books.update_many({one: {"state": "closed", "size_bytes": 5_000} for one in ids})
    ship_id = f"s-{ids[0]}"
    keys = tuple(f"traces/dt=2026-09-21/hour=13/bucket={n:03d}/{ship_id}" for n in range(16))
    books.begin(Shipment(ship_id, int(ids[0][:16]), tuple(ids), keys, {"buckets": 16}))
    books.finish(ship_id)


def name(number: int, kind: str = "batch") -> str:
    """Return a file's id as processes make them."""
    return f"{_BEGAN_US + number * _GAP_US:016d}-4194304-1-{kind}{number:08d}"


def take_up(spool: Path, size: Size) -> dict[str, Any]:
    """(b): files on the disk, found and put in the books."""
    count = size.files - size.files // 2
    for number in range(count):
        (spool / f"{name(number, 'waits')}.bin").touch()
    with FileManager(spool / BOOKS) as books:
        began = time.perf_counter()
        Discovery(spool_of(spool), books).run()
        per_s = round(count / (time.perf_counter() - began))
        if books.counts()["closed"] != count:
            raise SystemExit(f"{books.counts()} of {count} files are in the books")
    return {"rows": [("files/s found on the disk and taken up", f"{per_s:,}")]}


def reopen(spool: Path, size: Size) -> dict[str, Any]:
    """(c): the next process takes over."""
    began = time.perf_counter()
    with FileManager(spool / BOOKS) as books:
        opened_s = time.perf_counter() - began
        store, packer = _NoStore(), WholeFilePacker("bin/")
        shipper = Shipper(spool_of(spool), books, store, packer, roll_s=1, roll_bytes=1)
        shipper._discovery.run()
        first = shipper._due(everything=True)
        seconds = round(time.perf_counter() - began, 2)
        again = time.perf_counter()
        shipper._discovery.run()
        shipper._due(everything=True)
        step_ms = (time.perf_counter() - again) * 1000
        while not shipper._discovery.is_complete:
            shipper._discovery.go_on()
        all_s = time.perf_counter() - again
        tracked = sum(books.counts().values())
    if len(first) != 2000 or tracked != size.files:
        raise SystemExit(f"{len(first)} files are due, {tracked} are tracked")
    return {
        "seconds": seconds,
        "tracked": tracked,
        "rows": [
            (f"reopening with {tracked:,} files, to the first shipment", f"{seconds} s"),
            ("  of which opening the books", f"{opened_s:.2f} s"),
            ("each later look for what is new and due", f"{step_ms:.1f} ms"),
            ("every file on the disk held against the books", f"{all_s:.1f} s"),
        ],
    }


def search(spool: Path, size: Size) -> dict[str, Any]:
    """(d): range searches beside a writer."""
    stop = PROCESSES.Event()
    writer = PROCESSES.Process(target=write_on, args=(spool, stop))
    writer.start()
    try:
        with FileReader(spool / BOOKS) as books:
            while not books.get(name(0, "later")):
                time.sleep(0.05)
                books.refresh()
            times = [_search_ms(books, size) for _ in range(size.searches)]
            rss_mb = _rss_mb()
        stop.set()
        writer.join()
    finally:
        writer.kill()
    p99 = round(statistics.quantiles(times, n=100)[98], 2)
    return {
        "p99_ms": p99,
        "rss_mb": rss_mb,
        "rows": [
            (
                "range search of 100 files beside a writer, p50",
                f"{statistics.median(times):.2f} ms",
            ),
            ("range search of 100 files beside a writer, p99", f"{p99} ms"),
        ],
    }


def _search_ms(books: FileReader, size: Size) -> float:
    since_us = _BEGAN_US + random.randrange(size.files // 2 - size.alone - 100) * _GAP_US
    state: Any = random.choice([None, "shipped", "closed"])
    began = time.perf_counter()
    books.refresh()
    found = list(islice(books.files(state=state, since_us=since_us), 100))
    taken_ms = (time.perf_counter() - began) * 1000
    if len(found) != 100 or found[0].created_us > since_us + _GAP_US:
        raise SystemExit(f"{len(found)} files were found from {since_us} on")
    return taken_ms


def write_on(spool: Path, stop: Any) -> None:
    """Take files all the way until told to stop."""
    with FileManager(spool / BOOKS) as books:
        start = 0
        while not stop.is_set():
            go_all_the_way(books, [name(n, "later") for n in range(start, start + 100)])
            start += 100


def spool_of(directory: Path) -> Spool:
    """Return a spool of files that are whole always."""
    return Spool(directory, ending=".bin", sound=lambda path: Sound(path.stat().st_size))


class _NoStore:
    """Only discovery is measured: a shipper that sends something here has broken the benchmark."""

    def put(self, key: str, body: bytes) -> str:
        raise AssertionError(f"{key} was sent, {len(body)} bytes")

    def get(self, key: str) -> bytes:
        raise AssertionError(f"{key} was read")


def _in_process(part: Callable[[Path, Size], dict[str, Any]], spool: Path, size: Size) -> Any:
    """Run a part in a process of its own; return what it found, and its memory."""
    hears, tells = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_run, args=(part, spool, size, tells))
    process.start()
    tells.close()
    try:
        found = hears.recv()
        process.join()
    except EOFError:
        process.join()
        raise SystemExit(f"{part.__name__} ended with {process.exitcode}") from None
    finally:
        process.kill()
    return found


def _run(part: Any, spool: Path, size: Size, tells: Connection) -> None:
    found = part(spool, size)
    tells.send({**found, "rss_mb": _rss_mb()})


def _rss_mb() -> int:
    """Most of this program's own memory so far; ``ru_maxrss`` would be that of who started it too."""
    [line] = [one for one in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in one]
    return int(line.split()[1]) // 1024


def show(report: dict[str, Any]) -> None:
    """Print the table for people on standard error."""
    for words, value in report["rows"]:
        sys.stderr.write(f"{words:<60}{value:>14}\n")


def main() -> None:
    """Measure alone: ``python -m tests.benchmarks.tracker_files``."""
    quick = os.environ.pop("QUICK", "") == "1"
    with opened_home() as (home, _):
        report = measure(quick=quick, home=home)
    show(report)
    del report["rows"]
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
