"""``make bench-processing``: events/s through processing and loading, against a job without stages.

A: Kafka to decode, transform (three edits), map to typed columns, staged objects in S3, tracker
commit. B (the rival, ``identity``): Spark's own Kafka source and Arrow, the same consumer, Spark
session, topic, object store and tracker transaction, but the messages' bytes go out as they came;
``own_reader`` is B with the records read as A does. A and B alternate on the same topic; medians.
``batch`` is A with the same function in the batch form. C (``in_worker``) is A with user code in
Spark's own Python workers, as no installation runs it: what the processes of user code cost;
``failing`` is A with user code that raises for each tenth event. ``trace_overhead`` is the share of
A's CPU that it has no need of without the event tracker, in pairs of runs of their own. Two more rivals, medians of three runs behind one that counts for nobody: ``udf``, a
row-at-a-time Python UDF into Parquet on the local disk, and ``loop``, a plain confluent-kafka loop
in a process a core (``tuned_loop``: by the thousand, with orjson). ``ledger_overhead`` is the share
of A's batches that commits take, ``peak_rss_mb`` the memory of driver, JVM, workers and processes of
user code together (proportional set size), in a run of A of its own: looking costs CPU. Then the
staged objects of the last A are loaded into PostgreSQL. ``loading_2_vs_1_executors`` and what stands
beside it: ``executors``; ``backlog_2000_vs_1``: ``backlog``.

Latency: the real applications with default settings, at half of what both can do together on the
machine; from the lossless producer to a row that the warehouse shows.

What a team keeps of its share of the cores beside a neighbour whose code goes wrong, ``others_share``:
``neighbours``.

What does not depend on events: A with 5,000 pipelines of 100 event names deployed that send to the same
topic, all but one of them nothing, against A with 5 (``pipelines_5000_vs_5``: CPU an event; each round
is 5, 5,000, 5,000, 5, and compared within itself, medians; what 5 against 5 comes to in these rounds
says how much of it is chance). The second of 5,000 is of a topic just opened (``…_opened_vs_5``), with
the run for need of its first batch (ADR 22); the first goes on with the pipelines that are known to
be in use. And as many events over 100 topics, of 100 teams, in one application, with the time that these 100 consumers take to
start: ``topics_100_cold_vs_1`` the first time that workers meet these teams, with a process of user
code to start for each; ``topics_100_vs_1`` when all is read once more, by an application anew, in turn
with runs of one topic (medians of three), ``topics_100_application_vs_1`` without what Kafka and the
object store take of it. ``late_run_vs_early``: these runs of one topic against those at the beginning,
before the same workers and JVMs had 5,000 pipelines, failures and rivals.
Their applications have the default trigger. A third one over them has nothing to read, which is CPU of
all our processes a topic: ``quiet_topic_cpu_ms_per_s`` in the first minute, when queries look for
events as often as busy ones do, ``idle_topic_cpu_ms_per_s`` behind it, when they are idle (ADR 27),
with the threads of it that take most, of all topics (``idle_cpu_ms_per_s_of_threads``). And
``group_restart_s``, from a topic that goes until its group reads again, the longest of five.
``QUICK=1`` takes fewer events, pipelines and topics. Exit code 1 where a figure of the full form is
beyond its limit (``LIMITS``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.application import Application
from tests.benchmarks.backlog import COMMITS, QUICK_COMMITS, measure_backlog
from tests.benchmarks.executors import measure_executors
from tests.benchmarks.home import opened_home
from tests.benchmarks.latency import TEAM as LATENCY_TEAM
from tests.benchmarks.latency import measure
from tests.benchmarks.neighbours import measure_shares
from tests.benchmarks.rivals import Memory, run_loop, start_udf, waited

ROUNDS = 5
LATENCY_S, QUICK_LATENCY_S = 60.0, 10.0
EXECUTOR_ROWS, QUICK_EXECUTOR_ROWS = 400_000, 60_000
EVENTS = 1_200_000
QUICK_EVENTS = 60_000
TOPICS, PIPELINES, EVENT_NAMES = 100, 5_000, 100
NEIGHBOURS_ROUNDS, NEIGHBOURS_EVENTS, QUICK_NEIGHBOURS_EVENTS = 4, 800_000, 48_000
RIVAL_ROUNDS, RESTARTS, IDLE_S = 3, 5, 20.0
TRACE_PAIRS = 15
"""Each a run with traces and one without, in turn first: a single pair differs by up to a tenth."""
LIMITS = {
    "vs_identity": (0.5, None),
    "vs_identity_batch_form": (0.65, None),
    "vs_udf": (1.5, None),
    "vs_loop": (1.0, None),
    "sandbox_cost": (None, 0.15),
    "trace_overhead": (None, 0.05),
    "ledger_overhead": (None, 0.05),
    "topics_100_vs_1": (None, 1.3),
    "pipelines_5000_vs_5": (None, 1.05),
    "consumer_start_s": (None, 1.0),
    "consumers_100_start_s": (None, 20.0),
    "idle_topic_cpu_ms_per_s": (None, 1.0),
    "group_restart_s": (None, 2.0),
    "others_share": (0.9, None),
    "latency_p50_s": (None, 3.0),
    "latency_p99_s": (None, 8.0),
}
"""Least and most of figures."""
QUICK_TOPICS, QUICK_PIPELINES = 10, 500
_FEW_PIPELINES = 5
_MOST_KINDS = 12
"""Of threads, that the report names."""
TEAM, PIPELINE_ID, NAME = "bench", "bench-orders", "order"
DECLARATION = f"""
id: {PIPELINE_ID}
name: bench-orders
team: {TEAM}
owner: bench@example.com
schedule: null
source: {{connector: csv, path: orders.csv, event: {NAME}, page_rows: 1000}}
events:
  {NAME}:
    key: [number]
    version: null
    table: orders
    policy: strict
    columns:
      number: int64
      customer: string
      amount: float64
      currency: string
      status: string
      placed_at: timestamp
      cents: int64
