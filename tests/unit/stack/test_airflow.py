"""Airflow's database and pools are made once, and again when what they are made from changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from waybill.settings import Settings
from waybill.stack.airflow import Airflow
from waybill.stack.credentials import read_or_draw
from waybill.stack.service import ServiceError


class Prepared(Airflow):
    """With a stand-in for PostgreSQL, and for Airflow's commands."""

    def __init__(self, home: Path, **sizes: int) -> None:
        settings = Settings(_env_file=None, home=home)
        airflow = settings.airflow.model_copy(update=sizes)
        settings = settings.model_copy(update={"airflow": airflow})
        home.mkdir(exist_ok=True)
        super().__init__(settings, read_or_draw(home), postgres=None)  # type: ignore[arg-type]
        self.ran: list[tuple[str, ...]] = []
        self.fails = ""

    def _revision(self) -> str:
        file = self.home / "revision"
        return file.read_text() if file.exists() else ""

    def _run(self, *command: str, failed: str) -> None:
        if command[0] == self.fails:
            raise ServiceError(failed)
        if command[0] == "db":
            (self.home / "revision").write_text("r2")
        else:
            pools = json.loads(Path(command[2]).read_text())
            command = tuple(f"{name}={pool['slots']}" for name, pool in pools.items())
        self.ran.append(command)


MIGRATED, POOLS = ("db", "migrate"), ("waybill_ingest=16", "waybill_replay=4")


def ran(home: Path, **sizes: int) -> list[tuple[str, ...]]:
    airflow = Prepared(home, **sizes)
    airflow.prepare()
    return airflow.ran


def test_once_and_again_when_a_size_changes(tmp_path: Path) -> None:
    assert ran(tmp_path) == [MIGRATED, POOLS]
    assert ran(tmp_path) == []
    assert ran(tmp_path, ingest_slots=99) == [("waybill_ingest=99", "waybill_replay=4")]


def test_sizes_that_somebody_set_in_airflow_outlive_a_migration(tmp_path: Path) -> None:
    ran(tmp_path)
    (tmp_path / "airflow" / "revision").write_text("r1")
    assert ran(tmp_path) == [MIGRATED]


def test_an_empty_database_gets_its_pools_again(tmp_path: Path) -> None:
    ran(tmp_path)
    (tmp_path / "airflow" / "revision").unlink()
    airflow = Prepared(tmp_path)
    airflow.fails = "pools"
    with pytest.raises(ServiceError):
        airflow.prepare()
    assert ran(tmp_path) == [POOLS]


def test_what_was_cut_short_between_the_two_goes_on(tmp_path: Path) -> None:
    airflow = Prepared(tmp_path)
    airflow.fails = "pools"
    with pytest.raises(ServiceError, match="pools could not be made"):
        airflow.prepare()
    assert ran(tmp_path) == [POOLS]
