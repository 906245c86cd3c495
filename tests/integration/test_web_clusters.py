"""The routes of virtual clusters: what each user sees, and no more."""

from __future__ import annotations

import json

import pytest
from tests.support import emptied, web_app
from tests.support.clustered import serve, set_load

from waybill.access import Decision, write_audit
from waybill.clusters import ClusterRequest, PlaceRequest, create_cluster, pin_team, set_cluster
from waybill.ledger import flip_generation, lock_generations

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
ANN = Decision("ann", "it is slow")
HOT = {"team": "aviation", "topic": "events.aviation.warehouse", "partition": 3}


@pytest.fixture
def clusters(web):
    """Two clusters, aviation in the second."""
    web.two_teams()
    tracker = web.lot.tracker
    web.lot.sql("DELETE FROM virtual_clusters WHERE name <> 'default'")
    serve(tracker, "default", "second")
    set_load(tracker, "aviation", cores=1.5, lag_s=7)
    set_load(tracker, "shipping", cores=0.5)
    set_cluster(tracker, ClusterRequest(name="default", cores=4), ANN)
    asked = ClusterRequest(name="second", cores=4, spark_conf=["spark.secret=x"])
    create_cluster(tracker, asked, ANN)
    pin_team(tracker, PlaceRequest(team="aviation", cluster="second"), ANN)
    yield web
    web.lot.sql("TRUNCATE cluster_pins")
    web.lot.sql("DELETE FROM virtual_clusters WHERE name <> 'default'")
    web.lot.sql("UPDATE virtual_clusters SET cores = NULL")


def test_who_may_view_every_team_sees_all(clusters):
    found = clusters.get("ann", "/api/clusters")
    by_name = {one["name"]: one for one in found["clusters"]}
    [team] = by_name["second"]["teams"]
    assert (team["team"], team["pinned_by"], team["reason"]) == (
        "aviation", "ann", "pinned to second",
    )  # fmt: skip
    assert team["demand_cores"] == pytest.approx(1.5, rel=0.05)
    assert by_name["second"]["spark_conf"] == {"spark.secret": "x"}
    assert by_name["second"]["lag_s"] == 7
    assert {one["team"] for one in found["decisions"]} == {"aviation", "shipping"}


def test_others_see_their_teams_only(clusters):
    found = clusters.get("otto", "/api/clusters")
    assert {one["name"] for one in found["clusters"]} == {"default", "second"}
    assert [t["team"] for one in found["clusters"] for t in one["teams"]] == ["shipping"]
    assert {one["spark_conf"] for one in found["clusters"]} == {None}
    assert {one["team"] for one in found["decisions"]} == {"shipping"}
    assert "aviation" not in str(clusters.get("otto", "/api/clusters/second"))


def test_how_applications_are_is_for_all_and_where_they_run_for_who_sees_every_team(clusters):
    clusters.lot.sql("UPDATE applications SET external_id = 'a-host:1:2:3:4'")
    for user, known in (("ann", "a-host:1:2:3:4"), ("otto", None)):
        by_name = {one["name"]: one for one in clusters.get(user, "/api/clusters")["clusters"]}
        [one] = [a for a in by_name["default"]["applications"] if a["kind"] == "processing"]
        assert (one["state"], one["epoch"], one["external_id"]) == ("at work", 1, known)
    assert "a-host" not in str(clusters.get("otto", "/api/clusters/second"))


def test_what_is_not_served_is_for_all_and_why_for_who_sees_every_team(clusters):
    held = {"name": "events.aviation.warehouse", "kind": "fails", "why": "RetryError: secret word"}
    serving = {"version": 3, "wanted": 1, "running": 0, "failing": 1, "stopped": 0}
    serving |= {"held": [held], "epoch": 1}
    end = {"epoch": 1, "at_s": 1.7e9, "why": "StopError: secret word"}
    clusters.lot.sql(
        "UPDATE applications SET report = CAST(:report AS jsonb)",
        report=json.dumps({"serving": serving, "end": end}),
    )
    for user, known in (("ann", True), ("otto", False)):
        said = clusters.get(user, "/api/clusters")
        by_name = {one["name"]: one for one in said["clusters"]}
        [one] = [a for a in by_name["second"]["applications"] if a["kind"] == "processing"]
        assert (one["serving"]["wanted"], one["serving"]["running"]) == (1, 0)
        assert one["serving"]["held"] == ([held] if known else [])
        assert one["last_end"]["why"] == (end["why"] if known else "")
        assert not by_name["second"]["is_served"]
        assert ("secret word" in by_name["second"]["unserved"]) == known
    assert "secret word" not in str(clusters.get("otto", "/api/clusters/second"))


