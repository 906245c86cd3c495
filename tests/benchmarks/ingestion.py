"""``make bench-ingestion``: what ingestion takes in, and capacity that follows the work.

    simulator   the policy of capacity on a simulated clock, against rivals: ``capacity``
    enhancer    a node's workers, added while its tasks wait: ``capacity_node``
    collector   one process, batches of 100 events over HTTP from another process: as many as it takes,
                then the latency at 5,000 events a second
    sql files dlt cdc   rows/s into Kafka against reading the same source without us and sending the
                same bytes; the rivals by name: ``ingestion_ways``. Both in turn, who is first changes
                each round; ratios are taken within a round, medians over the rounds. ``…_vs_bare`` of
                rows/s, ``…_cpu_vs_bare`` of CPU seconds (more than 1: we use less)
    memory      a file of 5 GB through the connector ``files``: its process's most memory

``PARTS=sql,cdc`` runs some of them. ``QUICK=1`` takes less than 50 s: fewer rows, a small file. Exit
code 1 where a figure is beyond its limit (``LIMITS``); of a quick run, only where its size is enough
to tell (``TOLD_BY_QUICK``): some seconds of reading are for a good part the beginning of a run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks import capacity, capacity_node
from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import all_started

EVENTS, HALF_PER_S, CONNECTIONS = 100, 5_000, 16
NOTE = "x" * 960
"""Makes a row of the large file one of 1 KB."""
LIMITS: dict[str, tuple[float | None, float | None]] = {
    "sql_vs_bare": (0.6, None),
    "files_vs_bare": (0.6, None),
    "dlt_vs_bare": (0.6, None),
    "cdc_vs_bare": (0.6, None),
    "collector_events_per_s": (10_000, None),
    "collector_p99_ms": (None, 50),
    "enhancer_io_speedup": (1.5, None),
    "enhancer_cpu_ratio": (0.95, None),
    "sim_reversals": (None, 1),
    "sim_vs_fixed": (None, 1),
    "sim_vs_threshold": (None, 1),
    "peak_rss_mb": (None, 400),
}
"""Least and most of a figure."""
TOLD_BY_QUICK = ("sim_reversals", "sim_vs_fixed", "sim_vs_threshold", "peak_rss_mb")


@dataclass(frozen=True)
class Size:
    """How long one form of the benchmark runs."""

    warm_s: float
    throughput_s: float
    latency_s: float
    seeds: int
    node_s: float
    """Of each of the enhancer's four runs."""
    rows: int
    """Of each source, for each side and round."""
    rounds: int
    file_mb: int
    warm_up: int
    """Messages that the broker is given first, and which count for nobody."""
    at_once: int
    """Parts on servers that run beside one another, and beside those without, if it is more than
    one: a quick run's time is that of beginnings."""


FULL = Size(
    5, 30, 60, seeds=5, node_s=20, rows=300_000, rounds=5, file_mb=5_000, warm_up=50_000, at_once=1
)
QUICK = Size(
    0.5, 1.5, 1.5, seeds=1, node_s=2, rows=4_000, rounds=1, file_mb=16, warm_up=2_000, at_once=3
)


@dataclass(frozen=True)
class Bench:
    """What a part is given."""

    settings: Any
    """Over the servers."""
    work: Path
    size: Size
    dsn: str
    """Of a database of PostgreSQL, for its source."""


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


def way(name: str) -> Callable[[Bench], Figures]:
    """Return the part that reads one kind of source, with and without us."""

    def measured(bench: Bench) -> Figures:
        from tests.benchmarks import ingestion_ways

        made = ingestion_ways.WAYS[name](bench.settings, bench.size.rows, bench.dsn)
        made.fill()
        rounds = [
            made.round(number, ours_first=number % 2 == 0) for number in range(bench.size.rounds)
        ]

        def median(of: Callable[[Any, Any], float], digits: int) -> float:
            return round(statistics.median(of(ours, bare) for ours, bare in rounds), digits)

        return {
            f"{name}_vs_bare": median(lambda ours, bare: bare.seconds / ours.seconds, 3),
            f"{name}_cpu_vs_bare": median(lambda ours, bare: bare.cpu_s / ours.cpu_s, 3),
            f"{name}_rows_per_s": median(lambda ours, _: ours.rows / ours.seconds, 0),
            f"{name}_bare_rows_per_s": median(lambda _, bare: bare.rows / bare.seconds, 0),
            f"{name}_cpu_us_per_row": median(lambda ours, _: ours.cpu_s / ours.rows * 1e6, 1),
            f"{name}_bare_cpu_us_per_row": median(lambda _, bare: bare.cpu_s / bare.rows * 1e6, 1),
        }

    return measured


