"""The demo, with its processing application, its collector, and itself killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import psycopg
import pytest
from tests import servers
from tests.support.orders import write_orders
from tests.support.processes import has_ended

from waybill.stack import free_port
from waybill.stack.postgres import Postgres

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
]
KILLS = 3
EXPECTED = {
    "ingested": 336_776 + 26_115,
    "delivered": 336_776 + 26_115,
    "parked": 0,
    "replayed": 8_255 + 458 + 29 + 150 + 2_729,
    "unaccounted": 0,
}
SOURCES = {"collector_events": 10_000, "cdc_events": 3_000 + 20 * (16 + 50 + 10)}
REQUESTS = 20


def ports_as_variables() -> dict[str, str]:
    free = servers.random_ports()
    return {
        f"WAYBILL_STACK__{name.upper()}": str(value)
        for name, value in free.model_dump().items()
        if name.endswith("_port")
    }


class Killer(threading.Thread):
    """SIGKILLs the processing application each time it has got going again."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.record = home / "run" / "spark-processing-default.json"
        self.log = home / "logs" / "spark-processing-default.log"
        self.killed: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        starts = 0
        while len(self.killed) < KILLS and not self.over.wait(0.2):
            if self.starts() > starts and (pid := self.another()):
                time.sleep(1.5 * len(self.killed))  # while it starts, in a batch, after one
                self.kill_one(pid)
                starts = self.starts()

    def starts(self) -> int:
        """How many times a query began: only then is there something to be killed at."""
        if not self.log.exists():
            return 0
        return self.log.read_text(errors="replace").count("starts at")

    def another(self) -> int | None:
        """Return the process of an application that was not killed yet."""
        pid = json.loads(self.record.read_text())["pid"]
        return pid if pid not in self.killed and psutil.pid_exists(pid) else None

    def kill_one(self, pid: int) -> None:
        victims = {0: pid, 1: next(iter(jvms(pid)), pid), 2: pid}
        application = psutil.Process(pid)
        os.kill(victims[len(self.killed)], signal.SIGKILL)
        self.killed.append(pid)
        while not has_ended(application):
            time.sleep(0.1)


def jvms(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children() if child.name() == "java"]


class Stack:
    """The embedded stack of a home of its own, met only through the CLI."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **os.environ,
            "WAYBILL_HOME": str(home),
            "WAYBILL_SPARK__JARS_DIR": str(servers.JARS / "spark"),
            "WAYBILL_SPARK__MAX_EVENTS_PER_BATCH": "50000",
            "WAYBILL_COLLECTOR__PORT": str(free_port()),
            **ports_as_variables(),
        }

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "waybill.cli", *words, **more)

    def python(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            check=False,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=1200,
            cwd=servers.CHECKOUT,
        )

    def asked(self, *words: str, **more: str) -> str:
        done = self.run(*words, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


INGEST = """
from waybill.settings import Settings
from waybill.services import run_ingest
run_ingest(Settings(), "orders")
"""


def a_users_own_pipeline(stack: Stack, folder: Path) -> None:
    """Deploy one beside the demo's and take its events in; 60 of 1,000 park, and stay so."""
    deployed = write_orders(folder, rows=1_000)
    stack.asked("up")
    stack.asked("pipelines", "deploy", str(deployed))
    done = stack.python("-c", INGEST, WAYBILL_PIPELINES_DIR=str(deployed.parent))
    assert done.returncode == 0, done.stderr


def parked_orders(stack: Stack) -> int:
    rows = json.loads(stack.asked("parked", "list", "orders", "--json"))
    return sum(row["parked"] for row in rows)


def test_kills_and_a_neighbour_change_nothing_but_the_seconds(tmp_path: Path) -> None:
    """Three SIGKILLs of processing, and a user's own pipeline in the same stack.

    The demo neither counts, nor replays, nor wipes what is the user's.
    """
    home = servers.new_home()
    stack = Stack(home)
    killer = Killer(home)
    try:
        a_users_own_pipeline(stack, tmp_path)
        killer.start()
        done = stack.run("demo", "--exit")
        killer.over.set()
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert len(killer.killed) == KILLS
        result = json.loads(done.stdout.strip().splitlines()[-1])
        assert result.pop("seconds") > 0
        assert result == EXPECTED

        again = stack.run("demo", "--exit")
        assert again.returncode == 1
        assert "orders live here" in " ".join(again.stderr.split())
        Postgres(home).start()
        assert parked_orders(stack) == 60
    finally:
        killer.over.set()
        stack.run("down")
        servers.end_home(home)


class CollectorKiller(threading.Thread):
    """SIGKILLs the collector once it has answered a request."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.record = home / "run" / "collector.json"
        self.log = home / "logs" / "collector.log"
        self.answered = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.01):
            if self.log.exists() and (answered := self.log.read_text().count("departures 202")):
                os.kill(json.loads(self.record.read_text())["pid"], signal.SIGKILL)
                self.answered = answered
                return


def cut_off(stack: Stack, *words: str, at: str) -> None:
    """Run a command and SIGKILL it as soon as it prints a text."""
    with subprocess.Popen(
        [sys.executable, "-m", "waybill.cli", *words],
        env={**stack.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        cwd=servers.CHECKOUT,
    ) as child:
        said = []
        for line in child.stdout or ():
            said.append(line)
            if at in line:
                child.kill()
                return
    raise AssertionError("".join(said)[-3000:])


def rows(dsn: str, table: str) -> list[tuple[object, ...]]:
    columns = "tailnum, year, type, manufacturer, model, engines, seats, speed, engine, status"
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY tailnum").fetchall()


def test_a_demo_of_all_sources_is_resumed_after_its_own_death_and_its_collectors() -> None:
    """SIGKILL of the collector amid requests, and of the demo amid changes of the database.

    What was sent or changed before is neither lost nor there twice, and no slot is left.
    """
    home = servers.new_home()
    stack = Stack(home)
    killer = CollectorKiller(home)
    try:
        killer.start()
        cut_off(stack, "demo", "--sources", at="10 The table changes")
        killer.over.set()
        assert 0 < killer.answered < REQUESTS
        done = stack.run("demo", "--sources", "--exit")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        result = json.loads(done.stdout.strip().splitlines()[-1])
        assert result.pop("seconds") > 0
        assert result == EXPECTED | SOURCES

        server = Postgres(home)
        server.start()
        fleet, warehouse = server.dsn("demo_fleet"), server.dsn("warehouse")
        held = rows(fleet, "public.planes")
        assert len(held) == 3_000 + 20 * (16 - 10)
        assert rows(warehouse, "aviation.planes") == held
        with psycopg.connect(warehouse) as connection:
            found = connection.execute(
                "SELECT count(*), count(DISTINCT id), (SELECT count(*) FROM pg_replication_slots)"
                " FROM aviation.departures"
            )
            assert found.fetchone() == (10_000, 10_000, 0)
    finally:
        killer.over.set()
        stack.run("down")
        servers.end_home(home)
