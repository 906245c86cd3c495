"""Airflow's metadata database: made once, with the DAGs of replays in it; each server has a copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from tests.servers import PostgresServer
from tests.support.fresh_checkout import psql_folder

ROOT = Path(__file__).parents[2]
DAGS = ("replay", "replay_parked_partitions")
"""That are in it, without a DAG processor."""
_TIMEOUT_S = 900
_MAKE = """
import fcntl, os, subprocess, sys
from pathlib import Path

shared, home = Path({shared!r}), Path({home!r})
turn = open(shared / "airflow.lock", "w")
fcntl.flock(turn, fcntl.LOCK_EX)  # until this process ends
if (shared / "airflow.sql").exists():
    words = ("-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", {dsn!r}, "-f", shared / "airflow.sql")
    sys.exit(subprocess.run([{psql!r}, *words], stdout=subprocess.DEVNULL).returncode)

from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.utils import db
from airflow.utils.session import create_session

db.initdb()
with create_session() as session:
    session.merge(DagBundleModel(name="dags-folder"))
for path in {paths!r}:
    bag = DagBag(path, bundle_path={folder!r}, bundle_name="dags-folder")
    assert not bag.import_errors, bag.import_errors
    sync_bag_to_db(bag, "dags-folder", None)
subprocess.run([{pg_dump!r}, "-d", {dsn!r}, "-f", home / "airflow.sql"], check=True)
os.replace(home / "airflow.sql", shared / "airflow.sql")
"""
"""Who is the first makes it, for 4 s of CPU, and writes it down for the others: 0.3 s."""


@dataclass
class AirflowMetadata:
    """The original, made in a process of its own from the start on, and its copies.

    Args:
        postgres: where it is.
        home: Airflow's, of the process that makes it.
        shared: a folder of all who may use what one of them made.
    """

    postgres: PostgresServer
    home: Path
    shared: Path | None = None
    _making: subprocess.Popen[str] = field(init=False)
    _dsn: str = field(init=False)
    _made: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Begin to make the original."""
        self._dsn = self.postgres.database("airflow_original", keep=True)
        folder = str(ROOT / "dags")
        given = {
            "paths": [f"{folder}/{name}.py" for name in DAGS],
            "folder": folder,
            "shared": str(self.shared or self.home),
            "home": str(self.home),
            "dsn": self._dsn,
            **{name: str(psql_folder() / name) for name in ("psql", "pg_dump")},
        }
        self._making = subprocess.Popen(
            [sys.executable, "-c", _MAKE.format(**given)],
            env={**os.environ, **options(self._dsn), "AIRFLOW_HOME": str(self.home)},
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def copy(self, name: str) -> str:
        """Wait for the original; return the URL of a new database with this name, a copy of it."""
        self._wait()
        original = urlsplit(self._dsn).path.lstrip("/")
        names = {"name": sql.Identifier(name), "original": sql.Identifier(original)}
        with psycopg.connect(self.postgres.service.dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {name}").format(**names))
            connection.execute(
                sql.SQL("create database {name} template {original}").format(**names)
            )
        return self.postgres.service.dsn(name)

    def _wait(self) -> None:
        if self._made:
            return
        _, said = self._making.communicate(timeout=_TIMEOUT_S)
        assert self._making.returncode == 0, said[-2000:]
        self._made = True

    def end(self) -> None:
        """End what is still being made."""
        if self._making.poll() is None:
            self._making.kill()
            self._making.communicate()


def stamp(dsn: str) -> str:
    """Return what Airflow's service notes once it has migrated such a database."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select version_num from alembic_version").fetchone()
    assert row is not None
    return json.dumps({"airflow": version("apache-airflow"), "revision": row[0]})


def options(dsn: str) -> dict[str, str]:
    """Return Airflow's settings for a metadata database, and for the DAGs of this checkout."""
    return {
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": dsn.replace(
            "postgresql://", "postgresql+psycopg2://"
        ),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": dsn.replace(
            "postgresql://", "postgresql+asyncpg://"
        ),
    }
