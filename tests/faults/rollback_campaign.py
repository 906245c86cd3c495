"""``make faults-rollback``: parts of a deployment go back to an older state, or are gone, under load.

Real Kafka, S3, Spark processing and loading, a PostgreSQL for the tracker and another one for the
warehouse. One after the other, each with a pipeline of its own while its events flow:

tail       the broker is down, and each partition's log loses its last batches
warehouse  the warehouse's data folder is put back to an older copy
staged     a staged object is deleted before it is loaded
parked     a parked object is deleted
node       ingestion's node is gone with its disk and a write-ahead log that was not sent
clock      the clock steps back an hour between two readings of a source

What Airflow's DAGs do each minute is done here each ``JOBS_S`` seconds (60). A rollback is *noticed* when
the deployment says so by itself (a stop, a breach, a notice, the audit log); a step of the clock
breaks nothing, so there is nothing to be noticed: its versions must rise. Then a person's part is
done by the command line. In the end every key of every source has its newest content in the
warehouse (``lost``, ``older_over_newer``), and no event was delivered twice (``doubled``: from the
traces of the loads, not from the table, whose key cannot hold two).

``QUICK=1`` is a short form, ``EVENTS`` another number of events of each source, ``ONLY=tail,node``
some rollbacks. Ends with 1 when a figure is not as promised.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr
from sqlalchemy import text
from tests import servers
from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import all_started
from tests.support import children
from tests.support.recorded import counting
from tests.support.replays import run_replay

from waybill import services
from waybill.errors import WaybillError
from waybill.services import applications
from waybill.settings import DestinationSettings, Settings
from waybill.storage import open_log, open_objects, open_tracker

EVENTS, QUICK_EVENTS = 60_000, 6_000
JOBS_S, QUICK_JOBS_S = 60.0, 15.0
NOTICED_WITHIN_S = 120
_LIMIT_S = 600.0
TEAM = "rollback"
TOPIC = f"events.{TEAM}.warehouse"
HOUR_US = 3_600_000_000
_CHECKOUT = Path(__file__).parents[2]

DECLARATION = """
id: rollback-{name}
name: {name}
team: {team}
owner: shop@example.com
schedule: null
source:
  connector: csv
  path: orders.csv
  event: order
  page_rows: {page_rows}
  order_by: [line]
  columns: {{line: int64, number: int64, revision: int64, amount: int64}}
events:
  order:
    key: [number]
    version: {version}
    table: {name}_orders
    policy: strict
    columns: {{line: int64, number: int64, revision: int64, amount: int64}}
transformation: transformation.py
destination: {{name: warehouse, schema: shop}}
"""
CODE = "def transform(event):\n    return event\n"
BROKEN = """
from waybill.errors import ParkError


def transform(event):
    if event.data["number"] % 10 == 0:
        raise ParkError("record_invalid", "a tenth is refused")
    return event
