"""Ranges of a key on PostgreSQL and MariaDB: keys of each type in the database's own order."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from statistics import mode

import psycopg
import pytest
import sqlalchemy as sa
from pydantic import SecretStr
from sqlalchemy.pool import NullPool
from tests.servers import wait_for
from tests.support.connector_sources import MysqlTable, PostgresTable
from tests.support.key_ranges import keyed, require_exact

from waybill.errors import InputError
from waybill.ingestion.connectors import Connections, open_connector, sql_ranges
from waybill.ingestion.connectors.sql_ranges import KeyRange, read_ranges
from waybill.pipelines import Source
from waybill.settings import AirflowSettings, Settings

SEED = 20261127
WORDS = [
    "",
    " ",
    "-",
    "_a",
    "a",
    "A",
    "à",
    "Ab",
    "aB",
    "b",
    "ß",
    "ss",
    "Z",
    "é",
    "e",
    "ö",
    "10",
    "9",
]
BEGIN = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


def words(chance, count):
    return [f"{chance.choice(WORDS)}{chance.choice(WORDS)}{number % 13}" for number in range(count)]


def integers(chance, count):
    return [chance.choice([1, 10**9, 10**17]) * chance.randint(-90, 90) for _ in range(count)]


def times(chance, count):
    return [BEGIN + timedelta(microseconds=chance.randint(0, 10**15)) for _ in range(count)]


def decimals(chance, count):
    return [Decimal(chance.randint(-(10**6), 10**6)).scaleb(-3) for _ in range(count)]


def uuids(chance, count):
    return [uuid.UUID(int=chance.getrandbits(128)) for _ in range(count)]


def bytes_(chance, count):
    return [chance.randbytes(chance.randint(1, 5)) for _ in range(count)]


def plain_times(chance, count):
    return [moment.replace(tzinfo=None) + timedelta(days=9000) for moment in times(chance, count)]


def texts_of_uuids(chance, count):
    return list(map(str, uuids(chance, count)))


POSTGRES = {
    "bigint": ("bigint", integers),
    "timestamptz": ("timestamptz", times),
    "numeric": ("numeric", decimals),
    "uuid": ("uuid", uuids),
    "bytea": ("bytea", bytes_),
    "text": ('text COLLATE "C"', words),
    "varchar": ("varchar(20)", words),
    "char": ("char(9)", words),
}
MARIADB = {
    "bigint": ("bigint", integers),
    "datetime": ("datetime(6)", plain_times),
    "decimal": ("decimal(20,3)", decimals),
    "char": ("char(36)", texts_of_uuids),
    "varbinary": ("varbinary(9)", bytes_),
    "text": ("varchar(20) COLLATE utf8mb4_general_ci", words),
    "text, by language": ("varchar(20) COLLATE utf8mb4_unicode_ci", words),
    "text, by bytes": ("varchar(20) COLLATE utf8mb4_bin", words),
}


def on_postgres(request, column, rows, pairs):
    dsn = request.getfixturevalue("postgres").database("source")
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (k {column} PRIMARY KEY)")
        cursor.executemany("INSERT INTO t VALUES (%s) ON CONFLICT DO NOTHING", rows)
        cursor.execute(f"CREATE TABLE p (k {column}, n integer, PRIMARY KEY (k, n))")
        cursor.executemany("INSERT INTO p VALUES (%s, %s) ON CONFLICT DO NOTHING", pairs)
    address = dsn.replace("postgresql://", "postgresql+psycopg://")
    return sa.create_engine(address, poolclass=NullPool)


def on_mariadb(request, column, rows, pairs):
    server = request.getfixturevalue("mariadb")
    name = server.database()
    with server.connect(name) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (k {column} PRIMARY KEY)")
        cursor.executemany("INSERT IGNORE INTO t VALUES (%s)", rows)
        cursor.execute(f"CREATE TABLE p (k {column}, n integer, PRIMARY KEY (k, n))")
        cursor.executemany("INSERT IGNORE INTO p VALUES (%s, %s)", pairs)
        connection.commit()
    return sa.create_engine(
        "mysql+pymysql://", creator=lambda: server.connect(name), poolclass=NullPool
    )


def split_and_read(engine, chance):
    """Read a table of one column and one of two, in ranges, with a death between."""
    for table, columns in (("t", ("k",)), ("p", ("k", "n"))):
        whole = sa.select(sa.table(table, *map(sa.column, columns)))
        with engine.connect() as session:
            rows = [tuple(row) for row in session.execute(whole)]
        assert len(rows) > 20
        for _ in range(2):
            require_exact(
                engine,
                keyed(*columns, page_rows=chance.randint(1, 9), name=table),
                rows,
                ranges=chance.randint(2, 9),
                connections=(chance.randint(1, 4), chance.randint(1, 4)),
                died_after=chance.randint(1, 9),
            )


def keys_of(draw):
    chance = random.Random(SEED)
    keys = draw(chance, 60)
    return chance, [(key,) for key in keys], [(key, n - 2) for key in keys[:15] for n in range(4)]


@pytest.mark.serves
@pytest.mark.parametrize(("column", "draw"), POSTGRES.values(), ids=POSTGRES)
def test_each_row_of_postgresql_is_in_one_range(request, column, draw):
    chance, rows, pairs = keys_of(draw)
    split_and_read(on_postgres(request, column, rows, pairs), chance)


@pytest.mark.campaign
@pytest.mark.parametrize(("column", "draw"), MARIADB.values(), ids=MARIADB)
def test_each_row_of_mariadb_is_in_one_range(request, column, draw):
    chance, rows, pairs = keys_of(draw)
    split_and_read(on_mariadb(request, column, rows, pairs), chance)


# What goes on when a reading is closed


def slow_postgres(request):
    dsn = request.getfixturevalue("postgres").database("source")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE VIEW sleepy AS SELECT k FROM generate_series(1, 9) k, pg_sleep(600)"
        )
    engine = sa.create_engine(
        dsn.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool
    )
    return engine, (
        "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'FROM sleepy' AND state = 'active'"
        " AND pid <> pg_backend_pid()"
    )


def slow_mariadb(request):
    server = request.getfixturevalue("mariadb")
    name = server.database()
    with server.connect(name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE VIEW sleepy AS SELECT 1 + sleep(600) AS k")
    engine = sa.create_engine(
        "mysql+pymysql://", creator=lambda: server.connect(name), poolclass=NullPool
    )
    return engine, (
        "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%FROM sleepy%'"
        " AND id <> connection_id()"
    )


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(slow_postgres, id="postgres", marks=pytest.mark.serves),
        pytest.param(slow_mariadb, id="mariadb", marks=pytest.mark.campaign),
    ],
)
def test_a_reading_that_is_closed_has_the_server_end_its_statements(request, server):
    engine, running = server(request)

    def count():
        with engine.connect() as session:
            return session.execute(sa.text(running)).scalar_one()

    parts = (KeyRange(None, (5,)), KeyRange((5,), None))
    reading = read_ranges(engine, keyed("k", page_rows=1, name="sleepy"), parts, 2)
    while count() < 2:
        assert next(reading) is None
    began = time.monotonic()
    reading.close()
    assert time.monotonic() - began < 300, "it waited for them"
    assert count() == 0


# The connector


class Orders:
    """A table of 2,000 rows of the contract suite's kind."""

    def __init__(self, kind, folder, request):
        self.source = kind(folder, request)
        self.source.add([{"id": n * 7 - 900, "seq": n, "name": f"row {n}"} for n in range(2000)])

    def open(self, slots=None, **options):
        declaration = self.source.declaration()
        given = {**declaration["options"], "key": ["id"], **options}
        source = Source(event="e", page_rows=50, **{**declaration, "options": given})
        airflow = AirflowSettings(source_slots={} if slots is None else {"shop": slots})
        return open_connector(
            source,
            self.source.folder,
            connections=Connections({"shop": SecretStr(self.secret)}),
            settings=Settings(airflow=airflow),
        )

    @property
    def secret(self):
        return self.source.secrets()["shop"].get_secret_value()


