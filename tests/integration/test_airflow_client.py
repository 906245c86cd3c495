"""The client of Airflow's API, against Airflow's own API server."""

from __future__ import annotations

import threading

import pytest
import uvicorn
from pydantic import SecretStr
from tests.support import web_app

from waybill.errors import InputError, RetryError
from waybill.services.airflow_client import AirflowClient
from waybill.settings import AirflowSettings

pytestmark = pytest.mark.serves
airflow_app = web_app.airflow_app
CONF = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "mapping",
    "error_type": "null_value",
}
MANY = 230
"""More DAGs than Airflow gives at once, twice."""


@pytest.fixture(scope="module")
def url(airflow_app):
    """The address of the application, served by a thread of this process."""
    server = uvicorn.Server(
        uvicorn.Config(airflow_app[0].app, port=0, lifespan="off", log_level="warning")
    )
    sock = server.config.bind_socket()
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    yield "http://{}:{}".format(*sock.getsockname())
    server.should_exit = True
    thread.join()


@pytest.fixture
def client(url):
    settings = AirflowSettings(url=url, user="ann", password=SecretStr("ann"))
    with AirflowClient(settings) as opened:
        yield opened


@pytest.fixture
def many_dags(airflow_app):
    """DAGs as the DAG processor would write them, paused."""
    from airflow import settings
    from sqlalchemy import text

    ids = [f"many_{number:03}" for number in range(MANY)]
    dags = text(
        "INSERT INTO dag SELECT (jsonb_populate_record(dag, jsonb_build_object("
        "'dag_id', id, 'is_paused', true))).* FROM dag, unnest(:ids) AS id WHERE dag_id = 'replay'"
    )
    tags = text(
        "INSERT INTO dag_tag (dag_id, name) SELECT id, name FROM unnest(:ids) AS id, "
        "unnest(ARRAY['waybill', 'maintenance']) AS name"
    )
    with settings.engine.begin() as connection:
        connection.execute(dags, {"ids": ids})
        connection.execute(tags, {"ids": ids})
    yield ids
    with settings.engine.begin() as connection:
        connection.execute(text("DELETE FROM dag_tag WHERE dag_id = ANY(:ids)"), {"ids": ids})
        connection.execute(text("DELETE FROM dag WHERE dag_id = ANY(:ids)"), {"ids": ids})


def test_all_dags_are_seen_however_many_there_are(client, many_dags):
    client.wait_for_dags({"replay", *many_dags}, limit_s=0)
    assert set(client.paused_upkeep()) >= set(many_dags)
    with pytest.raises(RetryError, match=r"does not know \['absent'\]"):
        client.wait_for_dags({"absent", *many_dags}, limit_s=0)


def test_a_run_is_found_by_an_id_with_all_that_airflow_takes_in_one(client):
    run_id = "cli__Aa0_.~:+-"
    assert client.trigger("replay", run_id, CONF) == run_id
    assert client.run_state("replay", run_id) == "queued"
    assert run_id in {run["dag_run_id"] for run in client.runs("replay")}
    assert client.left("replay", run_id, "replay", "reason") is None


@pytest.mark.parametrize("more", ["?x=1", "#x", "%2Fx", "%3Fx", "%00", "\n", " ", ";x", "é"])
def test_an_id_that_only_begins_like_a_runs_is_no_runs(client, more):
    client.trigger("replay", "known", CONF)
    with pytest.raises(InputError, match="404"):
        client.run_state("replay", f"known{more}")
    with pytest.raises(InputError, match="404"):
        client.unpause(f"replay{more}")


@pytest.mark.parametrize("name", ["", ".", "..", "x/../known", "known/", "known/taskInstances"])
def test_an_id_does_not_lead_out_of_its_place(client, name):
    client.trigger("replay", "known", CONF)
    with pytest.raises(InputError, match="nothing by the name"):
        client.run_state("replay", name)
    with pytest.raises(InputError, match="nothing by the name"):
        client.unpause(name)
