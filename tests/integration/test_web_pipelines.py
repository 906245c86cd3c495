"""The routes of pipelines: a line each, the own teams' only, and events by minute."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from airflow.utils.session import create_session
from sqlalchemy import event as happening
from sqlalchemy import text
from tests.integration.parking_lot import make_event
from tests.support import web_app
from tests.support.plans import explained

from waybill.cli.stack import PAGES
from waybill.ledger import RunFigures, begin_run, end_run, fold
from waybill.reconciliation import BreachKey, open_breach
from waybill_airflow.web import pages
from waybill_airflow.web.services import parked_events

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
HOSTILE = "<img src=x onerror=alert(1)>"


def names(found):
    return [one["name"] for one in found["pipelines"]]


def hold(web, pipeline_id):
    web.lot.sql(
        "INSERT INTO pipeline_holds (pipeline_id, cause, held_by) VALUES "
        "(:id, '{\"kind\": \"storm\"}', 'waybill')",
        id=pipeline_id,
    )


def test_a_line_says_lag_what_is_parked_held_and_what_failed_last(web):
    own, _, _ = web.two_teams()
    hold(web, "pl-1")
    web.lot.sql(
        "INSERT INTO topic_looks (topic, written, read, lag_s) "
        "VALUES ('events.aviation.warehouse', 9, 4, 41.5)"
    )
    [line] = web.get("uma", "/api/pipelines")["pipelines"]
    assert (line["name"], line["team"], line["destination"]) == ("flights", "aviation", "warehouse")
    assert (line["lag_s"], line["parked"], line["replaying"]) == (41.5, 3, 0)
    assert (line["hold_kind"], line["held_at"] is not None) == ("storm", True)
    assert line["last_error"]["partition_id"] == own
    assert "message" not in str(line)


def test_others_see_their_teams_pipelines_only(web):
    web.two_teams()
    hold(web, "pl-1")
    for user, seen, held in (("ann", ["boxes", "flights"], 1), ("otto", ["boxes"], 0)):
        found = web.get(user, "/api/pipelines")
        assert (names(found), found["total"], found["held"]) == (seen, len(seen), held)
    assert web.ask("otto", "GET", "/api/pipelines/pl-1/last-run").status_code == 403
    assert web.ask("nell", "GET", "/api/pipelines").status_code == 403


def test_five_thousand_pipelines_come_in_pages_by_name(web):
    web.lot.sql(
        "INSERT INTO pipelines (id, name, team) SELECT 'p' || n, 'name ' || lpad(n::text, 4, '0'), "
        "'aviation' FROM generate_series(0, 4999) AS n"
    )
    began = time.monotonic()
    seen, after = [], None
    for _ in range(3):
        found = web.get("uma", "/api/pipelines", params={"limit": 100, "after": after or ""})
        seen += names(found)
        after = found["next"]
    assert seen == [f"name {n:04d}" for n in range(300)]
    assert found["total"] == 5000
    assert time.monotonic() - began < 60
    last = web.get("uma", "/api/pipelines", params={"limit": 100, "after": "name 4899"})
    assert (len(last["pipelines"]), last["next"]) == (100, None)
    assert web.ask("uma", "GET", "/api/pipelines?limit=101").status_code == 422


def test_pipelines_are_found_by_words_and_by_what_needs_attention(web):
    web.two_teams()
    web.deploy("pl-h", HOSTILE, "aviation")
    web.deploy("pl-%", "100%_sure", "aviation")
    for words, found in (
        ("FLI", ["flights"]),
        ("shipp", ["boxes"]),
        (HOSTILE, [HOSTILE]),
        ("%", ["100%_sure"]),
        ("'; DROP TABLE pipelines", []),
    ):
        assert names(web.get("ann", "/api/pipelines", params={"words": words})) == found
    hold(web, "pl-h")
    attention = web.get("ann", "/api/pipelines", params={"attention": True})
    assert names(attention) == sorted(["boxes", "flights", HOSTILE])
    assert attention["held"] == 1


def test_rates_are_events_of_each_minute_that_came_in_and_that_were_delivered(web):
    web.two_teams()
    web.lot.park([make_event(9)], 9)
    minute = int(time.time() // 60) - 10
    came = [["flight", "ingestion", minute, [120, 0, 120, 120, 0, 0, 0, 0]]]
    went = [["flight", "destination", minute - 90, [0, 5, 100, 100, 1, 0, 2, 3]]]  # a backlog
    old = went * 7
    for reference, counts, ago in (
        ("batch", [*came, ["flight", "mapping", minute, [7, 0, 7, 7, 0, 0, 0, 0]]], 10),
        ("load:warehouse:1", went, 9),
        ("load:warehouse:2", went, 9),
        ("reload:warehouse:1:1", went, 9),
        ("load:warehouse:0", old, 600),
    ):
        web.lot.sql(
            "INSERT INTO ledger (reference, pipeline_id, counts, committed_at) VALUES (:reference, "
            "'pl-1', CAST(:counts AS jsonb), to_timestamp((:minute - :ago) * 60 + 30))",
            reference=reference, counts=json.dumps(counts), minute=minute + 10, ago=ago,
        )  # fmt: skip
    fold(web.lot.tracker)
    fold(web.lot.tracker)
    [rates] = web.get("uma", "/api/pipelines")["pipelines"]
    assert (len(rates["came_in"]), sum(rates["came_in"]), sum(rates["delivered"])) == (60, 120, 200)
    assert rates["delivered"].index(200) == rates["came_in"].index(120) + 1
    assert rates["came_in"].index(120) in (48, 49)
    assert 'aria-label="120 events taken in' in rates["sparkline"]
    assert '200 delivered"' in rates["sparkline"]


def test_rates_have_what_came_in_and_was_delivered_just_now_before_it_is_folded(web):
    web.two_teams()
    minute = int(time.time() // 60)
    came = [["flight", "ingestion", minute, [30, 0, 30, 30, 0, 0, 0, 0]]]
    went = [["flight", "destination", minute - 90, [0, 0, 20, 20, 0, 0, 0, 0]]]
    insert = (
        "INSERT INTO ledger (reference, pipeline_id, counts) VALUES (:reference, 'pl-1',"
        " CAST(:counts AS jsonb))"
    )
    for reference, counts in (("batch", came), ("load:warehouse:1", went), ("reload:x:1:1", went)):
        web.lot.sql(insert, reference=reference, counts=json.dumps(counts))
    for _ in range(2):
        [rates] = web.get("uma", "/api/pipelines")["pipelines"]
        assert sum(rates["came_in"][-2:]) == 30
        assert sum(rates["delivered"][-2:]) == 20
        assert 30 / 360 <= rates["came_in_per_s"] <= 30 / 300
        assert 20 / 360 <= rates["delivered_per_s"] <= 20 / 300
        fold(web.lot.tracker)


def test_of_what_is_not_folded_the_newest_rows_are_read_however_many_wait(web):
    web.two_teams()
    minute = int(time.time() // 60)
    counts = json.dumps([["flight", "ingestion", minute, [1, 0, 1, 1, 0, 0, 0, 0]]])
    web.lot.sql(
        "INSERT INTO ledger (reference, pipeline_id, counts, committed_at) "
        "SELECT 'b' || n, CASE WHEN n > 69990 THEN 'pl-1' ELSE 'pl-2' END, CAST(:counts AS jsonb), "
        "now() - interval '70000 s' + n * interval '1 s' FROM generate_series(1, 70000) AS n",
        counts=counts,
    )
    web.lot.sql("ANALYZE ledger")
    with explained(parked_events().tracker) as scans:
        [rates] = web.get("uma", "/api/pipelines")["pipelines"]
    assert sum(rates["came_in"]) == 10, "what came in just now"
    assert sum(scan.rows for scan in scans if scan.table == "ledger") <= 50_000


def test_a_line_says_the_worst_that_holds_its_pipeline_up(web):
    tracker = web.lot.tracker
    web.deploy("pl-1", "flights", "aviation", source={"connector": "sql"})

    def state():
        [line] = web.get("uma", "/api/pipelines")["pipelines"]
        return line["state"], line["run_state"], line["run_at"] is not None

    assert state() == ("idle", "never", False)
    run = begin_run(tracker, "pl-1", node="n")
    assert state() == ("running", "running", True)
    web.lot.sql("UPDATE source_runs SET told_at = told_at - interval '2 minutes'")
    assert state() == ("silent", "silent", True)
    end_run(tracker, "pl-1", run, RunFigures(), state="success")
    assert state() == ("idle", "success", True)
    web.lot.sql(
        "INSERT INTO destination_states (destination, waiting_since) VALUES ('warehouse', now())"
    )
    assert state()[0] == "away"
    begun = begin_run(tracker, "pl-1", node="n")
    end_run(tracker, "pl-1", begun, RunFigures(), state="failed", error="no route")
    assert state()[0] == "failed"
    web.lot.sql(
        "INSERT INTO topic_generations (topic, generation, name, state, ends) VALUES "
        "('events.aviation.warehouse', 1, 'events.aviation.warehouse', 'ended', '{}'), "
        "('events.aviation.warehouse', 2, 'events-g2.aviation.warehouse', 'writing', NULL)"
    )
    web.lot.sql(
        "INSERT INTO topic_stops (topic, partition, kind, words) VALUES "
        "('events.aviation.warehouse', 0, 'cut', 'of the generation that ended')"
    )
    assert state()[0] == "failed"
    web.lot.sql("UPDATE topic_stops SET topic = 'events-g2.aviation.warehouse'")
    assert state()[0] == "stopped"
    hold(web, "pl-1")
    assert state()[0] == "held"
    web.lot.sql("DELETE FROM pipeline_versions")
    assert state()[0] == "not deployed"


def test_held_events_and_open_breaches_are_counted_and_make_a_pipeline_need_a_look(web):
    for number, name in ((1, "flights"), (2, "idle"), (3, "failed")):
        web.deploy(f"pl-{number}", name, "aviation")
    web.deploy("pl-4", "theirs", "shipping")
    web.lot.park([make_event(n, code="pipeline_held") for n in range(2)] + [make_event(9)])
    with web.lot.tracker.transaction() as connection:
        for pipeline_id in ("pl-1", "pl-1", "pl-4"):
            open_breach(connection, BreachKey(pipeline_id, "quiet"), words="w", tell=False)
        open_breach(connection, BreachKey("pl-1", "late"), words="w", tell=False)
    run = begin_run(web.lot.tracker, "pl-3", node="n")
    end_run(web.lot.tracker, "pl-3", run, RunFigures(), state="failed", error="no route")
    found = web.get("uma", "/api/pipelines", params={"attention": True})
    failed, flights = found["pipelines"]
    assert (failed["name"], failed["state"]) == ("failed", "failed")
    assert (flights["parked"], flights["held"], flights["breaches"]) == (3, 2, 2)
    assert (found["total"], found["breaches"], found["failed"]) == (2, 2, 1)


def test_what_is_silent_stopped_or_away_needs_a_look_and_is_counted(web):
    for number, name in enumerate(("quiet", "read by nobody", "without a warehouse", "well"), 1):
        web.deploy(f"pl-{number}", name, "aviation", destination=f"d{number}")
    web.deploy("pl-5", "theirs", "shipping", destination="d3")

    def needing_a_look():
        found = web.get("uma", "/api/pipelines", params={"attention": True})
        counts = tuple(found[name] for name in ("total", "failed", "silent", "stopped", "away"))
        return {one["name"]: one["state"] for one in found["pipelines"]}, counts

    assert needing_a_look() == ({}, (0, 0, 0, 0, 0))
    begin_run(web.lot.tracker, "pl-1", node="n")
    begin_run(web.lot.tracker, "pl-4", node="n")
    assert needing_a_look() == ({}, (0, 0, 0, 0, 0)), "they run"
    web.lot.sql("UPDATE source_runs SET told_at = now() - interval '2 minutes' WHERE pipeline_id = 'pl-1'")  # fmt: skip
    web.lot.sql(
        "INSERT INTO topic_stops (topic, partition, kind, words) VALUES "
        "('events.aviation.d2', 0, 'cut', 'w'), ('events.aviation.d2', 1, 'cut', 'w')"
    )
    web.lot.sql("INSERT INTO destination_states (destination, waiting_since) VALUES ('d3', now())")
    states = {"quiet": "silent", "read by nobody": "stopped", "without a warehouse": "away"}
    assert needing_a_look() == (states, (3, 0, 1, 1, 1))
    whole = web.get("ann", "/api/pipelines")
    assert (whole["total"], whole["away"]) == (5, 2)
    web.lot.sql("UPDATE topic_stops SET settled_at = now()")
    web.lot.sql("UPDATE destination_states SET waiting_since = NULL")
    assert needing_a_look() == ({"quiet": "silent"}, (1, 0, 1, 0, 0))


def redeploy(web, number, **declaration):
    """Deploy another version of pipeline pl-1."""
    web.lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES ('pl-1', :number, :version, CAST(:declaration AS jsonb), 'test')",
        number=number, version=f"v{number}",
        declaration=json.dumps({"events": {}, "destination": "warehouse", **declaration}),
    )  # fmt: skip


@pytest.mark.parametrize("ended", ["failed", "silent"])
def test_a_source_that_sends_by_itself_now_is_not_told_as_failed_any_more(web, ended):
    web.deploy("pl-1", "flights", "aviation", source={"connector": "csv"})
    run = begin_run(web.lot.tracker, "pl-1", node="n")
    if ended == "failed":
        end_run(web.lot.tracker, "pl-1", run, RunFigures(), state="failed", error="no file")
    else:
        web.lot.sql("UPDATE source_runs SET told_at = now() - interval '2 minutes'")
    assert web.get("uma", "/api/pipelines")[ended] == 1
    redeploy(web, 2, source={"connector": "http"})
    found = web.get("uma", "/api/pipelines")
    [line] = found["pipelines"]
    assert (line["state"], line["run_state"], found[ended]) == ("listening", "pushed", 0)
    assert names(web.get("uma", "/api/pipelines", params={"attention": True})) == []
    sources = web.get("uma", "/api/sources")
    assert (sources["sources"][0]["state"], sources["failed"]) == ("pushed", 0)
    assert web.get("uma", "/api/sources", params={"state": "failed"})["total"] == 0


def test_a_failure_is_over_once_source_or_destination_is_another_and_not_by_any_deploy(web):
    csv = {"connector": "csv", "path": "a.csv"}
    web.deploy("pl-1", "flights", "aviation", source=csv)
    run = begin_run(web.lot.tracker, "pl-1", node="n")
    end_run(web.lot.tracker, "pl-1", run, RunFigures(), state="failed", error="no file")

    def told():
        found = web.get("uma", "/api/pipelines")
        [line] = found["pipelines"]
        looked = web.get("uma", "/api/pipelines", params={"attention": True})["total"]
        return line["state"], line["run_state"], line["run_outdated"], found["failed"], looked

    is_told, is_over = ("failed", "failed", False, 1, 1), ("idle", "failed", True, 0, 0)
    assert told() == is_told
    redeploy(web, 2, source=csv, events={"flight": {}})
    assert told() == is_told, "the same source and destination"
    redeploy(web, 3, source=csv, destination="lake")
    assert told() == is_over
    redeploy(web, 4, source=csv | {"path": "b.csv"})
    assert told() == is_over
    redeploy(web, 5, source=csv)
    assert told() == is_told, "as it was when it failed"
    redeploy(web, 6, source=csv, destination="lake")
    run = begin_run(web.lot.tracker, "pl-1", node="n")
    end_run(web.lot.tracker, "pl-1", run, RunFigures(), state="failed", error="no file")
    assert told() == is_told, "it failed again"


def test_a_page_is_one_statement_however_many_pipelines_it_has(web):
    asked = []

    def note(_connection, _cursor, statement, *_more):
        asked.append(statement)

    web.two_teams()
    web.get("ann", "/api/pipelines")  # what is opened at the first request
    engine = parked_events().tracker.engine
    happening.listen(engine, "before_cursor_execute", note)
    try:
        web.get("ann", "/api/pipelines")
        few = len(asked)
        for number in range(60):
            web.deploy(f"pl-x{number}", f"x{number}", "aviation")
        del asked[:]
        web.get("ann", "/api/pipelines", params={"limit": 100})
    finally:
        happening.remove(engine, "before_cursor_execute", note)
    reading = [one for one in asked if not one.startswith("SET ")]
    assert (len(asked), len(reading)) == (few, 1)


def test_the_last_run_is_that_of_airflow_in_which_the_source_was_read(web, monkeypatch):
    """With runs of the one DAG that this Airflow has: a source's own are kept alike."""
    own, _, _ = web.two_teams()
    web.deploy("pl-r", "replay", "aviation")
    monkeypatch.setattr("waybill_airflow.web.runs._INGEST", "")
    path = "/api/pipelines/pl-r/last-run"
    assert web.get("uma", path) == {"dag_id": "replay", "run_id": None}
    before = web.post("uma", f"/api/partitions/{own}/dry-run", status=202)["run_id"]
    begin(before)
    begin_run(web.lot.tracker, "pl-r", node="n")
    after = web.post("uma", f"/api/partitions/{own}/replay", status=202)["run_id"]
    begin(after)
    assert web.get("uma", path) == {"dag_id": "replay", "run_id": before}
    begin_run(web.lot.tracker, "pl-r", node="n")
    assert web.get("uma", path) == {"dag_id": "replay", "run_id": after}


