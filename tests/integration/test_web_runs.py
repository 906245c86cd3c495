"""Replays, dry runs and decisions by the REST API, on Airflow's own runs."""

from __future__ import annotations

import pytest
from tests.integration.parking_lot import make_event
from tests.support import web_app

from waybill.access import Decision

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
DAG = "/api/v2/dags/replay"


@pytest.fixture(autouse=True)
def no_runs(web):
    """Begin without runs."""
    headers = {"authorization": f"Bearer {web.tokens['ann']}"}
    for run in web.client.get(f"{DAG}/dagRuns", headers=headers).json()["dag_runs"]:
        assert web.client.delete(f"{DAG}/dagRuns/{run['dag_run_id']}", headers=headers).is_success
    web.client.patch(DAG, json={"is_paused": False}, headers=headers)


def airflow(web, method, path, **given):
    headers = {"authorization": f"Bearer {web.tokens['ann']}"}
    answer = web.client.request(method, f"{DAG}{path}", headers=headers, **given)
    assert answer.is_success, answer.text
    return answer.json()


def runs(web):
    return airflow(web, "GET", "/dagRuns")["dag_runs"]


def test_a_double_click_is_one_run_of_the_one_who_clicked(web):
    own, _, _ = web.two_teams()
    conditions = {"fingerprint": "0123456789abcdef", "limit": 2}
    asked = {"rate_per_s": 5, "since": "2013-01-01T00:00:00Z", **conditions}
    first = web.post("uma", f"/api/partitions/{own}/replay", asked, status=202)
    second = web.post("uma", f"/api/partitions/{own}/replay", asked, status=202)
    assert (first["already"], second["already"]) == (False, True)
    assert first["run_id"] == second["run_id"]
    [run] = runs(web)
    assert run["dag_run_id"] == first["run_id"]
    assert run["triggering_user_name"] == "uma"
    assert run["conf"] == {
        "pipeline": "pl-1",
        "event_name": "flight",
        "stage": "transformation",
        "error_type": "null_value",
        "since": "2013-01-01T00:00:00+00:00",
        "until": None,
        "parked_since": None,
        "parked_until": None,
        "fingerprint": "0123456789abcdef",
        "max_events": 2,
        "enter": None,
        "rate_per_s": 5,
        "canary": False,
        "governed": True,
        "dry_run": False,
    }
    asks = [(who, action, detail["run_id"]) for who, action, _, detail in web.audit()]
    assert asks == [("uma", "ask_replay", first["run_id"])] * 2


@pytest.mark.parametrize("door", ["replay", "dry-run"])
def test_a_paused_dag_stays_paused_and_this_is_said(web, door):
    own, _, _ = web.two_teams()
    airflow(web, "PATCH", "", json={"is_paused": True})
    said = web.post("uma", f"/api/partitions/{own}/{door}", {}, status=409)["detail"]
    assert said.startswith("the DAG replay is paused, so nothing was begun")
    assert airflow(web, "GET", "")["is_paused"] is True
    assert (runs(web), web.audit()) == ([], [])


def test_another_request_is_another_run(web):
    own, _, _ = web.two_teams()
    for body in ({}, {"rate_per_s": 5}):
        assert (
            web.post("uma", f"/api/partitions/{own}/replay", body, status=202)["already"] is False
        )
    assert web.post("uma", f"/api/partitions/{own}/dry-run", status=202)["already"] is False
    web.lot.park([make_event(9)], 9)
    assert web.post("uma", f"/api/partitions/{own}/replay", status=202)["already"] is False
    assert len(runs(web)) == 4


