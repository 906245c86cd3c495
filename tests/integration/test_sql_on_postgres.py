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


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("timestamptz", "2026-01-02T01:00:00+01:00", "a time such as"),
        ("timestamp", "2026-01-02T00:00:00Z", "a time such as"),
        ("date", "2026-01-02", "a day such as"),
        ("text", "2026-01-02T00:00:00Z", "a time such as"),
    ],
)
def test_a_value_to_begin_at_is_of_the_columns_type(source, kind, value, wanted):
    days = [f"2026-01-0{day} 00:00:00" for day in (1, 2, 3)]
    with psycopg.connect(source.dsn) as connection:
        connection.execute(f"CREATE TABLE shop.t (id int PRIMARY KEY, at {kind})")
        for number, day in enumerate(days):
            connection.execute("INSERT INTO shop.t VALUES (%s, %s)", (number, day))
    table = source(table="t")
    *_, last = table.read(None)
    for stands in (None, last.cursor):
        [page] = table.read(table.cursor_at(value, stands))
        assert [row["id"] for row in page.rows] == [1, 2]
    again = {**last.cursor, "rereads": [table.reread_between(value, value, last.cursor)]}
    assert [row["id"] for page in table.read(again) for row in page.rows] == [1]
    with pytest.raises(InputError, match=f"^from: expected {wanted}.*'soon'"):
        table.cursor_at("soon", last.cursor)


@pytest.mark.parametrize(
    ("before", "now", "compared"),
    [
        ("timestamp", "timestamptz", True),
        ("timestamptz", "timestamp", True),
        ("date", "timestamp", True),
        ("timestamp", "date", False),
        ("timestamp", "text", False),
        ("text", "timestamp", False),
    ],
)
def test_a_cursor_of_another_type_than_before_is_compared_where_that_can_be_or_refused(
    source, before, now, compared
):
    with psycopg.connect(source.dsn) as connection:
        connection.execute(f"CREATE TABLE shop.t (id int PRIMARY KEY, at {before})")
        connection.execute("INSERT INTO shop.t VALUES (1, '2026-01-02')")
        table = source(table="t")
        connection.commit()
        *_, last = table.read(None)
        connection.execute(f"ALTER TABLE shop.t ALTER at TYPE {now} USING at::{now}")
        connection.execute("INSERT INTO shop.t VALUES (2, '2026-01-03 00:00:00')")
    if compared:
        assert 2 in [row["id"] for row in next(table.read(last.cursor)).rows]
        [page] = table.read(table.cursor_at("2026-01-02", last.cursor))
        assert [row["id"] for row in page.rows] == [1, 2]
        return
    with pytest.raises(InputError, match="'at' are not of one type.*ingest … --full"):
        list(table.read(last.cursor))
    with pytest.raises(InputError, match="'at' are not of one type.*ingest … --full"):
        table.cursor_at("2026-01-02", last.cursor)
    assert [row["id"] for row in next(table.read(None)).rows] == [1, 2]


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
