"""A user's DAG, downstream on a table, on the real Airflow: its runs, through deaths of components.

Loads are commits of the tracker: what the loader does to it is tried elsewhere.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from tests import servers
from tests.integration.test_table_loads import Load, load, table, tracker
from tests.servers import wait_for

from waybill.ledger import TableName
from waybill.settings import Settings, TrackerSettings
from waybill.stack.airflow import COMPONENTS, Airflow, AirflowComponent
from waybill.stack.credentials import read_or_draw
from waybill.storage import TrackerStore

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.timeout(3600),
]
__all__ = ["load", "table", "tracker"]
DAG_ID = "count_new_orders"
RUNS = """
SELECT run.run_id, run.state, run.start_date, result.value::jsonb AS result,
  array(SELECT event_id FROM dagrun_asset_event WHERE dag_run_id = run.id) AS events
FROM dag_run AS run
LEFT JOIN xcom AS result ON result.dag_run_id = run.id AND result.key = 'return_value'
WHERE run.dag_id = %s ORDER BY run.start_date
"""
EVENTS = "SELECT id, extra::jsonb->'payload' FROM asset_event ORDER BY id"
TOLD = "SELECT value::jsonb->>'position' FROM asset_state_store WHERE key = 'waybill_loaded'"


class Here(Airflow):
    """Airflow over the tracker of a test; its DAGs are on from the beginning."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "WAYBILL_TRACKER__DSN": self.settings.tracker.dsn.get_secret_value(),
        }

    def ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.dsn("airflow")) as connection:
            return connection.execute(query, parameters).fetchall()


@pytest.fixture
def components(
    airflow_metadata: Any, tracker: TrackerStore, table: TableName, tmp_path: Path
) -> Iterator[dict[str, AirflowComponent]]:
    """The four components, not started; the example is their only DAG."""
    example = (servers.CHECKOUT / "docs" / "examples" / f"{DAG_ID}.py").read_text()
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / f"{DAG_ID}.py").write_text(example.replace('team="shop"', f'team="{table.team}"'))
    airflow_metadata.copy("airflow")
    home = servers.new_home()
    dsn = tracker.engine.url.render_as_string(hide_password=False)
    settings = Settings(
        _env_file=None,
        home=home,
        dags_dir=dags,
        tracker=TrackerSettings(dsn=dsn.replace("postgresql+psycopg://", "postgresql://")),
        stack=servers.random_ports(),
    )
    airflow = Here(settings, read_or_draw(home), airflow_metadata.postgres.service)
    made = {name: AirflowComponent(airflow, name) for name in COMPONENTS}
    for component in made.values():
        component.start_timeout_s, component.stop_grace_s = 600.0, 5.0
    yield made
    for component in reversed(made.values()):
        component.stop()
    servers.end_home(home)


def kill(component: AirflowComponent) -> None:
    """SIGKILL it and its children at once, as a machine that goes away does."""
    record = component.running()
    assert record is not None
    first = psutil.Process(record.pid)
    for process in [first, *first.children(recursive=True)]:
        os.kill(process.pid, signal.SIGKILL)
    assert component.child is not None
    component.child.wait(240)


def test_every_load_is_covered_by_a_run_that_starts_after_it_and_no_run_has_nothing_new(
    components: dict[str, AirflowComponent], load: Load
) -> None:
    airflow = components["triggerer"].airflow
    assert isinstance(airflow, Here)
    loads: list[tuple[int, int, datetime]] = []  # commit number, rows, when
    stands = 0

    def loaded(*delivered: int) -> None:
        nonlocal stands
        load(*delivered)
        [(now,)] = airflow.ask("SELECT clock_timestamp()")
        for rows in delivered:
            stands += 1
            loads.append((stands, rows, now))

    def runs() -> list[tuple[Any, ...]]:
        return airflow.ask(RUNS, DAG_ID)

    def covered() -> bool:
        """All loads with rows are, and what was told is stored."""
        wanted = [(number, when) for number, rows, when in loads if rows]
        done = [(run[2], run[3]["position"]) for run in runs() if run[1] == "success"]
        all_in = all(any(at > when and p >= n for at, p in done) for n, when in wanted)
        told = airflow.ask(TOLD)
        return all_in and bool(told) and int(told[0][0]) >= wanted[-1][0]

    loaded(3)
    for component in components.values():
        component.start()
    wait_for(covered, 600)
    for rows in (1, 2, 4, 8):  # a burst
        loaded(rows)
        time.sleep(0.5)
    wait_for(covered, 600)
    loaded(0, 0)  # parked whole
    kill(components["triggerer"])
    loaded(16, 0)
    components["triggerer"].start()
    wait_for(covered, 600)
    for name in ("triggerer", "scheduler"):
        kill(components[name])
    loaded(32)
    for name in ("scheduler", "triggerer"):
        components[name].start()
    wait_for(covered, 600)

    events = dict(airflow.ask(EVENTS))
    told = [(event["after"], event["position"]) for event in events.values()]
    assert [after for after, _ in told[1:]] == [position for _, position in told[:-1]], told
    assert sum(event["rows"] for event in events.values()) == sum(rows for _, rows, _ in loads)
    assert all(event["rows"] for event in events.values())
    consumed = [set(run[4]) for run in runs()]
    assert all(consumed), "a run without an event"
    assert sum(map(len, consumed)) == len(set().union(*consumed)), "two runs of one event"
    assert {run[1] for run in runs()} == {"success"}
