"""The whole embedded stack: up, killed, up again, down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from tests import servers
from tests.servers import wait_for

from waybill.errors import InputError
from waybill.settings import Settings, SparkSettings
from waybill.stack import jars, ports, processes
from waybill.stack.airflow import COMPONENTS
from waybill.stack.embedded import Stack
from waybill.stack.postgres import Postgres

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]

SERVICES = {"postgres", "kafka", "s3", *(f"airflow-{name}" for name in COMPONENTS)}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home() -> Iterator[Path]:
    folder = servers.new_home()
    yield folder
    servers.end_home(folder)


@pytest.fixture
def waybill(home: Path) -> Run:
    """The command line as a user calls it, over a state folder of its own and free ports.

    The default ones of S3 are among those of outgoing connections, which take some meanwhile.
    """
    jars.ensure(servers.JARS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    env |= {
        "PYTHONPATH": str(servers.CHECKOUT / "include"),
        "WAYBILL_HOME": str(home),
        "WAYBILL_SPARK__JARS_DIR": str(servers.JARS / jars.SPARK),
        **{
            f"WAYBILL_STACK__{name.upper()}": str(port)
            for name, port in ports.port_settings(servers.random_ports()).items()
        },
    }

    def run(*words: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "waybill.cli", *words],
            cwd=servers.CHECKOUT,
            env=env | variables,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def pids(waybill: Run) -> dict[str, int]:
    lines = json.loads(waybill("status", "--json").stdout)
    assert all(line["healthy"] for line in lines), lines
    return {line["name"]: line["pid"] for line in lines}


def token(settings: Settings) -> str:
    assert settings.airflow.password is not None
    body = {"username": "admin", "password": settings.airflow.password.get_secret_value()}
    request = urllib.request.Request(
        f"{settings.airflow.url}/auth/token",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["access_token"]


def descendants(home: Path) -> list[psutil.Process]:
    """Every process that names the state folder in its command line or its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("WAYBILL_HOME", "")]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(home) in word for word in words):
            found.append(process)
    return found


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes in sessions of their own, which the stack did not start."""
    started = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_the_stack_comes_up_survives_kills_and_goes_down(
    home: Path, waybill: Run, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    said = waybill("up", "--free-ports")
    assert "Airflow: http://127.0.0.1:" in said.stdout
    for told in (said, waybill("status")):
        address = told.stdout.partition("Pages: ")[2].split()[0]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address)
        assert refused.value.code == 401, "it is there, and nobody is signed in"
    first = pids(waybill)
    assert set(first) >= SERVICES
    assert token(Settings(home=home))
    with psycopg.connect(Postgres(home).dsn("airflow")) as connection:
        query = "select pool, slots from slot_pool where pool like 'waybill%' order by pool"
        pools = connection.execute(query).fetchall()
    assert pools == [("waybill_ingest", 16), ("waybill_replay", 4)]
    _every_listener_is_on_loopback(first)
    _memory_at_rest_is_below(waybill, 5 * 1024**3)
    assert waybill("up").stderr.count("was up") == len(first)
    assert pids(waybill) == first
    assert "Services that were up" not in said.stdout
    _settings_that_wait_for_the_next_start_are_named(waybill)

    stray, foreign = sleepers
    workers = psutil.Process(first["airflow-scheduler"]).children()
    assert workers
    _kill(first)
    assert any(_lives(worker) for worker in workers)
    _point_at_a_recycled_pid(home / "run" / "kafka.json", foreign.pid)
    waybill("up")
    second = pids(waybill)
    assert set(second) == set(first)
    assert not set(second.values()) & set(first.values())
    assert not any(_lives(worker) for worker in workers)
    _only_its_owner_enters(home)
    second = _airflow_comes_back(home, waybill)

    processes.register(home / "run", "spark-processing-x", stray.pid)
    assert "spark-processing-x" in pids(waybill)
    _down_ends_the_workers_of_a_killed_scheduler(waybill, second["airflow-scheduler"])
    assert stray.wait(120) == -signal.SIGTERM
    assert foreign.poll() is None
    _nothing_is_left(home)
    _is_wiped(home, waybill)


def _is_wiped(home: Path, waybill: Run) -> None:
    waybill("down")
    waybill("down", "--wipe")
    assert [p.name for p in home.iterdir()] == [servers.OWNER]


def _airflow_comes_back(home: Path, waybill: Run) -> dict[str, int]:
    """A killed backend of PostgreSQL, then SIGKILL of all four: nobody calls ``up``."""
    stack = Stack(Settings(home=home))
    spark = subprocess.Popen(["sleep", "600"], start_new_session=True)
    processes.register(home / "run", "spark-loading-x", spark.pid)
    try:
        with psycopg.connect(Postgres(home).dsn("airflow")) as connection:
            os.kill(connection.info.backend_pid, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        names = [f"airflow-{name}" for name in COMPONENTS]
        before = wait_for(lambda: _pids_if_well(stack, names), 240)
        _kill(before)
        wait_for(lambda: not _is_ill(stack), 300)
        after = {line.name: line for line in stack.status() if line.name in names}
        assert not {line.pid for line in after.values()} & set(before.values())
        assert all(line.restarts for line in after.values())
        assert spark.poll() is None, "Airflow supervises it: it outlives its scheduler"
    finally:
        spark.kill()
        spark.wait()
        (home / "run" / "spark-loading-x.json").unlink(missing_ok=True)
    return pids(waybill)


def _pids_if_well(stack: Stack, names: list[str]) -> dict[str, int]:
    """Return the processes of some services; none where anything of the stack is ill.

    One look for both: a service may end of its lost connection just after all were well.
    """
    lines = stack.status()
    if not all(line.healthy for line in lines):
        return {}
    return {line.name: line.pid for line in lines if line.name in names and line.pid is not None}


def _is_ill(stack: Stack) -> list[str]:
    return [line.name for line in stack.status() if not line.healthy]


def _down_ends_the_workers_of_a_killed_scheduler(waybill: Run, scheduler: int) -> None:
    workers = psutil.Process(scheduler).children()
    assert workers
    _kill({"airflow-scheduler": scheduler})
    waybill("down")
    assert not any(_lives(worker) for worker in workers)


def _only_its_owner_enters(home: Path) -> None:
    assert home.stat().st_mode & 0o007 == 0
    open_ones = [p.name for p in home.iterdir() if p.is_dir() and p.stat().st_mode & 0o077]
    assert open_ones == []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _kill(pids_by_name: dict[str, int]) -> None:
    for pid in pids_by_name.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids_by_name.values()))


def _nothing_is_left(home: Path) -> None:
    wait_for(lambda: not descendants(home))
    assert processes.read_registry(home / "run") == []


def _every_listener_is_on_loopback(pids_by_name: dict[str, int]) -> None:
    for pid in pids_by_name.values():
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        connections = []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # a task that has just ended
                connections += process.net_connections("inet")
        listening = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
        assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"}, family


def _settings_that_wait_for_the_next_start_are_named(waybill: Run) -> None:
    grants = '[{"who": "user:ann", "teams": "*", "permissions": ["view"]}]'
    said = " ".join(waybill("up", WAYBILL_ACCESS__GRANTS=grants).stdout.split())
    assert "run with other values of WAYBILL_ACCESS__GRANTS: `waybill down` and" in said
    assert "user:ann" not in said
    again = json.loads(waybill("up", "--json").stdout)
    assert again["not_applied"] == ["WAYBILL_ACCESS__GRANTS"], "until they are applied"


def _memory_at_rest_is_below(waybill: Run, limit: int) -> None:
    lines = json.loads(waybill("status", "--json").stdout)
    assert sum(line["memory_bytes"] for line in lines) < limit


def _point_at_a_recycled_pid(record: Path, pid: int) -> None:
    stale = json.loads(record.read_text())
    record.write_text(json.dumps({**stale, "pid": pid}))


def test_what_an_up_that_was_killed_had_started_is_found_and_ended(home: Path) -> None:
    settings = Settings(
        _env_file=None,
        home=home,
        stack=servers.random_ports(),
        spark=SparkSettings(jars_dir=servers.JARS / jars.SPARK),
    )
    env = {"PYTHONPATH": str(servers.CHECKOUT / "include"), **settings.to_env()}
    killed = subprocess.Popen(
        [sys.executable, "-m", "waybill.cli", "up"],
        cwd=servers.CHECKOUT,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for((home / "run" / "kafka.json").exists, 120)
    killed.kill()
    killed.wait()
    assert [r.name for r in processes.read_registry(home / "run") if r.process() is not None]
    Stack(settings).down()
    wait_for(lambda: not descendants(home))


def test_a_stack_that_runs_on_other_ports_is_not_moved_in_silence(home: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    processes.register(home / "run", "kafka", sleeper.pid, ports={"kafka_port": 12345})
    stack = servers.random_ports()
    settings = Settings(
        _env_file=None,
        home=home,
        stack=stack,
        spark=SparkSettings(jars_dir=servers.JARS / jars.SPARK),
    )
    try:
        with pytest.raises(InputError, match=f"kafka_port is 12345, wanted {stack.kafka_port}"):
            Stack(settings).up()
    finally:
        sleeper.kill()
        sleeper.wait()
