"""What docker-compose prepares, and the operators, on a real tracker and bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.support import children

from waybill import services
from waybill.settings import Settings
from waybill.storage import ObjectStore, open_log, open_tracker
from waybill.upkeep import JOBS

ROOT = Path(__file__).parents[2]
PREPARE = ROOT / "include" / "docker" / "prepare.py"

# Airflow reads this once, when it is first imported.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="waybill-airflow-")


@pytest.fixture
def environment(postgres, s3, tmp_path, monkeypatch):
    """The settings of a fresh tracker and bucket, as WAYBILL_* like in a container."""
    bucket = s3.bucket("prepared")
    values = {
        "WAYBILL_HOME": str(tmp_path / "home"),
        "WAYBILL_PIPELINES_DIR": str(ROOT / "include" / "pipelines"),
        "WAYBILL_TRACKER__DSN": postgres.database("prepared"),
        "WAYBILL_S3__ENDPOINT_URL": str(bucket.endpoint_url),
        "WAYBILL_S3__BUCKET": bucket.bucket,
        "WAYBILL_S3__ACCESS_KEY": bucket.access_key.get_secret_value(),
        "WAYBILL_S3__SECRET_KEY": bucket.secret_key.get_secret_value(),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def prepare(**changes: str) -> subprocess.CompletedProcess[str]:
    """Run it as docker-compose does."""
    return subprocess.run(
        [sys.executable, str(PREPARE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "include"), *filter(None, sys.path)]),
            **changes,
        },
    )


def prepared() -> str:
    """Run it in a Python that has imported Waybill; return what it prints, its warnings too."""
    return children.run(
        Settings(), f"import runpy\nrunpy.run_path({str(PREPARE)!r}, run_name='__main__')"
    )


def test_preparing_deploys_the_declared_pipelines_and_twice_changes_nothing(environment):
    first, second = prepare(), prepared()
    assert first.returncode == 0, first.stderr
    reports = [json.loads(line) for line in first.stdout.splitlines()]
    assert {report["pipeline"] for report in reports} == {"flights", "weather"}
    assert all(report["changed"] for report in reports)
    again = [json.loads(line) for line in second.splitlines()]
    assert [report["version"] for report in again] == [report["version"] for report in reports]
    assert not any(report["changed"] for report in again)


def test_preparing_makes_the_bucket_of_task_logs(environment, s3, monkeypatch):
    name = f"{os.environ['WAYBILL_S3__BUCKET']}-logs"
    monkeypatch.setenv("AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER", f"s3://{name}/tasks")
    for _ in range(2):
        prepared()
    logs = ObjectStore(Settings().s3.model_copy(update={"bucket": name}))
    logs.put("tasks/x.log", b"x")
    assert logs.get("tasks/x.log") == b"x"


def test_preparing_without_a_database_fails_with_the_reason(environment):
    done = prepare(WAYBILL_TRACKER__DSN="postgresql://127.0.0.1:1/nowhere")
    assert done.returncode == 1
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_maintenance_and_planning_run_on_an_empty_tracker(environment, kafka, monkeypatch):
    from types import SimpleNamespace

    from waybill_airflow.operators.campaign import ReplayCampaignOperator
    from waybill_airflow.operators.maintenance import (
        CleanUpParkedFilesOperator,
        RefreshTrackerOperator,
    )
    from waybill_airflow.operators.upkeep import UpkeepOperator

    monkeypatch.setenv("WAYBILL_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    prepared()
    run = SimpleNamespace(triggering_user_name="ada", dag_id="replays", run_id="manual__1")
    context = {"dag_run": run, "run_id": "manual__1", "params": {"pipeline": "flights"}}
    for task in (
        CleanUpParkedFilesOperator(task_id="clean_up"),
        RefreshTrackerOperator(task_id="refresh", grace_s=0),
        ReplayCampaignOperator(task_id="campaign"),
    ):
        json.dumps(task.execute(context))
    monkeypatch.setattr("waybill_airflow.operators.upkeep._is_paused", lambda _dag_id: False)
    hourly = tuple(replace(job, interval_s=3_600.0) for job in JOBS)  # however long a shift takes
    for module in ("records", "shift"):
        monkeypatch.setattr(f"waybill.upkeep.{module}.JOBS", hourly)
    jobs = {job.name: 1 for job in JOBS}
    assert UpkeepOperator(task_id="shift", shift=timedelta(seconds=1)).execute(context) == jobs
    assert {one.state for one in services.upkeep_jobs(Settings())} == {"ok"}


def test_a_connection_is_tested_and_says_what_it_reached(stack_settings, monkeypatch):
    from waybill_airflow.hooks.waybill import WaybillHook

    def given(**changes):
        values = {**stack_settings.to_env(), **changes}
        extra = {name: values[name] for name in ("WAYBILL_KAFKA", "WAYBILL_S3", "WAYBILL_TRACKER")}
        connection = {"conn_type": "waybill", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_WAYBILL_DEFAULT", json.dumps(connection))
        return WaybillHook().test_connection()

    ok, said = given()
    assert ok, said
    assert "tracker: PostgreSQL 1" in said
    assert f"Kafka: cluster {open_log(stack_settings.kafka).cluster_id()} at " in said
    assert f"object store: bucket {stack_settings.s3.bucket} at " in said
    s3 = stack_settings.s3.model_copy(update={"secret_key": SecretStr("wrong-word")})
    wrong = stack_settings.model_copy(update={"s3": s3}).to_env()["WAYBILL_S3"]
    ok, said = given(WAYBILL_S3=wrong)
    assert not ok
    assert "object store refused" in said
    assert "check WAYBILL_S3__BUCKET" in said
    assert "connection 'waybill_default': extra" in said
    assert "wrong-word" not in said


def test_what_nobody_deployed_and_nothing_parked_fails_without_a_retry(environment):
    from airflow.sdk.exceptions import AirflowFailException

    from waybill_airflow.operators.ingest import IngestOperator
    from waybill_airflow.operators.replay import ReplayParkedPartitionOperator

    with open_tracker(Settings().tracker) as tracker:
        tracker.migrate()
    from types import SimpleNamespace

    run = SimpleNamespace(triggering_user_name="ada", dag_id="replay", run_id="manual__1")
    pushed = []
    task_instance = SimpleNamespace(xcom_push=lambda **given: pushed.append(given))
    context = {"dag_run": run, "run_id": "manual__1", "ti": task_instance}
    names = {"event_name": "flight", "stage": "mapping", "error_type": "null_value"}
    for task in (
        IngestOperator(task_id="ingest", pipeline="flihgts"),
        ReplayParkedPartitionOperator(task_id="replay", request={"pipeline": "flihgts", **names}),
    ):
        with pytest.raises(AirflowFailException, match="flihgts"):
            task.execute(context)
    assert [one["key"] for one in pushed] == ["reason", "reason"]
    assert all("flihgts" in one["value"] for one in pushed)
