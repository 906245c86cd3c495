"""``make bench-tracker``: what the event tracker costs, keeps and answers.

(a) Recorder: processing with traces against the same without, events/s, in alternating pairs; bytes
    a trace at rest. See ``tracker_recorder``.
(b) File manager: files/s through its books, memory, opening with 1,000,000 tracked files, range
    search. See ``tracker_files``.
(c) Look-ups of an id among 100,000,000 traces in the object store and among 10,000,000: with its
    time known and without, and the share of objects that is read. See ``tracker_lookup``.
(d) Queries of the books that run each minute, with 1,000,000 batches. See ``tracker_queries``.

``QUICK=1`` takes fewer events, 40,000 files, 10,000,000 traces against 1,000,000, and 50,000 batches; (a) runs beside
the others there, so that times and the recorder's share say little.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.benchmarks.home import opened_home

PARTS = ("recorder", "files", "lookup", "queries")
WORDS = {
    "events": "events a round",
    "events_per_s_on": "events/s with traces",
    "events_per_s_off": "events/s without",
    "recorder_overhead": "recorder's share of throughput",
    "recorder_overhead_cpu": "recorder's share of CPU seconds",
    "recorder_cpu_us_per_trace": "CPU µs a trace",
    "bytes_per_trace": "bytes a trace at rest",
    "tracked_files": "files tracked",
    "files_per_s": "files/s through all states",
    "files_rss_mb": "MB of memory",
    "reopen_1m_files_s": "seconds to open them again",
    "range_p99_ms": "ms for a range of time, p99",
    "traces": "traces",
    "objects": "objects",
    "lookup_p95_s": "s for an id, p95",
    "lookup_objects": "objects read for it, at most",
    "lookup_objects_share": "share of the objects",
    "lookup_bytes": "bytes read for it",
    "lookup_p95_s_10m": "s among a tenth of them, p95",
    "lookup_known_time_p95_s": "s with its time known, p95",
    "lookup_known_time_p95_s_10m": "s among a tenth, its time known, p95",
    "tracker_batches": "batches in the books",
    "audit_ms": "ms for a round of the audit",
    "watch_ms": "ms for the eager checks",
    "balance_ms": "ms for a balance",
    "processing_commit_ms": "ms for the commit of a batch",
    "latest_offset_ms": "ms for what loading asks before a load",
    "load_commit_ms": "ms for the commit of a load",
    "pages_ms": "ms for the pages of balance and destinations",
}


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    with opened_home() as (home, stack):
        if quick:
            names = ("files", "lookup", "queries")
            others = beside(names, home, stack)
            found = [measured("recorder", quick, home), *(others.recv() for _ in names)]
        else:
            found = [measured(name, quick, home) for name in PARTS]
    report: dict[str, Any] = {}
    for figures in found:
        figures.pop("rows", None)
        show(figures)
        report |= figures
    sys.stdout.write(json.dumps(report) + "\n")


def measured(name: str, quick: bool, home: Path) -> dict[str, Any]:
    """Run a part; it is imported only here, as each program's own memory is measured."""
    part = import_module(f"tests.benchmarks.tracker_{name}")
    return part.measure(quick=quick, home=home / name)  # type: ignore[no-any-return]


def beside(names: tuple[str, ...], home: Path, stack: ExitStack) -> Connection:
    """Run quick forms of parts in a process of its own, which ends with this one."""
    here, there = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(target=_tell, args=(there, names, home))
    process.start()
    stack.callback(process.kill)
    there.close()  # so that a death of the other end is noticed
    return here


def _tell(there: Connection, names: tuple[str, ...], home: Path) -> None:
    for name in names:
        there.send(measured(name, True, home))


def show(found: dict[str, Any]) -> None:
    """Print a part's figures for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, words in WORDS.items():
        if name in found:
            value = found[name]
            table.add_row(words, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
    Console().print(table)


if __name__ == "__main__":
    main()
