"""Every route of the REST API and the page, asked by those who may not."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute
from tests.support import web_app
from tests.support.web_app import OWN

from waybill.reconciliation import BreachKey, open_breach

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web

BODIES = {
    "/api/discard": {"partition_id": 1, "why": "test"},
    "/api/undo-discard": {"partition_id": 1, "why": "test"},
    "/api/partitions/{partition_id}/auto-replay": {"on_change": "any"},
    "/api/pipelines/{pipeline_id}/release": {"why": "test"},
    "/api/pipelines/{pipeline_id}/stop-source": {"why": "test"},
    "/api/breaches/{breach_id}/close": {"why": "test"},
    "/api/trails": {"ids": ["nothing"]},
}
OF_A_TEAM = ("{partition_id}", "{pipeline_id}", "{breach_id}", "{campaign_id}")
NO_TEAM = {
    "/",
    "/parked",
    "/balance",
    "/capacity",
    "/clusters",
    "/overview",
    "/pipelines",
    "/sources",
    "/trails",
    "/static/{name}",
    "/api/me",
    "/api/catalogue",
    "/api/capacity-history",
    "/api/cluster-history",
    "/api/declarations/{name}/parse",
    "/api/ingest-slots/share",
    "/api/openapi.json",
}
"""Routes that tell nothing about any team's events."""
LISTS = {
    "/api/names": "pipelines",
    "/api/partitions": "partitions",
    "/api/timelines": None,
    "/api/audit": "entries",
    "/api/balance": "pipelines",
    "/api/breaches": "breaches",
    "/api/capacity": "waits",
    "/api/clusters": "clusters",
    "/api/clusters/{name}": "clusters",
    "/api/pipelines": "pipelines",
    "/api/sources": "sources",
    "/api/destinations": "destinations",
    "/api/campaigns": "campaigns",
    "/api/upkeep": "jobs",
}
"""Routes that show each user the own teams' only: where in the answer."""


CLUSTER = {f"/api/clusters/{{name}}/{verb}" for verb in ("stop", "start", "restart")}
"""Routes that reach every team of a cluster: who may not is tried in `test_web_clusters`."""


def routes():
    """Return (method, path) of every route that the application answers."""
    from waybill_airflow.web.app import app

    found = []
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} is no route that is guarded"
        found += [(method, route.path) for method in sorted(route.methods)]
    return sorted(found)


def ask(web, user, method, path, partition_id, *, query=None, **given):
    """Ask a route, with all that it needs to be answered; ``query``: more parameters."""
    pipeline_id = web.lot.parking.partition(partition_id).pipeline_id
    filled = path.format(
        partition_id=partition_id,
        pipeline_id=pipeline_id,
        breach_id=breach_of(web, pipeline_id),
        campaign_id=campaign_of(web, web.lot.parking.partition(partition_id).team),
        name="parked.js",
        dag_id="replay",
        run_id="nobody",
        query_id="00000000-0000-4000-8000-000000000000",
    )
    queries = {
        "/api/timelines": {"ids": str(partition_id)},
        "/api/team-history": {"team": web.lot.parking.partition(partition_id).team or "nobody"},
    }
    query = {**queries.get(path, {}), **(query or {})} or None
    body = dict(BODIES.get(path, {})) or ({} if method == "POST" else None)
    if body and "partition_id" in body:
        body["partition_id"] = partition_id
    return web.ask(user, method, filled, params=query, json=body, **given)


def breach_of(web, pipeline_id):
    """Return the id of a pipeline's open breach, opened when it has none."""
    key = BreachKey(pipeline_id, "quiet")
    with web.lot.tracker.transaction() as connection:
        return open_breach(connection, key, words="nothing comes", tell=False).id


def campaign_of(web, team):
    """Return the id of a campaign over a team's groups."""
    [(campaign_id,)] = web.lot.sql(
        "INSERT INTO campaigns (run_id, asked_by, request, teams, max_unfinished) "
        "VALUES (:team, 'ann', '{}', jsonb_build_array(CAST(:team AS text)), 8) "
        "ON CONFLICT (run_id) DO UPDATE SET asked_by = 'ann' RETURNING id",
        team=team,
    )
    return campaign_id