transformation: transformation.py
destination: {{name: warehouse, schema: bench}}
"""
CODE = """
def transform(event):
    order = event.data
    order["status"] = order["status"].upper()
    order["cents"] = round(order["amount"] * 100)
    del order["channel"]
    return event
"""
FAILING_CODE = CODE.replace(
    "order = event.data", 'order = event.data\n    assert order["number"] % 10, "a tenth fails"'
)


BATCH_CODE = """
import pyarrow as pa
import pyarrow.compute as pc


def transform_batch(table):
    cents = pc.cast(pc.round(pc.multiply(table["amount"], 100)), pa.int64())
    return (
        table.drop_columns(["_rest", "status", "cents"])
        .append_column("status", pc.utf8_upper(table["status"]))
        .append_column("cents", cents)
    )
"""


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    events = QUICK_EVENTS if quick else EVENTS
    rounds = 1 if quick else ROUNDS
    with opened_home() as (home, stack):
        from tests import servers

        postgres, kafka, s3 = all_started(servers, home, stack)
        bench = Bench(servers, (postgres, kafka, s3), home / "work", events)
        stack.callback(bench.close)
        topics, pipelines = (QUICK_TOPICS, QUICK_PIPELINES) if quick else (TOPICS, PIPELINES)
        report = bench.run(
            rounds,
            topics=topics,
            pipelines=pipelines,
            rival_rounds=1 if quick else RIVAL_ROUNDS,
            trace_pairs=1 if quick else TRACE_PAIRS,
            idle_s=2.0 if quick else IDLE_S,
        )
        rates = (report["processing_events_per_s"], report["loading_rows_per_s"])
        report |= bench.shares(rounds=1 if quick else NEIGHBOURS_ROUNDS, quick=quick)
        report |= bench.latency(rates, seconds=QUICK_LATENCY_S if quick else LATENCY_S)
        report |= bench.executors(quick=quick)
        report |= bench.backlog(quick=quick)
    show(report)
    broken = [] if quick else beyond(report)
    for name in broken:
        sys.stdout.write(f"{name} is {report[name]}, beyond its limit {LIMITS[name]}\n")
    sys.stdout.write(json.dumps(report) + "\n")
    sys.exit(bool(broken))


def beyond(report: dict[str, Any]) -> list[str]:
    """Return the figures that are beyond their limits."""
    return [
        name
        for name, (least, most) in LIMITS.items()
        if (least is not None and report[name] < least)
        or (most is not None and report[name] > most)
    ]


def all_started(servers: Any, home: Path, stack: ExitStack) -> list[Any]:
    """Start the servers side by side; the stack stops each that came up."""
    starts = (servers.start_postgres, servers.start_kafka, servers.start_s3)
    with ThreadPoolExecutor(len(starts)) as pool:
        futures = [pool.submit(start, home) for start in starts]
        stack.callback(all_stopped, [f.result() for f in futures if f.exception() is None])
    return [future.result() for future in futures]


def all_stopped(running: list[Any]) -> None:
    """Stop servers side by side."""
    with ThreadPoolExecutor(len(running) or 1) as pool:
        list(pool.map(lambda server: server.stop(), running))


class Bench:
    """One topic full of events, one Spark session, runs of A and B over them."""

    def __init__(self, servers: Any, parts: tuple[Any, Any, Any], work: Path, events: int) -> None:
        self._servers, self._parts, self._work = servers, parts, work
        self._events = events
        from waybill import services

        self._first = self._settings("first")
        given = self._first.to_env()
        for name in ("WAYBILL_TRACKER", "WAYBILL_DESTINATIONS"):  # the staged source reads these
            os.environ[name] = given[name]
        services.migrate(self._first)
        self._event_form = declared(work / "pipelines" / "orders", CODE)
        self._failing = declared(work / "failing" / "orders", FAILING_CODE)
        self._batch_form = declared(work / "batch" / "orders", BATCH_CODE)
        self._server_pids = {child.pid for child in psutil.Process().children()}
        self._memory = Memory(self._server_pids)
        self._spark: Any = None
        self._filled: tuple[Any, Any] | None = None
        """Kafka and the topic that is full of events."""

    def _settings(self, name: str) -> Any:
        folder = self._work / name
        folder.mkdir(parents=True)
        settings = self._servers.stack_settings(*self._parts, folder)
        # one batch a third of the topic: its fixed cost is in, its warm-up is not
        spark = settings.spark.model_copy(
            update={"max_events_per_batch": max(QUICK_EVENTS, self._events // 3), "trigger_ms": 0}
        )
        return settings.model_copy(update={"spark": spark})

    def run(
        self,
        rounds: int,
        *,
        topics: int,
        pipelines: int,
        rival_rounds: int,
        trace_pairs: int,
        idle_s: float,
    ) -> dict[str, Any]:
        from waybill.processing.spark.session import open_session
        from waybill.storage import open_log

        settings = self._settings("fill")
        log = open_log(settings.kafka)
        topic = log.ensure_topic(f"events.{TEAM}.warehouse")
        with ThreadPoolExecutor(1) as pool:
            filling = pool.submit(fill, settings, topic.name, self._events)
            self._spark = open_session(settings.spark, name="bench")
            size = filling.result()
        self._filled = log, topic
        runs: dict[str, list[dict[str, float]]] = {
            kind: []
            for kind in (
                "identity", "own_reader", "in_worker", "failing", "batch", "stages",
            )
        }  # fmt: skip
        # the first warm up workers, page cache, and the JVM, in which the rival alone reads Kafka: it
        # becomes faster for some runs; they count for nobody
        for number, kind in enumerate(("stages", *["identity"] * rounds)):
            self._process(self._settings(f"warm-up-{number}"), log, topic, kind)
        for number in range(1, rounds + 1):
            # there and back: the JVM becomes faster all the time, and nobody is always behind the same
            for kind in list(runs)[:: 1 if number % 2 else -1]:
                found = runs[kind]
                loaded = kind == "stages" and number == rounds
                settings = self._first if loaded else self._settings(f"{kind}-{number}")
                figures = self._process(settings, log, topic, kind)
                found.append(figures)
        loading = self._load(self._first)
        traced = self._trace_overhead(log, topic, trace_pairs)
        many = self._many_pipelines(log, topic, pipelines, rival_rounds)
        look = self._memory.look
        self._process(self._settings("memory"), log, topic, "stages", look=look)
        rivals = self._rivals(settings, log, topic, rival_rounds)
        names = [f"events.{TEAM}-{place}.warehouse" for place in range(topics)]
        each = self._events // topics
        for place, name in enumerate(names):
            log.ensure_topic(name)
            of = f"{PIPELINE_ID}-{place}"
            fill(settings, name, each, pipeline_id=of, team=f"{TEAM}-{place}")
        cold = self._many_topics(self._settings("cold-topics"), log, names, each * topics)
        again, beside = [], []
        for number in range(rival_rounds):  # what ran before has aged workers and JVMs: in turn
            one = self._settings(f"one-topic-{number}")
            beside.append(self._process(one, log, topic, "stages"))
            read = self._settings(f"many-topics-{number}")
            again.append(self._many_topics(read, log, names, each * topics))
        idle = self._idle(read, log, names, idle_s)
        report = report_of(runs, loading, self._events, size) | rivals_of(runs, rivals)
        one_topic = runs["stages"]
        return (
            report
            | idle
            | many
            | traced
            | {
                "topics_100_vs_1": round(median(again, "cpu_s") / median(beside, "cpu_s"), 3),
                "topics_100_application_vs_1": round(
                    median(again, "application_cpu_s") / median(beside, "application_cpu_s"), 3
                ),
                "topics_100_cold_vs_1": round(cold["cpu_s"] / median(beside, "cpu_s"), 3),
                "late_run_vs_early": round(median(beside, "cpu_s") / median(one_topic, "cpu_s"), 3),
                "servers_share_of_cpu": round(
                    1 - median(one_topic, "application_cpu_s") / median(one_topic, "cpu_s"), 3
                ),
                "topics": topics,
                "pipelines": pipelines,
                "event_names": EVENT_NAMES,
                "consumer_start_s": round(median(again, "start_s") / topics, 3),
                "consumers_100_start_s": round(median(again, "start_s"), 2),
                "peak_rss_mb": round(self._memory.peak_mb),
            }
        )

    def shares(self, *, rounds: int, quick: bool) -> dict[str, Any]:
        """Measure what a team keeps of its share beside neighbours whose code goes wrong."""
        events = QUICK_NEIGHBOURS_EVENTS if quick else NEIGHBOURS_EVENTS
        folder = self._work / "neighbours"
        return measure_shares(self._spark, self._settings, folder, events=events, rounds=rounds)

    def latency(self, rates: Sequence[float], *, seconds: float) -> dict[str, float]:
        """Measure it at half of what the two applications can do side by side.

        Args:
            rates: of processing and of loading, events and rows a second, as measured at the start.
                One more run tells by how much the machine has become slower, or faster, since then.
            seconds: for how long.
        """
        assert self._filled is not None
        now = self._process(self._settings("before-latency"), *self._filled, "stages")["per_s"]
        self._spark.stop()  # the applications have sessions of their own
        self._spark = None
        half = 0.5 / sum(1 / rate for rate in rates) * now / rates[0]
        folder = self._work / "latency"
        folder.mkdir(parents=True)
        settings = self._servers.stack_settings(*self._parts, folder)
        declaration = DECLARATION  # its topic and its table are empty
        for what in ("team", "schema"):
            declaration = declaration.replace(f"{what}: bench", f"{what}: {LATENCY_TEAM}")
        own = declared(folder / "pipelines" / "orders", CODE, declaration)
        settings = settings.model_copy(update={"pipelines_dir": own.parent})
        return measure(settings, own, per_s=half, seconds=seconds)

    def executors(self, *, quick: bool) -> dict[str, float]:
        """Measure loading by executors; the session of the other runs is over."""
        rows = QUICK_EXECUTOR_ROWS if quick else EXECUTOR_ROWS
        rounds = 1 if quick else ROUNDS
        return measure_executors(
            self._first, self._parts[0], self._work / "executors", rows=rows, rounds=rounds
        )

    def backlog(self, *, quick: bool) -> dict[str, Any]:
        """Measure a backlog of many small commits against one large commit."""
        from waybill import services

        settings = self._settings("backlog")
        services.migrate(settings)
        commits = QUICK_COMMITS if quick else COMMITS
        return measure_backlog(
            settings, self._parts[0], commits=commits, rounds=1 if quick else RIVAL_ROUNDS
        )

    def _rivals(self, settings: Any, log: Any, topic: Any, rounds: int) -> dict[str, float]:
        """Return events/s of each, medians; the first round counts for nobody."""
        target = log.ensure_topic(f"events.{TEAM}.loop").name
        ends = {number: high for number, (_, high) in log.watermarks(topic).items()}
        loop = partial(run_loop, settings.kafka.bootstrap_servers, topic.name, target, ends)
        found = []
        for number in range(rounds + 1):
            folder = self._work / "udf" / str(number)
            query = start_udf(self._spark, settings, topic.name, folder)
            udf = waited(query, self._events)
            shutil.rmtree(folder)
            plain, tuned = loop(tuned=False)["per_s"], loop(tuned=True)["per_s"]
            found.append((udf, plain, tuned))
        medians = map(statistics.median, zip(*found[1:], strict=True))
        return dict(zip(("udf", "loop", "tuned_loop"), medians, strict=True))

    def _process(
        self,
        settings: Any,
        log: Any,
        topic: Any,
        kind: str,
        *,
        beside: int = 0,
        in_use: Sequence[str] = (),
        look: Callable[[], object] = bool,
    ) -> dict[str, float]:
        """Run a fresh consumer over the topic.

        Args:
            settings: with a tracker of its own.
            log: Kafka.
            topic: full of events.
            kind: of tasks and user code.
            beside: other pipelines that are deployed.
            in_use: pipelines that the consumer knows of from before; none: the topic is opened.
            look: is called about once a second meanwhile.
        """
        from tests.benchmarks.identity import (
            IdentityTask,
            InWorkerTask,
            OwnReaderTask,
            SparkSourceGroup,
            UntracedTask,
        )
        from tests.support.topic_queries import start_query

        from waybill import services
        from waybill.processing.spark.plan_cache import PipelinesInUse
        from waybill.processing.spark.tasks import StageTask, Task, TaskPlan
        from waybill.processing.spark.topic_consumer import ProcessingParts
        from waybill.processing.spark.topic_group import TopicGroup
        from waybill.storage import open_objects, open_tracker

        tasks: dict[str, Callable[[TaskPlan], Task]] = {
            "identity": IdentityTask, "own_reader": OwnReaderTask, "in_worker": InWorkerTask,
            "untraced": UntracedTask,
        }  # fmt: skip
        forms = {"failing": self._failing, "batch": self._batch_form}
        folder = forms.get(kind, self._event_form)
        services.migrate(settings)
        services.run_deploy(settings, folder, who="bench")
        with open_tracker(settings.tracker) as tracker:
            deploy_copies(tracker, beside, event_names=EVENT_NAMES)
            parts = ProcessingParts.over(
                settings,
                tracker,
                log,
                open_objects(settings.s3),
                task=tasks.get(kind, StageTask),
            )
            parts.in_use.setdefault(topic.name, PipelinesInUse()).add(in_use)
            start = partial(
                start_query,
                self._spark,
                parts,
                topic,
                checkpoint=settings.spark.work_dir / "checkpoint",
                group=SparkSourceGroup if kind == "identity" else TopicGroup,
            )
            with timed_commits() as commits:
                figures = self._follow(start, look)
            check_committed(tracker, topic.name, self._events)
            return figures | {"commits_s": sum(commits)}

    def _trace_overhead(self, log: Any, topic: Any, pairs: int) -> dict[str, Any]:
        """Return the share of CPU that traces take: the median of pairs of runs side by side."""
        shares = []
        for number in range(pairs):
            cpu_s = {}
            for kind in ("stages", "untraced")[:: 1 if number % 2 else -1]:
                settings = self._settings(f"traced-{kind}-{number}")
                cpu_s[kind] = self._process(settings, log, topic, kind)["cpu_s"]
            shares.append(round(1 - cpu_s["untraced"] / cpu_s["stages"], 3))
        return {
            "trace_overhead": round(statistics.median(shares), 3),
            "trace_overhead_by_pair": shares,
        }

    def _many_pipelines(
        self, log: Any, topic: Any, pipelines: int, rounds: int
    ) -> dict[str, float | list[float]]:
        """Compare the CPU of a run with so many pipelines deployed with that of 5."""
        ratios = dict[str, list[float]]()
        for number in range(rounds):

            def cpu_s(name: str, deployed: int, *in_use: str, place: int = number) -> float:
                settings = self._settings(f"pipelines-{name}-{place}")
                run = self._process(
                    settings, log, topic, "stages", beside=deployed - 1, in_use=in_use
                )
                return run["cpu_s"]

            few = cpu_s("few", _FEW_PIPELINES)
            many = cpu_s("many", pipelines, PIPELINE_ID)
            opened = cpu_s("opened", pipelines)
            again = cpu_s("few-again", _FEW_PIPELINES)
            of_few = (few + again) / 2  # before and behind: the JVM becomes faster all the time
            for name, ratio in (
                ("pipelines_5000_vs_5", many / of_few),
                ("pipelines_5000_opened_vs_5", opened / of_few),
                ("pipelines_5_vs_5", again / few),
            ):
                ratios.setdefault(name, []).append(round(ratio, 3))
        medians = {name: statistics.median(found) for name, found in ratios.items()}
        return medians | {f"{name}_by_round": found for name, found in ratios.items()}

    def _many_topics(
        self, settings: Any, log: Any, names: Sequence[str], events: int
    ) -> dict[str, float]:
        """Read so many events over topics of as many teams, in one application.

        Without a pause between batches a group that is through would ask Kafka for more all the
        time, for as long as the other one reads.
        """
        from waybill import services
        from waybill.processing.spark.topic_consumer import ProcessingParts
        from waybill.storage import open_objects, open_tracker

        settings = with_default_trigger(settings)
        services.migrate(settings)
        services.run_deploy(settings, self._event_form, who="bench")
        with open_tracker(settings.tracker) as tracker:
            deploy_copies(tracker, len(names), own_teams=True)
            parts = ProcessingParts.over(settings, tracker, log, open_objects(settings.s3))
            application = Application(self._spark, parts, settings.spark.work_dir)
            began = time.monotonic()
            application.groups.look(names)
            start_s, cpu = time.monotonic() - began, cpu_seconds()
            servers = cpu_seconds(self._server_pids)
            while application.rows() < events:
                application.groups.look(names)
                time.sleep(0.1)
            cpu_s = cpu_seconds() - cpu
            application_cpu_s = cpu_s - (cpu_seconds(self._server_pids) - servers)
            application.groups.stop()
        share = self._events / events
        return {
            "start_s": start_s,
            "cpu_s": cpu_s * share,
            "application_cpu_s": application_cpu_s * share,
        }

    def _idle(
        self, settings: Any, log: Any, names: Sequence[str], seconds: float
    ) -> dict[str, Any]:
        """Measure an application that has read all: what it costs, and restarts of a group."""
        from waybill.processing.spark.idle_trigger import IDLE_AFTER_S
        from waybill.processing.spark.topic_consumer import ProcessingParts
        from waybill.storage import open_objects, open_tracker

        settings = with_default_trigger(settings)
        with open_tracker(settings.tracker) as tracker:
            parts = ProcessingParts.over(settings, tracker, log, open_objects(settings.s3))
            application = Application(self._spark, parts, settings.spark.work_dir)
            application.served(names)
            served_at = time.monotonic()
            quiet, _ = _cpu_ms_per_s(seconds)
            if seconds >= IDLE_S:  # the short form does not wait for it
                time.sleep(served_at + IDLE_AFTER_S + 1 - time.monotonic())
                application.groups.look(names)
            idle, of_threads = _cpu_ms_per_s(seconds)
            took = [application.served(names[number + 1 :]) for number in range(RESTARTS)]
            application.groups.stop()
        return {
            "quiet_topic_cpu_ms_per_s": round(quiet / len(names), 3),
            "idle_topic_cpu_ms_per_s": round(idle / len(names), 3),
            "idle_cpu_ms_per_s_of_threads": of_threads,
            "group_restart_s": round(max(took), 2),
        }

    def _load(self, settings: Any) -> dict[str, float]:
        from waybill.destinations import open_destination
        from waybill.loading import Loader, LoadSizes, Patience
        from waybill.loading.spark.consumers import LoadingConsumer, Pauses
        from waybill.storage import open_objects, open_tracker

        opening = partial(open_destination, "warehouse", settings.destinations["warehouse"])
        with open_tracker(settings.tracker) as tracker:
            loader = Loader(tracker, open_objects(settings.s3), opening, name="warehouse")
            patience = Patience(loader, park_after_s=None, wait=threading.Event().wait)
            consumer = LoadingConsumer(
                tracker, loader, patience, sizes=LoadSizes(), pauses=Pauses(0, 0)
            )
            from waybill.ledger import last_commit_number, load_position

            last = last_commit_number(tracker, "warehouse")
            began, cpu = time.monotonic(), cpu_seconds()
            consumer.start()
            while load_position(tracker, "warehouse") < last:
                if not consumer.is_running:
                    raise SystemExit(f"loading ended: {consumer.error}")
                time.sleep(0.1)
            figures = {"seconds": time.monotonic() - began, "cpu_s": cpu_seconds() - cpu}
            while not consumer.end():
                time.sleep(0.1)
            consumer.close()
        return {**figures, "per_s": self._events / figures["seconds"]}

    def _follow(self, start: Any, look: Callable[[], object]) -> dict[str, float]:
        """Run a query over the whole topic; its own trigger times are the wall time."""
        cpu, servers = cpu_seconds(), cpu_seconds(self._server_pids)
        rate = waited(start(), self._events, look)
        cpu_s = cpu_seconds() - cpu
        return {
            "per_s": rate,
            "seconds": self._events / rate,
            "cpu_s": cpu_s,
            "application_cpu_s": cpu_s - (cpu_seconds(self._server_pids) - servers),
        }

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


def with_default_trigger(settings: Any) -> Any:
    """Return settings with the pause between batches that installations have."""
    from waybill.settings import SparkSettings

    spark = settings.spark.model_copy(update={"trigger_ms": SparkSettings().trigger_ms})
    return settings.model_copy(update={"spark": spark})


def declared(folder: Path, code: str, declaration: str = DECLARATION) -> Path:
    """Write the pipeline's folder; return it."""
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text(declaration)
    (folder / "transformation.py").write_text(code)
    return folder


