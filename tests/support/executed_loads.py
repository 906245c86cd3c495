"""Loads by Spark's executors: processes of their own on this machine, and what is done to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests import servers
from tests.support import children, processes
from tests.support.loads import Loads

from waybill.loading import LoadPlan, LoadReport
from waybill.loading.spark import ExecutorLoads
from waybill.processing.spark import ExecutorSettings, open_session
from waybill.settings import Settings, SparkSettings, TraceSettings
from waybill.stack import jars
from waybill.storage import deployment_of

_EXECUTOR = "CoarseGrainedExecutorBackend"
_LOCK = 7_710


@contextmanager
def real_executors(folder: Path, count: int, silence_s: int) -> Iterator[SparkSession]:
    """Open a session whose executors are processes of their own.

    One that is silent for ``silence_s`` is lost.

    Its JVM is a new one: executors inherit their environment from it, and another test may have
    started that of this process with ``WAYBILL_…`` variables of its own.
    """
    jars.ensure(servers.JARS)
    _end_gateway()
    settings = SparkSettings(
        master=f"local-cluster[{count},1,1024]",
        jars_dir=servers.JARS / jars.SPARK,
        work_dir=folder,
        driver_memory="512m",
    )
    silence = {
        "spark.network.timeout": f"{silence_s}s",
        "spark.network.timeoutInterval": "2s",
        "spark.executor.heartbeatInterval": "1s",
    }
    session = open_session(settings, name="loads", conf=silence)
    try:
        yield session
    finally:
        session.stop()


def _end_gateway() -> None:
    """End this process's JVM, if it has one; the next session starts another."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        process = gateway.proc
        process.stdin.close()  # it lives until then
        process.wait(timeout=600)
        SparkContext._gateway = SparkContext._jvm = None


class SpiedExecutors:
    """Has executors carry out plans, and keeps them, with what was reported."""

    def __init__(self, loads: Loads, spark: SparkSession, folder: Path) -> None:
        settings = Settings(
            _env_file=None,
            s3=loads.s3,
            destinations={loads.name: loads.settings},
            traces=TraceSettings(spool_dir=folder / "traces"),
        )
        sent = ExecutorSettings.of(settings, deployment_of(loads.tracker), loads=loads.name)
        self._real = ExecutorLoads(spark, sent)
        self.plans: list[LoadPlan] = []
        self.reports: list[LoadReport] = []

    def __call__(self, plan: LoadPlan) -> Any:
        self.plans.append(plan)
        reports = self._real(plan)
        self.reports += reports
        return reports


def executors() -> list[psutil.Process]:
    """Return the executors' JVMs that this process's session started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if any(_EXECUTOR in part for part in child.cmdline()):
                found.append(child)
    return found


def kill_executors() -> None:
    """Kill all executors with their Python workers; Spark starts others."""
    for executor in executors():
        with suppress(psutil.NoSuchProcess):
            below = executor.children(recursive=True)
            for process in (executor, *below):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def executor_at(port: int) -> psutil.Process:
    """Return the executor of which a worker has a connection to a port."""
    for executor in executors():
        for process in executor.children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(c.raddr and c.raddr.port == port for c in process.net_connections("tcp")):
                    return executor
    raise AssertionError(f"no executor has a connection to port {port}")


@contextmanager
def frozen(executor: psutil.Process) -> Iterator[None]:
    """Freeze an executor with all its workers for as long as the block takes."""
    pids = [process.pid for process in (executor, *executor.children(recursive=True))]
    processes.freeze(pids)
    try:
        yield
    finally:
        processes.wake(pids)


@contextmanager
def held_at_commit(loads: Loads) -> Iterator[psycopg.Connection]:
    """Have loads into ``shop.orders`` wait at their COMMIT, until the lock is let go of."""
    with psycopg.connect(loads.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE OR REPLACE FUNCTION shop.hold() RETURNS trigger LANGUAGE plpgsql AS $$ "
            f"BEGIN PERFORM pg_advisory_xact_lock_shared({_LOCK}); RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON shop.orders "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION shop.hold()"
        )
        connection.execute(f"SELECT pg_advisory_lock({_LOCK})")
        yield connection


def let_go(connection: psycopg.Connection) -> None:
    """Let loads that wait at their COMMIT go on."""
    connection.execute(f"SELECT pg_advisory_unlock({_LOCK})")


def waiting_backends(connection: psycopg.Connection, event: str = "advisory") -> list[int]:
    """Return the pids of the server's processes that wait for a lock."""
    rows = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = %s "
        "AND datname = current_database()",
        (event,),
    )
    return [int(row[0]) for row in rows]


def wait_for_backend(connection: psycopg.Connection, event: str = "advisory") -> int:
    """Wait until one of the server's processes waits for a lock; return its pid."""
    children.wait_until(
        lambda: bool(waiting_backends(connection, event)), limit_s=900, what=f"a wait for {event}"
    )
    return waiting_backends(connection, event)[0]


class Delivered:
    """A delivery in a thread of its own; ``end`` raises what it raised."""

    def __init__(self, loads: Loads, patience: Any, until: int) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                loads.deliver(patience, until)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self, limit_s: float = 900.0) -> None:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "the load does not end"
        if self._error is not None:
            raise self._error
