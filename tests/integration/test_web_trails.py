"""Questions about events over the REST API: asked, told to who may see, listed, cancelled."""

from __future__ import annotations

import itertools
import time
from datetime import datetime
from uuid import UUID

import pytest
from tests.support import told_traces as told
from tests.support import web_app
from tests.unit.tracing.samples import ids

from waybill.events import key_id
from waybill.trails import queries as trace_queries
from waybill.trails.question import ask_for_ids

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
ONE, TWO, OTHERS, UNKNOWN = ids(4)


@pytest.fixture
def spool(web, tmp_path, monkeypatch):
    """A spool with an event of team aviation by key, and one of shipping."""
    folder = tmp_path / "spool"
    monkeypatch.setenv("WAYBILL_TRACES__SPOOL_DIR", str(folder))
    monkeypatch.setattr("waybill_airflow.web.trails._WAIT_S", 60.0)  # on a loaded machine
    web.deploy("pl-1", "flights", "aviation", key=("n",))
    web.deploy("pl-2", "boxes", "shipping", key=("n",))
    told.way(web.lot, folder, [ONE])
    told.keyed(folder, ONE, '["4711"]')
    told.write(folder, [OTHERS], "ingestion", "accepted", 0, pipeline_id="pl-2")
    return folder


def test_a_question_is_answered_in_one_request_and_written_down(web, spool):
    said = web.post("uma", "/api/trails", {"ids": [f" {ONE.upper()} ", ONE]})
    assert (said["state"], said["asked_by"]) == ("done", "uma")
    [trail] = said["answer"]["trails"]
    assert (trail["event_id"], trail["pipeline"], trail["state"]) == (ONE, "flights", "in flight")
    assert [stop["phase"] for stop in trail["stops"]] == ["ingestion", "transformation", "mapping"]
    assert trail["stops"][1]["place"] == "events.aviation.warehouse/3@0"
    assert trail["stops"][1]["batch_row"]["destination"] == "warehouse"
    assert said["answer"]["searched"]["spool_files"] >= 4
    [entry] = web.audit()
    assert entry[:3] == ("uma", "ask_trail", "events")
    assert entry[3]["query_id"] == said["id"]


def test_times_rise_from_stop_to_stop_and_a_late_mark_is_said_to_be_one(web, spool):
    told.write(spool, [ONE], "replay", "replayed", 63, replay_id="r-1")
    batch = told.commit(web.lot)
    for phase, after_s in (("mapping", 61), ("transformation", 60.7)):
        told.write(spool, [ONE], phase, "passed", after_s, attempt=1, batch=batch)
    [trail] = web.post("uma", "/api/trails", {"ids": [ONE]})["answer"]["trails"]
    stops = trail["stops"]
    assert [(stop["leg"], stop["phase"]) for stop in stops[3:]] == [
        (1, "replay"),
        (1, "transformation"),
        (1, "mapping"),
    ]
    times = [datetime.fromisoformat(stop["shown_at"]) for stop in stops]
    assert times == sorted(times)
    assert [stop["late"] for stop in stops] == [False] * 3 + [True] + [False] * 2
    assert stops[3]["shown_at"] == stops[4]["at"]
    assert [stop["after_s"] for stop in stops[1:]] == [
        pytest.approx((later - before).total_seconds())
        for before, later in itertools.pairwise(times)
    ]


def test_each_copy_of_an_event_has_its_own_times_and_its_own_verdict(web, spool):
    told.came_again(web.lot, spool, TWO, parks=True)
    [trail] = web.post("uma", "/api/trails", {"ids": [TWO]})["answer"]["trails"]
    assert (trail["state"], trail["said"]) == ("delivered", "delivered (copy 2); copy 1 is parked")
    assert [(one["copy_number"], one["state"]) for one in trail["copies"]] == [
        (1, "parked"),
        (2, "delivered"),
    ]
    assert [stop["copy_number"] for stop in trail["stops"]] == [1] * 4 + [2] * 3
    assert [stop["copies"] for stop in trail["stops"]] == [[1]] * 4 + [[2]] * 3
    assert not [stop for stop in trail["stops"] if stop["late"] or stop["shown_at"] != stop["at"]]