def check_committed(tracker: Any, topic: str, events: int) -> None:
    """End the benchmark where a run did not commit all events: it would have no figures to give."""
    from sqlalchemy import text

    asked = text("SELECT coalesce(sum(next_offset), 0) FROM topic_offsets WHERE topic = :topic")
    with tracker.transaction() as connection:
        committed = int(connection.execute(asked, {"topic": topic}).scalar_one())
    if committed != events:
        raise SystemExit(f"{committed:,} of {events:,} events were committed: see its errors above")


@contextmanager
def timed_commits() -> Iterator[list[float]]:
    """Give a list that gets the seconds of each batch's commits while the block runs."""
    from waybill.processing.spark.topic_group import TopicGroup

    real, took = TopicGroup._commit, list[float]()

    def timed(*given: Any, **named: Any) -> None:
        began = time.perf_counter()
        real(*given, **named)
        took.append(time.perf_counter() - began)

    TopicGroup._commit = timed  # type: ignore[method-assign]
    try:
        yield took
    finally:
        TopicGroup._commit = real  # type: ignore[method-assign]


_COPIES = """(
  SELECT CAST(:id AS text) || '-' || n AS id,
    CAST(:team AS text) || CASE WHEN :own_teams THEN '-' || n ELSE '' END AS team
  FROM generate_series(0, :number - 1) AS n
) AS copy"""
_DEPLOY_COPIES = (
    "INSERT INTO pipelines (id, name, team) SELECT id, id, team FROM " + _COPIES,
    "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
    "SELECT copy.id, 1, version, declaration || jsonb_build_object('id', copy.id, 'name', copy.id, "
    "'team', copy.team, 'events', CAST(:events AS jsonb)), deployed_by "
    "FROM pipeline_versions, " + _COPIES + " WHERE pipeline_id = CAST(:id AS text)",
    "INSERT INTO mapping_versions (pipeline_id, event_name, number, declaration, author) "
    "SELECT copy.id, event.key, 1, event.value, 'bench' "
    "FROM jsonb_each(CAST(:events AS jsonb)) AS event, " + _COPIES,
)


