"""``make bench-parking``: what it costs when everything fails, at 100,000 parked partitions.

(a) Failing events over 100,000 partitions (20 pipelines, 500 event names, 10 error types) through
    processing, against the same job with nothing failing: events/s, and PUTs a task and batch.
(b) The tracker with 500,000 partitions and 5,000,000 segments: see ``parking_tracker``.
(c) A replay of parked events into Kafka, against ingestion from a file, events/s; ungoverned, as
    nothing reads the topic here.
(d) The most memory that the Python processes of (a) and (c) took together (driver and workers, see
    ``memory``; the JVM's heap is what it is given). It grows with the events of a batch, most where
    they are of as many tables and partitions as here: 40,000 events at full size.
A and B alternate; medians. ``QUICK=1`` takes fewer events, partitions and segments.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks import parking_tracker
from tests.benchmarks.home import opened_home
from tests.benchmarks.memory import PeakMemory
from tests.benchmarks.processing import all_started, cpu_seconds
from tests.benchmarks.rivals import batches_of

from waybill.storage import TopicInfo

TEAM = "bench"
PIPELINES = 20
ERROR_TYPES = (
    "null_value", "field_missing", "type_error", "value_error", "index_error",
    "record_incomplete", "record_invalid", "record_inconsistent", "lookup_failed", "overflow",
)  # fmt: skip
CODE = """
from waybill.errors import ParkError


def transform(event):
    order = event.data
    if order["fault"] is not None:
        raise ParkError(order["fault"], f"order {order['number']} cannot go on")
    order["status"] = order["status"].upper()
    return event
"""
BROKER = {
    "queue.buffering.max.messages": 500_000,
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "acks": "all",
}


@dataclass(frozen=True)
class Size:
    """How much one form of the benchmark does."""

    events: int
    names: int
    """Event names a pipeline."""
    rounds: int
    batches: int
    replayed: int
    """Events of a replay, and rows of the ingestion it is compared with."""
    replays: int
    """How often the two alternate."""
    tracker: Any
    """Of part (b)."""


FULL = Size(1_000_000, 500, 2, 25, 300_000, 3, parking_tracker.FULL)
QUICK = Size(5_000, 5, 1, 1, 6_000, 1, parking_tracker.QUICK)


def main() -> None:
    size = QUICK if os.environ.pop("QUICK", "") == "1" else FULL
    with opened_home() as (home, stack):
        from tests import servers

        parts = all_started(servers, home, stack)
        bench = Bench(servers, parts, home / "work", size)
        stack.callback(bench.close)
        with PeakMemory() as memory:
            report = bench.run()
        report["peak_rss_mb"] = memory.peak_mb
        tracker = parking_tracker.run(size.tracker, parts[0].database("bench"))
    show(report)
    parking_tracker.show(tracker)
    report = tracker | report
    sys.stdout.write(json.dumps(report) + "\n")


class Bench:
    """Parts (a) and (c), on one Spark session and one set of servers."""

    def __init__(self, servers: Any, parts: Any, work: Path, size: Size) -> None:
        self._servers, self._parts, self._work, self._size = servers, parts, work, size
        self._spark: Any = None
        self._base = self._settings("base")
        self._folders = write_pipelines(work / "pipelines", size.names)

    def _settings(self, name: str) -> Any:
        folder = self._work / name
        folder.mkdir(parents=True)
        settings = self._servers.stack_settings(*self._parts, folder)
        spark = settings.spark.model_copy(
            update={
                "max_events_per_batch": self._size.events // self._size.batches,
                "trigger_ms": 0,
            }
        )
        parking = settings.parking.model_copy(update=NO_STORM_BREAKER)
        return settings.model_copy(update={"spark": spark, "parking": parking})

    def run(self) -> dict[str, Any]:
        from waybill.processing.spark.session import open_session
        from waybill.storage import open_log

        preparing = get_context("spawn").Process(
            target=prepare, args=(self._base, self._folders, self._size)
        )
        preparing.start()
        try:
            preparing.join()
        finally:
            preparing.kill()
        if preparing.exitcode:
            raise SystemExit(f"the pipelines or events could not be made: {preparing.exitcode}")
        log = open_log(self._base.kafka)
        topics = {kind: log.ensure_topic(topic_of(kind)) for kind in KINDS}
        self._spark = open_session(self._base.spark, name="bench")
        warm_up = log.ensure_topic(topic_of(WARM_UP))
        self._process(WARM_UP, log, warm_up, 2 * warm_up_of(self._size).events)
        runs: dict[str, list[dict[str, float]]] = {"clean": [], "failing": []}
        for number in range(self._size.rounds):
            for kind, found in runs.items():
                found.append(
                    self._process(f"{kind}-{number}", log, topics[kind], self._size.events)
                )
        self._spark.stop()
        self._spark = None
        return report_of(runs, self._size) | self._replay()

    def _process(self, name: str, log: Any, topic: TopicInfo, events: int) -> dict[str, float]:
        """Run a fresh consumer, with books of its own, over a whole topic."""
        from tests.support.topic_queries import start_query

        from waybill.pipelines import team_of
        from waybill.processing.spark.topic_consumer import ProcessingParts
        from waybill.storage import open_objects, open_tracker

        settings = self._settings(name)
        settings = settings.model_copy(
            update={"tracker": copied(self._base.tracker, settings.tracker), "s3": self._base.s3}
        )
        objects = open_objects(settings.s3)
        before = puts(objects)
        with open_tracker(settings.tracker) as tracker:
            move_pipelines(tracker, team_of(topic.name))
            parts = ProcessingParts.over(settings, tracker, log, objects)
            checkpoint = settings.spark.work_dir / "checkpoint"
            figures = self._follow(
                lambda: start_query(self._spark, parts, topic, checkpoint=checkpoint), events
            )
            partitions, parked = count_parked(tracker)
            if name.startswith("clean") and parked:
                raise SystemExit(f"{name}: {parked} events parked that nothing is wrong with")
        tasks = topic.partitions * figures["batches"]
        return figures | {
            "partitions": partitions,
            "parked": parked,
            "puts_per_task_batch": (puts(objects) - before) / tasks,
        }

    def _follow(self, start: Any, events: int) -> dict[str, float]:
        cpu = cpu_seconds()
        query = start()
        while sum(read for read, _ in batches_of(query)) < events:
            if not query.isActive:
                raise SystemExit(f"the query ended: {query.exception()}")
            time.sleep(0.1)
        found = batches_of(query)
        query.stop()
        self._spark._jvm.System.gc()  # else the JVM holds the consumer, and its declarations, long
        seconds = sum(took_s for _, took_s in found)
        return {
            "per_s": events / seconds,
            "seconds": seconds,
            "cpu_s": cpu_seconds() - cpu,
            "batches": len(found),
        }

    def _replay(self) -> dict[str, Any]:
        from tests.benchmarks.parking_replay import replay_against_ingestion

        found = []
        for number in range(self._size.replays):
            settings = self._settings(f"replay-{number}")
            folder = self._work / f"replayed-{number}"
            found.append(replay_against_ingestion(settings, folder, self._size.replayed))
        middle = {name: statistics.median(run[name] for run in found) for name in found[0]}
        return {
            "replay_vs_live": round(middle["replay_vs_live"], 3),
            "replay_per_s": round(middle["replay_per_s"]),
            "live_per_s": round(middle["live_per_s"]),
            "replayed": self._size.replayed,
            "replays": self._size.replays,
        }

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


KINDS = ("clean", "failing")
WARM_UP = "warm-up"
NO_STORM_BREAKER: dict[str, Any] = {"storm_share": 0}
"""Settings under which all that fails is parked one by one."""


def topic_of(kind: str) -> str:
    """Return the name of one kind's topic."""
    return f"events.{TEAM}-{kind}.warehouse"


