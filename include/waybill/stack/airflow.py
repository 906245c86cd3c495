"""Airflow 3.3: API server, scheduler, DAG processor, triggerer, on the stack's PostgreSQL.

- One user, ``admin``, with a generated password (SimpleAuthManager). All on 127.0.0.1; the log
  servers of scheduler and triggerer are left out, since they listen everywhere: the API server
  reads the files itself.
- DAGs that move data are paused at creation. An ingest DAG's schedule starts its first run the
  moment it is known: bringing up the stack would begin to take in data that nobody asked for.
  ``waybill demo``, or a click, unpauses. All others, upkeep and replays, are on from the beginning:
  see the setting ``airflow.unpaused_dags``.
- A task whose process died is noticed after 60 s (300 by default).
- DAG files are parsed every five minutes (30 s by default), 24 forks, and at once when they change.
  Of the declarations, which the 16 of the family ``ingest`` read, a change is seen within these
  five minutes, or when ``waybill deploy`` says so. A new file is found within 5 s.
- Tasks get ``WAYBILL_HOME``, absolute, and read everything else from ``stack.env``, which is newer
  than they.
- The metadata database is migrated once for each Airflow version; the stamp is compared with the
  database. The pools are made with it, and get the sizes of the settings when these change; sizes
  that somebody set in Airflow stay until then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import waybill
from waybill.settings import AirflowSettings, Settings, source_pool
from waybill.stack import state_folder
from waybill.stack.credentials import Credentials
from waybill.stack.postgres import LIMITS, Postgres
from waybill.stack.service import ServiceError, SpawnedService

USER = "admin"
_LIBRARY = str(Path(waybill.__file__).resolve().parents[1])
HEALTH_AGE_S = 1.0
PARSE_INTERVAL_S = 300
"""Between two parses of a DAG file that did not change; compose has the same."""
AUTH_MANAGER = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
HEALTH_KEYS = {
    "api-server": "metadatabase",
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}


def pool_sizes(settings: AirflowSettings) -> dict[str, tuple[int, str]]:
    """Return Waybill's pools of Airflow: {name: (slots, what it is for)}."""
    return {
        "waybill_ingest": (settings.ingest_slots, "Waybill: ingest runs at once"),
        "waybill_replay": (settings.replay_slots, "Waybill: replays and dry runs at once"),
    } | {
        source_pool(connection): (slots, "Waybill: runs at once that read by a connection")
        for connection, slots in settings.source_slots.items()
    }


