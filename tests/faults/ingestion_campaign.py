"""``make faults-ingestion``: SIGKILL, restarts and outages while sources are ingested into real Kafka.

    files, sql-…, postgres_cdc, kafka, dlt, singer
                       a connector's runs, killed 20 times: half at a moment, half at a call (a record, a
                       mark, a commit, a confirmation, the end)
    collector          the HTTP collector with its workers, killed under the load of four senders
    postgres-restarts  the source's PostgreSQL ended or killed under a slot that a run reads
    mysql-away         MariaDB ended or killed under a run, and away for a while: runs meet no server
    celery             a real Airflow with CeleryExecutor, Redis and two nodes, each with write-ahead logs of its own:
                       a node is killed with all that it runs while it ingests, its tasks run on
                       the other one; workers are grown and shrunk while tasks run

What is counted, of each part and in sum:

``lost``    rows (of the collector: events that were answered) that Kafka has not, or not as the source has them
            (of changes: Kafka's newest of each key is not the table's row).
``doubled`` what a destination would count twice. A destination merges by key and version, and knows a repeat by id and version
            (G2, docs/guarantees.md): so a row with two event ids, one id with two versions, and a row that the
            source does not have, are doubled. So is each record of Kafka beyond the first with one id, but
            for two kinds, of which the docs say that they come again with the id that they had: a dlt source
            without an order (docs/connectors.md), whose dead runs are read again; and what a sender
            sent to the collector again since no answer came (docs/collector.md), so often as it did.
``copies``  these records of the two kinds; a destination counts them `duplicate`.
``unbalanced``  events by which the books differ from Kafka, or from themselves (G5).
``stuck``   runs of Airflow that did not end well.
``missed``  faults that were asked for, and not done.

``PARTS=<names>`` does some parts, ``KILLS=<n>`` changes the kills of each connector, ``INGESTION_SEED`` repeats the
choices (not the timing of the machine), ``QUICK=1`` is a short form. Ends with 1 where a count above is not 0 (but for
copies); with 2 where all is well, but a fault was missed: they are named.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text
from tests import servers
from tests.benchmarks.home import opened_home
from tests.support import cdc, children, collectors, connector_sources, killed_sources
from tests.support.killed_sources import (
    KilledAnswers,
    KilledChanges,
    KilledRows,
    KilledSource,
    KilledUnordered,
    Verdict,
    kill_runs,
)

from waybill import services
from waybill.errors import RetryError
from waybill.pipelines import shard_of
from waybill.settings import Settings
from waybill.storage import open_tracker

_AWAY = "away"
_RUN_ENDED = ("success", "failed")
_TASK_WITHIN_S = 900.0
_ENDS_WITHIN_S = 1_200.0
_SENDERS = "abcd"
_LOADED = 80
"""Events that a collector has answered before it is killed: all senders are at work."""
_RESIZE = """
import json, os, sys
from waybill.capacity import CeleryPool
from waybill.errors import RetryError
import time

pool = CeleryPool(os.environ["BROKER"], f"celery@{sys.argv[1]}", ["default"])
until, by = time.monotonic() + 60, int(sys.argv[2])
while True:
    try:
        before = pool.read()[0]
        pool.resize(before + by, now=before)
        break
    except RetryError:
        if time.monotonic() > until:
            raise
        time.sleep(0.5)
while pool.read()[0] != before + by and time.monotonic() < until:
    time.sleep(0.2)
print(json.dumps([before, *pool.read()]))
"""
"""Grows or shrinks a worker as its node's enhancer does; prints processes before, after, and tasks."""


@dataclass(frozen=True, slots=True)
class Size:
    """How often each fault is done."""

    kills: int
    """Of the runs of each connector."""
    collector: int
    """Kills of a collector."""
    restarts: int
    """Of the PostgreSQL that has the slot."""
    outages: int
    """Of MariaDB."""
    nodes: int
    """Kills of a node that ingests; a worker is grown and shrunk as often."""


