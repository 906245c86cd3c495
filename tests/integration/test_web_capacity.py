"""The routes of capacity: what each user sees of waits, nodes and decisions."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text
from tests.support import web_app

from waybill.capacity import (
    DelayReport,
    DryRunNodes,
    FixedThresholds,
    NodeReport,
    scale,
    write_report,
    write_waits,
)
from waybill.capacity.waits import WaitGroup

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
TABLES = ("capacity_nodes", "task_waits", "capacity_rounds", "capacity_versions")


@pytest.fixture
def capacity(web):
    """Two teams whose tasks wait, one node, and one decision."""
    web.two_teams()
    tracker = web.lot.tracker
    groups = tuple(
        WaitGroup(team, "csv_file", "default", 3, 1, 20.0, 90.0, 95.0)
        for team in ("aviation", "shipping")
    )
    with tracker.transaction() as connection:
        write_report(
            connection, "node-1", "ingestion", 4, NodeReport(5, 4, 0.5, 0.1, 0.3, "4 -> 5")
        )
        write_waits(connection, DelayReport(time.time(), 6, 4, 0.5, 20, 20, 90, 95, groups))
    scale(
        tracker,
        FixedThresholds({}),
        {"ingestion": DryRunNodes(), "spark": DryRunNodes()},
        units={"ingestion": 4, "spark": 2},
    )
    yield web
    with tracker.transaction() as connection:
        for table in TABLES:
            connection.execute(text(f"DELETE FROM {table}"))


def test_who_views_every_team_sees_waits_nodes_and_decisions_with_reasons(capacity):
    found = capacity.get("ann", "/api/capacity")
    assert (found["waiting"], found["running"], found["p95_s"]) == (6, 4, 90)
    assert [one["team"] for one in found["waits"]] == ["aviation", "shipping"]
    [node] = found["nodes"]
    assert (node["name"], node["workers"], node["units"], node["why"]) == ("node-1", 5, 4, "4 -> 5")
    [decision] = found["decisions"]
    assert (decision["kind"], decision["action"], decision["before"]) == ("ingestion", "grow", 1)
    assert "unit seconds wait" in decision["reasons"][0]


def test_others_see_waits_of_their_teams_and_no_names_of_nodes(capacity):
    found = capacity.get("otto", "/api/capacity")
    assert [one["team"] for one in found["waits"]] == ["shipping"]
    assert (found["nodes"], found["behind"]) == ([], [])
    assert len(found["decisions"]) == 1


def test_the_history_has_the_last_minutes_in_its_last_steps(capacity):
    found = capacity.get("ann", "/api/capacity-history?span=1h")
    assert (found["steps"], found["step_s"]) == (60, 60)
    assert [one for one in found["waits"]["p95_s"] if one is not None] == [90.0]
    [nodes] = found["nodes"].values()
    assert [one for one in nodes["ready"] if one is not None] == [1.0]
    assert [one for one in nodes["utilisation"] if one is not None] == [0.5]


def test_where_nothing_was_measured_the_answer_says_so(web):
    found = web.get("ann", "/api/capacity")
    assert (found["waiting"], found["waits"], found["nodes"], found["decisions"]) == (
        None,
        [],
        [],
        [],
    )
