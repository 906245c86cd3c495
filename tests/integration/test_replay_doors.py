"""Every stage and error type that can be parked, asked for by the REST API and the command line."""

from __future__ import annotations

import json
from itertools import product

import httpx
import pytest
from tests.integration.parking_lot import make_event
from tests.support import web_app
from typer.testing import CliRunner

from waybill.cli import app
from waybill.events import CATALOGUE, DELIVERY_ERRORS, STAGES
from waybill.services import current_user

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


def can_park(stage, code):
    """A code parks at its own stage; of no one stage, and what Kafka refuses, at any."""
    return CATALOGUE[code].stage in {stage, "any"} or code in DELIVERY_ERRORS


PLACES = [(stage, code) for stage, code in product(STAGES, CATALOGUE) if can_park(stage, code)]
REPLAYED = [place for place in PLACES if place[0] != "ingestion" or place[1] in DELIVERY_ERRORS]
SOME = {*DELIVERY_ERRORS, "null_value", "not_null_violation", "destination_timeout"}


@pytest.fixture
def parked(web):
    """One event parked under each stage and error type; {(stage, code): partition id}."""
    web.deploy("pl-1", "flights", "aviation")
    web.lot.park([make_event(stage=stage, code=code) for stage, code in PLACES])
    found = {(row.stage, row.error_type): row.id for row in web.lot.parking.partitions()}
    assert set(found) == set(PLACES)
    assert len(REPLAYED) > 60
    return found


def runs_of(web):
    """Return (stage, error type) of each run that Airflow has accepted, and delete them."""
    headers = {"authorization": f"Bearer {web.tokens['ann']}"}
    path, found = "/api/v2/dags/replay/dagRuns", []
    while runs := web.client.get(f"{path}?limit=100", headers=headers).json()["dag_runs"]:
        for run in runs:
            found.append((run["conf"]["stage"], run["conf"]["error_type"]))
            web.client.delete(f"{path}/{run['dag_run_id']}", headers=headers)
    return sorted(found)


def test_the_rest_api_starts_a_replay_of_each_that_can_be_and_refuses_the_others(web, parked):
    runs_of(web)
    for place, partition_id in parked.items():
        path = f"/api/partitions/{partition_id}/replay"
        answer = web.ask("ann", "POST", path, json={})
        if place in REPLAYED:
            assert answer.status_code == 202, (place, answer.text)
        else:
            assert answer.status_code == 409, (place, answer.text)
            assert "never were events: correct the source" in answer.json()["detail"]
    assert runs_of(web) == sorted(REPLAYED)


def test_the_command_line_starts_a_replay_of_what_kafka_refused_and_not_of_what_never_was_an_event(
    web, parked, monkeypatch
):
    """Through Airflow's own API: it checks the params of the DAG's run. One code of other stages."""
    asked = [place for place in PLACES if place[0] == "ingestion" or place[1] in SOME]
    assert len(asked) > 25
    runs_of(web)
    web.client.cookies.clear()
    monkeypatch.setattr(httpx, "Client", lambda **_given: web.client)
    monkeypatch.setattr(web.client, "close", lambda: None)
    monkeypatch.setenv("WAYBILL_AIRFLOW__USER", "ann")
    monkeypatch.setenv("WAYBILL_AIRFLOW__PASSWORD", "ann")
    for stage, code in asked:
        names = ["flights", "-e", "flight", "-s", stage, "-t", code]
        done = CliRunner().invoke(app, ["parked", "replay", *names, "--no-follow", "--json"])
        if (stage, code) in REPLAYED:
            assert done.exit_code == 0, (stage, code, done.output)
            assert json.loads(done.stdout.splitlines()[-1])["state"] == "queued"
        else:
            assert done.exit_code == 1, (stage, code, done.output)
            assert "never were events: correct the source" in done.stderr
    assert runs_of(web) == sorted(set(asked) & set(REPLAYED))


