"""Connector ``sql`` against a MariaDB: values of its types, its session, and its errors."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr
from tests.support.connector_sources import mysql_connection

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors import Connections, open_connector
from waybill.pipelines import Source

pytestmark = pytest.mark.campaign
TABLE = """
CREATE TABLE orders (
    id int unsigned PRIMARY KEY, at timestamp(6) NOT NULL, plain datetime, price decimal(30,10),
    raw varbinary(9), day date, took time, yes bool, mood text
)
"""


@pytest.fixture
def database(mariadb):
    name = mariadb.database()
    with mariadb.connect(name) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+02:00'")
        cursor.execute(TABLE)
        cursor.execute(
            "INSERT INTO orders VALUES (4294967295, '2024-01-02 03:04:05.000006',"
            " '2024-01-02 03:04:05', 12345678901234567890.10, x'00ff', '2024-01-02', '02:00', 1, 'é')"
        )
    return name


@pytest.fixture
def source(mariadb, database, tmp_path):
    def opened(password=None, **options):
        given = {"table": "orders", "cursor": "at", "key": ["id"], **options}
        declared = Source(connector="sql", event="e", connection="shop", options=given)
        found = json.loads(mysql_connection(mariadb, database))
        if password is not None:
            found["password"] = password
        connections = Connections({"shop": SecretStr(json.dumps(found))})
        return open_connector(declared, tmp_path, connections=connections)

    return opened


def test_values_keep_all_that_they_say(source):
    [page] = source().read(None)
    assert page.rows == [
        {
            "id": 4294967295,
            "at": "2024-01-02T01:04:05.000006Z",
            "plain": "2024-01-02T03:04:05Z",
            "price": "12345678901234567890.1000000000",
            "raw": "AP8=",
            "day": "2024-01-02",
            "took": "2:00:00",
            "yes": 1,
            "mood": "é",
        }
    ]
    assert list(source().read(page.cursor)) == []
    assert [len(page.rows) for page in source(overlap=5).read(page.cursor)] == [1]


def test_the_session_may_not_write(source, mariadb, database):
    with mariadb.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION writes() RETURNS int MODIFIES SQL DATA"
            " BEGIN INSERT INTO orders (id, at) VALUES (1, now()); RETURN 1; END"
        )
        cursor.execute("CREATE VIEW trap AS SELECT writes() AS id, at FROM orders")
    with pytest.raises((InputError, RetryError), match="source table 'trap'.*READ ONLY"):
        list(source(table="trap").read(None))


def test_a_wrong_password_and_a_missing_table_are_told_without_a_secret(source):
    with pytest.raises((InputError, RetryError), match="Access denied") as caught:
        list(source(password="c4n4ry-wrong").read(None))
    assert "c4n4ry" not in str(caught.value)
    with pytest.raises(InputError, match="no table or view 'nothing'"):
        list(source(table="nothing").read(None))


@pytest.mark.parametrize("kind", ["timestamp", "datetime", "varchar(40)"])
def test_a_value_to_begin_at_is_of_the_columns_type(source, mariadb, database, kind):
    with mariadb.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE t (id int PRIMARY KEY, at {kind} NOT NULL)")
        for day in (1, 2, 3):
            cursor.execute("INSERT INTO t VALUES (%s, %s)", (day, f"2026-01-0{day} 00:00:00"))
        connection.commit()
    table = source(table="t")
    *_, last = table.read(None)
    for value in ("2026-01-02", "2026-01-02T01:00:00+01:00"):
        [page] = table.read(table.cursor_at(value, last.cursor))
        assert [row["id"] for row in page.rows] == [2, 3]
