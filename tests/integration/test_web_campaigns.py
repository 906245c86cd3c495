"""The REST API on campaigns: who sees which, how far it is, and decisions."""

from __future__ import annotations

import pytest
from tests.support import web_app

from waybill.replay import CampaignRequest, freeze_campaign

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


@pytest.fixture
def campaigns(web):
    """A campaign over team aviation's group, and one over what is left; their ids."""
    web.two_teams()
    tracker = web.lot.tracker
    asked = {"own": CampaignRequest(pipeline="flights"), "all": CampaignRequest(limit=1)}
    return [
        freeze_campaign(
            tracker, asked[name], "pl-1" if name == "own" else None, who="ann", run_id=name
        ).id
        for name in asked
    ]


def test_a_campaign_is_seen_by_who_may_see_all_its_teams(web, campaigns):
    own, of_all = campaigns
    for user, ids in (("uma", [own]), ("otto", []), ("ann", [of_all, own])):
        assert [one["id"] for one in web.get(user, "/api/campaigns")["campaigns"]] == ids
    found = web.get("uma", f"/api/campaigns/{own}")
    assert (found["groups"], found["waiting"], found["teams"]) == (1, 1, ["aviation"])
    assert found["request"]["pipeline"] == "flights"
    for user in ("uma", "otto"):
        assert web.ask(user, "GET", f"/api/campaigns/{of_all}").status_code == 404
    assert web.ask("ann", "GET", "/api/campaigns/99").status_code == 404
    assert web.ask("uma", "GET", f"/api/campaigns/{own}?state=done").status_code == 422


def test_a_campaign_without_a_group_is_its_pipelines_teams_and_without_that_nobodys(web, campaigns):
    tracker, nothing = web.lot.tracker, {"event_name": "secret"}
    flights, any_of_all = (
        freeze_campaign(
            tracker, CampaignRequest(**nothing, **more), of, who="ann", run_id=str(of)
        ).id
        for more, of in (({"pipeline": "flights"}, "pl-1"), ({}, None))
    )
    for user, seen in (("uma", {flights}), ("otto", set()), ("ann", {flights, any_of_all})):
        ids = {one["id"] for one in web.get(user, "/api/campaigns")["campaigns"]}
        assert ids & {flights, any_of_all} == seen


def test_groups_come_in_pages_with_the_reason_they_are_left_out(web, campaigns):
    own, of_all = campaigns
    path = f"/api/campaigns/{of_all}/groups"
    first = web.get("ann", path, params={"state": "left_out", "limit": 1})
    second = web.get("ann", path, params={"state": "left_out", "after": first["next"]})
    outcomes = [group["outcome"] for page in (first, second) for group in page["groups"]]
    assert (sorted(outcomes), second["next"]) == ([f"campaign {own}", "over_limit"], None)
    assert web.get("ann", path) == {"groups": [], "next": None}


def test_decisions_are_audited_and_what_is_over_is_refused(web, campaigns):
    own, _ = campaigns
    paused = web.post("uma", f"/api/campaigns/{own}/pause", {"why": "a look"})
    assert (paused["state"], paused["changed_by"]) == ("paused", "uma")
    assert paused["result"] is None, "to read it takes seconds where there are many groups"
    assert web.get("uma", f"/api/campaigns/{own}")["result"]["sent"] == 0
    assert web.post("uma", f"/api/campaigns/{own}/resume")["state"] == "running"
    assert web.post("uma", f"/api/campaigns/{own}/cancel")["cancelled"] == 1
    answer = web.ask("uma", "POST", f"/api/campaigns/{own}/resume", json={})
    assert (answer.status_code, "is cancelled by uma" in answer.text) == (409, True)
    said = [(who, action, detail.get("why")) for who, action, target, detail in web.audit()[2:]]
    assert said[0] == ("uma", "pause_campaign", "a look")
    assert [entry[1] for entry in said[1:]] == ["resume_campaign", "cancel_campaign"]
    seen = {entry["action"] for entry in web.get("uma", "/api/audit")["entries"]}
    assert {"begin_campaign", "pause_campaign"} <= seen
    assert web.get("otto", "/api/audit")["entries"] == []


def test_a_list_has_results_of_campaigns_that_go_on_or_ended_within_a_day(web, campaigns):
    own, of_all = campaigns
    ended = "UPDATE campaigns SET state = 'done', ended_at = now() - interval '{} hours'"
    web.lot.sql(f"{ended.format(25)} WHERE id = {own} RETURNING id")
    listed = {one["id"]: one["result"] for one in web.get("ann", "/api/campaigns")["campaigns"]}
    assert listed[own] is None, "to read all of them took seconds, each 15 s"
    assert listed[of_all]["sent"] == 0
    assert web.get("ann", f"/api/campaigns/{own}")["result"]["sent"] == 0
    web.lot.sql(f"{ended.format(23)} WHERE id = {own} RETURNING id")
    assert all(one["result"] for one in web.get("ann", "/api/campaigns")["campaigns"])
    web.lot.sql(f"UPDATE campaigns SET launched = 10001 WHERE id = {of_all}")
    listed = {one["id"]: one["result"] for one in web.get("ann", "/api/campaigns")["campaigns"]}
    assert listed[of_all] is None
    assert listed[own]["sent"] == 0
    assert web.get("ann", f"/api/campaigns/{of_all}")["result"]["sent"] == 0