def begin(run_id):
    """Have the task of a run begin now."""
    with create_session(scoped=False) as session:
        now = {"now": datetime.now(UTC), "run": run_id}
        session.execute(text("UPDATE task_instance SET start_date = :now WHERE run_id = :run"), now)


def test_a_pipeline_without_a_dag_has_no_last_run_and_another_teams_is_nobodys(web):
    web.deploy("pl-1", "flights", "aviation")
    web.deploy("pl-h", HOSTILE, "aviation")
    for pipeline_id in ("pl-1", "pl-h"):
        answer = web.ask("uma", "GET", f"/api/pipelines/{pipeline_id}/last-run")
        assert answer.status_code == 404, answer.text
    assert web.ask("uma", "GET", "/api/pipelines/nothing/last-run").status_code == 403
    assert web.ask("ann", "GET", "/api/pipelines/nothing/last-run").status_code == 404


def test_the_address_of_all_pages_leads_to_the_overview_and_each_page_is_where_commands_say(web):
    answer = web.ask("uma", "GET", "/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "overview")
    assert "<title>Overview</title>" in web.ask("uma", "GET", "/").text
    assert web.ask("nell", "GET", "/", follow_redirects=False).status_code == 403
    assert web.ask(None, "GET", "/", follow_redirects=False).status_code == 401
    assert {one.status_code for one in (web.ask("uma", "GET", f"/{n}") for n in PAGES)} == {200}
    assert set(PAGES) == set(pages._PAGES)


def test_the_old_address_of_the_page_leads_to_the_new_one(web):
    answer = web.ask("uma", "GET", "/pipelines", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, "overview")
    assert "<title>Overview</title>" in web.ask("uma", "GET", "/pipelines").text
    assert web.ask("nell", "GET", "/pipelines", follow_redirects=False).status_code == 403
