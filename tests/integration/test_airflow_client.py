"""The client of Airflow's API, against Airflow's own API server."""

from __future__ import annotations

import threading

import pytest
import uvicorn
from pydantic import SecretStr
from tests.servers import wait_for
from tests.support import web_app
from tests.support.books import open_books

from waybill import services
from waybill.capacity import AirflowPool, VariableThresholds
from waybill.errors import InputError, RetryError
from waybill.services.airflow_client import AirflowClient
from waybill.settings import AirflowSettings, Settings, TrackerSettings

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
    wait_for(lambda: server.started)  # until then the address refuses
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


@pytest.fixture
def tasks(airflow_app):
    """Task instances as the scheduler writes them: two wait, one runs, one ended, one elsewhere."""
    from airflow import settings
    from sqlalchemy import text

    now = "now() - interval '{} s'"
    rows = [
        ("waits", "waybill_ingest", "scheduled", (300, None, None, None)),
        ("queued", "waybill_ingest", "queued", (60, 50, None, None)),
        ("runs", "waybill_ingest", "running", (90, 80, 70, None)),
        ("ended", "waybill_ingest", "success", (100, 95, 90, 30)),
        ("other", "default_pool", "queued", (500, 400, None, None)),
    ]
    run = (
        "INSERT INTO dag_run SELECT (jsonb_populate_record(NULL::dag_run, jsonb_build_object("
        "'id', 990001, 'dag_id', 'replay', 'run_id', 'waits__1', 'state', 'running', "
        "'run_type', 'manual', 'span_status', 'not_started', 'run_after', now(), 'clear_number', 0, 'conf', '{}'::jsonb, "
        "'log_template_id', (SELECT max(id) FROM log_template)))).*"
    )
    with settings.engine.begin() as connection:
        connection.execute(text(run))
        for task, pool, state, times in rows:
            named = zip(
                ("scheduled_dttm", "queued_dttm", "start_date", "end_date"), times, strict=True
            )
            given = ", ".join(
                f"'{name}', {now.format(age)}" for name, age in named if age is not None
            )
            connection.execute(
                text(
                    "INSERT INTO task_instance SELECT (jsonb_populate_record("
                    "NULL::task_instance, jsonb_build_object("
                    "'id', gen_random_uuid(), 'task_id', CAST(:task AS text), 'dag_id', 'replay', "
                    "'run_id', 'waits__1', 'map_index', -1, 'pool', CAST(:pool AS text), "
                    "'pool_slots', 1, 'queue', 'default', 'state', CAST(:state AS text), "
                    "'try_number', 1, 'max_tries', 0, 'priority_weight', 1, 'hostname', '', "
                    "'span_status', 'not_started', "
                    f"'unixname', 'ann', 'task_display_name', CAST(:task AS text), {given}))).*"
                ),
                {"task": task, "pool": pool, "state": state},
            )
    yield
    with settings.engine.begin() as connection:
        connection.execute(text("DELETE FROM task_instance WHERE run_id = 'waits__1'"))
        connection.execute(text("DELETE FROM dag_run WHERE run_id = 'waits__1'"))


def test_the_delay_monitor_sees_what_waits_runs_and_ended_in_the_pool(url, tasks, postgres):
    with open_books(postgres, "delays") as tracker:
        settings = Settings(
            airflow=AirflowSettings(url=url, user="ann", password=SecretStr("ann")),
            tracker=TrackerSettings(dsn=tracker.dsn),
        )
        report = services.measure_delays(settings)
    assert report is not None
    assert (report.waiting, report.busy, report.unseen) == (2, 1, 0)
    assert round(report.service_s) == 60
    assert 300 <= report.oldest_s < 900
    [group] = report.groups
    assert (group.team, group.connector, group.queue, group.waiting) == ("", "replay", "default", 2)


def test_without_a_user_of_airflows_api_there_is_nothing_to_see():
    assert services.measure_delays(Settings(airflow=AirflowSettings())) is None


def test_the_slots_of_a_pool_are_read_and_set_and_nothing_else_of_it(client, tasks):
    from airflow import settings
    from sqlalchemy import text

    with settings.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO slot_pool (pool, slots, description, include_deferred) "
                "VALUES ('waybill_ingest', 4, 'its words', true)"
            )
        )
    try:
        assert client.pool_slots("waybill_ingest") == (4, 2)
        pool = AirflowPool(
            lambda: client.pool_slots("waybill_ingest"),
            lambda slots: client.set_pool_slots("waybill_ingest", slots),
        )
        pool.resize(5, now=4)
        assert pool.read() == (5, 2)
        pool.drain()
        assert pool.read() == (0, 2)
        with settings.engine.connect() as connection:
            kept = connection.execute(
                text(
                    "SELECT description, include_deferred FROM slot_pool "
                    "WHERE pool = 'waybill_ingest'"
                )
            ).one()
        assert tuple(kept) == ("its words", True)
    finally:
        with settings.engine.begin() as connection:
            connection.execute(text("DELETE FROM slot_pool WHERE pool = 'waybill_ingest'"))
    with pytest.raises(InputError, match="refused GET"):
        client.pool_slots("waybill_absent")


def test_a_variable_is_read_as_its_text_and_one_that_is_not_there_is_none(client):
    body = {"key": "waybill_capacity", "value": '{"spark": {"max_nodes": 3}}'}
    client._call("POST", "/api/v2/variables", body)
    try:
        store = VariableThresholds("waybill_capacity", client.variable)
        assert store.read() == {"spark": {"max_nodes": 3}}
    finally:
        client._client.delete(
            "/api/v2/variables/waybill_capacity",
            headers={"Authorization": f"Bearer {client._token}"},
        ).raise_for_status()
    assert VariableThresholds("waybill_capacity", client.variable).read() == {}
