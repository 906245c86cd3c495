"""The operator that makes Athena's tables: a real store, and a server of Athena's protocol for AWS.

That server runs no SQL, so this shows which statements Athena gets, by whose keys, and what becomes
of its answers. What the tables are worth is shown by Trino: ``test_trino_contract``.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.tracing.athena_server import AthenaServer

from waybill import services
from waybill.settings import S3Settings, Settings

# Airflow reads this once, when it is first imported.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="waybill-airflow-")

pytestmark = pytest.mark.serves


@pytest.fixture
def athena() -> Iterator[AthenaServer]:
    with AthenaServer([]) as running:
        running.states = ["RUNNING", "SUCCEEDED"]
        yield running


@pytest.fixture
def bucket(s3: Any, athena: AthenaServer, monkeypatch: pytest.MonkeyPatch) -> S3Settings:
    """A bucket of traces whose keys are in a connection of AWS, as the settings say."""
    found: S3Settings = s3.bucket("traces")
    assert found.access_key
    assert found.secret_key
    connection = {
        "conn_type": "aws",
        "login": found.access_key.get_secret_value(),
        "password": found.secret_key.get_secret_value(),
        "extra": {
            "region_name": "eu-west-1",
            "service_config": {
                "s3": {"endpoint_url": found.endpoint_url},
                "athena": {"endpoint_url": athena.url},
            },
        },
    }
    values = {
        "AIRFLOW_CONN_TRACES": json.dumps(connection),
        "WAYBILL_S3__CONNECTION_ID": "traces",
        "WAYBILL_S3__BUCKET": found.bucket,
        "WAYBILL_TRACES__BACKEND": "athena",
        "WAYBILL_TRACES__ATHENA_DATABASE": "audit",
        "WAYBILL_TRACES__ATHENA_WORKGROUP": "people",
        "WAYBILL_TRACES__ATHENA_RESULTS": "s3://results/{{ 7 * 7 }}/",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return found


def execute() -> Any:
    from waybill_airflow.operators.trace_tables import TraceTablesOperator

    context: Any = {"ti": SimpleNamespace(xcom_push=lambda **_: None)}
    task = TraceTablesOperator(task_id="make", sleep_time=0)
    task.render_template_fields(context)
    return task.execute(context)


def statements(bucket: S3Settings) -> list[str]:
    return services.trace_table_updates(Settings().model_copy(update={"s3": bucket}))


def test_athena_gets_the_statements_of_the_library_in_order_and_again_on_a_second_run(
    bucket: S3Settings, athena: AthenaServer
) -> None:
    assert execute() == [f"query-{number}" for number in (1, 2, 3, 4)]
    execute()
    asked = athena.started
    assert [one["QueryString"] for one in asked] == statements(bucket) * 2
    assert all("`audit`.`traces_by_" in one["QueryString"] for one in asked)
    assert {one["WorkGroup"] for one in asked} == {"people"}
    assert {one["ResultConfiguration"]["OutputLocation"] for one in asked} == {
        "s3://results/{{ 7 * 7 }}/"
    }, "no template"
    assert bucket.access_key
    assert athena.keys == {bucket.access_key.get_secret_value()}


def test_a_statement_that_athena_refuses_fails_the_task_with_its_reason_and_the_others_wait(
    bucket: S3Settings, athena: AthenaServer
) -> None:
    athena.states, athena.reason = ["FAILED"], "Database audit does not exist"
    with pytest.raises(Exception, match="Database audit does not exist"):
        execute()
    assert len(athena.started) == 1
    athena.states, athena.reason = ["SUCCEEDED"], ""
    execute()
    assert [one["QueryString"] for one in athena.started[1:]] == statements(bucket)


def test_without_athena_the_task_is_skipped_and_with_hidden_keys_it_says_where_they_belong(
    bucket: S3Settings, athena: AthenaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    monkeypatch.setenv("WAYBILL_TRACES__ATHENA_DATABASE", "a`; DROP TABLE x")
    with pytest.raises(AirflowFailException, match="WAYBILL_TRACES__ATHENA_DATABASE"):
        execute()
    monkeypatch.delenv("WAYBILL_S3__CONNECTION_ID")
    monkeypatch.setenv("WAYBILL_S3__ACCESS_KEY", "a")
    monkeypatch.setenv("WAYBILL_S3__SECRET_KEY", "b")
    with pytest.raises(AirflowFailException, match="WAYBILL_S3__CONNECTION_ID"):
        execute()
    monkeypatch.setenv("WAYBILL_TRACES__BACKEND", "duckdb")
    with pytest.raises(AirflowSkipException):
        execute()
    assert athena.started == []
