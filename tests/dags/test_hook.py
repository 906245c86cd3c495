"""Settings from a connection of Airflow: what wins, what is refused, what is shown."""

from __future__ import annotations

import json
import logging
import os

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.log import redact
from sqlalchemy.engine import make_url

from waybill.errors import AwayError, InputError
from waybill.ingestion.connectors import Connections
from waybill.storage import open_tracker
from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.hooks.waybill import WaybillHook, connection_text

HOSTILE = "p@:/?#%[]&= {{ 7*7 }}'\"é"


@pytest.fixture
def connection(monkeypatch):
    def make(name="waybill_default", **given):
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "waybill", **given})
        )

    return make


def test_a_connection_wins_over_the_environment_which_gives_the_rest(connection, monkeypatch):
    monkeypatch.setenv("WAYBILL_S3__BUCKET", "of-the-environment")
    monkeypatch.setenv("WAYBILL_S3__REGION", "eu-north-1")
    monkeypatch.setenv("WAYBILL_TRACKER__POOL_SIZE", "7")
    connection(
        host="db.example.org",
        login="waybill",
        password="secret-word",
        schema="books",
        extra={
            "WAYBILL_S3__BUCKET": "of-the-connection",
            "WAYBILL_KAFKA__TOPIC_PARTITIONS": 5,
            "waybill_traces__enabled": False,
            "WAYBILL_SOURCES__ROOTS": ["/data"],
            "WAYBILL_DESTINATIONS__LAKE__DSN": "postgresql://lake/x",
            "WAYBILL_S3__ENDPOINT_URL": None,
            "WAYBILL_S3__ACCESS_KEY": "",
        },
    )
    found = read_settings()
    assert found.tracker.dsn.get_secret_value() == (
        "postgresql://waybill:secret-word@db.example.org:5432/books"
    )
    assert (found.tracker.pool_size, found.kafka.topic_partitions) == (7, 5)
    assert (found.s3.bucket, found.s3.region) == ("of-the-connection", "eu-north-1")
    assert (found.s3.endpoint_url, found.s3.access_key) == (None, None)
    assert (found.traces.enabled, str(found.sources.roots[0])) == (False, "/data")
    assert found.destinations["lake"].dsn.get_secret_value() == "postgresql://lake/x"


def test_the_environment_is_read_where_there_is_no_connection(monkeypatch):
    monkeypatch.setenv("WAYBILL_S3__BUCKET", "of-the-environment")
    assert read_settings().s3.bucket == "of-the-environment"


def test_a_connection_that_the_settings_name_must_be_there(connection, monkeypatch):
    monkeypatch.setenv("WAYBILL_AIRFLOW__CONNECTION_ID", "waybill_east")
    with pytest.raises(AirflowFailException, match="no connection 'waybill_east'"):
        read_settings()
    connection("waybill_east", extra={"WAYBILL_S3__BUCKET": "east"})
    assert read_settings().s3.bucket == "east"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"conn_type": "postgres"}, "is of type 'postgres', not 'waybill'"),
        ({"extra": "no JSON"}, "extra must be a JSON object"),
        ({"extra": '["a"]'}, "extra must be a JSON object"),
        ({"extra": {"bucket": "x"}}, "extra: 'BUCKET' is no setting"),
        ({"extra": {"WAYBILL_ACCESS__GRANTS": '[{"who": "MARKED", "teams": "*"}]'}},
         "'WAYBILL_ACCESS__GRANTS' is read from the environment of the web server alone"),
        ({"extra": {"waybill_access": {"grants": [{"who": "MARKED"}]}}},
         "'WAYBILL_ACCESS' is read from the environment"),
        ({"extra": {"WAYBILL_S3__BUKET": "x"}}, "did you mean WAYBILL_S3__BUCKET"),
        ({"extra": {"WAYBILL_KAFKA__TOPIC_PARTITIONS": "MARKED"}},
         "extra: WAYBILL_KAFKA__TOPIC_PARTITIONS: Input should be a valid integer"),
        ({"extra": {"WAYBILL_DESTINATIONS": {"lake": {"kind": "duckdb"}}}},
         "extra: WAYBILL_DESTINATIONS: Field required"),
        ({"extra": {"WAYBILL_SOURCES__ROOTS": "[MARKED"}}, "extra: .*sources"),
        ({"extra": {"WAYBILL_TRACKER__DSN": "postgresql://a:MARKED:MARKED@h:x/d"}},
         "extra: WAYBILL_TRACKER__DSN: .*cannot be read"),
        ({"host": "h", "extra": {"WAYBILL_TRACKER__DSN": "postgresql://h/MARKED"}}, "both its host"),
        ({"host": "h", "port": -5, "password": "MARKED"},
         "host, port, schema, login, password: WAYBILL_TRACKER__DSN: .*cannot be read"),
        ({"login": "x", "password": "MARKED"}, "host is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_connection_and_its_value_is_not_shown(
    connection, given, said
):
    connection(**given)
    with pytest.raises(
        AirflowFailException, match=f"connection 'waybill_default'.*{said}"
    ) as caught:
        read_settings()
    assert "MARKED" not in str(caught.value)


def test_what_is_wrong_in_the_environment_is_not_blamed_on_the_connection(connection, monkeypatch):
    connection(extra={"WAYBILL_S3__BUCKET": "x"})
    monkeypatch.setenv("WAYBILL_KAFKA__TOPIC_PARTITIONS", "none")
    with pytest.raises(AirflowFailException, match="settings of this worker") as caught:
        read_settings()
    assert "connection" not in str(caught.value)