def test_one_cluster_has_its_last_day(clusters):
    clusters.lot.sql(
        "INSERT INTO cluster_loads (cluster, teams, cores, needed_cores, demand_cores) "
        "VALUES ('second', 1, 4, 3, 1.5)"
    )
    found = clusters.get("uma", "/api/clusters/second")
    assert [one["name"] for one in found["clusters"]] == ["second"]
    [minute] = found["history"]
    assert (minute["needed_cores"], minute["teams"]) == (3, 1)


def test_a_cluster_that_there_is_not_is_404_and_a_name_that_is_none_422(clusters):
    assert clusters.ask("ann", "GET", "/api/clusters/third").status_code == 404
    assert clusters.ask("ann", "GET", "/api/clusters/a%20b").status_code == 422


@pytest.fixture
def half_past(clusters, monkeypatch):
    """The time at which the clusters are looked at: amid a minute, as steps are whole minutes."""
    [(now_s,)] = clusters.lot.sql(
        "SELECT extract(epoch FROM date_trunc('minute', now()))::float8 + 30"
    )
    monkeypatch.setattr("waybill.clusters.history.now_s", lambda _connection: now_s)
    clusters.lot.sql(
        "UPDATE team_loads SET at = at + (to_timestamp(:now_s) - (SELECT max(at) FROM team_loads))",
        now_s=now_s,
    )
    return now_s


def test_clusters_and_teams_over_time_come_in_equal_steps_with_gaps(clusters, half_past):
    others = [{**HOT, "partition": number} for number in range(50, 60)]
    clusters.lot.sql(
        "INSERT INTO cluster_loads (cluster, at, teams, needed_cores, demand_cores, lag_s, "
        "arrival_per_s, hot) SELECT 'second', to_timestamp(:now_s) - make_interval(mins => n), "
        "1, 3, n, 2 * n, "
        "nullif(n, 1) * 10, CASE WHEN n < 2 THEN CAST(:hot AS jsonb) ELSE '[]' END "
        "FROM generate_series(0, 30) AS n",
        now_s=half_past,
        hot=json.dumps(
            [HOT, *others, {**HOT, "team": "shipping", "topic": None, "partition": None}]
        ),
    )
    found = clusters.get("otto", "/api/cluster-history", params={"span": "1h"})
    assert (found["steps"], found["step_s"]) == (60, 60)
    series = found["series"]["second"]
    assert {len(values) for values in series.values()} == {60}
    assert series["lag_s"][-3:] == [4, 2, 0]
    assert series["lag_s"][:20] == [None] * 20
    assert series["cores"] == [None] * 60
    assert series["arrival_per_s"][-3:] == [20, None, 0]
    own = {"team": "shipping", "topic": None, "partition": None}
    assert found["hot"]["second"] == [{"step": step, **own} for step in (58, 59)]
    seen = clusters.get("ann", "/api/cluster-history", params={"span": "1h"})["hot"]["second"]
    assert seen[:2] == [{"step": 58, **HOT}, {"step": 58, **others[0]}]
    assert len(seen) == 2 * 10, "of each step the first ten"
    lags = clusters.get("uma", "/api/team-history", params={"team": ["aviation"], "span": "1h"})
    assert lags["series"]["aviation"]["lag_s"][-3:] == [7, 7, 7]


def test_only_the_own_teams_and_so_many_of_them_have_a_history(clusters):
    for user, teams, code in (
        ("otto", ["shipping"], 200),
        ("otto", ["shipping", "aviation"], 404),
        ("ann", [f"team{n}" for n in range(50)], 200),
        ("ann", [f"team{n}" for n in range(51)], 422),
        ("ann", [], 422),
        ("ann", ["a\x00b"], 422),
    ):
        answer = clusters.ask(user, "GET", "/api/team-history", params={"team": teams})
        assert answer.status_code == code, (user, teams[:2], answer.text)


def test_what_was_not_known_at_a_decision_is_for_who_may_view_every_team(clusters):
    clusters.lot.sql("""UPDATE cluster_assignments SET problems = '["topic t did not answer"]'""")
    problems = {one["problems"][0] for one in clusters.get("ann", "/api/clusters")["decisions"]}
    assert problems == {"topic t did not answer"}
    hidden = clusters.get("otto", "/api/clusters")["decisions"]
    assert [one["problems"] for one in hidden] == [[]]


