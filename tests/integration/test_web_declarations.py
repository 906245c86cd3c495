"""The route by which a deploy has Airflow parse the file of its DAG."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from tests.support import web_app

from waybill.pipelines import shard_of

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


@pytest.fixture
def requests(web):
    """What the DAG processor would find to be parsed; there is nothing at first."""
    from airflow import settings

    def rows(statement="SELECT bundle_name, relative_fileloc FROM dag_priority_parsing_request"):
        with settings.engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    rows("DELETE FROM dag_priority_parsing_request")
    return rows


def test_the_file_of_a_declaration_is_asked_for_once_however_many_deploys_there_are(web, requests):
    headers = {"authorization": f"Bearer {web.tokens['ann']}"}

    def ask(_number):
        path = "/waybill/api/declarations/orders/parse"
        return web.client.post(path, json={}, headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(16))) == {202}
    file = f"ingest_{shard_of('orders'):02}.py"
    assert requests() == [("dags-folder", file)], "no DAG of that file is known"
    said = web.post("ann", "/api/declarations/orders/parse", status=202)
    assert (said["file"], said["interval_s"]) == (file, 30)
    others = {one for one in map(str, range(40)) if shard_of(one) != shard_of("orders")}
    web.post("ann", f"/api/declarations/{others.pop()}/parse", status=202)
    assert len(requests()) == 2


@pytest.mark.parametrize("name", ["..%5c..%5cx", "a'; DROP TABLE dag; --", "é {{ 7 }}", "x" * 300])  # fmt: skip
def test_a_hostile_name_is_only_hashed(web, requests, name):
    answer = web.ask("ann", "POST", f"/api/declarations/{name}/parse", json={})
    assert answer.status_code == 202, answer.text
    assert requests() == [("dags-folder", answer.json()["file"])]
    assert re.fullmatch(r"ingest_\d\d\.py", answer.json()["file"])
    assert requests("SELECT count(*) FROM dag") != [(0,)]


def test_it_takes_airflows_right_to_change_the_dag(web, requests):
    answer = web.ask("vic", "POST", "/api/declarations/orders/parse", json={})
    assert answer.status_code == 403
    assert "does not let 'vic' change the DAG of 'orders'" in answer.json()["detail"]
    assert requests() == []


def test_an_airflow_that_has_not_parsed_yet_says_so(web, requests, monkeypatch):
    monkeypatch.setattr("waybill_airflow.web.declarations.REPLAY_DAG_ID", "none_yet")
    answer = web.ask("ann", "POST", "/api/declarations/orders/parse", json={})
    assert answer.status_code == 409
    assert "does not know the DAG none_yet yet" in answer.json()["detail"]
    assert requests() == []
