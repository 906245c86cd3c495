"""Airflow for DAG tests: a home of its own, no database, no examples."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Airflow reads these once, when it is first imported, so they are set before any test module is.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="waybill-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(ROOT / "dags")


@pytest.fixture(autouse=True)
def _waybill_environment(monkeypatch, tmp_path):
    """Only what a test sets itself: no WAYBILL_* from outside, no running stack's folder."""
    for name in [name for name in os.environ if name.startswith("WAYBILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(ROOT / "include" / "pipelines"))


def load_dags(folder: Path):
    """Parse a folder or file of DAGs as Airflow's DAG processor does."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(folder))