def test_a_topic_that_grew_is_a_decision_about_its_team(clusters):
    topic, tracker = "events.shipping.warehouse", clusters.lot.tracker
    with tracker.transaction() as connection:
        flip_generation(connection, lock_generations(connection, topic, alone=True), partitions=4)
        write_audit(
            connection, who="coordinator", action="grow_topic", target=f"topic {topic}",
            team="shipping", why="it is full", before={"partitions": 2}, after={"partitions": 4},
        )  # fmt: skip
    [newest, *_] = clusters.get("otto", "/api/clusters/default")["decisions"]
    assert newest | {"at": ""} == {
        "version": None, "at": "", "made_by": "coordinator", "team": "shipping", "kind": "grow",
        "old": "default", "new": "default", "problems": [],
        "reason": f"{topic} has 4 partitions in place of 2: it is full",
    }  # fmt: skip
    assert "it is full" in str(clusters.get("ann", "/api/clusters"))
    assert "it is full" not in str(clusters.get("ann", "/api/clusters/second"))
    clusters.lot.sql("DELETE FROM topic_generations")
    clusters.lot.sql(emptied.without_triggers("DELETE FROM audit_log WHERE action = 'grow_topic'"))


def test_the_page_is_there_for_who_may_view(clusters):
    answer = clusters.ask("otto", "GET", "/clusters")
    assert (answer.status_code, "clusters.js" in answer.text) == (200, True)
    assert clusters.ask("nell", "GET", "/clusters").status_code == 403


def wanted(web):
    return dict(web.lot.sql("SELECT DISTINCT cluster, wanted FROM applications"))


def test_applications_are_stopped_started_and_replaced_by_who_may(clusters):
    body = {"why": "the broker is replaced"}
    assert clusters.post("ann", "/api/clusters/second/stop", body)["changed"] is True
    assert clusters.post("ann", "/api/clusters/second/stop", body)["changed"] is False
    assert wanted(clusters) == {"default": "running", "second": "stopped"}
    by_name = {one["name"]: one for one in clusters.get("ann", "/api/clusters")["clusters"]}
    assert by_name["second"]["may_operate"] is True
    assert clusters.post("ann", "/api/clusters/second/start", body)["changed"] is True
    assert wanted(clusters) == {"default": "running", "second": "running"}
    again = clusters.post("ann", "/api/clusters/second/restart", body)
    assert (again["changed"], again["applications"]) == (True, ["processing"])
    assert clusters.post("ann", "/api/clusters/second/restart", body)["applications"] == []
    asked = {(one["action"], one["who"]) for one in clusters.get("ann", "/api/audit")["entries"]}
    assert {("stop_cluster", "ann"), ("restart_cluster", "ann")} <= asked


@pytest.mark.parametrize("verb", ["stop", "start", "restart"])
def test_who_has_not_all_teams_of_a_cluster_or_not_airflows_right_may_not(clusters, verb):
    create_cluster(clusters.lot.tracker, ClusterRequest(name="third"), ANN)
    before = clusters.lot.sql("SELECT cluster, kind, wanted, restart_epoch FROM applications")
    for user, name, words in (
        ("otto", "second", "has no permission 'replay' for the events of all teams"),
        ("uma", "default", "has no permission 'replay' for the events of all teams"),
        ("uma", "third", "for one that serves none it takes that of all"),
        ("vic", "second", "Airflow does not let"),
    ):
        answer = clusters.ask(user, "POST", f"/api/clusters/{name}/{verb}", json={"why": "x"})
        assert answer.status_code == 403, (user, name)
        assert words in answer.json()["detail"]
        assert "aviation" not in answer.text.replace("'uma'", "")
    assert clusters.ask("nell", "POST", f"/api/clusters/second/{verb}", json={}).status_code == 403
    assert clusters.ask("ann", "POST", f"/api/clusters/none/{verb}", json={}).status_code == 404
    foreign = {"x-waybill": "1", "sec-fetch-site": "cross-site"}
    answer = clusters.ask("ann", "POST", f"/api/clusters/second/{verb}", json={}, headers=foreign)
    assert answer.status_code == 403
    assert (
        clusters.lot.sql("SELECT cluster, kind, wanted, restart_epoch FROM applications") == before
    )