def test_there_are_the_routes_that_these_tests_know(airflow_app):
    paths = {path for _, path in routes()}
    known = NO_TEAM | set(LISTS) | {path for path in paths for one in OF_A_TEAM if one in path}
    known |= {"/api/discard", "/api/undo-discard", "/api/runs/{dag_id}/{run_id}"}
    known |= {"/api/team-history", *CLUSTER}
    known |= {path for path in paths if path.startswith("/api/trails")}
    assert paths == known
    assert len(routes()) >= 20


def test_anonymous_is_refused_by_every_route(web):
    own, _, _ = web.two_teams()
    for method, path in routes():
        assert ask(web, None, method, path, own).status_code == 401, (method, path)
        wrong = {"authorization": "Bearer made.up.token"}
        answer = ask(web, None, method, path, own, headers=wrong)
        assert answer.status_code in (401, 403), (method, path)


def test_without_a_grant_every_route_is_refused(web):
    own, _, _ = web.two_teams()
    for method, path in routes():
        answer = ask(web, "nell", method, path, own)
        assert answer.status_code == 403, (method, path)
        assert "WAYBILL_ACCESS__GRANTS" in answer.json()["detail"]
    assert web.lot.states() == {"parked": 5}
    assert web.audit() == []


def test_another_teams_partition_is_refused_by_every_route(web):
    own, others, nobodys = web.two_teams()
    tried = 0
    for method, path in routes():
        if (
            path in NO_TEAM | CLUSTER
            or path in LISTS
            or path.startswith(("/api/runs/", "/api/trails"))
        ):
            continue
        for partition_id in (others, nobodys):
            answer = ask(web, "pia", method, path, partition_id)
            assert answer.status_code == 404, (method, path)
        answer = ask(web, "otto", method, path, own)
        assert answer.status_code == 404, (method, path)
        tried += 1
    assert tried >= 11
    assert web.lot.states() == {"parked": 5}
    assert web.audit() == []


def test_what_is_another_teams_and_what_is_not_there_cannot_be_told_apart(web):
    own, _, _ = web.two_teams()
    foreign = {
        "{partition_id}": own,
        "{pipeline_id}": "pl-1",
        "{breach_id}": breach_of(web, "pl-1"),
        "{campaign_id}": campaign_of(web, "aviation"),
    }
    tried = 0
    for method, path in routes():
        for place, known in foreign.items():
            if place not in path:
                continue
            said = []
            for given in (str(known), "987654"):
                body = BODIES.get(path, {} if method == "POST" else None)
                answer = web.ask("otto", method, path.replace(place, given), json=body)
                said.append((answer.status_code, answer.text.replace(given, "…")))
            assert said[0] == said[1], (method, path)
            assert said[0][0] == 404, (method, path)
            tried += 1
    for body in ({"partition_id": own, "why": "x"}, {"partition_id": 987654, "why": "x"}):
        answer = web.ask("otto", "POST", "/api/discard", json=body)
        assert answer.status_code == 404
        assert "aviation" not in answer.text
    assert tried >= 10


def test_another_teams_run_is_refused(web):
    own, _, _ = web.two_teams()
    run_id = web.post("uma", f"/api/partitions/{own}/replay", status=202)["run_id"]
    said = [web.ask("otto", "GET", f"/api/runs/replay/{one}") for one in (run_id, "nobody")]
    assert [answer.status_code for answer in said] == [404, 404]
    assert said[0].text.replace(run_id, "nobody") == said[1].text
    assert web.get("uma", f"/api/runs/replay/{run_id}")["state"] == "queued"


