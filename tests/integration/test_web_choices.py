"""The REST API on some of a partition's events, and on held pipelines."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from tests.integration.parking_lot import make_event
from tests.support import web_app

from waybill.events import HELD_ERROR
from waybill.parking.masking import MASK

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web

CHOICE = {
    "since": "2013-01-01T00:00:00+00:00",
    "until": "2013-01-02T00:00:00+00:00",
    "parked_since": "2026-01-01T00:00:00+00:00",
    "parked_until": "2026-01-02T00:00:00+00:00",
    "fingerprint": "0123456789abcdef",
    "limit": 7,
}
EARLIER = {"enter": "transformation", "governed": False}


@pytest.fixture
def partition(web):
    """Three events of one cause, parked first, and two of another; the partition's id."""
    web.deploy("pl-1", "flights", "aviation", personal=["name"])
    web.lot.park([make_event(n, message="one cause") for n in range(3)], 1)
    web.lot.park([make_event(n, message="other", where="x") for n in range(3, 5)], 2)
    web.lot.sql("UPDATE segments SET parked_at = '2026-01-01T12:00Z' WHERE commit_number = 1")
    web.lot.sql("UPDATE segments SET parked_at = '2026-01-02T12:00Z' WHERE commit_number = 2")
    return web.lot.only().id


def conf_of(web, started):
    answer = web.client.get(
        f"/api/v2/dags/{started['dag_id']}/dagRuns/{started['run_id']}",
        headers={"authorization": f"Bearer {web.tokens['ann']}"},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["conf"]


def asked(choice):
    given = {name: value for name, value in choice.items() if name != "limit"}
    return given | {"max_events": choice["limit"]}


@pytest.mark.parametrize(
    ("verb", "options"),
    [("dry-run", {"sample": 3}), ("replay", {"rate_per_s": 50, "canary": True})],
)
def test_what_was_chosen_reaches_the_run_and_the_audit_log(web, partition, verb, options):
    path = f"/api/partitions/{partition}/{verb}"
    started = web.post("uma", path, CHOICE | options, status=202)
    conf = conf_of(web, started)
    wanted = asked(CHOICE) | options | {"dry_run": verb == "dry-run"}
    assert {name: conf[name] for name in wanted} == wanted
    [(who, action, _, detail)] = web.audit()
    assert (who, action) == ("uma", f"ask_{verb.replace('-', '_')}")
    assert {name: detail[name] for name in asked(CHOICE) | options} == asked(CHOICE) | options


@pytest.mark.parametrize("verb", ["dry-run", "replay"])
@pytest.mark.parametrize("name", sorted(CHOICE))
def test_another_choice_is_another_run(web, partition, verb, name):
    path = f"/api/partitions/{partition}/{verb}"
    first = web.post("uma", path, CHOICE, status=202)
    again = web.post("uma", path, CHOICE, status=202)
    other = web.post("uma", path, CHOICE | {name: None}, status=202)
    assert (again["run_id"], again["already"]) == (first["run_id"], True)
    assert (other["run_id"] != first["run_id"], other["already"]) == (True, False)


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        ({}, 5),
        ({"parked_since": "2026-01-02T00:00:00Z"}, 2),
        ({"parked_until": "2026-01-02T00:00:00Z"}, 3),
        ({"fingerprint": "of the first"}, 3),
        ({"fingerprint": "of the first", "parked_since": "2026-01-02T00:00:00Z"}, 0),
    ],
)
def test_a_discard_and_its_undoing_take_the_chosen_events_only(web, partition, choice, taken):
    groups = web.get("uma", f"/api/partitions/{partition}")["fingerprints"]
    causes = {group["events"]: group["fingerprint"] for group in groups}
    if "fingerprint" in choice:
        choice = choice | {"fingerprint": causes[3]}
    body = {"partition_id": partition, "why": "test"}
    assert web.post("uma", "/api/discard", body | choice)["events"] == taken
    assert web.lot.only().discarded == taken
    web.post("uma", "/api/discard", body)
    assert web.post("uma", "/api/undo-discard", body | choice)["events"] == taken
    assert web.lot.only().parked == taken
    web.lot.check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"fingerprint": "ABC"},
        {"fingerprint": ""},
        {"limit": 0},
        {"sample": 0},
        {"parked_since": "soon"},
        {"parked_since": "2026-01-01T00:00:00"},
        {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"parked_since": "2026-01-02T00:00:00Z", "parked_until": "2026-01-01T00:00:00Z"},
        {"unheard": 1},
    ],
)
def test_a_choice_that_is_wrong_starts_nothing(web, partition, wrong):
    answer = web.ask("uma", "POST", f"/api/partitions/{partition}/dry-run", json=wrong)
    assert answer.status_code == 422
    assert next(iter(wrong)) in answer.json()["detail"]
    assert web.audit() == []


@pytest.fixture
def two_hours(web):
    """Three parked files, each with events of two hours; the partition's id."""
    web.deploy("pl-1", "flights", "aviation")
    for number in range(3):
        web.lot.park([make_event(hour) for hour in (1, 2)], number + 1)
    return web.lot.only().id