FULL = Size(kills=20, collector=8, restarts=4, outages=4, nodes=2)
QUICK = Size(kills=6, collector=3, restarts=2, outages=2, nodes=1)
SHORTEST = Size(kills=2, collector=1, restarts=0, outages=0, nodes=0)


@dataclass(slots=True)
class Tally:
    """What was done to one part, and what came of it."""

    part: str
    asked: Counter[str]
    """Faults by kind."""
    done: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    doubled: int = 0
    copies: int = 0
    unbalanced: int = 0
    stuck: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """Kills of runs, by where they were."""
    seconds: float = 0.0

    def add(self, verdict: Verdict) -> None:
        """Add what is counted of a source."""
        self.records += verdict.records
        self.lost += verdict.lost
        self.doubled += verdict.doubled
        self.copies += verdict.copies
        self.unbalanced += verdict.unbalanced

    @property
    def missed(self) -> Counter[str]:
        """Faults that were asked for and not done."""
        return self.asked - self.done

    @property
    def wrong(self) -> int:
        return self.lost + self.doubled + self.unbalanced + self.stuck


@dataclass(frozen=True)
class Ground:
    """What a part stands on.

    Args:
        settings: over servers, with books of its own.
        work: a folder of its own.
        servers: by the names of the tests' fixtures: `postgres`, `kafka`, `s3`, `mariadb`, `airflow_metadata`.
        size: of the campaign.
        chance: draws what is done.
    """

    settings: Settings
    work: Path
    servers: Callable[[str], Any]
    size: Size
    chance: random.Random

    def getfixturevalue(self, name: str) -> Any:
        """Return a server, as sources of the contract suite ask for it."""
        return self.servers(name)


# Connectors


def rows_of(
    kind: Callable[[Path, Any], connector_sources.SourceOfRows],
    killed: type[KilledRows] = KilledRows,
) -> Callable[[Ground], KilledSource]:
    """Return what makes a source of one kind."""

    def made(ground: Ground) -> KilledSource:
        return killed(ground.settings, ground.work / "pipelines", lambda home: kind(home, ground))

    return made


def _topic(home: Path, ground: Any) -> connector_sources.SourceOfRows:
    return killed_sources.TopicOfOthers(home, ground.settings)


def _changes(ground: Ground) -> KilledSource:
    dsn = ground.servers("postgres").database("shop")
    return KilledChanges(ground.settings, ground.work / "pipelines", dsn, ground.chance)


CONNECTORS: Mapping[str, Callable[[Ground], KilledSource]] = {
    "files": rows_of(connector_sources.JsonLines),
    "sql-sqlite": rows_of(connector_sources.SqliteTable),
    "sql-postgres": rows_of(connector_sources.PostgresTable),
    "sql-mysql": rows_of(connector_sources.MysqlTable),
    "postgres_cdc": _changes,
    "kafka": rows_of(_topic),
    "dlt": rows_of(killed_sources.DltAnswers, KilledAnswers),
    "dlt-unordered": rows_of(killed_sources.DltUnordered, KilledUnordered),
    "singer": rows_of(connector_sources.SingerTap),
}


def connector(make: Callable[[Ground], KilledSource], ground: Ground, tally: Tally) -> None:
    """Kill runs of one connector."""
    tally.asked["kills"] = ground.size.kills
    killed = make(ground)
    try:
        tally.points = kill_runs(killed, ground.size.kills, ground.chance)
        tally.done["kills"] = tally.points.total()
        tally.add(killed.judge())
    finally:
        killed.close()


# The collector


