"""What the REST API says of itself holds: names of parameters, statuses, the address, numbers."""

from __future__ import annotations

import csv
import io
import json

import pytest
from tests.integration.parking_lot import make_event
from tests.integration.test_web_access import ask, routes
from tests.support import web_app

from waybill.parking import ParkedEvent

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/partitions?sice=2026-01-01", "query.sice: there is no such parameter; did you mean"),
        ("/partitions?cursor=zzz", "did you mean 'after'?"),
        ("/partitions?order=drop", "did you mean 'sort'?"),
        ("/partitions/{}/download?format=csv", "did you mean 'kind'?"),
        ("/partitions/{}?verbose=1", "this address takes none"),
        ("/audit?zzz=1", "there are: 'limit'"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest_known_one(web, path, words):
    own, _, _ = web.two_teams()
    answer = web.ask("uma", "GET", f"/api{path.format(own)}")
    assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text


def test_every_route_of_the_api_refuses_an_unknown_parameter(web):
    own, _, _ = web.two_teams()
    tried = [(method, path) for method, path in routes() if path.startswith("/api/")]
    for method, path in tried:
        answer = ask(web, "ann", method, f"{path}?nonsense=1", own)
        assert answer.status_code == 422, (method, path, answer.text)
        assert "query.nonsense" in answer.json()["detail"]
    assert len(tried) >= 18
    assert web.lot.states() == {"parked": 5}


def is_text(schema):
    kinds = [one.get("type") for one in (schema, *schema.get("anyOf", []))]
    return "string" in kinds or schema.get("type") == "array"


def test_a_nul_in_any_text_parameter_is_no_error_of_the_server(web):
    """PostgreSQL takes none in a text: what lets one through to it answers 500."""
    from waybill_airflow.web.app import app

    own, _, _ = web.two_teams()
    described, tried = app.openapi()["paths"], 0
    for method, path in routes():
        if not path.startswith("/api/"):
            continue
        for one in described[path][method.lower()].get("parameters", []):
            if one["in"] not in ("query", "path") or not is_text(one["schema"]):
                continue
            name, tried = one["name"], tried + 1
            if one["in"] == "query":
                answer = ask(web, "ann", method, path, own, query={name: "a\0b"})
            else:
                answer = ask(web, "ann", method, path.replace(f"{{{name}}}", "a%00b"), own)
            assert answer.status_code < 500, (method, path, name, answer.text)
    assert tried >= 30


def test_a_window_has_the_same_names_on_every_list(web):
    web.deploy("pl-1", "flights", "aviation")
    web.lot.park([make_event(1)])
    for names in (("since", "until"), ("event_since", "event_until")):
        for first, last, number in (
            ("2013-01-01", "2013-01-02", 1),
            ("2014-01-01", "2015-01-01", 0),
        ):
            query = dict(zip(names, (first, last), strict=True))
            assert len(web.get("uma", "/api/partitions", params=query)["partitions"]) == number
    both = {"since": "2013-01-01", "event_since": "2014-01-01"}
    assert web.ask("uma", "GET", "/api/partitions", params=both).status_code == 422
    lines = [
        web.get("uma", "/api/timelines", params={"ids": "1", f"{name}since": "2026-01-01",
                                                 f"{name}until": "2026-01-02"})
        for name in ("", "parked_")
    ]  # fmt: skip
    assert lines[0] == lines[1]


LATE, EARLY = "2026-12-01T00:00:00Z", "2026-11-01T00:00:00Z"


@pytest.mark.parametrize("prefix", ["", "parked_"])
def test_a_window_the_wrong_way_round_is_refused_everywhere(web, prefix):
    own, _, _ = web.two_teams()
    window = {f"{prefix}since": LATE, f"{prefix}until": EARLY}
    asked = [("GET", "/api/partitions", {"params": window})]
    if not prefix:
        asked.append(("GET", f"/api/partitions/{own}/download", {"params": window}))
    for verb in ("replay", "dry-run"):
        asked.append(("POST", f"/api/partitions/{own}/{verb}", {"json": window}))
    for verb in ("discard", "undo-discard"):
        body = {"partition_id": own, "why": "x", **window}
        asked.append(("POST", f"/api/{verb}", {"json": body}))
    for method, path, given in asked:
        answer = web.ask("uma", method, path, **given)
        assert answer.status_code == 422, (path, answer.text)
        assert f"{prefix}since: 2026-12-01T00:00:00Z is not before" in answer.json()["detail"]
    assert web.audit() == []


def test_a_token_that_is_none_is_nobodys(web):
    own, _, _ = web.two_teams()
    for method, path in routes():
        headers = {"authorization": "Bearer made.up.token"}
        answer = ask(web, None, method, path, own, headers=headers)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_client_made_from_the_description_finds_the_api(web):
    described = web.get("uma", "/api/openapi.json")
    [server] = described["servers"]
    web.client.cookies.set("_token", web.tokens["uma"])
    answer = web.client.get(server["url"] + "/api/me")
    assert (answer.status_code, answer.json()["user"]) == (200, "uma")
    assert "/api/me" in described["paths"]


def test_every_status_that_a_route_gives_is_in_the_description(web, monkeypatch):
    """``Web.ask`` compares each answer of every test; here the ways to ask that all routes share."""
    from waybill_airflow.web.services import OPENED

    own, others, _ = web.two_teams()
    seen = set()
    for method, path in routes():
        for user, partition_id, suffix in (
            (None, own, ""), ("nell", own, ""), ("pia", others, ""), ("ann", own, "?nonsense=1"),
        ):  # fmt: skip
            seen.add(ask(web, user, method, path + suffix, partition_id).status_code)
        if "{partition_id}" in path:
            missing = path.replace("{partition_id}", "999999")
            answer = ask(web, "ann", method, missing, own)
            assert answer.status_code == 404, (method, path)
            seen.add(404)
    large = {"partition_id": own, "why": "x" * 70_000}
    seen.add(web.ask("uma", "POST", "/api/discard", json=large).status_code)
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://127.0.0.1:1/nowhere")
    OPENED.close()
    seen.add(web.ask("ann", "GET", "/api/partitions").status_code)
    monkeypatch.setenv("WAYBILL_WRONG", "1")
    OPENED.close()
    seen.add(web.ask("ann", "GET", "/api/partitions").status_code)
    assert seen >= {401, 403, 404, 413, 422, 500, 503}


def test_the_attempt_is_one_number_wherever_it_is_given(web):
    web.deploy("pl-1", "flights", "aviation")
    web.lot.park([make_event(0), make_event(1, attempt=2)])
    path = f"/api/partitions/{web.lot.only().id}"
    shown = [event["attempt"] for event in web.get("uma", f"{path}/events")["events"]]
    lines = web.ask("uma", "GET", f"{path}/download", params={"kind": "jsonl"}).content
    table = web.ask("uma", "GET", f"{path}/download", params={"kind": "csv"}).text
    assert shown == [ParkedEvent.from_line(line).attempt for line in lines.splitlines()] == [0, 2]
    assert [line["attempt"] for line in csv.DictReader(io.StringIO(table))] == ["0", "2"]
    described = web.get("uma", "/api/openapi.json")["components"]["schemas"]["EventOut"]
    assert "0: it parked the first time" in json.dumps(described["properties"]["attempt"])