@pytest.mark.parametrize("verb", ["discard", "undo-discard"])
def test_a_window_that_cuts_too_much_for_a_request_is_refused_with_the_command(
    web, two_hours, verb, monkeypatch
):
    from waybill.inspection import service

    monkeypatch.setattr(service, "MOST_CUTS", 2)
    if verb == "undo-discard":
        web.post("uma", "/api/discard", {"partition_id": two_hours, "why": "all"})
    before = web.lot.states(), len(web.audit())
    edge = "2013-01-01T01:30:00+00:00"
    body = {"partition_id": two_hours, "why": "it's old", "until": edge}
    answer = web.ask("uma", "POST", f"/api/{verb}", json=body)
    assert answer.status_code == 409
    assert "more than 2 parts of parked files" in answer.json()["detail"]
    [command] = re.findall("`(.*)`", answer.json()["detail"])
    assert shlex.split(command) == [
        *("waybill", "parked", verb, "pl-1", "--event-name=flight", "--stage=transformation"),
        *("--error-type=null_value", f"--until={edge}", "--why=it's old"),
    ]
    assert (web.lot.states(), len(web.audit())) == before
    monkeypatch.setattr(service, "MOST_CUTS", 3)
    assert web.post("uma", f"/api/{verb}", body)["events"] == 3
    web.lot.check()


def test_entering_earlier_is_offered_and_taken_only_where_sources_are_kept(web):
    web.deploy("pl-1", "flights", "aviation", keep_source=True)
    web.deploy("pl-2", "boxes", "shipping", keep_source=False)
    for pipeline in ("pl-1", "pl-2"):
        for stage in ("mapping", "transformation"):
            web.lot.park([make_event(1, stage=stage, code="type_mismatch", pipeline_id=pipeline)])
    found = {(one.pipeline_id, one.stage): one.id for one in web.lot.parking.partitions()}
    offered = {
        k: web.get("ann", f"/api/partitions/{n}")["enters_earlier"] for k, n in found.items()
    }
    assert {key for key, offer in offered.items() if offer} == {("pl-1", "mapping")}
    for place in (("pl-1", "transformation"), ("pl-1", "mapping"), ("pl-2", "mapping")):
        for verb, more in (("replay", EARLIER), ("dry-run", {"enter": "transformation"})):
            answer = web.ask("ann", "POST", f"/api/partitions/{found[place]}/{verb}", json=more)
            if place == ("pl-2", "mapping"):
                assert answer.status_code == 409
                assert "keeps sources" in answer.json()["detail"]
                continue
            conf = conf_of(web, answer.json())
            assert {name: conf[name] for name in more} == more
            assert {name: web.audit()[-1][3][name] for name in more} == more
    wrong = web.ask(
        "uma", "POST", f"/api/partitions/{found['pl-1', 'mapping']}/replay", json={"enter": "x"}
    )
    assert wrong.status_code == 422


@pytest.fixture
def held(web):
    """A pipeline with personal fields that a storm holds, and events that wait; the partition."""
    from waybill.parking.holds import record_storm

    web.deploy("pl-1", "flights", "aviation", personal=["name"])
    cause = {
        "version": "v1",
        "stage": "mapping",
        "error_type": "null_value",
        "place": "name",
        "message": "no such: Ann",
        "failed": 90,
        "events": 100,
    }
    with web.lot.tracker.transaction() as connection:
        assert record_storm(connection, "pl-1", cause)
    value = json.dumps({"name": "Ann"}).encode()
    web.lot.park([make_event(n, code=HELD_ERROR, value=value) for n in range(4)])
    return web.lot.only().id


def test_a_hold_is_shown_masked_and_released_once_with_a_reason(web, held):
    path = f"/api/partitions/{held}"
    hold = web.get("pia", path)["hold"]
    assert (hold["held_by"], hold["cause"]["failed"]) == ("storm breaker", 90)
    assert hold["cause"]["message"] == "no such: Ann"
    seen = [row for row in web.audit() if row[1] == "see_personal_messages"]
    assert [(who, detail["partitions"]) for who, _, _, detail in seen] == [("pia", [held])]
    assert web.get("uma", path)["hold"]["cause"]["message"] == MASK
    assert len([row for row in web.audit() if row[1] == "see_personal_messages"]) == 1
    release = "/api/pipelines/pl-1/release"
    assert web.ask("uma", "POST", release, json={"why": ""}).status_code == 422
    ended = web.post("uma", release, {"why": "mended"})
    assert (ended["released_by"], ended["id"]) == ("uma", hold["id"])
    assert MASK == ended["cause"]["message"]
    assert web.get("uma", path)["hold"] is None
    [(who, _, target, detail)] = [row for row in web.audit() if row[1] == "release"]
    assert (who, target, detail["why"]) == ("uma", "pl-1", "mended")
    again = web.ask("uma", "POST", release, json={"why": "mended"})
    assert (again.status_code, "is not held" in again.json()["detail"]) == (409, True)


def test_a_hold_is_released_only_by_those_who_may_replay(web, held):
    path = "/api/pipelines/pl-1/release"
    assert web.ask("otto", "POST", path, json={"why": "x"}).status_code == 404
    web.grant([{"who": "uma", "teams": ["aviation"], "permissions": ["view", "discard"]}])
    assert web.ask("uma", "POST", path, json={"why": "x"}).status_code == 403
    assert web.get("uma", f"/api/partitions/{held}")["hold"]["released_by"] is None


def test_a_pipeline_that_nobody_deployed_is_not_found(web, held):
    for pipeline in ("unheard", "%2e%2e", "flights"):
        path = f"/api/pipelines/{pipeline}/release"
        for user in ("ann", "uma"):
            assert web.ask(user, "POST", path, json={"why": "x"}).status_code == 404
    assert web.ask("ann", "POST", "/api/pipelines/a%00b/release", json={"why": "x"}).is_client_error