def test_an_event_of_another_team_is_as_one_that_is_not_known(web, spool):
    for user, own, foreign in (("uma", ONE, OTHERS), ("otto", OTHERS, ONE)):
        said = web.post(user, "/api/trails", {"ids": [own, foreign, UNKNOWN]})["answer"]
        assert [trail["event_id"] for trail in said["trails"]] == [own]
        assert said["missing"] == [{"id": foreign, "nearest": []}, {"id": UNKNOWN, "nearest": []}]
    everything = web.post("ann", "/api/trails", {"ids": [ONE, OTHERS]})["answer"]
    assert len(everything["trails"]) == 2


def test_nothing_of_another_team_is_told_as_near(web, spool):
    said = web.post("otto", "/api/trails", {"ids": [f"{ONE}/1", "4711"]})["answer"]
    assert [one["nearest"] for one in said["missing"]] == [[], []]
    said = web.post("uma", "/api/trails", {"ids": [f"{ONE}/1", "4711"]})["answer"]
    assert all("primary key" in n or "is known" in n for m in said["missing"] for n in m["nearest"])
    assert all(one["nearest"] for one in said["missing"])


def test_a_key_is_asked_of_a_pipeline_that_one_may_see(web, spool):
    said = web.post("uma", "/api/trails", {"pipeline": "flights", "key": ["4711"]})
    assert [trail["event_id"] for trail in said["answer"]["trails"]] == [ONE]
    assert said["answer"]["ways"] == [{"event_name": "flight", "key": '["4711"]', "events": 1}]
    foreign = {"pipeline": "flights", "key": ["4711"]}
    nobodys = {"pipeline": "nope", "key": ["4711"]}
    said = [web.ask("otto", "POST", "/api/trails", json=body) for body in (foreign, nobodys)]
    assert [answer.status_code for answer in said] == [404, 404]
    assert said[0].text.replace("flights", "nope") == said[1].text
    assert web.ask("ann", "POST", "/api/trails", json=nobodys).status_code == 404
    assert [row[3].get("key") for row in web.audit()] == [["4711"]]


def test_a_personal_key_is_quoted_to_who_asked_only(web, spool):
    web.deploy("pl-4", "people", "aviation", personal=("mail",), key=("mail",))
    body = {"pipeline": "people", "key": ["ann@example.org"]}
    refused = web.ask("uma", "POST", "/api/trails", json=body)
    assert (refused.status_code, "'personal'" in refused.json()["detail"]) == (403, True)
    asked = web.post("pia", "/api/trails", body)["id"]
    assert web.get("pia", f"/api/trails/{asked}")["question"]["key"]["values"] == body["key"]
    assert "ann@example.org" not in str(web.audit())
    assert [row[0] for row in web.audit()] == ["pia"]
    grants = [{"who": "vic", "teams": "*", "permissions": ["view"]}]
    web.grant([*web_app.GRANTS, *grants])
    shown = web.get("vic", f"/api/trails/{asked}")
    assert "ann@example.org" not in str(shown)
    assert "ann@example.org" not in str(web.get("vic", "/api/trails"))
    assert "ann@example.org" in str(web.get("ann", f"/api/trails/{asked}"))


def test_who_goes_through_a_list_of_personal_keys_is_slow(web, spool, monkeypatch):
    monkeypatch.setattr(trace_queries, "MOST_KEYS_A_MINUTE", 2)
    web.deploy("pl-4", "people", "aviation", personal=("mail",), key=("mail",))
    for number in range(2):
        web.post("pia", "/api/trails", {"pipeline": "people", "key": [f"{number}@example.org"]})
    body = {"pipeline": "people", "key": ["2@example.org"]}
    answer = web.ask("pia", "POST", "/api/trails", json=body)
    assert (answer.status_code, "2 keys within a minute" in answer.text) == (429, True)
    web.post("pia", "/api/trails", {"ids": [ONE]})
    web.post("pia", "/api/trails", {"pipeline": "flights", "key": ["4711"]})
    web.post("ann", "/api/trails", body)


