"""``make bench-ingestion``: what ingestion takes in, a part a way in.

    collector   one process, batches of 100 events over HTTP from another process: as many as it takes,
                then the latency at 5,000 events a second

Each part is a function in ``PARTS``: it gets the servers, and returns figures of its own; ``PARTS=collector``
runs some of them. ``QUICK=1`` takes less than 50 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import all_started

EVENTS, HALF_PER_S, CONNECTIONS = 100, 5_000, 16


@dataclass(frozen=True)
class Size:
    """How long one form of the benchmark runs."""

    warm_s: float
    throughput_s: float
    latency_s: float


FULL, QUICK = Size(5, 30, 60), Size(2, 5, 8)


@dataclass(frozen=True)
class Bench:
    """What a part is given."""

    settings: Any
    """Over the servers."""
    work: Path
    size: Size
    stack: ExitStack


Figures = dict[str, float]


def collector(bench: Bench) -> Figures:
    """The HTTP collector, one process."""
    from tests.support import collectors

    from waybill import services

    settings = collectors.deployed(bench.settings, bench.work)
    with collectors.collector(settings, bench.work) as running:
        process = psutil.Process(running.process.pid)
        warm = _load(settings, bench.size.warm_s, 0)
        cpu = sum(process.cpu_times()[:2])
        fast = _load(settings, bench.size.throughput_s, 0)
        cpu = sum(process.cpu_times()[:2]) - cpu
        steady = _load(settings, bench.size.latency_s, HALF_PER_S / EVENTS)
        if running.stop() != 0:
            raise SystemExit(running.words())
    answered = sum(one["events"] for one in (warm, fast, steady))
    counted = services.balance(settings).ingested
    if counted != answered:
        raise SystemExit(f"{answered} events were answered with 202, {counted} are counted")
    return {
        "collector_events_per_s": round(fast["events"] / fast["seconds"]),
        "collector_p99_ms": round(steady["p99_ms"], 1),
        "collector_p50_ms": round(steady["p50_ms"], 1),
        "collector_max_ms": round(steady["max_ms"], 1),
        "collector_latency_at_per_s": round(steady["events"] / steady["seconds"]),
        "collector_cpu_us_per_event": round(cpu / max(1, fast["events"]) * 1e6, 2),
        "collector_refused": sum(one["others"] for one in (warm, fast, steady)),
    }


def _load(settings: Any, seconds: float, per_s: float) -> dict[str, Any]:
    from tests.support.collectors import BEARER

    given = (settings.collector.port, BEARER, seconds, per_s, CONNECTIONS, EVENTS)
    command = [sys.executable, "-m", "tests.benchmarks.collector_load", *map(str, given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=seconds * 3 + 60)
    return dict(json.loads(done.stdout))


PARTS: dict[str, Callable[[Bench], Figures]] = {"collector": collector}


def main() -> None:
    size = QUICK if os.environ.pop("QUICK", "") == "1" else FULL
    wanted = os.environ.pop("PARTS", ",".join(PARTS)).split(",")
    report: Figures = {}
    with opened_home() as (home, stack):
        from tests import servers

        parts = all_started(servers, home, stack)
        for name in wanted:
            work = home / name
            work.mkdir()
            settings = servers.stack_settings(parts[0], parts[1], parts[2], work)
            report |= PARTS[name](Bench(settings, work, size, stack))
    report["load_average"] = round(os.getloadavg()[0], 2)
    width = max(map(len, report))
    for name, value in report.items():
        sys.stdout.write(f"{name:<{width}}  {value:>12,}\n")
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
