"""``make bench-replay-latency``: what live events wait for, without and with a replay beside them.

Real Kafka, processing consumer, tracker and store. Orders come live at a fixed rate; a replay of a
large parked partition, in a process of its own, is started and killed again, phase by phase, and
goes on where it was. A live event's latency is from the broker's timestamp to the commit of its
batch; those between the first and the last replayed event of a phase had a replay beside them,
those of the phases between had none. ``GOVERNED=0`` shows what an ungoverned replay does.
``QUICK=1`` takes short phases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.benchmarks.home import opened_home
from tests.benchmarks.parking_replay import NAMES, park
from tests.benchmarks.processing import all_started
from tests.support import orders
from tests.support.parked_orders import order

LIVE_PER_S = 500
FIRST_LIVE = 10_000_000
WARM_BATCHES = 5
REPLAY = """
import json, sys
from waybill import services
from waybill.settings import Settings
from waybill.replay import ReplayRequest, run as replay
request = ReplayRequest(**json.loads(sys.argv[1]))
print("ready", flush=True)
services.run_replay(Settings(), request, who="bench", run_id="bench")
"""


@dataclass(frozen=True)
class Size:
    """How long one form of the benchmark runs."""

    warm_s: float
    phase_s: float
    pairs: int
    parked: int


FULL, QUICK = Size(15, 25, 3, 300_000), Size(6, 6, 2, 100_000)
_SETTLES_S = 2.0
"""Between a phase with a replay and the next one; belongs to neither."""


def main() -> None:
    size = QUICK if os.environ.pop("QUICK", "") == "1" else FULL
    governed = os.environ.pop("GOVERNED", "1") != "0"
    with opened_home() as (home, stack):
        from tests import servers

        parts = all_started(servers, home, stack)
        work = home / "work"
        work.mkdir()
        bench = Bench(
            servers.stack_settings(parts[0], parts[1], parts[2], work),
            work,
            size,
            governed=governed,
        )
        stack.callback(bench.close)
        report = bench.run()
    show(report)
    sys.stdout.write(json.dumps(report) + "\n")


class Bench:
    """One topic, its consumer, a live stream, and a replay that comes and goes."""

    def __init__(self, settings: Any, work: Path, size: Size, *, governed: bool) -> None:
        orders.write_orders(work, rows=0, fixed=True)
        self._settings = settings.model_copy(update={"pipelines_dir": work})
        os.environ.update(self._settings.to_env())  # the replay reads these
        self._work, self._size, self._governed = work, size, governed
        self._topic = orders.topic_of(work)
        self._began: list[float] = []
        self._stack = ExitStack()

    def run(self) -> dict[str, Any]:
        from waybill import services
        from waybill.storage import open_log

        services.migrate(self._settings)
        services.run_deploy(self._settings, self._work / "orders", who="bench")
        park(self._settings, self._size.parked)
        log = open_log(self._settings.kafka)
        topic = log.ensure_topic(self._topic)
        live = Live(self._settings, self._topic, orders.team_of(self._work))
        self._stack.callback(live.stop)
        self._consume(log, topic)
        live.start()
        self._warm_up(topic)
        load = os.getloadavg()[0]
        alone = []
        for _ in range(self._size.pairs):
            began = time.time()
            time.sleep(self._size.phase_s)
            alone.append((began, time.time()))
            self._replay()
            time.sleep(_SETTLES_S)
        live.stop()
        seen = self._wait(log, topic)
        return self._report(seen, alone, (load, os.getloadavg()[0]))

    def _consume(self, log: Any, topic: Any) -> None:
        from tests.support.topic_queries import start_query

        from waybill.processing.spark.session import open_session
        from waybill.processing.spark.topic_consumer import ProcessingParts
        from waybill.storage import open_objects, open_tracker

        settings = self._settings
        spark = open_session(settings.spark, name="bench")
        self._stack.callback(spark.stop)
        tracker = self._stack.enter_context(open_tracker(settings.tracker))
        parts = ProcessingParts.over(settings, tracker, log, open_objects(settings.s3))
        query = start_query(spark, parts, topic, checkpoint=settings.spark.work_dir / "checkpoint")
        self._stack.callback(query.stop)
        self._tracker, self._query = tracker, query

    def _warm_up(self, topic: Any) -> None:
        """Wait until the first batches, which take long, are over."""
        from waybill.ledger import consumer_progress

        began = time.monotonic()
        while True:
            found = consumer_progress(
                self._tracker, f"processing/{topic.name}", "warehouse", after=0, limit=100
            )
            if len(found.batches) >= WARM_BATCHES and time.monotonic() > began + self._size.warm_s:
                return
            if not self._query.isActive:
                raise SystemExit(f"the query ended: {self._query.exception()}")
            time.sleep(0.2)

    def _replay(self) -> None:
        options = json.dumps(NAMES | {"governed": self._governed})
        child = subprocess.Popen(
            [sys.executable, "-c", REPLAY, options], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            child.stdout.readline()
            self._began.append(time.time())
            code = child.wait(self._size.phase_s)
            raise SystemExit(f"the replay ended by itself, with {code}: park more")
        except subprocess.TimeoutExpired:
            pass
        finally:
            child.kill()
            child.wait()

    def _wait(self, log: Any, topic: Any) -> Seen:
        """Wait until all is processed; return every event's times."""
        from waybill.ledger import topic_positions

        ends = {number: high for number, (_, high) in log.watermarks(topic).items()}
        while True:
            known = topic_positions(
                self._tracker,
                cluster_id=topic.cluster_id,
                topic_id=topic.topic_id,
                topic=topic.name,
            )
            if all(known.get(number, 0) >= end for number, end in ends.items()):
                return seen_in(self._settings, self._tracker, topic.name, ends)
            if not self._query.isActive:
                raise SystemExit(f"the query ended: {self._query.exception()}")
            time.sleep(0.5)

    def _report(
        self, seen: Seen, alone: list[tuple[float, float]], load: tuple[float, float]
    ) -> dict[str, Any]:
        at, took = np.array(seen.live).T
        back = np.array(seen.replayed)
        beside = [
            (found.min(), found.max())
            for began in self._began
            if len(found := back[(back > began) & (back < began + self._size.phase_s + 1)])
        ]
        without = np.concatenate([took[(at >= a) & (at < b)] for a, b in alone])
        with_it = np.concatenate([took[(at >= a) & (at < b)] for a, b in beside])
        p95 = [float(np.percentile(x, 95)) * 1000 for x in (without, with_it)]
        each = [
            [
                round(1000 * float(np.percentile(took[(at >= a) & (at < b)], 95)))
                for a, b in phases
                if ((at >= a) & (at < b)).any()
            ]
            for phases in (alone, beside)
        ]
        seconds = sum(b - a for a, b in beside)
        return {
            "live_p95_ms_alone": round(p95[0]),
            "live_p95_ms_with_replay": round(p95[1]),
            "ratio": round(p95[1] / p95[0], 3),
            "replay_per_s": round(len(back) / seconds),
            "live_per_s": LIVE_PER_S,
            "governed": self._governed,
            "phases_ms_alone": each[0],
            "phases_ms_with_replay": each[1],
            "load_before": round(load[0], 1),
            "load_after": round(load[1], 1),
        }

    def close(self) -> None:
        self._stack.close()