def memory(bench: Bench) -> Figures:
    """A large file."""
    from tests.benchmarks import ingestion_ways

    settings = bench.settings
    file = settings.pipelines_dir / "large.csv"
    rows = bench.size.file_mb * 1000
    with file.open("w") as lines:
        lines.write("id,seq,customer,note\n")
        lines.writelines(f"{n:09},{n:09},customer {n:09},{NOTE}\n" for n in range(1, rows + 1))
    source = f"  options: {{path: {file}, settle_s: 0}}"
    ingestion_ways.deploy(settings, "large", connector="files", source=source, version="null")
    side, peak_mb = ingestion_ways.run_ours(settings, "large")
    if side.rows != rows:
        raise SystemExit(f"{side.rows} of {rows} rows were taken in")
    gigabytes = round(file.stat().st_size / 1e9, 2)
    file.unlink()
    return {
        "peak_rss_mb": peak_mb,
        "memory_file_gb": gigabytes,
        "memory_rows_per_s": round(rows / side.seconds),
    }


WITHOUT_SERVERS: dict[str, Callable[[Size], Figures]] = {
    "simulator": lambda size: capacity.run(size.seeds),
    "enhancer": lambda size: capacity_node.run(size.node_s),
}
ON_SERVERS: dict[str, Callable[[Bench], Figures]] = {
    "collector": collector,
    **{name: way(name) for name in ("sql", "files", "dlt", "cdc")},
    "memory": memory,
}


def without_servers(names: list[str], size: Size) -> Figures:
    """Run the parts that need none; return their figures."""
    report: Figures = {}
    for name in names:
        report |= WITHOUT_SERVERS[name](size)
    return report


def all_parts(wanted: list[str], size: Size) -> Figures:
    """Run parts, each kind in the order that is declared; return their figures."""
    first = [name for name in WITHOUT_SERVERS if name in wanted]
    rest = [name for name in ON_SERVERS if name in wanted]
    if size.at_once == 1 or not (first and rest):
        return without_servers(first, size) | on_servers(rest, size)
    spawned = multiprocessing.get_context("spawn")  # the enhancer looks at its process's children
    with ProcessPoolExecutor(1, mp_context=spawned) as pool:
        beside = pool.submit(without_servers, first, size)
        report = on_servers(rest, size)
        return beside.result() | report


def on_servers(names: list[str], size: Size) -> Figures:
    """Run the parts that need servers; return their figures."""
    if not names:
        return {}
    report: Figures = {}
    with opened_home() as (home, stack):
        from tests import servers

        parts = all_started(servers, home, stack)
        warm_up(parts[1].bootstrap_servers, size.warm_up)
        benches = []
        for name in names:
            work = home / name
            pipelines = work / "pipelines"
            pipelines.mkdir(parents=True)
            settings = servers.stack_settings(parts[0], parts[1], parts[2], work)
            sources = settings.sources.model_copy(update={"roots": (pipelines,)})
            settings = settings.model_copy(update={"pipelines_dir": pipelines, "sources": sources})
            benches.append(Bench(settings, work, size, parts[0].database(f"shop_{name}")))
        with ThreadPoolExecutor(size.at_once) as pool:
            for figures in pool.map(lambda name, bench: ON_SERVERS[name](bench), names, benches):
                report |= figures
    return report


def warm_up(kafka: str, messages: int) -> None:
    """Send what counts for nobody: the broker's Java compiles its hot paths."""
    from tests.benchmarks import producer_runs

    values = producer_runs.values_of(512, messages)
    with producer_runs.fresh_topic(kafka) as topic:
        producer_runs.run_bare(kafka, topic, values, 1_000)


def beyond(report: Figures, told: tuple[str, ...]) -> list[str]:
    """Return what is beyond its limit, in words."""
    found = []
    for name in told:
        least, most = LIMITS[name]
        value = report.get(name)
        if value is not None and least is not None and value < least:
            found.append(f"{name} is {value}, less than {least}")
        if value is not None and most is not None and value > most:
            found.append(f"{name} is {value}, more than {most}")
    return found


def chosen(text: str | None) -> list[str]:
    """Return the parts that ``PARTS`` names; all, if it is not there."""
    known = [*WITHOUT_SERVERS, *ON_SERVERS]
    names = known if text is None else text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"PARTS: there is no {unknown[0]!r}; there are {', '.join(known)}")
    return names


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    size = QUICK if quick else FULL
    wanted = chosen(os.environ.pop("PARTS", None))
    report = all_parts(wanted, size)
    report["load_average"] = round(os.getloadavg()[0], 2)
    width = max(map(len, report))
    for name, value in report.items():
        sys.stdout.write(f"{name:<{width}}  {value:>12,}\n")
    wrong = beyond(report, TOLD_BY_QUICK if quick else tuple(LIMITS))
    for words in wrong:
        sys.stderr.write(words + "\n")
    sys.stdout.write(json.dumps(report) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