def collector(ground: Ground, tally: Tally) -> None:
    """Kill the collector while four senders send, at random moments; they repeat what failed."""
    tally.asked["kills"] = ground.size.collector
    settings = collectors.deployed_with_ids(ground.settings, ground.work)
    senders = [collectors.Sender(f"{name}-") for name in _SENDERS]
    for _ in range(ground.size.collector):
        with collectors.collector(settings, ground.work) as running:
            threads = [threading.Thread(target=one.send, args=(running,)) for one in senders]
            before = _answered(senders)
            for thread in threads:
                thread.start()
            loaded = _until(partial(_has_answered, senders, before + _LOADED), 300)
            time.sleep(ground.chance.uniform(0, 2.0))
            tally.done["kills"] += loaded and running.process.poll() is None
            running.kill()
            for thread in threads:
                thread.join()
    with collectors.collector(settings, ground.work) as running:
        ended = all([one.send(running, 3) for one in senders])
        if not ended or running.stop() != 0:
            raise SystemExit(f"a collector does not end well: {running.words()[-4000:]}")
    tally.add(_judge_collected(settings, senders))


def _answered(senders: Sequence[collectors.Sender]) -> int:
    return sum(len(one.answered) for one in senders)


def _has_answered(senders: Sequence[collectors.Sender], events: int) -> bool:
    return _answered(senders) >= events