def test_while_a_replay_runs_asking_again_is_that_run_and_afterwards_a_new_one(web):
    own, _, _ = web.two_teams()
    run_id = web.post("uma", f"/api/partitions/{own}/replay", status=202)["run_id"]
    replay = web.lot.parking.begin_replay(own, who="uma", run_id=run_id)
    again = web.post("uma", f"/api/partitions/{own}/replay", status=202)
    assert again == {"dag_id": "replay", "run_id": run_id, "already": True}
    shown = web.get("uma", f"/api/runs/replay/{run_id}")
    assert shown["progress"] == {"events": 3, "sent": 0}
    [found] = web.get("uma", f"/api/partitions/{own}")["replays"]
    assert (found["id"], found["state"]) == (str(replay.id), "running")
    cancelled = web.post("uma", f"/api/partitions/{own}/cancel")
    assert cancelled["state"] == "cancelled"
    assert web.lot.states() == {"parked": 5}
    new = web.post("uma", f"/api/partitions/{own}/replay", status=202)
    assert new["already"] is False
    assert web.ask("uma", "POST", f"/api/partitions/{own}/cancel").status_code == 409
    whos = {who for who, action, _, _ in web.audit() if action == "cancel_replay"}
    assert whos == {"uma"}


def test_into_a_held_pipeline_no_run_is_made_but_a_dry_run(web):
    own, _, _ = web.two_teams()
    web.lot.parking.hold("pl-1", Decision("ann", "migration"))
    refused = web.ask("uma", "POST", f"/api/partitions/{own}/replay", json={})
    assert (refused.status_code, runs(web)) == (409, [])
    assert "is held since" in refused.json()["detail"]
    assert web.post("uma", f"/api/partitions/{own}/dry-run", status=202)["already"] is False


def test_a_run_that_failed_is_resumed_by_asking_again(web):
    own, _, _ = web.two_teams()
    run_id = web.post("uma", f"/api/partitions/{own}/replay", status=202)["run_id"]
    airflow(web, "PATCH", f"/dagRuns/{run_id}", json={"state": "failed"})
    assert web.get("uma", f"/api/runs/replay/{run_id}")["state"] == "failed"
    again = web.post("uma", f"/api/partitions/{own}/replay", status=202)
    assert (again["run_id"], again["already"]) == (run_id, True)
    assert web.get("uma", f"/api/runs/replay/{run_id}")["state"] == "queued"


def test_a_report_is_shown_once_there_is_one(web):
    web.deploy("pl-1", "flights", "aviation")
    web.lot.park([make_event(1)])
    own = web.lot.only().id
    run_id = web.post("uma", f"/api/partitions/{own}/dry-run", status=202)["run_id"]
    assert web.get("uma", f"/api/runs/replay/{run_id}")["report"] is None
    report = {"events": 1, "would_pass": 0, "examples": {"mapping/null_value": "n is null"}}
    body = {"key": "return_value", "value": report}
    airflow(web, "POST", f"/dagRuns/{run_id}/taskInstances/replay/xcomEntries", json=body)
    assert web.get("uma", f"/api/runs/replay/{run_id}")["report"] == report


def test_a_run_that_failed_says_why_and_what_became_of_its_events(web):
    own, _, _ = web.two_teams()
    run_id = web.post("uma", f"/api/partitions/{own}/replay", status=202)["run_id"]
    replay = web.lot.parking.begin_replay(own, who="uma", run_id=run_id)
    for outcome, events in (("delivered", 2), ("parked", 1)):
        web.lot.sql(
            "INSERT INTO replay_outcomes VALUES (:id, :outcome, :events)",
            id=replay.id,
            outcome=outcome,
            events=events,
        )
    body = {"key": "reason", "value": "replay r1 was cancelled"}
    airflow(web, "POST", f"/dagRuns/{run_id}/taskInstances/replay/xcomEntries", json=body)
    shown = web.get("uma", f"/api/runs/replay/{run_id}")
    assert (shown["reason"], shown["became"]) == (None, {"delivered": 2, "parked": 1})
    airflow(web, "PATCH", f"/dagRuns/{run_id}", json={"state": "failed"})
    assert web.get("uma", f"/api/runs/replay/{run_id}")["reason"] == "replay r1 was cancelled"
    web.lot.sql("DELETE FROM replay_outcomes")