class Live:
    """Sends orders at a fixed rate, from a thread."""

    def __init__(self, settings: Any, topic: str, team: str) -> None:
        self._settings, self._topic, self._team = settings, topic, team
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _send(self) -> None:
        from confluent_kafka import Producer

        from waybill.events import encode

        servers = self._settings.kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 5})
        began, number = time.monotonic(), 0
        while not self._over.wait(0.01):
            while number < (time.monotonic() - began) * LIVE_PER_S:
                event = order(FIRST_LIVE + number, self._team)
                producer.produce(self._topic, encode(event), event.key)
                number += 1
            producer.poll(0)
        producer.flush(30)


@dataclass(slots=True)
class Seen:
    """What came through a topic."""

    live: list[tuple[float, float]] = field(default_factory=list)
    """(the broker's timestamp, seconds from there to the commit)."""
    replayed: list[float] = field(default_factory=list)
    """The broker's timestamps."""


def seen_in(settings: Any, tracker: Any, topic: str, ends: dict[int, int]) -> Seen:
    """Read a topic again, next to when each of its batches was committed."""
    from confluent_kafka import Consumer, TopicPartition
    from sqlalchemy import text

    commits: dict[int, list[tuple[int, float]]] = {number: [] for number in ends}
    query = "SELECT offsets, extract(epoch FROM committed_at)::float FROM batches ORDER BY 2"
    with tracker.transaction() as connection:
        for offsets, at in connection.execute(text(query)):
            for _, partition, _, end, _ in offsets:
                commits[partition].append((end, at))
    seen = Seen()
    consumer = Consumer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    left = sum(ends.values())
    while left:
        for message in consumer.consume(10_000, timeout=1.0):
            left -= 1
            at = message.timestamp()[1] / 1000
            if b'"replayid":"' in message.value():
                seen.replayed.append(at)
                continue
            number = message.partition()
            place = np.searchsorted([end for end, _ in commits[number]], message.offset(), "right")
            seen.live.append((at, commits[number][place][1] - at))
    consumer.close()
    return seen


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{report['live_per_s']:,} live events/s, load average {report['load_before']} to "
        f"{report['load_after']}",
        title_justify="left",
    )
    for name in ("", "alone", "with a replay"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row(
        "live p95, broker to commit, ms",
        f"{report['live_p95_ms_alone']:,}",
        f"{report['live_p95_ms_with_replay']:,}",
    )
    phases = zip(report["phases_ms_alone"], report["phases_ms_with_replay"], strict=False)
    for number, (alone, beside) in enumerate(phases, 1):
        table.add_row(f"  phase {number}", f"{alone:,}", f"{beside:,}")
    table.add_row("ratio", "", f"{report['ratio']:.3f}")
    table.add_row("replayed events/s", "", f"{report['replay_per_s']:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