def prepare(settings: Any, folders: Sequence[Path], size: Size) -> None:
    """Deploy the pipelines and fill the topics; in a process of its own, whose memory ends with it."""
    from waybill import services
    from waybill.storage import open_log

    services.migrate(settings)
    for folder in folders:
        services.run_deploy(settings, folder, who="bench")
    log = open_log(settings.kafka)
    for kind in KINDS:
        log.ensure_topic(topic_of(kind))
        fill(settings, topic_of(kind), size, failing=kind == "failing")
    log.ensure_topic(topic_of(WARM_UP))
    for failing in (False, True):
        fill(settings, topic_of(WARM_UP), warm_up_of(size), failing=failing)


def warm_up_of(size: Size) -> Size:
    """Return how much of each kind runs before the clock: workers start, code is loaded."""
    return replace(size, events=max(size.events // 20, 1000))


def write_pipelines(folder: Path, names: int) -> list[Path]:
    """Write the declarations of all pipelines; return their folders."""
    folders = []
    for number in range(PIPELINES):
        home = folder / f"orders-{number}"
        home.mkdir(parents=True)
        events = "\n".join(
            f"  order_{name}: {{key: [number], version: null, table: orders_{name}, policy: ignore, "
            "columns: {number: int64, status: string}}"
            for name in range(names)
        )
        (home / "pipeline.yaml").write_text(
            f"id: bench-orders-{number}\nname: bench-orders-{number}\nteam: {TEAM}\n"
            "owner: bench@example.com\nschedule: null\n"
            "source: {connector: csv, path: orders.csv, event: order_0, page_rows: 1000}\n"
            f"events:\n{events}\ntransformation: transformation.py\n"
            f"destination: {{name: warehouse, schema: bench_{number}}}\n"
        )
        (home / "transformation.py").write_text(CODE)
        folders.append(home)
    return folders


def fill(settings: Any, topic: str, size: Size, *, failing: bool) -> None:
    """Produce the events: neighbours are of different pipelines and event names."""
    from confluent_kafka import Producer

    from waybill.events import Event, encode, event_id
    from waybill.pipelines import team_of

    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers, **BROKER})
    for number in range(size.events):
        pipeline = f"bench-orders-{number % PIPELINES}"
        name = f"order_{number // PIPELINES % size.names}"
        fault = ERROR_TYPES[number // (PIPELINES * size.names) % len(ERROR_TYPES)]
        key = f"[{number}]"
        event = Event(
            event_id(pipeline, name, key, version=None, content=key.encode()),
            pipeline,
            team_of(topic),
            name,
            key,
            0,
            1_795_255_593_463_368 + number,
            29_920_926 + number // 400_000,
            f"2026-11-{1 + number * 27 // size.events:02}T10:{number // 60 % 60:02}:{number % 60:02}Z",
            {"number": number, "status": "placed", "fault": fault if failing else None},
        )
        while True:
            try:
                producer.produce(topic, encode(event), key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(120):
        raise SystemExit(f"{left} events did not get into Kafka")


def move_pipelines(tracker: Any, team: str) -> None:
    """Have the pipelines be of a team: each kind has a topic of its own."""
    from sqlalchemy import text

    named = "UPDATE pipeline_versions SET declaration = jsonb_set(declaration, '{team}', to_jsonb(CAST(:team AS text)))"
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE pipelines SET team = :team"), {"team": team})
        connection.execute(text(named), {"team": team})


def copied(base: Any, fresh: Any) -> Any:
    """Return the settings of a copy of a tracker: the pipelines are deployed there already."""
    import psycopg
    from psycopg import sql
    from sqlalchemy.engine import make_url

    source, target = (
        make_url(base.dsn.get_secret_value()).database,
        make_url(fresh.dsn.get_secret_value()).database,
    )
    admin = (
        make_url(base.dsn.get_secret_value())
        .set(database="postgres")
        .render_as_string(hide_password=False)
    )
    with psycopg.connect(admin, autocommit=True) as connection:
        names = (sql.Identifier(target or ""), sql.Identifier(source or ""))
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(names[0]))
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    return fresh


def puts(objects: Any) -> int:
    """Return how many staged and parked objects there are: each was one PUT."""
    return sum(1 for prefix in ("staged/", "parked/") for _ in objects.list(prefix))


def count_parked(tracker: Any) -> tuple[int, int]:
    """Return how many partitions there are and how many events are parked in them."""
    from sqlalchemy import func, select

    from waybill.storage.tracker.tables import parked_partitions

    query = select(func.count(), func.coalesce(func.sum(parked_partitions.c.parked), 0))
    with tracker.transaction() as connection:
        row = connection.execute(query).one()
    return int(row[0]), int(row[1])


def report_of(runs: dict[str, list[dict[str, float]]], size: Size) -> dict[str, Any]:
    def median(kind: str, name: str) -> float:
        return statistics.median(run[name] for run in runs[kind])

    pairs = [b["per_s"] / a["per_s"] for a, b in zip(runs["clean"], runs["failing"], strict=True)]
    parked = {run["parked"] for run in runs["failing"]}
    if parked != {size.events}:
        raise SystemExit(f"{size.events} events failed, {parked} are parked")
    return {
        "puts_per_task_batch": max(run["puts_per_task_batch"] for run in runs["failing"]),
        "failing_vs_clean": round(statistics.median(pairs), 3),
        "clean_events_per_s": round(median("clean", "per_s")),
        "failing_events_per_s": round(median("failing", "per_s")),
        "clean_cpu_us_per_event": round(median("clean", "cpu_s") / size.events * 1e6, 1),
        "failing_cpu_us_per_event": round(median("failing", "cpu_s") / size.events * 1e6, 1),
        "events": size.events,
        "parked_partitions": round(median("failing", "partitions")),
        "batches": round(median("failing", "batches")),
        "rounds": size.rounds,
        "cores": psutil.cpu_count(),
    }


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{report['events']:,} events in {report['batches']} batches, median of "
        f"{report['rounds']} alternating rounds, {report['cores']} cores",
        title_justify="left",
    )
    for name in ("", "events/s", "CPU µs an event"):
        table.add_column(name, justify="left" if not name else "right")
    for label, kind in (("nothing fails", "clean"), ("all park", "failing")):
        rate, cpu = report[f"{kind}_events_per_s"], report[f"{kind}_cpu_us_per_event"]
        table.add_row(label, f"{rate:,}", f"{cpu:.1f}")
    table.add_row("failing against clean", f"{report['failing_vs_clean']:.3f}", "")
    table.add_row(f"replay of {report['replayed']:,} events", f"{report['replay_per_s']:,}", "")
    table.add_row("ingestion from a file", f"{report['live_per_s']:,}", "")
    console = Console()
    console.print(table)
    console.print(
        f"{report['parked_partitions']:,} parked partitions, "
        f"{report['puts_per_task_batch']:.2f} PUTs a task and batch, "
        f"at most {report['peak_rss_mb']:,} MB of Python"
    )


if __name__ == "__main__":
    main()
