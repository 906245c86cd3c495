"""The real DAG files, run in a process of their own as ``dag.test`` runs them: task by task.

Each run goes through Airflow's own rendering, mapping and XComs on a real metadata database; what
a run triggers is a row of that database, which nobody schedules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.support.airflow_metadata import ROOT, options

from waybill.settings import Settings

AS_TRIGGERED = "as triggered"
_TIMEOUT_S = 1200
_ENDS_AT_ONCE = """
CREATE OR REPLACE FUNCTION end_at_once() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN NEW.state := ''success''; RETURN NEW; END';
CREATE OR REPLACE TRIGGER end_at_once BEFORE INSERT ON dag_run
  FOR EACH ROW WHEN (NEW.triggered_by::text = 'OPERATOR') EXECUTE FUNCTION end_at_once();
"""
_RUN = f"""
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select

asked, answer = json.loads(sys.argv[1]), sys.argv[2]
states = []
for dag_id, conf in asked:
    if conf == {AS_TRIGGERED!r}:
        with create_session() as session:
            newest = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc())
            conf = session.scalars(newest).first().conf
    file = Path(sys.argv[3], dag_id + ".py")
    if not file.exists():
        file = file.with_name("upkeep.py")
    bag = DagBag(file, bundle_path=sys.argv[3], bundle_name="dags-folder")
    assert not bag.import_errors, bag.import_errors
    run = bag.dags[dag_id].test(run_conf=conf)
    tasks = dict((f"{{ti.task_id}}[{{ti.map_index}}]", str(ti.state)) for ti in run.get_task_instances())
    states.append(dict(run_id=run.run_id, state=str(run.state), tasks=tasks))
with open(answer, "w") as file:
    json.dump(states, file)
"""


@dataclass
class DagRuns:
    """Runs DAGs over the settings of a test."""

    dsn: str
    settings: Settings
    home: Path
    output: str = ""
    """What the last process said: the tasks' logs."""

    def test(self, *asked: tuple[str, Mapping[str, Any] | str]) -> list[dict[str, Any]]:
        """Run each (DAG id, conf) in turn; return each run's id, state and states of its tasks.

        The conf ``AS_TRIGGERED`` is that of the DAG's newest run, which a run before has triggered.
        """
        with psycopg.connect(self.dsn) as connection:
            connection.execute(_ENDS_AT_ONCE)
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            answer = Path(folder) / "answer.json"
            given = [json.dumps(asked), str(answer), str(ROOT / "dags")]
            done = subprocess.run(
                [sys.executable, "-c", _RUN, *given],
                env=self._environment(),
                cwd=self.home,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
            self.output = done.stdout
            assert done.returncode == 0, self.output[-6000:]
            found: list[dict[str, Any]] = json.loads(answer.read_text())
        return found

    def triggered(self, dag_id: str) -> dict[str, dict[str, Any]]:
        """Return {run id: conf} of the runs that were triggered by other runs."""
        query = (
            "SELECT run_id, conf FROM dag_run WHERE dag_id = %s AND triggered_by = 'OPERATOR' "
            "ORDER BY id"
        )
        with psycopg.connect(self.dsn) as connection:
            return dict(connection.execute(query, [dag_id]).fetchall())

    def links(self, key: str) -> list[str]:
        """Return what tasks left as an extra link, oldest first."""
        query = "SELECT value FROM xcom WHERE key = %s ORDER BY timestamp"
        with psycopg.connect(self.dsn) as connection:
            return [str(value) for (value,) in connection.execute(query, [key]).fetchall()]

    def paused(self) -> dict[str, bool]:
        """Return whether each DAG that Airflow knows is paused."""
        with psycopg.connect(self.dsn) as connection:
            return dict(connection.execute("SELECT dag_id, is_paused FROM dag").fetchall())

    def _environment(self) -> dict[str, str]:
        path = [str(ROOT / "include"), str(ROOT / "plugins"), *filter(None, sys.path)]
        return {
            **{name: value for name, value in os.environ.items() if "WAYBILL" not in name},
            **options(self.dsn),
            **self.settings.to_env(),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API_AUTH__JWT_SECRET": "a-secret-of-the-tests-" * 4,
            "PYTHONPATH": os.pathsep.join(path),
        }
