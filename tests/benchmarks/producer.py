"""``make bench-producer``: what the lossless producer costs beside the bare one, in the same run.

A: ``confluent_kafka.Producer``, one shared delivery callback that counts, ``acks=all``, idempotent,
``poll(0)`` every 256 messages. B: ``LosslessProducer`` in its default settings (durability
``process``), its log on the same disk. Same queue limits, a real broker, a fresh topic of one
partition for each run, 72 MiB sent before the clock starts (a service's log has its segments, and
its connections). A and B alternate, who is first changes each round; every number is the
median over the rounds, ratios and differences are taken within a round first. Then the append alone
and the bytes of a log. Values of 100 B, 1 KB (1,024) and 10 KB; of 1 KB also ``produce_batch`` and
``produce_values``, 500 a call, against the same bare runs. Last how long a log of 100 B values
takes to open. ``QUICK=1`` sends fewer messages.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.home import opened_home


@dataclass(frozen=True, slots=True)
class Size:
    """Values of one size, and how many of them a run sends."""

    label: str
    bytes: int
    messages: int
    quick_messages: int


SIZES = (
    Size("100b", 100, 1_500_000, 60_000),
    Size("1kb", 1024, 1_000_000, 50_000),
    Size("10kb", 10 * 1024, 80_000, 8_000),
)
WARM_BYTES, FRAME_BYTES = 72 * 1024**2, 60
"""What is sent before the clock starts: more than one segment of the log."""
ROUNDS, QUICK_ROUNDS = 5, 3
APPENDS, QUICK_APPENDS = 200_000, 40_000
BATCHED = "1kb"
"""The size that is sent by ``produce_batch`` and ``produce_values`` too."""
OPENED_BYTES, QUICK_OPENED_BYTES = 1024**3, 128 * 1024**2
WAL_MESSAGES, QUICK_WAL_MESSAGES = 60_000, 10_000


class Bench:
    """One broker and a folder for logs."""

    def __init__(self, servers: str, work: Path, *, quick: bool) -> None:
        from tests.benchmarks import producer_runs

        self._do = producer_runs
        self._servers, self._work, self._quick = servers, work, quick
        self._rounds = QUICK_ROUNDS if quick else ROUNDS

    def run(self) -> dict[str, Any]:
        """Measure everything; return the report."""
        self._warm_up()
        report: dict[str, Any] = {}
        for size in SIZES:
            report |= self._measured(size)
        opened = QUICK_OPENED_BYTES if self._quick else OPENED_BYTES
        seconds = self._do.opening_s_per_gib(SIZES[0].bytes, opened, self._work / "opened")
        return {
            **report,
            "wal_open_s_per_gib": round(seconds, 3),
            "timer_us": round(self._do.timer_ns() / 1000, 3),
            "messages": {size.label: self._messages(size) for size in SIZES},
            "appends": QUICK_APPENDS if self._quick else APPENDS,
            "rounds": self._rounds,
            "cores": psutil.cpu_count(),
        }

    def _messages(self, size: Size) -> int:
        return size.quick_messages if self._quick else size.messages

    def _warm_up(self) -> None:
        """One run of each that does not count: the broker's Java compiles its hot paths."""
        values = self._do.values_of(1024, SIZES[1].quick_messages)
        for kind in ("bare", "lossless"):
            self._one(kind, values)

    def _one(self, kind: str, values: list[bytes]) -> Any:
        warm = WARM_BYTES // (len(values[0]) + FRAME_BYTES)
        with self._do.fresh_topic(self._servers) as topic:
            if kind == "bare":
                return self._do.run_bare(self._servers, topic, values, warm)
            folder = self._work / "wal"
            return self._do.run_lossless(self._servers, topic, values, folder, warm, kind)

    def _measured(self, size: Size) -> dict[str, Any]:
        values = self._do.values_of(size.bytes, self._messages(size))
        kinds = ["bare", "lossless", *(("batch", "values") if size.label == BATCHED else ())]
        runs: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for number in range(self._rounds):
            turn = number % len(kinds)
            for kind in kinds[turn:] + kinds[:turn]:
                runs[kind].append(self._one(kind, values))
        report = {**_compared(runs["bare"], runs["lossless"]), **self._appended(size)}
        for kind in kinds[2:]:
            compared = _compared(runs["bare"], runs[kind])
            report |= {
                f"{kind}_ratio": compared["throughput_ratio"],
                f"{kind}_added_cpu_us": compared["added_cpu_us"],
            }
        report["wal_bytes_per_message"] = self._wal_bytes(values)
        return {f"{name}_{size.label}": value for name, value in report.items()}

    def _appended(self, size: Size) -> dict[str, float]:
        count = QUICK_APPENDS if self._quick else APPENDS
        took = sorted(self._do.append_alone(size.bytes, count, self._work / "append"))
        return {
            "append_p50_us": round(took[count // 2] / 1000, 3),
            "append_p99_us": round(took[count * 99 // 100] / 1000, 3),
            "append_p999_us": round(took[count * 999 // 1000] / 1000, 3),
        }

    def _wal_bytes(self, values: list[bytes]) -> float:
        some = values[: QUICK_WAL_MESSAGES if self._quick else WAL_MESSAGES]
        with self._do.fresh_topic(self._servers) as topic:
            folder = self._work / "wal"
            return round(self._do.wal_bytes_per_message(self._servers, topic, some, folder), 1)


def _compared(bare: list[Any], lossless: list[Any]) -> dict[str, float]:
    """Return medians; ratios and differences within a round."""
    rounds = list(zip(bare, lossless, strict=True))

    def median(of: Callable[[Any, Any], float], digits: int) -> float:
        return round(statistics.median(of(a, b) for a, b in rounds), digits)

    return {
        "throughput_ratio": median(lambda a, b: b.per_s / a.per_s, 3),
        "added_cpu_us": median(lambda a, b: b.cpu_us - a.cpu_us, 3),
        "added_flushed_cpu_us": median(lambda a, b: b.flushed_cpu_us - a.flushed_cpu_us, 3),
        "added_process_cpu_us": median(lambda a, b: b.process_cpu_us - a.process_cpu_us, 3),
        "bare_per_s": median(lambda a, _: a.per_s, 0),
        "lossless_per_s": median(lambda _, b: b.per_s, 0),
        "bare_cpu_us": median(lambda a, _: a.cpu_us, 3),
        "lossless_cpu_us": median(lambda _, b: b.cpu_us, 3),
        "bare_process_cpu_us": median(lambda a, _: a.process_cpu_us, 3),
        "lossless_process_cpu_us": median(lambda _, b: b.process_cpu_us, 3),
        "bare_s": median(lambda a, _: a.seconds, 3),
        "lossless_s": median(lambda _, b: b.seconds, 3),
    }


ROWS = (
    ("messages/s, bare (with one shared callback)", "bare_per_s"),
    ("messages/s, lossless", "lossless_per_s"),
    ("  lossless / bare", "throughput_ratio"),
    ("wall, bare (s)", "bare_s"),
    ("wall, lossless (s)", "lossless_s"),
    ("CPU of the producing thread, bare (µs a message)", "bare_cpu_us"),
    ("CPU of the producing thread, lossless", "lossless_cpu_us"),
    ("  added", "added_cpu_us"),
    ("  added, with the flush", "added_flushed_cpu_us"),
    ("CPU of the process, bare (µs a message)", "bare_process_cpu_us"),
    ("CPU of the process, lossless", "lossless_process_cpu_us"),
    ("  added", "added_process_cpu_us"),
    ("produce_batch: lossless / bare", "batch_ratio"),
    ("  added CPU of the producing thread", "batch_added_cpu_us"),
    ("produce_values: lossless / bare", "values_ratio"),
    ("  added CPU of the producing thread", "values_added_cpu_us"),
    ("append alone, p50 (µs)", "append_p50_us"),
    ("append alone, p99 (µs)", "append_p99_us"),
    ("append alone, p99.9 (µs)", "append_p999_us"),
    ("bytes of the log a message", "wal_bytes_per_message"),
)


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("")
    for size in SIZES:
        table.add_column(size.label, justify="right")
    for words, name in ROWS:
        table.add_row(words, *(_figure(report.get(f"{name}_{size.label}")) for size in SIZES))
    sent = ", ".join(f"{count:,} of {label}" for label, count in report["messages"].items())
    console = Console(width=120)
    console.print(
        f"median of {report['rounds']} alternating rounds, {report['cores']} cores; "
        f"a run sends {sent}; {report['appends']:,} appends",
        highlight=False,
    )
    console.print(table)
    console.print(
        f"opening a log of {SIZES[0].label} values: {report['wal_open_s_per_gib']:.2f} s a GiB",
        highlight=False,
    )
    console.print(
        f"the appends' times hold the timer's own cost: {report['timer_us']:.3f} µs",
        highlight=False,
    )


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    with opened_home() as (home, stack):
        from tests import servers

        kafka = stack.enter_context(servers.started(servers.start_kafka, home))
        report = Bench(kafka.bootstrap_servers, home / "work", quick=quick).run()
    show(report)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
