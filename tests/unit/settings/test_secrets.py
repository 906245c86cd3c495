"""No secret of the settings is in an error, a representation, or what a command says."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from pydantic import SecretStr, ValidationError
from tests.support.marked import MARK, fields, is_secret, mark, marked, marked_value, put, said
from tests.support.told import web_server
from typer.testing import CliRunner

from waybill.cli import app
from waybill.destinations import open_destination
from waybill.errors import WaybillError
from waybill.notices.rendering import Message
from waybill.notices.sinks import SinkError, WebhookSink
from waybill.settings import DestinationSettings, Settings, TrackerSettings, secret_values
from waybill.storage import open_tracker

ALL = list(fields())
SECRET = [(path, field) for path, field in ALL if is_secret(field)]
SHOWN = {
    "s3.bucket", "s3.region", "spark.master", "spark.driver_host", "spark.driver_memory",
    "traces.athena_database", "traces.athena_workgroup", "traces.athena_results", "airflow.user",
    "notices.smtp_host", "notices.smtp_user", "notices.smtp_from", "notices.fallback_to",
    "collector.host",
    "access.kafka_principal", "kafka.ssl_ca_pem", "kafka.ssl_certificate_pem", "kafka.sasl_username", "kafka.sasl_scope",
    "kafka.bootstrap_servers", "s3.endpoint_url", "s3.connection_id", "airflow.connection_id", "airflow.database_connection_id", "airflow.url", "wal.node",
    "destinations.marked.kind", "spark.connection_id", "spark.jobs_uri",
    "capacity.pool", "capacity.celery_worker", "capacity.variable", "capacity.consul_url",
    "capacity.consul_key", "capacity.ingestion_group", "capacity.spark_worker_memory",
    "capacity.spark_worker_url",
}  # fmt: skip
"""Texts that messages may quote. A new one is a `SecretStr`, or is named here on purpose."""


def named(paths):
    return [".".join(path) for path, _ in paths]


def test_every_free_text_is_a_secret_or_known_to_be_shown():
    free = {
        ".".join(path)
        for path, field in ALL
        if not is_secret(field) and field.annotation in (str, str | None)
    }
    assert free <= SHOWN, "make it a SecretStr, or name it in SHOWN"
    assert {"tracker.dsn", "notices.webhook_url"} <= set(named(SECRET))


@pytest.mark.parametrize(("path", "field"), ALL, ids=named(ALL))
def test_a_wrong_value_is_not_quoted(path, field, monkeypatch, tmp_path):
    for wrong in ({MARK: MARK}, [MARK, {"x": MARK}], MARK, json.dumps({"x": MARK})):
        try:
            Settings(_env_file=None, **put({}, path, wrong))
        except ValidationError as error:
            words = said(error)
            assert path[0] in words
            # where the given is a mapping, names of settings in it are named
            assert words.replace(f"{path[-1]}.{MARK}", "").count(MARK) == 0, words
    # a text that stands beside a mistake
    with pytest.raises(ValidationError) as caught:
        Settings(
            _env_file=None,
            **put(put({}, path, marked_value(path, field)), ("stack", "s3_port"), "x"),
        )
    assert MARK not in said(caught.value)
    # as a variable, and as the command line says it
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    monkeypatch.setenv("WAYBILL_STACK__S3_PORT", "none")
    monkeypatch.setenv(f"WAYBILL_{path[0]}".upper(), json.dumps({"x": MARK}) + MARK)
    for words in (("status",), ("--debug", "status")):
        run = CliRunner().invoke(app, words)
        assert run.exit_code == 1
        assert MARK not in run.output + run.stderr
        assert run.exception is None or MARK not in said(run.exception)


def test_settings_never_show_a_secret():
    settings = Settings(_env_file=None, **marked())
    shown = [repr(settings), str(settings), settings.model_dump_json(), f"{settings.model_dump()}"]
    assert MARK not in "".join(shown)
    hidden = secret_values(settings)
    for path, _ in SECRET:
        assert any(mark(path) in value for value in hidden), path
        assert path[-1] not in ("dsn",) or mark(path) in hidden


def test_an_address_without_a_login_is_no_secret():
    lake = DestinationSettings.model_validate(
        {
            "kind": "iceberg",
            "dsn": "s3://events/lake",
            "options": {"catalog": "glue", "token": "abcd"},
        }
    )
    assert secret_values(lake) == {"abcd"}


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:%s@h:5432x/db",
        "postgresql://user:a/%s@127.0.0.1:1/db",
        "postgresql://user:12#%s@127.0.0.1:1/db",
        "postgresql://user:12?%s@127.0.0.1:1/db",
        "postgresql://user:a@%s@127.0.0.1:1/db",
        "postgresql://user:a:%s@127.0.0.1:%s/db",
        "postgresql://[%s",
        "host=127.0.0.1 port=1 password=%s nonsense",
        "%s",
    ],
)
def test_an_address_that_cannot_be_read_is_not_quoted(dsn):
    """A password with characters of URLs is cut: its rest would be shown as a host or a port."""
    text = dsn.replace("%s", MARK)
    with pytest.raises((ValidationError, WaybillError)) as caught:
        with open_tracker(TrackerSettings(dsn=text)) as tracker, tracker.transaction():
            pass
    assert MARK not in said(caught.value)
    with pytest.raises((ValidationError, WaybillError)) as caught:
        settings = DestinationSettings(dsn=SecretStr(text))
        open_destination("marked", settings).check()
    assert MARK not in said(caught.value)


@pytest.mark.parametrize(
    ("section", "name"),
    [("kafka", "bootstrap_servers"), ("s3", "endpoint_url"), ("airflow", "url")],
)
def test_an_address_that_messages_show_takes_no_login(section, name):
    with pytest.raises(ValidationError, match="leave them out") as caught:
        Settings(_env_file=None, **{section: {name: f"http://user:{MARK}@127.0.0.1:1"}})
    assert MARK not in said(caught.value)


@pytest.mark.parametrize(
    "kind", ["postgres", "duckdb", "delta", "iceberg", "snowflake", "bigquery", "redshift",
             "databricks", "clickhouse"],
)  # fmt: skip
def test_a_destination_that_cannot_be_opened_shows_nothing_of_its_address(kind, tmp_path):
    for dsn in (f"{kind}://user:{MARK}@127.0.0.1:x/db", f"{kind}://{MARK}", MARK):
        options = {"password": SecretStr(MARK), "nonsense": SecretStr(MARK)}
        settings = DestinationSettings.model_construct(
            kind=kind, dsn=SecretStr(dsn), options=options
        )
        try:
            open_destination("marked", settings)
        except WaybillError as error:
            assert MARK not in said(error), said(error)


COMMANDS = [
    ("status",), ("status", "--json"), ("doctor", "--json"), ("balance", "--json"),
    ("parked", "list"), ("destination", "list"), ("destination", "check", "marked"),
    ("pipelines", "holds"), ("notices", "list"), ("notices", "send"), ("audit", "list"),
    ("queries", "list"), ("mapping", "show", "marked"), ("pipelines", "deploy", "flights"),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_says_a_secret_when_nothing_answers(words, monkeypatch, tmp_path, caplog):
    caplog.set_level("DEBUG")
    settings = Settings(_env_file=None, **marked())
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    for more in (("--wait", "0"), ("--wait", "0", "--debug")):
        run = CliRunner().invoke(app, [*more, *words])
        assert MARK not in run.output + run.stderr
        assert run.exception is None or MARK not in said(run.exception)
    assert MARK not in caplog.text


def test_the_address_of_a_webhook_is_in_no_log_and_no_error(caplog):
    caplog.set_level("DEBUG")
    settings = Settings(_env_file=None, **marked()).notices
    message = Message(UUID(int=1), "ann", (), {})
    with web_server() as server:
        for answer in (200, 302, 500):
            server.answer = answer
            url = SecretStr(f"{server.url}/{MARK}?token={MARK}")
            sink = WebhookSink(settings.model_copy(update={"webhook_url": url}))
            if answer == 200:
                sink.send(message)
                continue
            with pytest.raises(SinkError) as caught:
                sink.send(message)
            assert MARK not in said(caught.value)
    away = "http://127.0.0.1:1/"
    for url in (f"{away}{MARK}", f"http://127.0.0.1:{MARK}/", f"http://[{MARK}", f"{away}\0{MARK}"):
        given = settings.model_copy(update={"webhook_url": SecretStr(url)})
        with pytest.raises(SinkError) as caught:
            WebhookSink(given).send(message)
        assert MARK not in said(caught.value)
    assert MARK not in caplog.text
