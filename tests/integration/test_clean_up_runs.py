"""Old runs of Waybill's DAGs leave Airflow's database; all others stay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from tests.support.airflow_metadata import options
from tests.support.books import open_books

from waybill.replay import CampaignRequest, advance_campaign, freeze_campaign
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
RUN = """
INSERT INTO dag_run (dag_id, run_id, run_type, state, start_date, run_after, clear_number,
  log_template_id) VALUES (%(dag)s, %(run)s, %(kind)s, 'success', now() - %(age)s * interval '1 day',
  now(), 0, (SELECT max(id) FROM log_template))
"""
LOG = "INSERT INTO log (dag_id, event, dttm) VALUES (%s, 'running', now() - %s * interval '1 day')"


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "runs") as books:
        yield books


def test_only_old_runs_of_waybills_own_dags_go_and_the_newest_scheduled_one_stays(
    tracker: TrackerStore, airflow_metadata: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from waybill_airflow.operators.clean_up_runs import CleanUpRunsOperator

    dsn = airflow_metadata.copy("airflow_clean_up_runs")
    rows = [
        ("replay", "old", "manual", 40),
        ("replay", "young", "manual", 20),
        ("audit", "first", "scheduled", 50),
        ("audit", "newest", "scheduled", 45),
        ("somebody_elses", "old", "manual", 400),
        ("replay_parked_partitions", "long", "manual", 60),
    ]
    with psycopg.connect(dsn) as connection:
        for dag, run, kind, age in rows:
            given = {"dag": dag, "run": run, "kind": kind, "age": age}
            connection.execute(RUN, given)
            connection.execute(LOG, [dag, age])

    def left() -> tuple[set[tuple[str, str]], int]:
        with psycopg.connect(dsn) as connection:
            runs = connection.execute("SELECT dag_id, run_id FROM dag_run").fetchall()
            logs = connection.execute("SELECT count(*) FROM log WHERE event = 'running'").fetchone()
        assert logs is not None
        return {(str(dag), str(run)) for dag, run in runs}, int(logs[0])

    for name, value in options(dsn).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", tracker.dsn.get_secret_value())
    task = CleanUpRunsOperator(
        task_id="clean", dag_ids=["audit", "replay", "replay_parked_partitions"]
    )
    context: Any = {"ti": SimpleNamespace()}
    with pytest.raises(AirflowSkipException, match="KEEP_RUNS_DAYS is empty"):
        task.execute(context)
    monkeypatch.setenv("WAYBILL_AIRFLOW__KEEP_RUNS_DAYS", "6")  # a replay may run for so long
    with pytest.raises(AirflowFailException, match="greater than or equal to 7"):
        task.execute(context)
    monkeypatch.setenv("WAYBILL_AIRFLOW__KEEP_RUNS_DAYS", "30")
    with pytest.raises(AirflowFailException, match="no connection 'airflow_db'"):
        task.execute(context)
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_DB", "sqlite:///x")
    with pytest.raises(AirflowFailException, match="of type 'sqlite', not postgres"):
        task.execute(context)
    url = options(dsn)["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_DB", url.replace("postgresql+psycopg2", "postgres"))
    assert left() == ({row[:2] for row in rows}, len(rows))

    campaign = freeze_campaign(tracker, CampaignRequest(), None, who="ann", run_id="long")
    task.execute(context)
    gone = {("replay", "old"), ("audit", "first")}
    assert left()[0] == {row[:2] for row in rows} - gone
    advance_campaign(tracker, campaign.id, None)  # type: ignore[arg-type]  # it has no group
    assert task.execute(context) == 3, "also of DAGs that have nothing left to clean"
    found, logs = left()
    assert found == {("replay", "young"), ("audit", "newest"), ("somebody_elses", "old")}
    assert logs == 2
    assert "not-allowed" in os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