def deploy_copies(
    tracker: Any, number: int, *, event_names: int = 1, own_teams: bool = False
) -> None:
    """Deploy so many copies of the pipeline, ``<id>-0`` and so on, with so many event names each.

    Written as rows, by the server: a deploy each, which compares its tables with all others', would
    take minutes.

    Args:
        tracker: in which the pipeline is deployed.
        number: of copies.
        event_names: of each copy: the pipeline's own, and more like it with tables of their own.
        own_teams: each is of a team of its own, ``<team>-0`` and so on.
    """
    from sqlalchemy import select, text

    from waybill.storage.tracker import pipeline_versions

    declaration = pipeline_versions.c.declaration
    query = select(declaration).where(pipeline_versions.c.pipeline_id == PIPELINE_ID)
    with tracker.transaction(long_statements=True) as connection:
        event = connection.execute(query).scalar_one()["events"][NAME]
        events = {NAME: event}
        for n in range(1, event_names):
            table = {**event["table"], "name": f"orders_{n}"}
            events[f"{NAME}_{n}"] = {**event, "name": f"{NAME}_{n}", "table": table}
        values = {"id": PIPELINE_ID, "team": TEAM, "own_teams": own_teams}
        values |= {"number": number, "events": json.dumps(events)}
        for statement in _DEPLOY_COPIES:
            connection.execute(text(statement), values)


