"""The routes of sources: whose runs each user sees, and who may stop one."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from tests.support import web_app

from waybill.ledger import RunFigures, begin_run, end_run, tell_run, wait_run

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
SQL = {"source": {"connector": "sql"}, "schedule": "@hourly"}


@pytest.fixture
def sources(web):
    """A run of each of two teams, and a source that sends by itself."""
    web.deploy("pl-1", "flights", "aviation", **SQL)
    web.deploy("pl-2", "boxes", "shipping", **SQL)
    web.deploy("pl-4", "hooks", "aviation", source={"connector": "http"})
    tracker = web.lot.tracker
    run = begin_run(tracker, "pl-1", node="node-1")
    tell_run(tracker, "pl-1", run, RunFigures(read=5, behind=2.5, unit="units"))
    run = begin_run(tracker, "pl-2", node="node-2")
    end_run(tracker, "pl-2", run, RunFigures(read=9), state="failed", error="it is away")
    yield web
    with tracker.transaction() as connection:
        connection.execute(text("DELETE FROM source_runs"))


def test_who_views_every_team_sees_all_sources_with_their_nodes(sources):
    found = sources.get("ann", "/api/sources")
    assert [one["pipeline"] for one in found["sources"]] == ["boxes", "flights", "hooks"]
    assert (found["total"], found["running"], found["failed"]) == (3, 1, 1)
    boxes, flights, hooks = found["sources"]
    assert (boxes["state"], boxes["error"], boxes["node"]) == ("failed", "it is away", "node-2")
    assert (flights["state"], flights["behind"], flights["unit"]) == ("running", 2.5, "units")
    assert flights["next_run_at"] > found["at"]
    assert (hooks["state"], hooks["next_run_at"]) == ("pushed", None)
    assert {one["waits_for"] for one in found["sources"]} == {""}


def test_a_run_that_waits_says_for_what_and_may_be_stopped(sources):
    run = begin_run(sources.lot.tracker, "pl-2", node="node-2")
    wait_run(sources.lot.tracker, "pl-2", run, RunFigures(read=40), waits_for="kafka")
    [boxes, _, _] = sources.get("ann", "/api/sources")["sources"]
    assert (boxes["state"], boxes["waits_for"], boxes["read"]) == ("waiting", "kafka", 40)
    sources.post("ann", "/api/pipelines/pl-2/stop-source", {"why": "not now"})
    [boxes, _, _] = sources.get("ann", "/api/sources")["sources"]
    assert (boxes["state"], boxes["stop_asked_by"]) == ("waiting", "ann")


def test_others_see_sources_of_their_teams_and_no_nodes(sources):
    found = sources.get("uma", "/api/sources")
    assert [(one["pipeline"], one["node"]) for one in found["sources"]] == [
        ("flights", None),
        ("hooks", None),
    ]
    assert (found["total"], found["failed"]) == (2, 0)


def test_sources_come_page_by_page_and_by_state(sources):
    first = sources.get("ann", "/api/sources?limit=1")
    assert first["next"] == "boxes"
    after = sources.get("ann", "/api/sources?limit=2&after=boxes")
    names = [one["pipeline"] for one in after["sources"]]
    assert (names, after["next"]) == (["flights", "hooks"], None)
    assert sources.get("ann", "/api/sources?state=failed")["total"] == 1
    assert sources.get("ann", "/api/sources?words=AVIA")["total"] == 2


def test_a_run_is_stopped_once_by_who_may_replay_the_teams_events(sources):
    path = "/api/pipelines/pl-1/stop-source"
    assert sources.ask("otto", "POST", path, json={"why": "x"}).status_code == 404
    assert sources.ask("uma", "POST", path, json={"why": " "}).status_code == 422
    assert sources.post("uma", path, {"why": "slow"}) == {"pipeline_id": "pl-1", "asked": True}
    [flights, _] = sources.get("uma", "/api/sources")["sources"]
    assert (flights["state"], flights["stop_asked_by"]) == ("stopping", "uma")
    sources.post("uma", path, {"why": "slow"}, status=409)
    sources.post("ann", "/api/pipelines/pl-2/stop-source", {"why": "it failed"}, status=409)
