"""The balance and breaches over HTTP: whose, how grouped, and who closes what."""

from __future__ import annotations

import time

import pytest
from tests.integration.test_web_access import breach_of
from tests.support import web_app

from waybill.reconciliation import BreachKey, open_breach
from waybill.reconciliation.minutes import STEPS

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


def minute_now():
    return int(time.time() // 60)


def count(web, minute, stage="ingestion", *, pipeline="pl-1", event="flight", **numbers):
    """Write counts of a minute, folded."""
    names = ", ".join(numbers)
    values = ", ".join(f":{name}" for name in numbers)
    web.lot.sql(
        f"INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, {names}) "
        f"VALUES (:pipeline, :event, :stage, :minute, {values})",
        pipeline=pipeline, event=event, stage=stage, minute=minute, **numbers,
    )  # fmt: skip


def judge(web, minute, verdict, **said):
    given = {"event": "flight", "gap": 0, "why": "", "changed": 0} | said
    web.lot.sql(
        "INSERT INTO audit_minutes (pipeline_id, event_name, minute, changed, audited, stages) "
        "VALUES ('pl-1', :event, :minute, :changed, 0, jsonb_build_object('mapping', "
        "jsonb_build_object('verdict', CAST(:verdict AS text), 'gap', CAST(:gap AS int), "
        "'why', CAST(:why AS text))))",
        minute=minute, verdict=verdict, **given,
    )  # fmt: skip


def cells(found):
    return {one["place"]: (one["verdict"], one["gap"]) for one in found["cells"]}


def test_minutes_are_put_together_and_the_worst_of_them_is_shown(web):
    web.two_teams()
    until = web.get("uma", "/api/balance")["until"]
    begin = int(web_app_time(until) // 60) - 60 * 6 + 15
    for offset in (0, 1, 7, 11):
        count(web, begin + offset, in_first=10, passed=9, out=9, parked=1)
        count(web, begin + offset, "transformation", in_first=9, passed=8, out=8, filtered=1)
    judge(web, begin + 1, "breach", gap=-2, why="2 too many")
    judge(web, begin + 7, "moving", why="3 in the log")
    [row] = web.get("uma", "/api/balance")["pipelines"]
    assert (row["id"], row["name"], row["team"], row["state"]) == (
        "pl-1", "flights", "aviation", "breach",
    )  # fmt: skip
    first = row["cells"][0]
    assert first["place"] in (2, 3), "five minutes may have ended meanwhile"
    assert {place - first["place"]: cell for place, cell in cells(row).items()} == {
        0: ("breach", 2), 1: ("moving", 0), 2: ("balanced", 0),
    }  # fmt: skip
    assert first["why"] == ["mapping: 2 too many"]
    assert first["stages"]["ingestion"] == [20, 0, 18, 18, 2, 0, 0, 0]
    assert first["stages"]["transformation"] == [18, 0, 16, 16, 0, 2, 0, 0]


def web_app_time(text):
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("span", list(STEPS))
def test_each_span_has_its_columns_up_to_now(web, span):
    web.two_teams()
    now = minute_now()
    count(web, now, in_first=1)
    found = web.get("uma", "/api/balance", params={"span": span})
    columns, step = STEPS[span]
    assert (found["columns"], found["step_s"]) == (columns, step * 60)
    assert web_app_time(found["until"]) - web_app_time(found["since"]) == columns * step * 60
    [row] = found["pipelines"]
    assert [one["place"] for one in row["cells"]] in ([columns - 1], [columns - 2])
    assert found["audited_at"] is None


def test_a_minute_that_changed_after_the_audit_is_moving(web):
    web.two_teams()
    minute = minute_now() - 3
    count(web, minute, in_first=1)
    judge(web, minute, "breach", gap=4, changed=1)
    [row] = web.get("uma", "/api/balance", params={"span": "1h"})["pipelines"]
    assert [one["verdict"] for one in row["cells"]] == ["moving"]


def test_totals_are_those_since_the_first_event(web):
    web.two_teams()
    for stage, numbers in (
        ("ingestion", {"in_first": 100, "passed": 99, "out": 99}),
        ("transformation", {"passed": 95, "out": 105, "filtered": 4}),
        ("destination", {"passed": 90, "superseded": 2, "duplicate": 3}),
        ("lost", {"in_first": 4, "in_replayed": 1}),
    ):
        names = ", ".join(numbers)
        values = ", ".join(str(number) for number in numbers.values())
        web.lot.sql(
            f"INSERT INTO ledger_totals (pipeline_id, event_name, stage, {names}) "
            f"VALUES ('pl-1', 'flight', '{stage}', {values})"
        )
    [row] = web.get("uma", "/api/balance")["pipelines"]
    assert row["totals"] == {
        "taken_in": 100, "made": 10, "delivered": 90, "filtered": 4, "superseded": 2,
        "duplicate": 3, "parked": 3, "discarded": 0, "quarantined": 0, "unrecoverable": 5,
    }  # fmt: skip
    assert row["state"] == "nothing"


def test_event_names_with_a_breach_come_first_and_the_rest_are_counted(web):
    web.two_teams()
    minute = minute_now() - 2
    for event in ("a", "b", "c", ""):
        count(web, minute, event=event, in_first=1)
    judge(web, minute, "breach", event="c", gap=1)
    path = "/api/balance/pl-1/minutes"
    found = web.get("uma", path, params={"span": "1h", "limit": 3})
    assert [row["event_name"] for row in found["rows"]] == ["c", "", "a"]
    assert found["more"] == 1
    assert web.ask("uma", "GET", "/api/balance/none/minutes").status_code == 403
    assert web.ask("ann", "GET", "/api/balance/none/minutes").status_code == 404
    assert web.ask("ann", "GET", f"{path}?limit=501").status_code == 422
    assert web.ask("ann", "GET", f"{path}?span=2h").status_code == 422


def test_more_pipelines_than_a_page_holds_are_counted_and_come_on_the_next(web):
    web.two_teams()
    web.lot.sql(
        "INSERT INTO pipelines (id, name, team) "
        "SELECT 'p' || n, 'a ' || lpad(n::text, 3, '0'), 'aviation' FROM generate_series(0, 599) n"
    )
    first = web.get("uma", "/api/balance")
    assert (len(first["pipelines"]), first["total"], first["more"]) == (500, 601, 101)
    assert first["parked"] == 3, "of all pages"
    last = web.get("uma", "/api/balance", params={"after": first["next"]})
    assert (len(last["pipelines"]), last["total"], last["more"]) == (101, 601, 0)
    assert last["next"] is None
    names = [one["name"] for one in first["pipelines"] + last["pipelines"]]
    assert names == [*(f"a {n:03d}" for n in range(600)), "flights"]
    for given in ("pl-1", "flights"):
        alone = web.get("uma", "/api/balance", params={"pipeline": given, "limit": 1})
        assert [one["id"] for one in alone["pipelines"]] == ["pl-1"]
        assert (alone["total"], alone["more"], alone["parked"]) == (1, 0, 3)
    none = web.get("otto", "/api/balance", params={"pipeline": "pl-1"})
    assert (none["pipelines"], none["total"], none["parked"]) == ([], 0, 0)
    assert web.ask("uma", "GET", "/api/balance?limit=501").status_code == 422


def test_more_breaches_than_a_page_holds_are_counted_and_come_on_the_next(web):
    web.two_teams()
    web.lot.sql(
        "INSERT INTO breaches (pipeline_id, event_name, stage, minute, kind) "
        "SELECT CASE WHEN n % 2 = 0 THEN 'pl-1' ELSE 'pl-2' END, '', '', n, 'on_the_way' "
        "FROM generate_series(1, 450) AS n"
    )
    seen, after = [], None
    for more in (200, 200, 50):
        asked = {"state": "open", "limit": 200, "after": after}
        given = {name: value for name, value in asked.items() if value}
        found = web.get("ann", "/api/breaches", params=given)
        assert (len(found["breaches"]), found["total"]) == (more, 450)
        seen += found["breaches"]
        after = found["next"]
    assert after is None
    assert [one["id"] for one in seen] == sorted({one["id"] for one in seen}, reverse=True)
    assert {one["pipeline_id"]: one["team"] for one in seen} == {
        "pl-1": "aviation", "pl-2": "shipping",
    }  # fmt: skip
    own = web.get("uma", "/api/breaches", params={"limit": 1})
    assert (len(own["breaches"]), own["total"]) == (1, 225)
    closed = web.get("uma", "/api/breaches", params={"state": "closed"})
    assert (closed["breaches"], closed["total"], closed["next"]) == ([], 0, None)


def test_everybody_sees_the_own_teams_balance_and_breaches(web):
    web.two_teams()
    ids = {pipeline: breach_of(web, pipeline) for pipeline in ("pl-1", "pl-2", "pl-3")}
    for user, seen in (("uma", ["pl-1"]), ("otto", ["pl-2"]), ("ann", ["pl-1", "pl-2", "pl-3"])):
        rows = web.get(user, "/api/balance")["pipelines"]
        assert {row["id"] for row in rows} == set(seen) - {"pl-3"}  # nobody deployed that one
        found = web.get(user, "/api/breaches")["breaches"]
        assert [one["pipeline_id"] for one in found] == sorted(seen, reverse=True)
        for pipeline, breach_id in ids.items():
            answer = web.ask(user, "GET", f"/api/breaches/{breach_id}")
            assert answer.status_code == (200 if pipeline in seen else 403)
    assert web.get("uma", "/api/breaches", params={"pipeline": "boxes"})["breaches"] == []
    [one] = web.get("ann", "/api/breaches", params={"pipeline": "boxes"})["breaches"]
    assert one["pipeline_id"] == "pl-2"
    [one] = web.get("ann", "/api/breaches", params={"pipeline": "pl-3"})["breaches"]
    assert one["pipeline_id"] == "pl-3"
    [row] = web.get("uma", "/api/balance")["pipelines"]
    assert (row["state"], row["open_breaches"]) == ("breach", 1)


def test_a_breach_is_closed_by_name_with_the_reason_once(web):
    web.two_teams()
    breach_id = breach_of(web, "pl-1")
    path = f"/api/breaches/{breach_id}/close"
    assert web.ask("vic", "POST", path, json={"why": "x"}).status_code == 403
    assert web.ask("otto", "POST", path, json={"why": "x"}).status_code == 403
    assert web.ask("uma", "POST", path, json={}).status_code == 422
    assert web.ask("uma", "POST", path, json={"why": ""}).status_code == 422
    closed = web.post("uma", path, {"why": "the shop moves house"})
    assert (closed["state"], closed["ended_by"], closed["reason"]) == (
        "closed", "uma", "the shop moves house",
    )  # fmt: skip
    answer = web.ask("uma", "POST", path, json={"why": "again"})
    assert (answer.status_code, "closed already" in answer.json()["detail"]) == (409, True)
    assert web.ask("ann", "POST", "/api/breaches/999/close", json={"why": "x"}).status_code == 404
    [(who, action, _, detail)] = web.audit()
    assert (who, action, detail["why"]) == ("uma", "close_breach", "the shop moves house")
    assert [one["action"] for one in web.get("uma", "/api/audit")["entries"]] == ["close_breach"]
    assert web.get("otto", "/api/audit")["entries"] == []
    for state, number in (("open", 0), ("closed", 1), ("explained", 0)):
        found = web.get("uma", "/api/breaches", params={"state": state})["breaches"]
        assert len(found) == number


def test_a_list_has_the_first_ids_and_one_breach_has_them_all(web):
    web.two_teams()
    key = BreachKey("pl-1", "on_the_way", "flight", "mapping", minute_now() - 9)
    with web.lot.tracker.transaction() as connection:
        opened = open_breach(connection, key, words="30 missing", gap=30)
    web.lot.sql(
        "UPDATE breaches SET ids = jsonb_build_object('missing', "
        "(SELECT jsonb_agg('e-' || n) FROM generate_series(1, 30) AS n))"
    )
    [listed] = web.get("uma", "/api/breaches")["breaches"]
    assert (len(listed["missing"]), listed["missing_events"], listed["doubled"]) == (20, 30, [])
    one = web.get("uma", f"/api/breaches/{opened.id}")
    assert (len(one["missing"]), one["words"], one["minute"]) == (30, "30 missing", key.minute)


def test_destinations_are_shown_to_who_sends_there_and_their_words_to_who_sees_all(web):
    web.two_teams()
    web.lot.sql(
        "INSERT INTO destination_states (destination, waiting_since, tried_at, attempts, code, "
        "error) VALUES ('warehouse', now(), now(), 3, 'destination_full', 'no room for (7, x)')"
    )
    [seen] = web.get("uma", "/api/destinations")["destinations"]
    assert (seen["name"], seen["state"], seen["attempts"]) == ("warehouse", "waits", 3)
    assert (seen["error_type"], seen["error"]) == ("destination_full", None)
    found = web.get("ann", "/api/destinations")["destinations"]
    [whole] = [one for one in found if one["name"] == "warehouse"]
    assert whole["error"] == "no room for (7, x)"
    web.deploy("pl-9", "far", "astronomy", destination="moon")
    assert {one["name"] for one in web.get("ann", "/api/destinations")["destinations"]} >= {
        "warehouse", "moon",
    }  # fmt: skip
    assert [one["name"] for one in web.get("uma", "/api/destinations")["destinations"]] == [
        "warehouse"
    ]
    web.lot.sql("DELETE FROM destination_states")
    [seen] = web.get("otto", "/api/destinations")["destinations"]
    assert (seen["state"], seen["waiting_since"]) == ("takes loads", None)


def test_the_jobs_of_upkeep_are_told_and_their_errors_to_who_sees_all_teams(web):
    web.two_teams()
    assert {one["state"] for one in web.get("uma", "/api/upkeep")["jobs"]} == {"late"}
    web.lot.sql(
        "INSERT INTO upkeep_jobs (job, holder, succeeded_at, failures, error, outcome) VALUES "
        "('audit', 'upkeep/scheduled__1', clock_timestamp(), 0, '', "
        " jsonb_build_object('looked_at', 3, 'problem', 'of another team')), "
        "('watch', 'x', clock_timestamp(), 2, 'destination of another team', '{}')"
    )
    audit, watch, *_ = web.get("ann", "/api/upkeep")["jobs"]
    assert (audit["state"], audit["failures"]) == ("ok", 0)
    assert audit["outcome"] == {"looked_at": 3, "problem": "of another team"}
    assert (watch["state"], watch["error"]) == ("failing", "destination of another team")
    audit, watch, *_ = web.get("uma", "/api/upkeep")["jobs"]
    assert (audit["job"], watch["state"], watch["error"]) == ("audit", "failing", None)
    assert audit["outcome"] == {"looked_at": 3}
