"""The routes of pipelines: a line each, the own teams' only, and events by minute."""

from __future__ import annotations

import json
import time

import pytest
from tests.integration.parking_lot import make_event
from tests.support import web_app

from waybill.ledger import fold

pytestmark = pytest.mark.serves
airflow_app, _web_lot, web = web_app.airflow_app, web_app._web_lot, web_app.web
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
    asked = {"pipeline": ["pl-1"]}
    assert web.ask("otto", "GET", "/api/pipeline-rates", params=asked).status_code == 404
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
    assert time.monotonic() - began < 10
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
    found = web.get("uma", "/api/pipeline-rates", params={"pipeline": ["pl-1"]})
    rates = found["pipelines"]["pl-1"]
    assert (len(rates["came_in"]), sum(rates["came_in"]), sum(rates["delivered"])) == (60, 120, 200)
    assert rates["delivered"].index(200) == rates["came_in"].index(120) + 1
    assert rates["came_in"].index(120) in (51, 52)
    many = {"pipeline": [f"p{n}" for n in range(101)]}
    assert web.ask("ann", "GET", "/api/pipeline-rates", params=many).status_code == 422
