"""``make bench-tracker``: what the event tracker costs, keeps and answers.

(a) Recorder: processing with traces against the same without, events/s, in alternating pairs; bytes
    a trace at rest. See ``tracker_recorder``.
(b) File manager: files/s through its books, memory, opening with 1,000,000 tracked files, range
    search. See ``tracker_files``.
(c) Look-ups of an id among 100,000,000 traces in the object store and among 10,000,000: with its
    time known and without, and the share of objects that is read. See ``tracker_lookup``.

``QUICK=1`` takes fewer events, 40,000 files, and 10,000,000 traces against 1,000,000.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.benchmarks import tracker_files, tracker_lookup, tracker_recorder
from tests.benchmarks.home import opened_home

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
}


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    report: dict[str, Any] = {}
    with opened_home() as (home, _):
        for part in (tracker_recorder, tracker_files, tracker_lookup):
            found = part.measure(quick=quick, home=home / part.__name__.rpartition("_")[2])
            found.pop("rows", None)
            show(found)
            report |= found
    sys.stdout.write(json.dumps(report) + "\n")


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