def test_lists_show_the_own_teams_only(web):
    own, others, nobodys = web.two_teams()
    for partition_id, why in ((own, "aviation"), (others, "shipping"), (nobodys, "nobody")):
        web.post("ann", "/api/discard", {"partition_id": partition_id, "why": why})
    for user, ids in (("uma", {own}), ("otto", {others}), ("ann", {own, others, nobodys})):
        found = web.get(user, "/api/partitions")
        assert {row["id"] for row in found["partitions"]} == ids
        assert found["total"]["partitions"] == len(ids)
        first = web.get(user, "/api/partitions", params={"limit": 1, "sort": "parked"})
        assert (first["next"] is None) == (len(ids) == 1)
        assert first["total"] == found["total"]
        lines = web.get(user, "/api/timelines", params={"ids": f"{own},{others},{nobodys}"})
        assert set(lines) == {str(one) for one in ids}
        entries = web.get(user, "/api/audit")["entries"]
        assert len([one for one in entries if one["action"] == "discard"]) == len(ids)
    assert [row["team"] for row in web.get("uma", "/api/names")["pipelines"]] == ["aviation"]
    assert len(web.get("ann", "/api/names")["pipelines"]) == 2
    assert web.get("uma", "/api/partitions", params={"pipeline": "boxes"})["partitions"] == []
    assert (
        web.get("otto", "/api/partitions", params={"pipeline": "boxes"})["total"]["partitions"] == 1
    )
    assert set(LISTS) == {
        "/api/names",
        "/api/partitions",
        "/api/timelines",
        "/api/audit",
        "/api/balance",  # of these three, see test_web_balance
        "/api/breaches",
        "/api/capacity",  # see test_web_capacity
        "/api/clusters",  # of these two, see test_web_clusters
        "/api/clusters/{name}",
        "/api/pipelines",  # see test_web_pipelines
        "/api/sources",  # see test_web_sources
        "/api/destinations",
        "/api/campaigns",
        "/api/upkeep",  # see test_web_balance
    }
    shown = {team: campaign_of(web, team) for team in ("aviation", "shipping", "")}
    for user, ids in (("uma", [shown["aviation"]]), ("ann", sorted(shown.values(), reverse=True))):
        assert [one["id"] for one in web.get(user, "/api/campaigns")["campaigns"]] == ids


@pytest.mark.parametrize(
    ("user", "method", "path"),
    [
        ("vic", "GET", "/api/partitions/{}/download"),
        ("vic", "POST", "/api/discard"),
        ("vic", "POST", "/api/undo-discard"),
    ],
)
def test_a_permission_that_is_not_granted_is_refused(web, user, method, path):
    own, _, _ = web.two_teams()
    body = {"partition_id": own, "why": "x"} if method == "POST" else None
    assert web.ask(user, method, path.format(own), json=body).status_code == 403
    assert web.get(user, f"/api/partitions/{own}")["id"] == own


def test_what_airflow_refuses_stays_refused(web):
    own, _, _ = web.two_teams()
    answer = web.ask("vic", "POST", f"/api/partitions/{own}/replay", json={})
    assert answer.status_code == 403
    assert "Airflow refused" in answer.json()["detail"]


def test_the_answer_to_me_says_what_is_granted(web):
    assert web.get("ann", "/api/me") == {
        "user": "ann",
        "teams": "all",
        "permissions": ["view", "replay", "discard", "download", "personal"],
        "everywhere": ["discard", "download", "personal", "replay", "view"],
        "by_team": {},
    }
    uma = web.get("uma", "/api/me")
    assert uma["teams"] == ["aviation"]
    assert "personal" not in uma["permissions"]


FOREIGN = [
    {"x-waybill": "1", "sec-fetch-site": "cross-site"},
    {"x-waybill": "1", "sec-fetch-site": "same-site"},
    {"x-waybill": "1", "sec-fetch-site": "none"},
    {"x-waybill": "1", "sec-fetch-site": "cross-site", "origin": "http://testserver"},
    {"x-waybill": "1", "sec-fetch-site": "", "origin": "http://evil.example"},
    {"x-waybill": "1", "sec-fetch-site": "", "origin": "http://testserver.evil.example"},
    {"x-waybill": "1", "sec-fetch-site": "", "origin": "http://testserver:8081"},
    {"x-waybill": "1", "sec-fetch-site": "", "origin": "null"},
    {"x-waybill": "1", "sec-fetch-site": ""},
    {"x-waybill": "", "sec-fetch-site": "same-origin"},
    {"x-waybill": "", "sec-fetch-site": "same-origin", "authorization": "Basic YTpi"},
]