def test_the_command_line_starts_a_campaign_through_airflows_own_api(web, parked, monkeypatch):
    """It checks the params of the DAG's run against the DAG."""
    web.client.cookies.clear()
    monkeypatch.setattr(httpx, "Client", lambda **_given: web.client)
    monkeypatch.setattr(web.client, "close", lambda: None)
    monkeypatch.setenv("WAYBILL_AIRFLOW__USER", "ann")
    monkeypatch.setenv("WAYBILL_AIRFLOW__PASSWORD", "ann")
    words = ["flights", "-s", "mapping", "--since", "2013-01-01", "--why", "a fix", "--yes"]
    done = CliRunner().invoke(app, ["campaigns", "start", *words, "--wait", "0", "--json"])
    assert done.exit_code == 0, done.output
    begun = json.loads(done.stdout.splitlines()[-1])
    assert (begun["id"], begun["state"]) == (None, "queued")
    path = f"/api/v2/dags/{begun['dag_id']}/dagRuns/{begun['run_id']}"
    headers = {"authorization": f"Bearer {web.tokens['ann']}"}
    run = web.client.get(path, headers=headers).json()
    web.client.delete(path, headers=headers)
    assert run["triggering_user_name"] == "ann"
    conf = {name: value for name, value in run["conf"].items() if value}
    assert conf == {
        **{"pipeline": "flights", "stage": "mapping", "since": "2013-01-01T00:00:00Z"},
        **{"governed": True, "max_unfinished": 8, "groups_per_run": 1, "why": "a fix"},
        "who": current_user(),
    }


@pytest.mark.parametrize("command", ["replay", "start"])
def test_a_dag_that_somebody_paused_stays_so_unless_its_runs_are_to_begin(
    web, parked, monkeypatch, command
):
    """By Airflow's own API: what waits there is counted, and begins only with --unpause."""
    web.client.cookies.clear()
    monkeypatch.setattr(httpx, "Client", lambda **_given: web.client)
    monkeypatch.setattr(web.client, "close", lambda: None)
    monkeypatch.setenv("WAYBILL_AIRFLOW__USER", "ann")
    monkeypatch.setenv("WAYBILL_AIRFLOW__PASSWORD", "ann")
    runs_of(web)
    headers, path = {"authorization": f"Bearer {web.tokens['ann']}"}, "/api/v2/dags/{}"
    partition_id = parked["mapping", "not_null_violation"]
    web.ask("ann", "POST", f"/api/partitions/{partition_id}/replay", json={})
    if command == "replay":
        words = ["parked", "replay", "flights", "-e", "flight", "-s", "mapping", "--no-follow"]
        words += ["-t", "not_null_violation"]
    else:
        words = ["campaigns", "start", "flights", "-s", "mapping", "--yes", "--wait", "0"]

    def set_paused(is_paused):
        answer = web.client.patch(
            path.format("replay"), headers=headers, json={"is_paused": is_paused}
        )
        assert answer.status_code == 200, answer.text

    def is_paused():
        return web.client.get(path.format("replay"), headers=headers).json()["is_paused"]

    set_paused(True)
    try:
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 1, refused.output
        assert "the DAG replay is paused, with 1 unfinished run" in refused.stderr
        assert is_paused()
        done = CliRunner().invoke(app, [*words, "--unpause"])
        assert done.exit_code == 0, done.output
        assert "the DAG replay was paused, with 1 unfinished run" in done.stderr
        assert not is_paused()
    finally:
        set_paused(False)
    runs = path.format("replay_parked_partitions/dagRuns")
    begun = web.client.get(runs, headers=headers).json()["dag_runs"]
    for run in begun:
        web.client.delete(f"{runs}/{run['dag_run_id']}", headers=headers)
    assert len(begun) == (command == "start"), "none by what was refused"
    assert len(runs_of(web)) == (1 if command == "start" else 2)
