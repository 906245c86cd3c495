"""Which DAGs are paused, as Airflow's own database and API have it."""

from __future__ import annotations

import httpx
import pytest
from tests.support import web_app
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app, pipelines, stack
from waybill.settings import Settings
from waybill.stack.embedded import ServiceStatus, Stack

pytestmark = pytest.mark.serves
airflow_app, _web_lot, web = web_app.airflow_app, web_app._web_lot, web_app.web


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


def test_a_release_promises_nothing_that_a_paused_dag_would_do(pause, web, monkeypatch):
    pause(True)
    assert pipelines._goes_back() == "what waits stays until you unpause in Airflow: replay"
    pause(False)
    assert pipelines._goes_back() == "what waits goes back within a minute or two"
    services.pause_job(Settings(), "probe_held_pipelines", Decision("ann"))
    assert pipelines._goes_back() == (
        "what waits stays until you resume: waybill upkeep resume probe_held_pipelines"
    )
    monkeypatch.setenv("WAYBILL_AIRFLOW__PASSWORD", "wrong")
    said = pipelines._goes_back()
    assert said.startswith(
        "what waits goes back once upkeep has run its job probe_held_pipelines ("
    )
    assert "WAYBILL_AIRFLOW__PASSWORD" in said