class Airflow:
    """What the four components share: environment, database, health page."""

    def __init__(self, settings: Settings, credentials: Credentials, postgres: Postgres) -> None:
        self.settings = settings
        self.home = settings.home.absolute() / "airflow"
        self.port = settings.stack.airflow_port
        self.credentials = credentials
        self.postgres = postgres
        self._migrating = threading.Lock()
        self._health: tuple[float, dict[str, Any]] = (0.0, {})

    @property
    def url(self) -> str:
        """Return the address of the UI and the API."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return the whole environment of a component."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WAYBILL_", "AIRFLOW"))}
        bin_dir = str(Path(sys.executable).parent)
        return {
            **kept,
            **self._options(),
            "PATH": os.pathsep.join([bin_dir, kept.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(filter(None, [_LIBRARY, kept.get("PYTHONPATH")])),
            "AIRFLOW_HOME": str(self.home),
            "WAYBILL_HOME": str(self.settings.home.absolute()),
            "PYTHONUNBUFFERED": "1",
        }

    def _options(self) -> dict[str, str]:
        secret, dags = self.credentials, self.settings.dags_dir.absolute()
        sections: dict[str, dict[str, object]] = {
            "CORE": {
                "DAGS_FOLDER": dags,
                "LOAD_EXAMPLES": False,
                "EXECUTOR": "LocalExecutor",
                "PARALLELISM": 8,
                "DAGS_ARE_PAUSED_AT_CREATION": True,
                # Else a DAG that changes twice in half a minute is stale until the next parse.
                "MIN_SERIALIZED_DAG_UPDATE_INTERVAL": 0,
                "AUTH_MANAGER": AUTH_MANAGER,
                "SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
                "SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": self.home / "passwords.json",
                "EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
                "FERNET_KEY": secret.airflow_fernet_key,
            },
            "DATABASE": {
                "SQL_ALCHEMY_CONN": self.postgres.dsn("airflow", "psycopg2"),
                "SQL_ALCHEMY_CONN_ASYNC": self.postgres.dsn("airflow", "asyncpg"),
            },
            "API": {
                "HOST": "127.0.0.1",
                "PORT": self.port,
                "BASE_URL": self.url,
                "WORKERS": 1,
                "SECRET_KEY": secret.airflow_secret_key,
            },
            "API_AUTH": {"JWT_SECRET": secret.airflow_jwt_secret},
            "SCHEDULER": {"TASK_INSTANCE_HEARTBEAT_TIMEOUT": 60},
            "DAG_PROCESSOR": {
                "REFRESH_INTERVAL": 5,
                "MIN_FILE_PROCESS_INTERVAL": PARSE_INTERVAL_S,
                "PARSING_PROCESSES": 1,
            },
            "LOGGING": {"BASE_LOG_FOLDER": self.home / "logs"},
            "USAGE_DATA_COLLECTION": {"ENABLED": False},
        }
        return {
            f"AIRFLOW__{section}__{name}": str(value)
            for section, options in sections.items()
            for name, value in options.items()
        }

    def prepare(self) -> None:
        """Write the password file and migrate the database, once; callers of other threads wait."""
        with self._migrating:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            passwords = {USER: self.credentials.airflow_password}
            state_folder.write_private(self.home / "passwords.json", json.dumps(passwords))
            stamp, found = self._read_stamp(), self._stamp()
            if not found["revision"]:
                stamp = {}  # an empty database has no pools
                self._write_stamp(stamp)
            if any(stamp.get(name) != value for name, value in found.items()):
                self._run("db", "migrate", failed="its database could not be migrated")
                stamp = {**stamp, **self._stamp()}
                self._write_stamp(stamp)
            if stamp.get("pools") != self._pools():
                file = self.home / "pools.json"
                state_folder.write_private(file, json.dumps(self._pools()))
                self._run("pools", "import", str(file), failed="its pools could not be made")
                self._write_stamp({**stamp, "pools": self._pools()})

    def _stamp(self) -> dict[str, str]:
        return {"airflow": version("apache-airflow"), "revision": self._revision()}

    def _pools(self) -> dict[str, dict[str, Any]]:
        """Return the pools as ``airflow pools import`` reads them."""
        sizes = pool_sizes(self.settings.airflow)
        return {
            name: {"slots": slots, "description": words} for name, (slots, words) in sizes.items()
        }

    def _read_stamp(self) -> dict[str, Any]:
        try:
            stamp: dict[str, Any] = json.loads((self.home / "migrated.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return stamp

    def _revision(self) -> str:
        import psycopg

        try:
            with psycopg.connect(self.postgres.dsn("airflow"), **LIMITS) as connection:
                row = connection.execute("select version_num from alembic_version").fetchone()
        except psycopg.errors.UndefinedTable:
            return ""
        return str(row[0]) if row else ""

    def _write_stamp(self, stamp: Mapping[str, Any]) -> None:
        state_folder.write_private(self.home / "migrated.json", json.dumps(stamp))

    def _run(self, *command: str, failed: str) -> None:
        """Run a command of Airflow to its end.

        Raises:
            ServiceError: it failed, with the end of its log.
        """
        log = self.home.parent / "logs" / "airflow-migrate.log"
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("wb") as output:
            run = subprocess.run(  # noqa: S603 - commands of this module
                [sys.executable, "-m", "airflow", *command],
                env=self.environment(),
                cwd=self.home,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=600,
            )
        if run.returncode:
            raise ServiceError(
                f"airflow: {failed}. The end of its log, {log}:\n{state_folder.tail(log)}"
            )

    def health(self) -> dict[str, Any]:
        """Read the health page; the answer is kept for a second, since four services ask."""
        asked, answer = self._health
        if time.monotonic() - asked < HEALTH_AGE_S:
            return answer
        try:
            page = f"{self.url}/api/v2/monitor/health"
            with urllib.request.urlopen(page, timeout=15) as response:  # noqa: S310 - our own address
                answer = json.load(response)
        except (OSError, ValueError):
            answer = {}
        self._health = (time.monotonic(), answer)
        return answer


class AirflowComponent(SpawnedService):
    """One of the four processes."""

    after = ("postgres",)
    start_timeout_s = 180.0
    hanging_after_s = 90.0
    stop_grace_s = 15.0
    advice = "Every component's log is in the same folder; `waybill up` tries again."

    def __init__(self, airflow: Airflow, component: str) -> None:
        ports = {"airflow_port": airflow.port} if component == "api-server" else {}
        super().__init__(airflow.settings.home, ports)
        self.name = f"airflow-{component}"
        self.airflow = airflow
        self.component = component

    def prepare(self) -> None:
        """Migrate the database first."""
        self.airflow.prepare()

    def command(self) -> Sequence[str]:
        """Return ``airflow <component>``."""
        return [sys.executable, "-m", "airflow", *COMPONENTS[self.component]]

    def environment(self) -> Mapping[str, str]:
        """Return the shared environment."""
        return self.airflow.environment()

    def hangs(self) -> bool:
        """Say whether it gives no sign of life while it lives.

        After a lost connection to the database the scheduler waits for its tasks before it ends,
        and those of the stream never end. What the others do is known from the API server's page.
        """
        told = self.airflow.health()
        if not told:
            return self.component == "api-server"
        return (told.get(HEALTH_KEYS[self.component]) or {}).get("status") != "healthy"

    def healthy(self) -> bool:
        """Say whether the health page knows a fresh heartbeat of it, and the process lives."""
        if self.running() is None:
            return False
        told = self.airflow.health().get(HEALTH_KEYS[self.component]) or {}
        return told.get("status") == "healthy"