def message(
    number: int, *, pipeline_id: str = PIPELINE_ID, team: str = TEAM, customer: str = ""
) -> tuple[bytes, bytes]:
    """Return an order's key and value."""
    from waybill.events import Event, encode, event_id

    data = {
        "number": number,
        "customer": customer or f"customer-{number % 9973}",
        "amount": (number % 100_000) / 100,
        "currency": "EUR",
        "status": "placed",
        "placed_at": "2026-03-01T12:30:45Z",
        "channel": "web",
    }
    key = f"[{number}]"
    event = Event(
        event_id(pipeline_id, NAME, key, version=None, content=key.encode()),
        pipeline_id,
        team,
        NAME,
        key,
        0,
        1_795_255_593_463_368 + number,
        29_920_926 + number // 400_000,
        "2026-11-21T10:06:33Z",
        data,
    )
    return key.encode(), encode(event)


def fill(
    settings: Any, topic: str, events: int, *, pipeline_id: str = PIPELINE_ID, team: str = TEAM
) -> int:
    """Produce the events; returns the size of one message in bytes."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "queue.buffering.max.messages": 500_000,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "acks": "all",
        }
    )
    size = 0
    for number in range(events):
        key, value = message(number, pipeline_id=pipeline_id, team=team)
        size = len(value)
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(60)
    return size


def median(runs: Sequence[dict[str, float]], name: str) -> float:
    """Return the median of a figure of some runs."""
    return statistics.median(run[name] for run in runs)


_LAST_SEEN: dict[frozenset[int], dict[tuple[int, float], float]] = {}
"""By what was asked: (pid, when it was started) to the CPU seconds that were last seen of it."""


def cpu_seconds(pids: Collection[int] | None = None) -> float:
    """CPU seconds of processes and all their children, of those that have ended since, too.

    Args:
        pids: which. None: this one: Kafka, the object store, driver, JVM, Python workers.
    """
    seen = _LAST_SEEN.setdefault(frozenset(pids or ()), {})
    for pid in [os.getpid()] if pids is None else pids:
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(pid)
            for process in (top, *top.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    seen[process.pid, process.create_time()] = times.user + times.system
    return sum(seen.values())


def _cpu_ms_per_s(seconds: float) -> tuple[float, dict[str, float]]:
    """Return what all our processes take while they are left alone for some seconds.

    Returns:
        Milliseconds a second of all, and of the kinds of threads that take most: by the process's
        name, pid and the thread's name without numbers.
    """
    before, threads_before = cpu_seconds(), _threads_ns()
    time.sleep(seconds)
    cpu_s, threads = cpu_seconds() - before, _threads_ns()
    kinds = Counter[str]()
    for (kind, place), ns in threads.items():
        kinds[kind] += ns - threads_before.get((kind, place), 0)
    largest = {kind: round(ns / seconds / 1e6, 2) for kind, ns in kinds.most_common(_MOST_KINDS)}
    return cpu_s / seconds * 1000, largest


def _threads_ns() -> dict[tuple[str, str], int]:
    """Return the CPU time of each thread of our processes, in ns, by its kind and its id."""
    found = dict[tuple[str, str], int]()
    top = psutil.Process()
    for process in (top, *top.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, OSError):
            name = process.name()
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                thread = re.sub(r"\d+", "N", (task / "comm").read_text().strip())
                ns = int((task / "schedstat").read_text().split()[0])
                found[f"{name} {process.pid} {thread}", task.name] = ns
    return found


def rivals_of(
    runs: dict[str, list[dict[str, float]]], rivals: dict[str, float]
) -> dict[str, float]:
    """Return how the stages do against the rivals, and what tracker, ledger and failures cost."""

    def ratio(kind: str, name: str) -> float:
        pairs = zip(runs["stages"], runs[kind], strict=True)
        return statistics.median(other[name] / mine[name] for mine, other in pairs)

    per_s = statistics.median(run["per_s"] for run in runs["stages"])
    commits = statistics.median(run["commits_s"] / run["seconds"] for run in runs["stages"])
    return {
        "events_per_s": round(per_s),
        "vs_udf": round(per_s / rivals["udf"], 3),
        "vs_loop": round(per_s / rivals["loop"], 3),
        "vs_tuned_loop": round(per_s / rivals["tuned_loop"], 3),
        "udf_events_per_s": round(rivals["udf"]),
        "loop_events_per_s": round(rivals["loop"]),
        "tuned_loop_events_per_s": round(rivals["tuned_loop"]),
        "ledger_overhead": round(commits, 4),
        "failing_10pct_vs_clean": round(ratio("failing", "per_s"), 3),
    }


def report_of(
    runs: dict[str, list[dict[str, float]]], loading: dict[str, float], events: int, size: int
) -> dict[str, Any]:
    def of(kind: str, name: str) -> float:
        return median(runs[kind], name)

    def ratios(kind: str, mine: str = "stages") -> list[float]:
        return [a["per_s"] / b["per_s"] for a, b in zip(runs[mine], runs[kind], strict=True)]

    pairs = ratios("identity")
    return {
        "processing_events_per_s": round(of("stages", "per_s")),
        "loading_rows_per_s": round(loading["per_s"]),
        "vs_identity": round(statistics.median(pairs), 3),
        "vs_identity_batch_form": round(statistics.median(ratios("identity", "batch")), 3),
        "vs_own_reader": round(statistics.median(ratios("own_reader")), 3),
        "own_reader_events_per_s": round(of("own_reader", "per_s")),
        "own_reader_cpu_us_per_event": round(of("own_reader", "cpu_s") / events * 1e6, 2),
        "sandbox_cost": round(1 - statistics.median(ratios("in_worker")), 3),
        "identity_events_per_s": round(of("identity", "per_s")),
        "in_worker_events_per_s": round(of("in_worker", "per_s")),
        "batch_form_events_per_s": round(of("batch", "per_s")),
        "batch_form_cpu_us_per_event": round(of("batch", "cpu_s") / events * 1e6, 2),
        "processing_cpu_us_per_event": round(of("stages", "cpu_s") / events * 1e6, 2),
        "in_worker_cpu_us_per_event": round(of("in_worker", "cpu_s") / events * 1e6, 2),
        "identity_cpu_us_per_event": round(of("identity", "cpu_s") / events * 1e6, 2),
        "loading_cpu_us_per_row": round(loading["cpu_s"] / events * 1e6, 2),
        "events": events,
        "message_bytes": size,
        "rounds": len(pairs),
        "cores": psutil.cpu_count(),
    }


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{report['events']:,} events of {report['message_bytes']} B, median of "
        f"{report['rounds']} alternating rounds, {report['cores']} cores",
        title_justify="left",
    )
    for name in ("", "events/s", "CPU µs an event"):
        table.add_column(name, justify="left" if not name else "right")
    for label, rate, cpu in (
        ("processing", "processing_events_per_s", "processing_cpu_us_per_event"),
        ("batch form", "batch_form_events_per_s", "batch_form_cpu_us_per_event"),
        ("user code in the worker", "in_worker_events_per_s", "in_worker_cpu_us_per_event"),
        ("identity", "identity_events_per_s", "identity_cpu_us_per_event"),
        (
            "identity, read as processing does",
            "own_reader_events_per_s",
            "own_reader_cpu_us_per_event",
        ),
        ("loading into PostgreSQL", "loading_rows_per_s", "loading_cpu_us_per_row"),
    ):
        table.add_row(label, f"{report[rate]:,}", f"{report[cpu]:.2f}")
    table.add_row("processing against identity", f"{report['vs_identity']:.3f}", "")
    table.add_row("processing against identity, read so", f"{report['vs_own_reader']:.3f}", "")
    table.add_row("batch form against identity", f"{report['vs_identity_batch_form']:.3f}", "")
    table.add_row("cost of processes of user code", f"{report['sandbox_cost']:.1%}", "")
    table.add_row("against a Python UDF a row", f"{report['vs_udf']:.3f}", "")
    table.add_row("against a confluent-kafka loop", f"{report['vs_loop']:.3f}", "")
    table.add_row("against a tuned loop", f"{report['vs_tuned_loop']:.3f}", "")
    table.add_row("CPU for traces", f"{report['trace_overhead']:.1%}", "")
    table.add_row("time for commits", f"{report['ledger_overhead']:.1%}", "")
    for label, name in (
        ("with a tenth that fails, against none", "failing_10pct_vs_clean"),
        (f"CPU with {report['pipelines']:,} pipelines, against 5", "pipelines_5000_vs_5"),
        ("that, of a topic just opened", "pipelines_5000_opened_vs_5"),
        ("that, 5 pipelines against 5", "pipelines_5_vs_5"),
        (f"CPU with {report['topics']} topics", "topics_100_vs_1"),
        (f"CPU with {report['topics']} topics, the first time", "topics_100_cold_vs_1"),
    ):
        table.add_row(label, f"{report[name]:.3f}", "")
    for kind, share in report["others_share_by_kind"].items():
        table.add_row(f"share beside code that {kind}", f"{share:.3f}", "")
    idle = f"{report['quiet_topic_cpu_ms_per_s']} and {report['idle_topic_cpu_ms_per_s']}"
    table.add_row(
        "CPU of a topic without events, first minute and behind it, ms a second", idle, ""
    )
    table.add_row("restart of a group, s", f"{report['group_restart_s']}", "")
    table.add_row(
        f"start of {report['topics']} consumers, s", f"{report['consumers_100_start_s']}", ""
    )
    table.add_row("loading, two executors against one", f"{report['loading_2_vs_1_executors']}", "")
    table.add_row("loading 2,000 commits, against one", f"{report['backlog_2000_vs_1']}", "")
    table.add_row(
        "a small load in the driver and in a task, ms",
        f"{report['small_load_driver_ms']} and {report['small_load_task_ms']}", "",
    )  # fmt: skip
    table.add_row("peak memory, MB", f"{report['peak_rss_mb']:,}", "")
    table.add_row(
        "latency, p50 and p99, s", f"{report['latency_p50_s']} and {report['latency_p99_s']}", ""
    )
    Console().print(table)


if __name__ == "__main__":
    main()