def _until(true: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition; False: it did not come."""
    until_s = time.monotonic() + limit_s
    while not (found := true()) and time.monotonic() < until_s:
        time.sleep(0.05)
    return found


def _judge_collected(settings: Settings, senders: Sequence[collectors.Sender]) -> Verdict:
    sent: set[str] = set().union(*(one.sent for one in senders))
    answered: set[str] = set().union(*(one.answered for one in senders))
    repeated: Counter[str] = Counter()
    for one in senders:
        repeated += one.repeated
    events = collectors.in_kafka(settings)
    found = Counter(event.id for event in events)
    copies = found - Counter(found.keys())
    beyond = (copies - repeated).total()
    report = services.balance(settings)
    return Verdict(
        records=len(events),
        lost=len((answered | sent) - found.keys()),
        doubled=len(found.keys() - sent) + beyond,
        copies=copies.total() - beyond,
        unbalanced=abs(report.ingested - len(events)) + abs(report.unaccounted),
    )


# A source that goes away


def _goes_away(
    killed: KilledSource, ground: Ground, halt: Callable[[bool], None], start: Callable[[], None]
) -> bool:
    """Have a server go away under a run, and be away for another one; then read to the end.

    Returns:
        False: no run was met: none was under way each time, or the server that was away was not missed.
    """
    met = False
    for _ in range(killed_sources.TRIES):
        killed.grow()
        child = psutil.Process(children.forked(lambda: _ingest_or_end(killed)))
        time.sleep(ground.chance.uniform(0.1, 1.2))
        met = child.status() != psutil.STATUS_ZOMBIE
        halt(ground.chance.random() < 0.5)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if code:
            raise SystemExit(f"a run whose source went away ended with {code}")
        met &= _is_refused(killed)
        start()
        killed.ingest()
        if met:
            break
    return met


def _ingest_or_end(killed: KilledSource) -> None:
    """Ingest; a server that is away ends the run to be tried again, and with no other words."""
    try:
        killed.ingest()
    except RetryError as error:
        print(f"{_AWAY}: {str(error).splitlines()[0]:.150}", file=sys.stderr)


def _is_refused(killed: KilledSource) -> bool:
    """Say whether a run that meets no server ends to be tried again."""
    try:
        killed.ingest()
    except RetryError:
        return True
    return False


def postgres_restarts(ground: Ground, tally: Tally) -> None:
    """End or kill the PostgreSQL whose slot a run reads, and start it again."""
    tally.asked["restarts"] = ground.size.restarts
    with cdc.source_server() as server:
        dsn = server.create_database("shop")
        killed = KilledChanges(ground.settings, ground.work / "pipelines", dsn, ground.chance)

        def halt(by_kill: bool) -> None:
            record = server.running()
            if by_kill and record is not None:
                os.kill(record.pid, signal.SIGKILL)
            server.stop()

        def start() -> None:
            server.start()
            killed.reconnect()

        killed.ingest()
        for _ in range(ground.size.restarts):
            tally.done["restarts"] += _goes_away(killed, ground, halt, start)
        tally.add(killed.judge())
        killed.close()


class _LongTable(KilledRows):
    """A table with a run's work of seconds."""

    added = 3_000


def mysql_away(ground: Ground, tally: Tally) -> None:
    """End or kill MariaDB under a run, and have it away for the next one."""
    from tests.support.mariadb import MariaDb

    tally.asked["outages"] = ground.size.outages
    server = MariaDb()
    try:
        own = replace(ground, servers=lambda _: server)
        killed = rows_of(connector_sources.MysqlTable, _LongTable)(own)
        for _ in range(ground.size.outages):
            tally.done["outages"] += _goes_away(
                killed, ground, lambda by_kill: server.halt(killed=by_kill), server.start
            )
        tally.add(killed.judge())
    finally:
        server.stop()


# Nodes of Celery


def celery(ground: Ground, tally: Tally) -> None:
    """Kill nodes that ingest, grow and shrink their workers; tasks run elsewhere, and to their end."""
    from tests.support.real_airflow import fetch_celery, started

    size = ground.size.nodes
    tally.asked.update({"node_kills": size, "taken_over": size, "grown": size, "shrunk": size})
    fetch_celery()
    names = ("slow0", "slow1", "slow2")
    folder = ground.work / "pipelines"
    unpaused = ground.settings.airflow.model_copy(update={"unpaused_dags": "all"})
    settings = ground.settings.model_copy(update={"pipelines_dir": folder, "airflow": unpaused})
    pipelines = [
        _LongTopic(settings, folder, lambda home: killed_sources.PatientTopic(home, settings), name)
        for name in names
    ]
    shards = {f"ingest_{shard_of(name):02}" for name in names}
    from tests.support.airflow_metadata import DAGS

    parts = ("api-server", "scheduler", "dag-processor")
    with started(
        pipelines[0].settings,
        ground.servers("airflow_metadata"),
        "CeleryExecutor",
        parts,
        (*DAGS, *sorted(shards)),
        own_logs=True,
    ) as airflow:
        nodes = _Nodes(airflow, pipelines, ground, tally)
        nodes.wait_for_dags()
        acts = [nodes.kill, nodes.grow, nodes.shrink]
        for number in range(size):
            for act in acts:
                nodes.round(f"{act.__name__}_{number}", act)
    for one in pipelines:
        tally.add(one.judge())
        one.close()


class _LongTopic(KilledRows):
    added = 1_000


class _Nodes:
    """Two workers of Celery, and three pipelines that are ingested on them."""

    def __init__(
        self, airflow: Any, pipelines: Sequence[KilledRows], ground: Ground, tally: Tally
    ) -> None:
        self._airflow, self._pipelines, self._tally = airflow, pipelines, tally
        self._chance, self._settings = ground.chance, ground.settings

    def wait_for_dags(self) -> None:
        """Wait until Airflow knows the DAGs."""
        known = "SELECT dag_id FROM serialized_dag WHERE dag_id LIKE 'ingest_slow%'"
        servers.wait_for(lambda: len(self._airflow.sql(known)) == len(self._pipelines), 240)

    def round(self, run_id: str, act: Callable[[], None]) -> None:
        """Have more to read, ingest all of it, and do something meanwhile."""
        for one in self._pipelines:
            one.grow()
            self._airflow.trigger(f"ingest_{one.name}", run_id)
        began = time.monotonic()
        act()
        states: list[str] = []
        until_s = time.monotonic() + _ENDS_WITHIN_S
        while time.monotonic() < until_s:
            query = f"SELECT state FROM dag_run WHERE run_id = '{run_id}'"
            states = [state for (state,) in self._airflow.sql(query)]
            if len(states) == len(self._pipelines) and set(states) <= set(_RUN_ENDED):
                break
            self._airflow.keep_up()
            time.sleep(0.5)
        self._tally.stuck += sum(state != "success" for state in states)
        if self._tally.stuck:
            self._show_logs(run_id)
        print(f"{run_id}: {time.monotonic() - began:.0f} s, {states}", flush=True)

    def _show_logs(self, run_id: str) -> None:
        """Print the end of what the last try of each task of a run said."""
        query = f"SELECT dag_id, try_number FROM task_instance WHERE run_id = '{run_id}'"
        with self._airflow.client() as client:
            for dag_id, number in self._airflow.sql(query):
                page = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/ingest/logs/{number}"
                answer = client.get(page, params={"full_content": True})
                print(dag_id, answer.text[-4000:], sep="\n", file=sys.stderr)

    def kill(self) -> None:
        """Kill a node that ingests, with all that it runs; it is back when its tasks are elsewhere."""
        found = self._ingesting()
        if found is None:
            return
        node, pipeline = found
        time.sleep(self._chance.uniform(0, 3))
        members = self._airflow.members(node)
        if self._logs(pipeline)[-1] != (node, "open"):
            return  # it has ended meanwhile
        for process in members:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(members, timeout=10)
        self._tally.done["node_kills"] += 1
        until_s = time.monotonic() + _TASK_WITHIN_S
        while time.monotonic() < until_s:
            logs = self._logs(pipeline)
            if logs[-1][0] != node:
                self._tally.done["taken_over"] += (node, "taken_over") in logs
                return
            time.sleep(0.5)

    def grow(self) -> None:
        """Add a process to a worker while tasks run."""
        self._tally.done["grown"] += self._resized(1)

    def shrink(self) -> None:
        """Take a process from a worker while tasks run."""
        self._tally.done["shrunk"] += self._resized(-1)

    def _resized(self, by: int) -> bool:
        if self._ingesting() is None:
            return False
        node = self._airflow.workers()[0]
        from tests.support.real_airflow import CELERY

        path = os.pathsep.join([str(servers.CHECKOUT / "include"), str(CELERY)])
        done = subprocess.run(
            [sys.executable, "-c", _RESIZE, node, str(by)],
            env={**os.environ, "PYTHONPATH": path, "BROKER": self._airflow.broker},
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            return False
        before, after, tasks = json.loads(done.stdout.splitlines()[-1])
        print(f"{node}: {before} processes, then {after}, with {tasks} tasks", flush=True)
        return bool(after == before + by)

    def _ingesting(self) -> tuple[str, KilledRows] | None:
        """Wait for a pipeline that a node reads; None: there was none."""
        until_s = time.monotonic() + _TASK_WITHIN_S
        while time.monotonic() < until_s:
            found = [(self._logs(one)[-1], one) for one in self._pipelines if self._logs(one)]
            reading = [(log[0], one) for log, one in found if log[1] == "open"]
            if reading:
                return self._chance.choice(reading)
            self._airflow.keep_up()
            time.sleep(0.2)
        return None

    def _logs(self, pipeline: KilledRows) -> list[tuple[str, str]]:
        """Return (node, state) of a pipeline's logs, in the order in which they were claimed."""
        query = text(
            "SELECT node, state FROM write_ahead_logs WHERE pipeline_id = :id ORDER BY epoch"
        )
        with open_tracker(self._settings.tracker) as tracker, tracker.transaction() as connection:
            rows = connection.execute(query, {"id": f"{pipeline.team}-{pipeline.name}"})
            return [(row.node, row.state) for row in rows]


PARTS: Mapping[str, Callable[[Ground, Tally], None]] = {
    **{name: partial(connector, make) for name, make in CONNECTORS.items()},
    "collector": collector,
    "postgres-restarts": postgres_restarts,
    "mysql-away": mysql_away,
    "celery": celery,
}


def play(name: str, ground: Ground) -> Tally:
    """Do one part, and judge it."""
    began, tally = time.monotonic(), Tally(name, Counter())
    PARTS[name](ground, tally)
    tally.seconds = round(time.monotonic() - began, 1)
    return tally


COUNTS = ("records", "lost", "doubled", "copies", "unbalanced", "stuck")


def report_of(tallies: Sequence[Tally], seed: int, seconds: float) -> dict[str, Any]:
    """Return the figures: sums, and those of each part."""
    faults: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for one in tallies:
        faults += one.done
        missed += Counter({f"{one.part}: {kind}": n for kind, n in one.missed.items()})
    return {
        "kills": faults["kills"] + faults["node_kills"],
        **{name: sum(getattr(one, name) for one in tallies) for name in COUNTS},
        "seed": seed,
        "seconds": round(seconds, 1),
        "faults": dict(sorted(faults.items())),
        "missed": dict(sorted(missed.items())),
        "parts": {
            one.part: {
                **{name: getattr(one, name) for name in COUNTS},
                **one.done,
                **({"points": dict(sorted(one.points.items()))} if one.points else {}),
                "seconds": one.seconds,
            }
            for one in tallies
        },
    }


def show(tallies: Sequence[Tally], seed: int) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"ingestion under faults, seed {seed}")
    table.add_column("part")
    table.add_column("faults done")
    for name in (*COUNTS, "seconds"):
        table.add_column(name, justify="right")
    for one in tallies:
        faults = ", ".join(f"{kind} {one.done[kind]} of {n}" for kind, n in one.asked.items())
        table.add_row(one.part, faults, *(str(getattr(one, n)) for n in (*COUNTS, "seconds")))
    Console(width=160).print(table)


def exit_code(tallies: Sequence[Tally]) -> int:
    """Return how the command ends, and say why on the standard error: see the module."""
    for one in tallies:
        if one.wrong:
            counts = ", ".join(f"{getattr(one, name)} {name}" for name in COUNTS[1:])
            print(f"{one.part}: of {one.records} records: {counts}", file=sys.stderr)
        for kind, number in sorted(one.missed.items()):
            asked = one.asked[kind]
            print(f"{one.part}: {kind}: {number} of {asked} asked for not done", file=sys.stderr)
    if any(one.wrong for one in tallies):
        return 1
    return 2 if any(one.missed for one in tallies) else 0


@contextmanager
def _servers(home: Path, stack: ExitStack) -> Iterator[Callable[[str], Any]]:
    """Start each server when it is first asked for."""
    from tests.support.airflow_metadata import AirflowMetadata
    from tests.support.mariadb import MariaDb

    known: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name in ("postgres", "kafka", "s3"):
            start = getattr(servers, f"start_{name}")
            return stack.enter_context(servers.started(start, home))
        if name == "mariadb":
            server = MariaDb()
            stack.callback(server.stop)
            return server
        folder = home / "airflow-original"
        folder.mkdir(mode=0o755)
        metadata = AirflowMetadata(found("postgres"), folder)
        stack.callback(metadata.end)
        return metadata

    def found(name: str) -> Any:
        if name not in known:
            known[name] = make(name)
        return known[name]

    yield found


def main() -> int:
    size = QUICK if os.environ.pop("QUICK", "") == "1" else FULL
    size = replace(size, kills=int(os.environ.pop("KILLS", size.kills)))
    names = os.environ.pop("PARTS", ",".join(PARTS)).split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        print(f"PARTS: no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    seed = int(os.environ.pop("INGESTION_SEED", random.randrange(10**6)))
    print(f"seed {seed}: {', '.join(names)}", flush=True)
    began, tallies = time.monotonic(), []
    with opened_home() as (home, stack), _servers(home, stack) as found:
        for name in names:
            work = home / "parts" / name
            work.mkdir(parents=True)
            settings = servers.stack_settings(found("postgres"), found("kafka"), found("s3"), work)
            chance = random.Random(f"{seed} {name}")
            tallies.append(play(name, Ground(settings, work, found, size, chance)))
            print(f"{name}: {tallies[-1].seconds} s", flush=True)
    show(tallies, seed)
    print(json.dumps(report_of(tallies, seed, time.monotonic() - began)))
    return exit_code(tallies)


if __name__ == "__main__":
    sys.exit(main())
