"""Connector ``sql`` against PostgreSQL: values of its types, its session, and its errors."""

from __future__ import annotations

import psycopg
import pytest
from pydantic import SecretStr

from waybill.errors import InputError
from waybill.ingestion.connectors import Connections, open_connector
from waybill.pipelines import Source

pytestmark = pytest.mark.serves
TABLE = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id uuid PRIMARY KEY, at timestamptz NOT NULL, plain timestamp, price numeric, raw bytea,
    more jsonb, many int[], took interval, day date, mood text
);
INSERT INTO shop.orders VALUES (
    '00000000-0000-0000-0000-000000000001', '2024-01-02 03:04:05.000006+02', '2024-01-02 03:04:05',
    1234567890123456789.10, '\\x00ff', '{"n": 12345678901234567890.5, "b": null}', '{1,2}',
    '1 day 02:00', '2024-01-02', 'é'
);
CREATE VIEW shop.seen AS SELECT id, at FROM shop.orders;
"""


@pytest.fixture
def source(postgres, tmp_path):
    dsn = postgres.database("source")
    with psycopg.connect(dsn) as connection:
        connection.execute(TABLE)

    def opened(**options):
        given = {"schema": "shop", "table": "orders", "cursor": "at", "key": ["id"], **options}
        declared = Source(connector="sql", event="e", connection="shop", options=given)
        connections = Connections({"shop": SecretStr(dsn)})
        return open_connector(declared, tmp_path, connections=connections)

    opened.dsn = dsn
    return opened


def test_values_keep_all_that_they_say(source):
    [page] = source().read(None)
    assert page.rows == [
        {
            "id": "00000000-0000-0000-0000-000000000001",
            "at": "2024-01-02T01:04:05.000006Z",
            "plain": "2024-01-02T03:04:05Z",
            "price": "1234567890123456789.10",
            "raw": "AP8=",
            "more": {"n": page.rows[0]["more"]["n"], "b": None},
            "many": [1, 2],
            "took": "1 day, 2:00:00",
            "day": "2024-01-02",
            "mood": "é",
        }
    ]
    assert str(page.rows[0]["more"]["n"]) == "12345678901234567890.5"
    assert list(source().read(page.cursor)) == []


def test_a_view_is_read_and_a_table_of_another_schema_is_not_there(source):
    [page] = source(table="seen").read(None)
    assert set(page.rows[0]) == {"id", "at"}
    with pytest.raises(InputError, match="no table or view 'orders' in schema 'public'"):
        list(source(schema="public").read(None))


def test_the_session_may_not_write_and_what_the_server_refuses_is_told(source):
    with psycopg.connect(source.dsn) as connection:
        connection.execute(
            "CREATE FUNCTION shop.writes() RETURNS int LANGUAGE sql AS"
            " $$ INSERT INTO shop.orders (id, at) VALUES (gen_random_uuid(), now()); SELECT 1 $$"
        )
        connection.execute("CREATE VIEW shop.trap AS SELECT shop.writes() AS id, now() AS at")
    with pytest.raises(
        InputError, match="source table 'trap': cannot execute INSERT in a read-only"
    ):
        list(source(table="trap").read(None))


def test_discovery_says_what_the_schema_says(source):
    with psycopg.connect(source.dsn) as connection:
        connection.execute("ALTER TABLE shop.orders ADD fee numeric(8,3), ADD ratio real")
    [found] = source(key=None).discover()
    assert (found.event, found.key, found.version, found.table) == ("e", ("id",), "at", "orders")
    assert found.never_null == {"id", "at"}
    assert found.columns == {
        "at": "timestamp",
        "plain": "timestamp",
        "raw": "bytes",
        "day": "date",
        "mood": "string",
        "fee": "decimal(8,3)",
        "ratio": "float64",
    }
    assert len(found.types) == 12
    with pytest.raises(InputError, match="table 'seen' has no primary key"):
        source(table="seen", key=None).discover()
