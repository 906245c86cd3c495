"""What a declaration of ``postgres_cdc`` may say."""

from pathlib import Path

import pytest

from waybill.errors import InputError
from waybill.ingestion.connectors import open_connector
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.postgres_cdc.declaration import conninfo, table_name
from waybill.pipelines import Source


@pytest.mark.parametrize(
    ("written", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("shop.orders", "shop", "orders"),
        ('shop."Order.Lines"', "shop", "Order.Lines"),
        ('"a""b"."c d"', 'a"b', "c d"),
        ("shop.orders; drop table x", "shop", "orders; drop table x"),
    ],
)
def test_a_table_is_named_with_or_without_its_schema(written, schema, name):
    assert table_name(written) == (schema, name)


@pytest.mark.parametrize("written", ["", ".", "a.b.c", '"', "a.", ".b", "x" * 64, "a\0b", '""."a"'])
def test_what_names_no_table_is_refused(written):
    with pytest.raises(ValueError, match="write schema"):
        table_name(written)


@pytest.mark.parametrize("kind", ["postgres_cdc", "kafka"])
def test_fields_of_files_are_refused(kind):
    tables = (
        {"tables": {"e": "t"}, "slot": "s"} if kind == "postgres_cdc" else {"topics": {"e": "t"}}
    )
    source = Source(connector=kind, event="e", connection="c", options=tables, order_by=("id",))
    with pytest.raises(InputError, match=r"source\.order_by"):
        open_connector(source, Path())
    good = Source(connector=kind, event="e", connection="c", options=tables)
    assert open_connector(good, Path()).count() is None


def test_a_connections_extra_says_to_libpq_only_what_is_about_the_way():
    connection = Connection.parse(
        "shop",
        "postgres://u:p%27w@db.example:5433/shop?sslmode=verify-full&options=-cfoo&passfile=/x",
    )
    said = conninfo(connection)
    assert "sslmode=verify-full" in said
    assert "host=db.example" in said
    assert "passfile" not in said
    assert "foo" not in said
    assert "replication" not in said
    assert "replication=database" in conninfo(connection, replication=True)


def test_a_socket_is_named_by_the_extra():
    assert "host=/run/pg" in conninfo(Connection.parse("s", "postgres://postgres@/db?host=/run/pg"))
