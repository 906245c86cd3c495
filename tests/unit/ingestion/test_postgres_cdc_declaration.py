"""What a declaration of ``postgres_cdc`` may say."""

import pytest

from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.postgres_cdc.declaration import conninfo, table_name


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