def test_no_other_site_can_ask_for_a_change(web):
    own, _, _ = web.two_teams()
    changing = [(method, path) for method, path in routes() if method != "GET"]
    assert len(changing) >= 7
    for method, path in changing:
        for headers in FOREIGN:
            answer = ask(web, "ann", method, path, own, headers=headers)
            assert answer.status_code == 403, (method, path, headers)
            assert "request refused" in answer.json()["detail"]
    assert web.lot.states() == {"parked": 5}
    assert web.audit() == []


def test_no_form_of_another_site_can_ask_for_a_change(web):
    own, _, _ = web.two_teams()
    web.client.cookies.set("_token", web.tokens["ann"])
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        answer = web.client.post(
            "/waybill/api/discard",
            content=f'{{"partition_id": {own}, "why": "x"}}',
            headers={"content-type": kind, "origin": "http://evil.example"},
        )
        assert answer.status_code == 403
    assert web.lot.states() == {"parked": 5}


def test_older_browsers_and_tokens_can_ask(web):
    own, _, _ = web.two_teams()
    origin = {"x-waybill": "1", "sec-fetch-site": "", "origin": "http://testserver"}
    body = {"partition_id": own, "why": "x"}
    answer = web.ask("ann", "POST", "/api/discard", json=body, headers=origin)
    assert answer.status_code == 200, answer.text
    web.client.cookies.clear()
    token = {"authorization": f"Bearer {web.tokens['ann']}"}
    answer = web.client.post("/waybill/api/undo-discard", json=body, headers=token)
    assert answer.status_code == 200, answer.text


def test_other_sites_cannot_read_the_api_but_may_link_to_the_page(web):
    web.two_teams()
    foreign = {**OWN, "sec-fetch-site": "cross-site"}
    assert web.ask("ann", "GET", "/api/partitions", headers=foreign).status_code == 403
    assert web.ask("ann", "GET", "/parked", headers=foreign).status_code in (200, 404)


def test_every_answer_has_the_headers_that_protect_it(web):
    own, _, _ = web.two_teams()
    paths = ("/api/me", f"/api/partitions/{own}/download", "/api/nothing", "/api/partitions/999")
    for user, path in [("ann", path) for path in paths] + [(None, "/api/me"), ("nell", "/api/me")]:
        headers = web.ask(user, "GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_static_files_are_those_of_the_page_only(web):
    for name in ("../app.py", "..%2fapp.py", "page.html", "app.py", ".parked.js", "no_such.js"):
        assert web.ask("ann", "GET", f"/static/{name}").status_code in (404, 422), name


def test_openapi_describes_every_route(web):
    said = web.get("ann", "/api/openapi.json")
    described = {
        (method.upper(), path): call
        for path, calls in said["paths"].items()
        for method, call in calls.items()
    }
    assert set(described) == set(routes())
    for (_, path), call in described.items():
        assert call["summary"], path
        assert len(call["description"]) > 20, path
        assert {"401", "403", "422", "503"} <= set(call["responses"]), path
        good = next(answer for code, answer in call["responses"].items() if code < "300")
        kind = good.get("content", {}).get("application/json")
        assert kind is None or kind["schema"] != {} or path.endswith("openapi.json"), path
        for parameter in call.get("parameters", []):
            assert parameter.get("description") or parameter["name"] == "name", (path, parameter)
    problem = said["components"]["schemas"]["Problem"]
    assert problem["properties"]["detail"]["type"] == "string"
    assert not re.search(r"HTTPValidationError", str(said["paths"]))
