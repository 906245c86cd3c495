"""What an idle stack costs: ``waybill up``'s own, with the demo's two pipelines, no events.

CPU is that of processes and of their children that ended, over a window in which nothing but upkeep
happens; shares are of one core. What counts as Waybill's:

==========  ====================================================================================
shift       the warm task of the DAG ``upkeep``, and the process of Airflow that supervises it
tracker     PostgreSQL's backends for the tracker, and all of its backends that ended meanwhile
parses      the DAG processor's forks, which parse Waybill's files; there are no others
shipper     the trace shipper
streams     the two Spark applications (not in the short form; they are paused at first)
==========  ====================================================================================

Not counted as Waybill's, but in the total: what Airflow's own processes, Kafka and the object store
do, heartbeats of the shift at the API server too.

A round is measured in a process of its own, which runs all jobs again and again, as a shift does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import psycopg

PIPELINES = ("flights", "weather")
WINDOW_S, QUICK_WINDOW_S = 300.0, 90.0
ROUNDS, QUICK_ROUNDS = 100, 30
TRIES = 4
WARM_ROUNDS = 10
QUIET_S = 75.0
"""After so long without events a query of the streams is idle."""
WORDS = {
    "idle_core_share": "of a core: what Waybill adds to idle servers",
    "idle_total_core_share": "of a core: the whole idle stack",
    "idle_shift_share": "of it the warm task of upkeep",
    "idle_tracker_share": "of it PostgreSQL for the tracker",
    "idle_parses_share": "of it the DAG processor's parses",
    "idle_shipper_share": "of it the trace shipper",
    "idle_streams_share": "of it two Spark applications, no events in their topics",
    "idle_scheduler_share": "of a core: Airflow's scheduler, without the shift",
    "idle_dag_processor_share": "of a core: Airflow's DAG processor, without parses",
    "idle_triggerer_share": "of a core: Airflow's triggerer",
    "idle_api_server_share": "of a core: Airflow's API server",
    "idle_servers_share": "of a core: PostgreSQL for Airflow, Kafka, S3, the supervisor",
    "upkeep_run_cpu_s": "CPU s of a round of all jobs, warm",
    "upkeep_task_cpu_s": "CPU s of one job as a task of its own",
    "upkeep_rss_mb": "MB of the warm task",
    "upkeep_growth_kb": "kB that a round leaves behind",
}
ROUND = """
import json, os, sys, time
from dataclasses import replace
import psutil
from waybill.services import upkeep as service
from waybill.services import UpkeepParts
from waybill.settings import Settings
from waybill.storage import open_tracker
from waybill.upkeep import JOBS, records, shift
warm, rounds = map(int, sys.argv[1:])
jobs = tuple(replace(job, interval_s=0.0) for job in JOBS)
records.JOBS = shift.JOBS = jobs
me = psutil.Process()
settings = Settings()
with open_tracker(settings.tracker) as tracker:
    one = service._shift(settings, UpkeepParts(None, "bench", str), tracker)
    def round():
        for job in jobs:
            one.run_now(job, wait_s=120)
    for _ in range(warm):
        round()
    began, before = time.process_time(), me.memory_info().rss
    for _ in range(rounds):
        round()
    taken, after = time.process_time() - began, me.memory_info().rss
print(json.dumps({"cpu_s": taken / rounds, "kb": (after - before) / 1024 / rounds}))
"""


def run(home: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures; starts and stops a stack of its own under ``home``."""
    with ExitStack() as stack:
        stack_of = _Stack(home)
        stack.callback(stack_of.waybill, "down")
        stack_of.up()
        for name in PIPELINES:
            stack_of.waybill("pipelines", "deploy", name)
        if not quick:
            stack_of.start_streams()
        stack_of.wait_for_upkeep()
        if not quick:
            time.sleep(QUIET_S)
        figures = stack_of.idle(QUICK_WINDOW_S if quick else WINDOW_S)
        figures["upkeep_task_cpu_s"] = stack_of.task_cpu_s()
        return figures | stack_of.rounds(QUICK_ROUNDS if quick else ROUNDS)