"""
INGEST = """
import time
from waybill.services import run_ingest
print(run_ingest(settings, {name!r}, now_us=lambda: time.time_ns() // 1000 + {shift_us}))
"""
UNSENT = """
import os, signal
from waybill.producer import LosslessProducer
from waybill.services import environment
real_config, real_produce, calls = environment.librdkafka_config, LosslessProducer.produce, []
environment.librdkafka_config = lambda settings: {{**real_config(settings), "linger.ms": 60_000}}
def produce(*given, **named):
    calls.append(1)
    if len(calls) == {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real_produce(*given, **named)
LosslessProducer.produce = produce
"""


class NotInTimeError(AssertionError):
    """Something that was waited for did not happen."""


@dataclass(slots=True)
class Rollback:
    """What became of one rollback."""

    name: str
    noticed_s: float | None = None
    """Until the deployment said so; None: it did not."""
    lost: int = 0
    doubled: int = 0
    older: int = 0
    unaccounted: int = 0
    """Events that the balance does not explain, where all that was lost came back by a replay."""
    seconds: float = 0.0
    said: str = ""


@dataclass(slots=True)
class Source:
    """One pipeline's source: a CSV that grows, and what the warehouse must hold of it."""

    name: str
    folder: Path
    newest: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number to its newest (revision, amount)."""
    seen: dict[int, set[int]] = field(default_factory=dict)
    """Number to all amounts that it had."""
    lines: int = 0

    @property
    def pipeline_id(self) -> str:
        return f"rollback-{self.name}"

    def grow(self, numbers: range, revision: int) -> None:
        """Append a line a number."""
        with (self.folder / "orders.csv").open("a") as file:
            for number in numbers:
                amount = number * 100 + revision
                file.write(f"{self.lines},{number},{revision},{amount}\n")
                self.lines += 1
                self.newest[number] = (revision, amount)
                self.seen.setdefault(number, set()).add(amount)


class Deployment:
    """All servers and applications, and what runs each minute."""

    def __init__(self, home: Path, stack: ExitStack, *, events: int, jobs_s: float) -> None:
        postgres, self.kafka, self.s3 = all_started(servers, home, stack)
        warehouse_home = home / "warehouse-server"
        warehouse_home.mkdir()
        self.warehouse = servers.start_postgres(warehouse_home)
        stack.callback(servers.end_home, warehouse_home)
        work = home / "campaign"
        work.mkdir()
        made = servers.stack_settings(postgres, self.kafka, self.s3, work)
        dsn = SecretStr(self.warehouse.database("warehouse"))
        self.events = events
        self.settings = made.model_copy(
            update={
                "pipelines_dir": work / "pipelines",
                "destinations": {"warehouse": DestinationSettings(dsn=dsn, compare_every_s=10)},
                "spark": made.spark.model_copy(
                    update={"max_events_per_batch": max(1_000, events // 10), "trigger_ms": 200}
                ),
            }
        )
        services.migrate(self.settings)
        self._jobs_s, self._stopping = jobs_s, threading.Event()
        self._jobs = threading.Thread(target=self._minutely, daemon=True)
        self.job_errors: Counter[str] = Counter()
        stack.callback(self.close)

    def start(self) -> None:
        """Start the applications and the jobs."""
        open_log(self.settings.kafka).ensure_topic(TOPIC)
        self._jobs.start()

    def close(self) -> None:
        """Stop the jobs and the applications."""
        self._stopping.set()
        if self._jobs.is_alive():
            self._jobs.join(120)
        for kind in applications.KINDS:
            applications.stop_application(self.settings, kind, "default")

    def _minutely(self) -> None:
        """Do what the DAGs stream, audit and watch do each minute."""
        while not self._stopping.is_set():
            for job in (*self._starts(), services.run_audit, services.watch):
                try:
                    job(self.settings)
                except WaybillError as error:  # as a failed task: the next minute tries again
                    self.job_errors[str(error).partition("\n")[0][:120]] += 1
            self._stopping.wait(self._jobs_s)

    def _starts(self) -> list[Callable[[Settings], object]]:
        return [
            lambda settings, kind=kind: services.start_application(settings, kind, "default")
            for kind in applications.KINDS
        ]

    def node(self, name: str) -> Settings:
        """Return the settings of a node with a disk of its own."""
        wal = self.settings.wal.model_copy(
            update={"dir": self.settings.home / "nodes" / name, "node": name}
        )
        return self.settings.model_copy(update={"wal": wal})

    def source(self, name: str, *, code: str = CODE, version: str = "revision") -> Source:
        """Make a pipeline, deploy it, and return its source, empty."""
        folder = self.settings.pipelines_dir / name
        folder.mkdir(parents=True)
        page_rows = max(100, self.events // 40)
        declared = DECLARATION.format(name=name, team=TEAM, page_rows=page_rows, version=version)
        (folder / "pipeline.yaml").write_text(declared)
        (folder / "transformation.py").write_text(code)
        (folder / "orders.csv").write_text("line,number,revision,amount\n")
        services.run_deploy(self.settings, folder, who="campaign")
        return Source(name, folder)

    def ingesting(
        self, source: Source, *, node: str = "a", shift_us: int = 0, patch: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start a run of ingestion on a node."""
        code = patch + INGEST.format(name=source.name, shift_us=shift_us)
        return children.start(self.node(node), code)

    def ingest(self, source: Source, *, node: str = "a", shift_us: int = 0) -> None:
        """Run ingestion until it ends well, as Airflow's retries do."""
        self.ended(source, self.ingesting(source, node=node, shift_us=shift_us), node, shift_us)

    def ended(
        self, source: Source, child: subprocess.Popen[bytes], node: str = "a", shift_us: int = 0
    ) -> None:
        """Wait for a run; one that fails is run again."""
        deadline = time.monotonic() + _LIMIT_S
        while True:
            try:
                output, _ = child.communicate(timeout=_LIMIT_S)
            finally:
                children.kill(child)
            if child.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise NotInTimeError(output.decode("utf-8", "replace")[-2_000:])
            time.sleep(2)
            child = self.ingesting(source, node=node, shift_us=shift_us)

    def sql(self, statement: str, **values: object) -> list[Any]:
        """Ask the tracker."""
        with open_tracker(self.settings.tracker) as tracker, tracker.transaction() as connection:
            return list(connection.execute(text(statement), values))

    def delivered(self, source: Source) -> int:
        """How many events of a source the books say are delivered."""
        for pipeline in services.balance(self.settings).pipelines:
            if pipeline.pipeline_id == source.pipeline_id and "destination" in pipeline.stages:
                return int(pipeline.stages["destination"].passed)
        return 0

    def rows(self, source: Source) -> dict[int, tuple[int, int]]:
        """Return what the warehouse holds of a source; {} while it is away or has no table."""
        dsn = self.settings.destinations["warehouse"].dsn
        assert dsn is not None
        try:
            with psycopg.connect(dsn.get_secret_value(), connect_timeout=5) as connection:
                found = connection.execute(
                    f"SELECT number, revision, amount FROM shop.{source.name}_orders"
                ).fetchall()
        except psycopg.Error:
            return {}
        return {number: (revision, amount) for number, revision, amount in found}

    def waybill(self, *words: str) -> str:
        """Run a command as an operator does."""
        done = subprocess.run(
            [sys.executable, "-m", "waybill.cli", *words],
            env=children.environment(self.settings),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"waybill {' '.join(words)}: {done.stdout}{done.stderr}")
        print(f"  $ waybill {' '.join(words)}", flush=True)
        return done.stdout

    def until(self, true: Callable[[], object], what: str, limit_s: float = _LIMIT_S) -> None:
        """Wait for something."""
        deadline = time.monotonic() + limit_s
        while not true():
            if time.monotonic() > deadline:
                raise NotInTimeError(f"not within {limit_s:.0f} s: {what}; {self.job_errors}")
            time.sleep(0.5)

    def noticed(self, rollback: Rollback, told: Callable[[], object], since: float) -> None:
        """Wait until the deployment says by itself what happened."""
        with suppress(NotInTimeError):
            self.until(told, rollback.name, limit_s=3 * NOTICED_WITHIN_S)
            rollback.noticed_s = time.monotonic() - since

    def whole(self, source: Source) -> bool:
        """Tell whether the warehouse has the newest of each key."""
        return self.rows(source) == source.newest

    def notices(self, kind: str, source: Source) -> list[Any]:
        """Return the notices of one kind about a pipeline."""
        return self.sql(
            "SELECT kind FROM notices WHERE kind = :kind AND pipeline_id = :pipeline",
            kind=kind,
            pipeline=source.pipeline_id,
        )


def tail(own: Deployment, rollback: Rollback, source: Source) -> None:
    """Cut the log while the broker is down and events flow; it grows again before anybody looks."""
    source.grow(range(own.events), 1)
    child = own.ingesting(source)
    own.until(lambda: own.delivered(source) > own.events // 4, "a quarter is delivered")
    since = time.monotonic()
    cut_tails(own.kafka, TOPIC, share=0.8)
    own.noticed(rollback, lambda: services.stopped_topics(own.settings), since)
    own.ended(source, child)
    rollback.said = "; ".join(stop.words for stop in services.stopped_topics(own.settings))
    own.waybill("topics", "settle", TOPIC, "--why", "the disk was put back", "--reread", "--yes")
    own.ingest(source)
    own.until(lambda: own.whole(source), "all is there")


def warehouse(own: Deployment, rollback: Rollback, source: Source) -> None:
    """Put the warehouse's data folder back to a copy from before half of the events."""
    half = own.events // 2
    source.grow(range(half), 1)
    own.ingest(source)
    own.until(lambda: own.whole(source), "the first half is there")
    copied = copy_of(own.warehouse)
    source.grow(range(half // 2, own.events), 2)
    child = own.ingesting(source)
    own.until(lambda: own.delivered(source) > half + half // 2, "more is loaded")
    since = time.monotonic()
    put_back(own.warehouse, copied)
    own.noticed(
        rollback,
        lambda: own.sql("SELECT 1 FROM audit_log WHERE action = 'destination_put_back'"),
        since,
    )
    own.ended(source, child)
    own.until(lambda: own.whole(source), "all is there")


def staged(own: Deployment, rollback: Rollback, source: Source) -> None:
    """Delete a staged object that is not loaded yet."""
    source.grow(range(own.events), 1)
    own.warehouse.stop()  # what is staged waits
    try:
        own.ingest(source)
        own.until(lambda: waiting_objects(own, source), "something is staged")
        key = random.Random(len(source.newest)).choice(waiting_objects(own, source))
        since = time.monotonic()
        open_objects(own.settings.s3).delete([key])
    finally:
        own.warehouse.start()
    own.noticed(rollback, lambda: own.notices("missing", source), since)
    own.until(lambda: own.whole(source), "all is there")


def waiting_objects(own: Deployment, source: Source) -> list[str]:
    """Return the keys of staged objects that wait, once all of a source is staged."""
    rows = own.sql(
        "SELECT key, rows FROM staged_objects WHERE state = 'staged' AND commit_number > "
        "(SELECT last_commit FROM load_positions WHERE destination = 'warehouse') ORDER BY key"
    )
    return [row.key for row in rows] if sum(row.rows for row in rows) >= own.events // 2 else []


def parked(own: Deployment, rollback: Rollback, source: Source) -> None:
    """Delete a parked object; then mend the pipeline and replay what is parked."""
    source.grow(range(own.events), 1)
    own.ingest(source)
    good = {number: row for number, row in source.newest.items() if number % 10}
    own.until(lambda: own.rows(source) == good, "what does not park is there")
    [row, *_] = own.sql(
        "SELECT DISTINCT o.key FROM parked_objects o JOIN segments s ON s.object_key = o.key "
        "JOIN parked_partitions p ON p.id = s.partition_id WHERE p.pipeline_id = :pipeline "
        "ORDER BY 1",
        pipeline=source.pipeline_id,
    )
    since = time.monotonic()
    open_objects(own.settings.s3).delete([row.key])
    own.noticed(rollback, lambda: own.notices("missing", source), since)
    (source.folder / "transformation.py").write_text(CODE)
    own.waybill("pipelines", "deploy", str(source.folder))

    def replayed() -> bool:
        for one in services.parked_partitions(own.settings):
            if one.pipeline == source.name and one.parked:
                with suppress(WaybillError):
                    run_replay(
                        own.settings, pipeline=one.pipeline, event_name=one.event_name,
                        stage=one.stage, error_type=one.error_type, who="campaign",
                        run_id=f"r{time.time_ns()}",
                    )  # fmt: skip
        return own.whole(source)

    own.until(replayed, "all is there")


def node(own: Deployment, rollback: Rollback, source: Source) -> None:
    """Kill ingestion with an unsent log, delete its disk; Airflow tries again on another node."""
    source.grow(range(own.events), 1)
    child = own.ingesting(source, node="gone", patch=UNSENT.format(after=own.events // 3))
    assert child.wait(_LIMIT_S) < 0, "the node was to die"
    shutil.rmtree(own.settings.home / "nodes" / "gone")
    since = time.monotonic()
    own.ingest(source, node="b")
    own.noticed(rollback, lambda: own.notices("log", source), since)
    own.until(lambda: own.whole(source), "all is there")


def clock(own: Deployment, rollback: Rollback, source: Source) -> None:
    """Take newer content of every key in by a clock that is an hour behind."""
    source.grow(range(own.events // 2), 1)
    own.ingest(source)
    source.grow(range(own.events // 2), 2)
    own.ingest(source, node="b", shift_us=-HOUR_US)
    own.until(lambda: own.whole(source), "the newer content is there")
    rollback.noticed_s = 0.0
    rollback.said = "nothing to be noticed: versions rise"


ROLLBACKS: dict[str, Callable[[Deployment, Rollback, Source], None]] = {
    one.__name__: one for one in (tail, warehouse, staged, parked, node, clock)
}


def cut_tails(kafka: Any, topic: str, *, share: float) -> None:
    """Stop the broker, take the last batches from each partition's log, start it again."""
    kafka.stop()
    for folder in (Path(kafka.service.home) / "kafka" / "data").glob(f"{topic}-[0-9]*"):
        for segment in sorted(folder.glob("*.log")):
            batches = list(batch_ends(segment.read_bytes()))
            if batches:
                kept = batches[max(0, int(len(batches) * share) - 1)]
                with segment.open("r+b") as file:
                    file.truncate(kept)
        for pattern in ("*.index", "*.timeindex", "*.snapshot"):
            for stale in folder.glob(pattern):
                stale.unlink()
    (Path(kafka.service.home) / "kafka" / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    try:
        kafka.start()
    except WaybillError:  # a busy machine takes longer
        kafka.start()


def batch_ends(content: bytes) -> Iterator[int]:
    """Yield after which byte each record batch of a log segment ends."""
    header = struct.Struct(">qi")
    at = 0
    while at + header.size <= len(content):
        _, length = header.unpack_from(content, at)
        if length <= 0 or at + header.size + length > len(content):
            return
        at += header.size + length
        yield at


def copy_of(server: Any) -> Path:
    """Copy a stopped server's data folder, owners and all."""
    server.stop()
    cluster = server.service.cluster
    copied = cluster.with_name("postgres.older")
    subprocess.run(["cp", "-a", str(cluster), str(copied)], check=True)
    server.start()
    return copied


def put_back(server: Any, copied: Path) -> None:
    """Have a server go on from a copy of its data folder."""
    server.stop()
    shutil.rmtree(server.service.cluster)
    copied.rename(server.service.cluster)
    server.start()


def judge(own: Deployment, rollback: Rollback, source: Source) -> None:
    """Hold the warehouse against the source, and the loads' traces against each other."""
    rows = own.rows(source)
    rollback.lost = sum(number not in rows for number in source.newest)
    rollback.older = sum(
        number in rows and rows[number] != wanted for number, wanted in source.newest.items()
    )
    delivered = Counter(
        trace.event_id
        for trace in counting(own.settings)
        if trace.phase == "destination"
        and trace.outcome in ("delivered", "deleted")
        and trace.pipeline_id == source.pipeline_id
    )
    rollback.doubled = sum(number - 1 for number in delivered.values())
    rollback.doubled += sum(number not in source.newest for number in rows)


@contextmanager
def timed(rollback: Rollback) -> Iterator[None]:
    """Say what is done, and note how long it took; what did not happen in time is said."""
    began = time.monotonic()
    print(f"{rollback.name} …", flush=True)
    try:
        yield
    except NotInTimeError as error:
        rollback.said = f"{rollback.said} {error}".strip()
    rollback.seconds = round(time.monotonic() - began, 1)


def run(own: Deployment, names: list[str]) -> list[Rollback]:
    """Do one rollback after the other."""
    done = []
    own.start()
    for name in names:
        rollback = Rollback(name)
        version = "null" if name == "clock" else "revision"
        source = own.source(name, code=BROKEN if name == "parked" else CODE, version=version)
        with timed(rollback):
            ROLLBACKS[name](own, rollback, source)
        judge(own, rollback, source)
        print(f"  {rollback}", flush=True)
        done.append(rollback)
    return done


def report_of(done: list[Rollback], seed: int) -> dict[str, Any]:
    """Return the figures."""
    noticed = [one.noticed_s for one in done if one.noticed_s is not None]
    return {
        "rollbacks": len(done),
        "lost": sum(one.lost for one in done),
        "doubled": sum(one.doubled for one in done),
        "older_over_newer": sum(one.older for one in done),
        "unnoticed": sum(one.noticed_s is None for one in done),
        "noticed_max_s": round(max(noticed, default=0.0), 1),
        "seed": seed,
    }


def show(done: list[Rollback]) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "noticed after s", "lost", "doubled", "older over newer", "took s", "")
    for one in done:
        noticed = "not" if one.noticed_s is None else f"{one.noticed_s:.1f}"
        table.add_row(
            one.name, noticed, str(one.lost), str(one.doubled), str(one.older),
            f"{one.seconds:.0f}", one.said[:200],
        )  # fmt: skip
    Console().print(table)


def main() -> int:
    quick = os.environ.pop("QUICK", "") == "1"
    events = int(os.environ.pop("EVENTS", QUICK_EVENTS if quick else EVENTS))
    jobs_s = float(os.environ.pop("JOBS_S", QUICK_JOBS_S if quick else JOBS_S))
    names = [name for name in os.environ.pop("ONLY", ",".join(ROLLBACKS)).split(",") if name]
    seed = int(os.environ.pop("ROLLBACK_SEED", random.randrange(10**6)))
    random.seed(seed)
    began = time.monotonic()
    print(f"{events:,} events a source, seed {seed}: {', '.join(names)}", flush=True)
    with opened_home() as (home, stack):
        own = Deployment(home, stack, events=events, jobs_s=jobs_s)
        done = run(own, names)
        errors = own.job_errors
    show(done)
    for words, times in errors.most_common():
        print(f"jobs that failed and were tried again, {times} times: {words}")
    report = report_of(done, seed)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps(report | {"events": events, "seconds": seconds}))
    bad = report["lost"] + report["doubled"] + report["older_over_newer"] + report["unnoticed"]
    return 0 if not bad and report["noticed_max_s"] <= NOTICED_WITHIN_S else 1


if __name__ == "__main__":
    sys.exit(main())