def test_a_look_at_a_run_reads_nothing_that_grows(web):
    """The page asks every few seconds: each table of parked events is read by an index."""
    from sqlalchemy import event as happening

    from waybill_airflow.web.services import parked_events

    own, _, _ = web.two_teams()
    run_id = web.post("uma", f"/api/partitions/{own}/replay", status=202)["run_id"]
    asked = []

    def note(_connection, _cursor, statement, parameters, _context, _many):
        if any(f"FROM {table}" in statement for table in ("parked_partitions", "replays")):
            asked.append((statement, parameters))

    engine = parked_events()._tracker.engine
    happening.listen(engine, "before_cursor_execute", note)
    try:
        web.get("uma", f"/api/runs/replay/{run_id}")
    finally:
        happening.remove(engine, "before_cursor_execute", note)
    assert len(asked) == 2
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in asked:
            plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars().all()
            assert [line for line in plan if "Index Cond: " in line and "_id = " in line], plan
            assert not [line for line in plan if "Seq Scan" in line and "pipelines" not in line]
            assert "DISTINCT" not in statement


def test_what_cannot_be_replayed_is_refused_before_a_run_is_made(web):
    web.deploy("pl-1", "flights", "aviation")
    web.lot.park([make_event(1, stage="ingestion", code="key_missing")])
    rows = web.lot.only().id
    refused = web.ask("uma", "POST", f"/api/partitions/{rows}/replay", json={})
    assert (refused.status_code, "never were events" in refused.json()["detail"]) == (409, True)
    web.lot.park([make_event(2)], 2)
    own = next(p.id for p in web.lot.parking.partitions() if p.stage == "transformation")
    web.post("uma", "/api/discard", {"partition_id": own, "why": "gone"})
    refused = web.ask("uma", "POST", f"/api/partitions/{own}/replay", json={})
    assert (refused.status_code, "nothing of" in refused.json()["detail"]) == (409, True)
    assert runs(web) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"since": "2013-01-01T00:00:00"}, "since"),
        ({"since": "soon"}, "since"),
        ({"rate": 5}, "rate"),
        ({"fingerprint": "x"}, "fingerprint"),
        ({"limit": 0}, "limit"),
        ([], "body"),
    ],
)
def test_a_wrong_request_is_refused_with_the_field(web, body, words):
    own, _, _ = web.two_teams()
    answer = web.ask("uma", "POST", f"/api/partitions/{own}/replay", json=body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert runs(web) == []


def test_a_discard_says_what_it_did_and_is_undone(web):
    own, _, _ = web.two_teams()
    report = web.post("uma", "/api/discard", {"partition_id": own, "why": "test flights"})
    assert (report["partitions"], report["events"], report["left_events"]) == (1, 3, 0)
    assert web.lot.states() == {"parked": 2, "discarded": 3}
    report = web.post("uma", "/api/undo-discard", {"partition_id": own, "why": "wrong ones"})
    assert report["events"] == 3
    assert web.lot.states() == {"parked": 5}
    said = [(who, action, detail["why"]) for who, action, _, detail in web.audit()]
    assert said == [("uma", "discard", "test flights"), ("uma", "undo_discard", "wrong ones")]
    entries = web.get("uma", "/api/audit")["entries"]
    assert [entry["action"] for entry in entries] == ["undo_discard", "discard"]


def test_a_discard_takes_the_events_of_its_window_only(web):
    own, _, _ = web.two_teams()
    window = {"since": "2013-01-01T00:00Z", "until": "2013-01-01T01:00Z"}
    report = web.post("uma", "/api/discard", {"partition_id": own, "why": "x", **window})
    assert (report["events"], report["left_events"]) == (1, 0)
    for why in ("", "  ", "\x00"):
        body = {"partition_id": own, "why": why}
        assert web.ask("uma", "POST", "/api/discard", json=body).status_code == 422
    assert web.lot.states() == {"parked": 4, "discarded": 1, "replaced": 3}