@pytest.fixture(
    params=[
        pytest.param(PostgresTable, id="postgres", marks=pytest.mark.serves),
        pytest.param(MysqlTable, id="mysql", marks=pytest.mark.campaign),
    ]
)
def orders(request, tmp_path):
    return Orders(request.param, tmp_path, request)


def test_a_table_is_read_in_ranges_and_what_changed_meanwhile_behind_them(orders):
    found, changed = {}, False
    for page in orders.open(backfill={"ranges": 4}).read(None):
        found |= {row["id"]: row["seq"] for row in (page.rows if page else [])}
        if not changed and "mark" in (page.cursor if page else {}):
            orders.source.add([{"id": n * 7 - 901, "seq": 2000 + n, "name": ""} for n in range(9)])
            changed = True
    assert changed
    assert len(found) == 2009
    assert set(found.values()) == set(range(2009))


@pytest.mark.campaign
def test_a_key_that_mysql_sorts_by_number_and_compares_by_text_is_refused(request, tmp_path):
    orders = Orders(MysqlTable, tmp_path, request)
    orders.source.run('ALTER TABLE "or""ders" ADD COLUMN kind enum("z", "a") NOT NULL')
    with pytest.raises(InputError, match="options.key: column 'kind' of table .* compared as text"):
        next(orders.open(key=["kind", "id"], backfill={"ranges": 4}).read(None))


@pytest.mark.serves
@pytest.mark.parametrize(
    ("limits", "slots", "expected"),
    [({}, None, 4), ({"max_connections": 2}, None, 2), ({"max_connections": 3}, 1, 1)],
    ids=["ranges", "declared", "slots"],
)
def test_a_source_has_no_more_connections_than_its_limits_say(
    request, tmp_path, postgres, monkeypatch, limits, slots, expected
):
    orders = Orders(PostgresTable, tmp_path, request)
    begun, together = itertools.count(), threading.Barrier(expected)
    real = sql_ranges._Readers.read

    def read(self, part):
        if next(begun) < expected:  # else a thread that is done soon would take another's place
            together.wait(240)
        return real(self, part)

    monkeypatch.setattr(sql_ranges._Readers, "read", read)
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waybill'"
        " AND datname = current_database()"
    )
    seen = []
    connector = orders.open(slots, backfill={"ranges": 4}, limits=limits)
    with psycopg.connect(orders.secret, autocommit=True) as connection:
        for page in connector.read(None):
            if page is not None and "backfill" in page.cursor:
                assert connector.standing(page.cursor).unit == "key ranges"
                if not seen:  # one that was closed is not gone at once, nor are all there at once
                    wait_for(lambda: connection.execute(query).fetchone()[0] == expected)
                seen.append(connection.execute(query).fetchone()[0])
    assert mode(seen) == expected
    assert max(seen) <= expected + 1, "one that was closed is not gone at once"
