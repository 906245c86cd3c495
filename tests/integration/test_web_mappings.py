"""Mappings over HTTP: in force, earlier, and who made them."""

from __future__ import annotations

import json

import pytest
from tests.support import web_app
from tests.support.mapped import RULES, declared, learn_payloads, pipeline

from waybill.mappings.versions import keep_declared

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


@pytest.fixture
def taught(web):
    """Pipeline ``p1`` of uma's team, whose events brought a field more than is declared."""
    one = pipeline(declared(columns={"amount": "int64"}))
    web.deploy("p1", "orders", "aviation")
    web.lot.sql("DELETE FROM mapping_versions")
    web.lot.sql(
        "UPDATE pipeline_versions SET declaration = CAST(:content AS jsonb) "
        "WHERE pipeline_id = 'p1'",
        content=json.dumps(one.to_json()),
    )
    with web.lot.tracker.transaction() as connection:
        keep_declared(connection, one, RULES, "ann")
    learn_payloads(web.lot.tracker, "p1", declared(), [{"userId": 1}], RULES, "task 3")
    return web


def test_what_is_in_force_says_what_was_learned(taught):
    (found,) = taught.get("uma", "/api/mappings/p1")["mappings"]
    assert (found["number"], found["in_force"], found["author"]) == (2, True, "task 3")
    assert (found["schema_name"], found["table"], found["key"]) == ("shop", "orders", ["id"])
    assert [(c["name"], c["source"], c["origin"]) for c in found["columns"]] == [
        ("id", "id", "declared"),
        ("amount", "amount", "declared"),
        ("user_id", "userId", "learned"),
    ]


def test_an_earlier_version_and_its_makers(taught):
    (found,) = taught.get("uma", "/api/mappings/p1?version=1")["mappings"]
    assert (found["number"], found["in_force"]) == (1, False)
    versions = taught.get("uma", "/api/mappings/p1/versions?event=order")["versions"]
    assert [(one["number"], one["author"], one["reason"]) for one in versions] == [
        (2, "task 3", "new column user_id"),
        (1, "ann", "deployed"),
    ]


@pytest.mark.parametrize("query", ["version=9", "event=nothing"])
def test_what_is_not_there_is_404(taught, query):
    answer = taught.ask("uma", "GET", f"/api/mappings/p1?{query}")
    assert answer.status_code == 404
    assert "order" in answer.json()["detail"]
