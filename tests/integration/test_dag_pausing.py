"""Which DAGs are paused, as Airflow's own database and API have it."""

from __future__ import annotations

import httpx
import pytest
from tests.integration.parking_lot import make_event
from tests.support import web_app
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app, pipelines, stack
from waybill.settings import Settings
from waybill.stack.embedded import ServiceStatus, Stack

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


@pytest.fixture
def pause(web, monkeypatch):
    """Pause the DAG replay, or not, with the command line signed in as the admin."""
    monkeypatch.setattr(httpx, "Client", lambda **_given: web.client)
    monkeypatch.setattr(web.client, "close", lambda: None)
    monkeypatch.setenv("WAYBILL_AIRFLOW__USER", "ann")
    monkeypatch.setenv("WAYBILL_AIRFLOW__PASSWORD", "ann")
    web.client.cookies.clear()
    headers = {"authorization": f"Bearer {web.tokens['ann']}"}

    def change(paused):
        answer = web.client.patch(
            "/api/v2/dags/replay", json={"is_paused": paused}, headers=headers
        )
        assert answer.is_success

    return change


def test_what_is_paused_is_named_by_status_and_is_something_to_do(pause, monkeypatch):
    api = ServiceStatus("airflow-api-server", 1, (), 1, 1.0, healthy=True, log="x.log")
    monkeypatch.setattr(Stack, "status", lambda _self: [api])
    pause(True)
    assert "DAGs paused: replay; what they do is not done" in CliRunner().invoke(
        app, ["status"]
    ).output.replace("\n", " ")
    assert stack._upkeep().ok is False
    monkeypatch.setenv("WAYBILL_AIRFLOW__UNPAUSED_DAGS", "none")
    assert Settings().airflow.unpaused_dags == "none"
    assert stack._upkeep().ok, "it is on purpose"
    monkeypatch.delenv("WAYBILL_AIRFLOW__UNPAUSED_DAGS")
    pause(False)
    assert (stack._upkeep().ok, stack._upkeep().found) == (True, "upkeep is on")
    assert "DAGs paused" not in CliRunner().invoke(app, ["status"]).output


def test_a_pool_that_is_missing_is_named_with_the_command_that_makes_it(pause, web):
    headers = {"authorization": f"Bearer {web.tokens['ann']}"}
    check = stack._pools()
    assert (check.ok, check.found.split(":")[0]) == (
        False,
        "waybill_ingest, waybill_replay missing",
    )
    assert "airflow pools set waybill_ingest 16 Waybill" in check.remedy
    for name in ("waybill_ingest", "waybill_replay", "waybillXreplay"):
        body = {"name": name, "slots": 1}
        assert web.client.post("/api/v2/pools", json=body, headers=headers).is_success
        assert stack._pools().ok is (name != "waybill_ingest")


def test_an_airflow_that_refuses_is_said_and_not_taken_for_fine(pause, monkeypatch):
    monkeypatch.setenv("WAYBILL_AIRFLOW__PASSWORD", "wrong")
    check = stack._upkeep()
    assert (check.ok, check.found) == (False, "not known")
    assert "WAYBILL_AIRFLOW__PASSWORD" in check.remedy


@pytest.fixture
def upkeep(airflow_app):
    """The DAGs upkeep and others, as the DAG processor would write them, and a live scheduler.

    Gives a function that changes a column of one, with a value as SQL.
    """
    from airflow import settings
    from sqlalchemy import text

    ids = ["upkeep", "apply_retention"]

    def run(statement, **given):
        with settings.engine.begin() as connection:
            connection.execute(text(statement), given)

    run(
        "INSERT INTO dag SELECT (jsonb_populate_record(dag, jsonb_build_object("
        "'dag_id', id, 'is_paused', false, 'is_stale', false, 'timetable_summary', '@daily', "
        "'next_dagrun_create_after', now() + interval '1 h'))).* "
        "FROM dag, unnest(:ids) AS id WHERE dag_id = 'replay'",
        ids=ids,
    )
    run(
        "INSERT INTO job (job_type, state, latest_heartbeat, start_date, hostname) "
        "VALUES ('SchedulerJob', 'running', now() + interval '1 h', now(), 'here')"
    )
    yield lambda dag_id, column, value: run(
        f"UPDATE dag SET {column} = {value} WHERE dag_id = :id", id=dag_id
    )
    run("DELETE FROM dag_run WHERE dag_id = ANY(:ids)", ids=ids)
    run("DELETE FROM dag WHERE dag_id = ANY(:ids)", ids=ids)
    run("DELETE FROM job")