def test_whatever_a_login_holds_the_tracker_gets_it(connection):
    connection(host="::1", port=6000, login=HOSTILE, password=HOSTILE, schema=HOSTILE)
    url = make_url(WaybillHook().get_conn().tracker.dsn.get_secret_value())
    assert (url.username, url.password, url.database) == (HOSTILE, HOSTILE, HOSTILE)
    assert (url.host, url.port) == ("::1", 6000)


def test_secrets_of_a_connection_are_masked_in_logs(connection):
    connection(
        host="h",
        password="first-secret-word",
        extra={"WAYBILL_S3__SECRET_KEY": "second-secret-word"},
    )
    read_settings()
    said = redact("could not reach first-secret-word with second-secret-word")
    assert "secret-word" not in said


def test_a_refused_login_names_the_connection_and_its_fields(connection):
    """As PostgreSQL refuses it: the library knows the setting, the hook where it is from."""
    connection(host="h", password="wrong-password")
    read_settings()
    with pytest.raises(AirflowFailException) as caught, as_task_failures():
        raise InputError("tracker: password authentication failed; check WAYBILL_TRACKER__DSN")
    assert "connection 'waybill_default': host, port, schema, login, password" in str(caught.value)
    with pytest.raises(AirflowFailException) as caught, as_task_failures():
        raise InputError("check WAYBILL_S3__BUCKET")
    assert "connection" not in str(caught.value)


def test_of_a_server_that_is_away_the_log_names_the_connection(connection, caplog):
    connection(host="127.0.0.1", port=1)
    settings = read_settings()
    with pytest.raises(AwayError), as_task_failures():
        with open_tracker(settings.tracker) as tracker, tracker.transaction():
            pass
    assert "WAYBILL_TRACKER__DSN (connection 'waybill_default': host, port" in caplog.text


def test_testing_a_connection_says_what_was_not_reached_and_shows_no_secret(connection, caplog):
    caplog.set_level(logging.DEBUG)
    connection(
        host="127.0.0.1",
        port=1,
        password="secret-word",
        extra={
            "WAYBILL_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "WAYBILL_S3__ENDPOINT_URL": "http://127.0.0.1:1",
            "WAYBILL_S3__ACCESS_KEY": "some-key",
            "WAYBILL_S3__SECRET_KEY": "secret-word",
        },
    )
    ok, said = WaybillHook("waybill_default").test_connection()
    assert not ok
    for server in ("tracker: ", "Kafka: ", "object store: "):
        assert server in said
    assert "127.0.0.1" in said
    assert "secret-word" not in said + caplog.text
    assert WaybillHook("elsewhere").test_connection()[0] is False


# Keys of the object store by a connection of AWS --------------------------------------------------


@pytest.fixture
def aws(monkeypatch):
    def make(**given):
        given = {"conn_type": "aws", "login": "AKIA1", "password": "aws-secret-word", **given}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(given))

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("WAYBILL_S3__CONNECTION_ID", "store")
    return make


def test_keys_region_and_address_come_from_the_connection_of_aws(aws):
    aws(extra={"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:1"})
    settings = read_settings()
    s3 = settings.s3
    assert (s3.access_key.get_secret_value(), s3.region) == ("AKIA1", "eu-west-1")
    assert (s3.secret_key.get_secret_value(), s3.endpoint_url) == (
        "aws-secret-word",
        "http://127.0.0.1:1",
    )
    assert "aws-secret-word" not in redact("said aws-secret-word")
    started = json.loads(settings.to_env()["WAYBILL_S3"])
    assert (started["secret_key"], started["connection_id"]) == ("aws-secret-word", "")


def test_what_the_connection_of_aws_does_not_name_stays_as_it_is_set(aws, monkeypatch):
    monkeypatch.setenv("WAYBILL_S3__REGION", "eu-north-1")
    monkeypatch.setenv("WAYBILL_S3__ENDPOINT_URL", "http://127.0.0.1:2")
    aws()
    assert (read_settings().s3.region, read_settings().s3.endpoint_url) == (
        "eu-north-1",
        "http://127.0.0.1:2",
    )


def test_keys_that_end_a_missing_connection_and_two_sets_of_keys_are_refused(aws, monkeypatch):
    with pytest.raises(AirflowFailException, match="no connection 'store'"):
        read_settings()
    aws(login=None, password=None)
    with pytest.raises(AirflowFailException, match="connection 'store' of AWS gives no keys"):
        read_settings()
    aws(extra={"aws_session_token": "ends-soon"})
    with pytest.raises(AirflowFailException, match="keys that end"):
        read_settings()
    aws()
    monkeypatch.setenv("WAYBILL_S3__ACCESS_KEY", "other")
    with pytest.raises(AirflowFailException, match="both WAYBILL_S3__CONNECTION_ID"):
        read_settings()


def test_a_sources_connection_is_airflows_own_and_its_secrets_are_masked(connection):
    connection(
        "shop_db",
        conn_type="postgres",
        host="db.example.org",
        login="ann",
        password=HOSTILE,
        schema="shop",
        extra={"sslmode": "require", "api_token": "of-the-extra"},
    )
    found = Connections(lookup=connection_text).find("shop_db")
    assert (found.kind, found.host, found.login, found.schema) == (
        "postgres", "db.example.org", "ann", "shop",
    )  # fmt: skip
    assert found.password.get_secret_value() == HOSTILE
    assert found.extra["sslmode"] == "require"
    assert "of-the-extra" not in redact("failed with of-the-extra")
    assert connection_text("nobody") is None