def test_an_id_does_not_tell_whether_there_is_an_event_of_a_personal_key(web, spool):
    web.deploy("pl-4", "people", "aviation", personal=("mail",), key=("mail",))
    mail, plain = "ann@example.org", "4711"
    key = {"name": "flight", "pipeline_id": "pl-4"}
    told.keyed(spool, TWO, f'["{mail}"]', **key)
    for user in ("uma", "pia"):
        asked = {"ids": [mail, key_id("pl-4", "flight", f'["{mail}"]'), plain]}
        answer = web.post(user, "/api/trails", asked)["answer"]
        assert answer["trails"] == []
        near = {one["id"]: " ".join(one["nearest"]) for one in answer["missing"]}
        assert near[mail] == ""
        assert "people" not in str(near)
        assert "pl-4" not in str(near)
        assert "primary key of an event" in near[plain]


def test_others_questions_are_told_to_who_may_see_every_team_only(web, spool):
    asked = web.post("uma", "/api/trails", {"ids": [ONE]})["id"]
    for method, path in (("GET", ""), ("POST", "/cancel")):
        assert web.ask("pia", method, f"/api/trails/{asked}{path}").status_code == 404
    assert web.get("pia", "/api/trails")["queries"] == []
    assert [one["id"] for one in web.get("uma", "/api/trails")["queries"]] == [asked]
    assert [one["id"] for one in web.get("ann", "/api/trails")["queries"]] == [asked]
    assert web.get("ann", f"/api/trails/{asked}")["answer"]["trails"][0]["event_id"] == ONE


def test_what_one_may_no_longer_see_is_cut_from_what_was_found(web, spool):
    asked = web.post("ann", "/api/trails", {"ids": [ONE, OTHERS]})["id"]
    grants = [{"who": "ann", "teams": ["shipping"], "permissions": ["view"]}]
    web.grant(grants)
    said = web.get("ann", f"/api/trails/{asked}")["answer"]
    assert [trail["event_id"] for trail in said["trails"]] == [OTHERS]
    assert said["missing"] == [{"id": ONE, "nearest": []}]


def test_a_question_that_takes_long_is_polled_and_cancelled(web, spool, monkeypatch):
    monkeypatch.setattr("waybill_airflow.web.trails._WAIT_S", 0.0)
    with monkeypatch.context() as nobody_looks:
        nobody_looks.setattr(trace_queries, "claim", lambda *_, **__: None)
        said = web.post("uma", "/api/trails", {"ids": [ONE]}, status=202)
    until = time.monotonic() + 240
    found = said
    while found["state"] != "done" and time.monotonic() < until:
        found = web.get("uma", f"/api/trails/{said['id']}")
    assert found["answer"]["trails"][0]["event_id"] == ONE
    tracker = web.lot.tracker
    waits = trace_queries.ask(tracker, ask_for_ids([ONE]), who="uma", runner="elsewhere")
    cancelled = web.post("uma", f"/api/trails/{waits}/cancel")
    assert (cancelled["state"], cancelled["cancel_asked"]) == ("running", True)
    done = web.post("uma", f"/api/trails/{found['id']}/cancel")
    assert (done["state"], done["cancel_asked"]) == ("done", False)


def test_too_many_open_questions_are_refused(web, spool):
    for _ in range(trace_queries.MOST_WAITING):
        trace_queries.ask(web.lot.tracker, ask_for_ids([ONE]), who="uma", runner="elsewhere")
    answer = web.ask("uma", "POST", "/api/trails", json={"ids": [ONE]})
    assert (answer.status_code, "20 questions open" in answer.json()["detail"]) == (429, True)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "give `ids`"),
        ({"ids": ["a"], "pipeline": "flights", "key": ["1"]}, "give `ids`"),
        ({"pipeline": "flights"}, "a key is asked for by"),
        ({"key": ["1"]}, "a key is asked for by"),
        ({"ids": []}, "no event id"),
        ({"ids": ["a\x00"]}, "NUL"),
        ({"ids": ["x" * 501]}, "at most 500"),
        ({"ids": [str(n) for n in range(1001)]}, "at most 1000"),
        (
            {"ids": ["a"], "since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
            "later than",
        ),
        ({"ids": ["a"], "since": "2026-01-02"}, "since"),
        ({"ids": ["a"], "nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_no_question_is_refused(web, spool, body, words):
    answer = web.ask("uma", "POST", "/api/trails", json=body)
    assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text
    assert web.audit() == []


def test_an_unknown_question_and_what_is_no_id_are_told_apart(web, spool):
    assert web.ask("ann", "GET", f"/api/trails/{UUID(int=1)}").status_code == 404
    assert web.ask("ann", "GET", "/api/trails/nothing").status_code == 422