def ended(dag_id, state):
    """Have a run of a DAG have ended just now, as the scheduler would write it."""
    from airflow import settings
    from sqlalchemy import text

    run = text(
        "INSERT INTO dag_run (dag_id, run_id, state, run_type, run_after, end_date, start_date, "
        "queued_at) VALUES (:dag_id, :run_id, :state, 'scheduled', "
        "clock_timestamp(), now(), now(), now())"
    )
    with settings.engine.begin() as connection:
        connection.execute(run, {"dag_id": dag_id, "run_id": f"r-{state}", "state": state})


def succeeded(web, job):
    """Have a job of upkeep have succeeded just now."""
    web.lot.sql(
        "INSERT INTO upkeep_jobs (job, succeeded_at) VALUES (:job, clock_timestamp()) "
        "ON CONFLICT (job) DO UPDATE SET succeeded_at = excluded.succeeded_at",
        job=job,
    )


def goes_back():
    return " ".join(" ".join(pipelines._goes_back()).split())


def test_a_release_promises_nothing_that_a_paused_dag_would_do(pause, web, upkeep, monkeypatch):
    succeeded(web, "probe_held_pipelines")
    pause(True)
    assert goes_back() == (
        "what waits stays, until this is mended: the DAG replay is paused: unpause it in Airflow"
    )
    pause(False)
    assert goes_back() == "what waits goes back within a minute or two"
    upkeep("upkeep", "is_paused", "true")
    assert "mended: the DAG upkeep is paused: unpause it in Airflow" in goes_back()
    upkeep("upkeep", "is_paused", "false")
    services.pause_job(Settings(), "probe_held_pipelines", Decision("ann"))
    assert "`waybill upkeep resume probe_held_pipelines` has it go on" in goes_back()
    monkeypatch.setenv("WAYBILL_AIRFLOW__PASSWORD", "wrong")
    assert "WAYBILL_AIRFLOW__PASSWORD" in (said := goes_back())
    assert "not all could be checked" in said, "the tracker says that the job is paused"
    services.resume_job(Settings(), "probe_held_pipelines", Decision("ann"))
    assert "what waits goes back once upkeep has run its job probe_held_pipelines" in goes_back()
    assert "could not be checked" in goes_back()


def test_what_keeps_a_promise_from_being_kept_is_said_by_the_command_that_gives_it(
    pause, web, upkeep, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    pause(False)

    def said(*words):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (done.output, done.exception)
        assert max(map(len, done.stderr.splitlines()), default=0) <= 80
        return " ".join(done.output.split())

    wanted = "nothing of this is deleted by itself"
    assert wanted not in said("retention", "show")
    for column, value, normal, words in (
        ("is_paused", "true", "false", "the DAG apply_retention is paused"),
        ("is_stale", "true", "false", "Airflow has no DAG apply_retention"),
        (
            "next_dagrun_create_after",
            "now() - interval '1 h'",
            "now() + interval '1 h'",
            "the DAG apply_retention is late: a run was due",
        ),
    ):
        upkeep("apply_retention", column, value)
        assert f"{wanted}: {words}" in said("retention", "show")
        upkeep("apply_retention", column, normal)
    assert wanted not in said("retention", "show")
    ended("apply_retention", "failed")
    assert f"{wanted}: the last run of the DAG apply_retention failed" in said("retention", "show")
    ended("apply_retention", "success")
    assert wanted not in said("retention", "show")
    web.deploy("pl-1", "flights", "aviation", owner="ann@example.org")
    web.lot.park([make_event(1)], 1)
    succeeded(web, "tell_owners")
    assert "nobody sends" not in said("notices", "list")
    ended("upkeep", "failed")
    assert "the last run of the DAG upkeep failed" in said("notices", "list")
    ended("upkeep", "running")
    assert "nobody sends" not in said("notices", "list")
    upkeep("upkeep", "is_paused", "true")
    assert "nobody sends these notices: the DAG upkeep is paused" in said("notices", "list")
    upkeep("upkeep", "is_paused", "false")
    services.pause_job(Settings(), "tell_owners", Decision("bob"))
    assert "the upkeep job tell_owners is paused by bob" in said("notices", "list")
    assert "nobody looks for breaches now" in said("audit", "breaches")
    assert "the upkeep job audit is late, it never succeeded" in said("audit", "breaches")


def test_an_airflow_that_is_away_is_said_and_is_no_failure(web, monkeypatch):
    monkeypatch.setenv("WAYBILL_AIRFLOW__URL", "http://127.0.0.1:1")
    done = CliRunner().invoke(app, ["retention", "show"])
    assert done.exit_code == 0
    assert "whether that is done could not be checked: Airflow at http://127.0.0.1:1" in " ".join(
        done.stderr.split()
    )