class _Stack:
    """A stack under a state folder, and what its processes have used."""

    def __init__(self, home: Path) -> None:
        from tests import servers

        from waybill.stack import jars, ports

        jars.ensure(servers.JARS)
        self.home = home / "stack"
        self._env = {
            **os.environ,
            "PYTHONPATH": str(servers.CHECKOUT / "include"),
            "WAYBILL_HOME": str(self.home),
            "WAYBILL_SPARK__JARS_DIR": str(servers.JARS / jars.SPARK),
            **{
                f"WAYBILL_STACK__{name.upper()}": str(port)
                for name, port in ports.port_settings(servers.random_ports()).items()
            },
        }

    def up(self) -> None:
        """Start the stack; a service that is slow, on a busy machine, is waited for again."""
        for tries_left in reversed(range(TRIES)):
            try:
                self.waybill("up", "--json")
            except SystemExit:
                if not tries_left:
                    raise
            else:
                return

    def waybill(self, *words: str) -> str:
        """Run a command, and return what it prints."""
        return self._python("-m", "waybill.cli", *words)

    def _python(self, *words: str) -> str:
        from tests import servers

        done = subprocess.run(
            [sys.executable, *words],
            cwd=servers.CHECKOUT,
            env=self._env,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{words[:3]} ended with {done.returncode}: {done.stdout[-3000:]}")
        return done.stdout

    def start_streams(self) -> None:
        """Have the two applications run, and wait until both report."""
        with self._airflow() as airflow:
            airflow.wait_for_dags({"stream_default", "stream_clusters"}, limit_s=300)
            for dag_id in ("stream_default", "stream_clusters"):
                airflow.unpause(dag_id)
        query = "SELECT count(*) FROM applications WHERE at_work AND ended_at IS NULL"
        _wait(lambda: self._ask(query) == [(2,)], "both applications are at work", 900)

    def wait_for_upkeep(self) -> None:
        """Wait until a shift has run each job twice, so that starts are over."""
        query = "SELECT count(*), min(succeeded_at) FROM upkeep_jobs WHERE succeeded_at IS NOT NULL"
        from waybill.upkeep import JOBS

        seen: list[Any] = []

        def is_warm() -> bool:
            found, oldest = self._ask(query)[0]
            if found == len(JOBS):
                seen.append(oldest)
            return bool(seen) and oldest > seen[0]

        _wait(is_warm, "each job has run twice", 600)

    def idle(self, window_s: float) -> dict[str, Any]:
        """Return shares of a core over a window."""
        before, began = self._used(), time.monotonic()
        time.sleep(window_s)
        after, spent = self._used(), time.monotonic() - began
        if before["shift_pid"] != after["shift_pid"]:
            raise SystemExit("another shift began within the window: measure again")
        del before["shift_pid"], after["shift_pid"]
        share = {name: round((after[name] - before[name]) / spent, 4) for name in after}
        ours = [
            name for name in ("shift", "tracker", "parses", "shipper", "streams") if name in share
        ]
        shift = psutil.Process(self._shift_pid())
        return {
            "idle_core_share": round(sum(share[name] for name in ours), 4),
            "idle_total_core_share": round(sum(share.values()), 4),
            **{f"idle_{name}_share": value for name, value in share.items()},
            "upkeep_rss_mb": shift.memory_info().rss // 2**20,
        }

    def _used(self) -> dict[str, float]:
        """Return CPU seconds so far, by part; each process is in one part."""
        pids = {one["name"]: one["pid"] for one in json.loads(self.waybill("status", "--json"))}
        tree = {name: _tree_s(pid) for name, pid in pids.items()}
        shift = self._shift_pid()
        supervisor = psutil.Process(shift).ppid()
        in_shift = _tree_s(shift) + _own_s(supervisor)
        parses = _ended_s(pids["airflow-dag-processor"])
        postgres = psutil.Process(pids["postgres"])
        backends = [
            _own_s(one.pid)
            for one in postgres.children()
            if re.search(r"postgres: \S+ waybill ", " ".join(one.cmdline()))
        ]
        tracker = _ended_s(postgres.pid) + sum(backends)
        servers = ("postgres", "kafka", "s3", "supervisor")
        used = {
            "shift_pid": float(shift),
            "shift": in_shift,
            "tracker": tracker,
            "parses": parses,
            "shipper": tree["trace-shipper"],
            "scheduler": tree["airflow-scheduler"] - in_shift,
            "dag_processor": tree["airflow-dag-processor"] - parses,
            "triggerer": tree["airflow-triggerer"],
            "api_server": tree["airflow-api-server"],
            "servers": sum(tree[name] for name in servers) - tracker,
        }
        if streams := [name for name in tree if name.startswith("spark-")]:
            used["streams"] = sum(tree[name] for name in streams)
        return used

    def task_cpu_s(self) -> float:
        """Return what the scheduler's processes use to run one job by hand, beyond what is idle."""
        run_id = "bench"
        pid = next(
            one["pid"]
            for one in json.loads(self.waybill("status", "--json"))
            if one["name"] == "airflow-scheduler"
        )
        with self._airflow() as airflow:
            before, began = _tree_s(pid), time.monotonic()
            airflow.trigger("coordinate", run_id, {})
            state = airflow.follow("coordinate", run_id, limit_s=600)
            used, spent = _tree_s(pid) - before, time.monotonic() - began
            if state != "success":
                raise SystemExit(f"the run of coordinate is {state}")
        before = _tree_s(pid)
        time.sleep(spent)
        return round(used - (_tree_s(pid) - before), 2)

    def rounds(self, number: int) -> dict[str, Any]:
        """Return what a round of all jobs uses and leaves behind."""
        with self._airflow() as airflow:
            airflow.pause("upkeep")
        query = "SELECT count(*) FROM upkeep_jobs WHERE token IS NOT NULL"
        _wait(lambda: not psutil.pid_exists(self._shift_pid()), "the shift has ended", 120)
        _wait(lambda: self._ask(query) == [(0,)], "no job runs", 120)
        said = self._python("-c", ROUND, str(WARM_ROUNDS), str(number)).splitlines()
        found = next(json.loads(line) for line in said if line.startswith('{"cpu_s"'))
        return {
            "upkeep_run_cpu_s": round(found["cpu_s"], 3),
            "upkeep_growth_kb": round(found["kb"], 1),
        }

    def _shift_pid(self) -> int:
        [(holder,)] = self._ask(
            "SELECT holder FROM upkeep_jobs WHERE holder LIKE 'upkeep/%' "
            "ORDER BY started_at DESC LIMIT 1"
        )
        return int(holder.rpartition(" ")[2])

    def _ask(self, query: str) -> list[Any]:
        dsn = self._settings().tracker.dsn.get_secret_value()
        with psycopg.connect(dsn.replace("+psycopg", "")) as connection:
            return connection.execute(query).fetchall()

    def _airflow(self) -> Any:
        from waybill.services.airflow_client import AirflowClient

        return AirflowClient(self._settings().airflow)

    def _settings(self) -> Any:
        from waybill.settings import Settings

        os.environ["WAYBILL_HOME"] = str(self.home)
        try:
            return Settings()
        finally:
            del os.environ["WAYBILL_HOME"]


def _own_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _ended_s(pid: int) -> float:
    """Return what the children of a process used that it has waited for."""
    times = psutil.Process(pid).cpu_times()
    return float(times.children_user + times.children_system)


def _tree_s(pid: int) -> float:
    """Return what a process and all below it used, those that ended among them."""
    root, used = psutil.Process(pid), 0.0
    for one in [root, *root.children(recursive=True)]:
        try:
            used += _own_s(one.pid) + _ended_s(one.pid)
        except psutil.NoSuchProcess:  # it is among those that ended
            continue
    return used


def _wait(true: Callable[[], bool], what: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if true():
                return
        except psycopg.Error:  # the table is not there yet
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {limit_s:.0f} s: {what}")
        time.sleep(2)
