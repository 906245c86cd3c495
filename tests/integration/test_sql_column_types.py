"""Keys and cursors of each type: each row is read once, or the column is refused in clear words."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

import psycopg
import pytest
from pydantic import SecretStr
from tests.support.column_types import WAYS, read, require, statements
from tests.support.connector_sources import mysql_connection

from waybill.errors import InputError
from waybill.ingestion.connectors import Connections, open_connector
from waybill.pipelines import Source

pytestmark = pytest.mark.filterwarnings("ignore:Did not recognize type")
SINGLE = "column 'k' of table 't' is .*single precision.*a view that casts it to double"
AS_TEXT = "column 'k' of table 't' is .*compared as text in another one.*casts it to"
NO_ORDER = "column 'k' of table 't' is .*keeps no order with values that were read of it"
NOT_FINITE = "has a row with .* in 'k': nothing comes behind it"
MIXED = "has values of several types"
OF_NO_KIND = "a column of type .* cannot be source.options.cursor or part of the key"
NO_VALUE = "Python has no such value: mend the row, or read a view that casts it"
FLOATS = ["0", "-0.5", "0.1", "0.2", "0.3", "1.1", "16777217", "1e-30", "3.3e38", "-7.7"]
chance = random.Random(20261127)
DOUBLES = ["0.1", "0.30000000000000004", "1.7e308", "-1.1", "123456789.123456789", "1e-307"]
DOUBLES += [repr(chance.uniform(-1, 1) * 10.0 ** chance.randint(-200, 200)) for _ in range(30)]
BIG = ["9223372036854775807", "9007199254740993", "9007199254740992", "0"]


def long_texts(size):
    """Return values of SQL that differ in their last characters alone, out of order."""
    return [f"'{'é' * (size - 2)}{number}'" for number in (31, 12, 25, 17, 40)]


class Case(NamedTuple):
    column: str
    values: list[str]
    refused: str | None = None
    """However it is read; None: it is not."""
    as_cursor: str | None = None
    """Where it is the cursor."""


POSTGRES: Mapping[str, Case] = {
    "real": Case("real", FLOATS, SINGLE),
    "domain of real": Case("single", FLOATS, SINGLE),
    "double": Case("double precision", [*DOUBLES, "5e-324", "-0.0"]),
    "double, infinite": Case("double precision", ["1", "'NaN'", "'-Infinity'"], None, NOT_FINITE),
    "numeric": Case("numeric", ["0.10", "1e-20", "1e300", "-1.000", "1234567890123456789.5"]),
    "numeric, infinite": Case(
        "numeric", ["0", "'NaN'", "'Infinity'", "'-Infinity'"], None, NOT_FINITE
    ),
    "bigint": Case("bigint", [*BIG, "-9223372036854775808"]),
    "timestamptz": Case("timestamptz", ["'2024-01-01 00:00:00.000001'", "'0001-01-01'", "now()"]),
    "timestamptz, infinite": Case("timestamptz", ["'infinity'", "'-infinity'", "now()"], NO_VALUE),
    "timestamp, early": Case("timestamp", ["'0044-03-15 BC'", "'2024-01-01'", "now()"], NO_VALUE),
    "date, infinite": Case("date", ["'infinity'", "'-infinity'", "now()"], NO_VALUE),
    "boolean": Case("boolean", ["true", "false"], NO_ORDER),
    "bit": Case("bit(4)", ["B'0001'", "B'1000'", "B'0010'"], NO_ORDER),
    "uuid": Case("uuid", [f"'{n}0000000-0000-0000-0000-00000000000{n}'" for n in "0198af"]),
    "bytea": Case("bytea", ["''", "'\\x00'", "'\\xff'", "'\\x0001'", "'\\x7f'"]),
    "char": Case('char(5) COLLATE "C"', ["'a'", "E'a\\t'", "E'a\\x01b'", "'b'", "E'b\\n'", "'c'"]),
    "text": Case("text", ["'a'", "'A'", "'á'", "'b'", "'B'", "''", "' '", "'a '"]),
    "enum": Case("mood", ["'z'", "'m'", "'a'", "'k'"], AS_TEXT),
    "domain of enum": Case("feeling", ["'z'", "'m'", "'a'", "'k'"], AS_TEXT),
    "interval": Case("interval", ["'1 day'", "'2 h'", "'1 mon'"], NO_ORDER),
    "time": Case("time", ["'01:00'", "'02:00'", "'24:00'"], NO_ORDER),
    "inet": Case("inet", ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'"], NO_ORDER),
    "macaddr": Case("macaddr", ["'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"], NO_ORDER),
    "money": Case("money", ["1.10", "2.20", "-3", "1000"], NO_ORDER),
    "oid": Case("oid", ["1", "4294967295", "7", "9"]),
    "xid8": Case("xid8", ["'1'", "'18446744073709551615'", "'7'"], "operator does not exist: xid8"),
    "jsonb": Case("jsonb", ["'1'", "'2'", "'[1]'"], NO_ORDER),
    "array": Case("int[]", ["'{1}'", "'{1,2}'", "'{3}'"], NO_ORDER),
    "char of one": Case('"char"', ["'a'", "'b'", "'c'", "'z'"]),
}
MARIADB: Mapping[str, Case] = {
    "float": Case("float", FLOATS, SINGLE),
    "float with places": Case("float(7,3)", ["0.001", "1.1", "2.2", "1234.567", "3.3"], SINGLE),
    "double": Case("double", DOUBLES),
    "double with places": Case("double(10,3)", ["0.001", "1.1", "2.2", "1234.567", "3.3", "4.4"]),
    "decimal": Case("decimal(65,30)", ["0.1", "-1.000", "12345678901234567890.5", "7"]),
    "bigint": Case("bigint", [*BIG, "-9223372036854775808"]),
    "bigint unsigned": Case(
        "bigint unsigned", [*BIG, "9223372036854775808", "18446744073709551615"]
    ),
    "bit": Case("bit(8)", ["b'1'", "b'10'", "b'11111111'"], "number, and is compared as bytes"),
    "binary": Case("binary(4)", ["'a'", "x'00'", "x'ffffffff'", "x'610001'"]),
    "varbinary": Case("varbinary(9)", ["'a'", "x'00'", "x'ffffffff'", "x'6100'", "''", "'a '"]),
    "uuid": Case("uuid", [f"'{n}0000000-{n}000-1000-8000-00000000000{n}'" for n in "0198af"]),
    "inet6": Case("inet6", ["'::1'", "'10.0.0.1'", "'ff::'", "'a::b'"]),
    "boolean": Case("boolean", ["true", "false"]),
    "year": Case("year", ["'0000'", "1901", "2155", "2024"]),
    "date, zero": Case("date", ["'0000-00-00'", "'2024-00-00'", "'2024-01-00'", "'2024-01-01'"]),
    "datetime, zero": Case("datetime", ["'0000-00-00'", "'2024-01-00'", "'2024-01-01'"]),
    "datetime": Case(
        "datetime(6)", ["'2024-01-01 00:00:00.000001'", "'2024-01-01'", "'1000-01-01'"]
    ),
    "timestamp, zero": Case("timestamp", ["'0000-00-00'", "'2024-01-01'", "'2037-01-01'"]),
    "time": Case("time", ["'-01:00'", "'02:00'", "'838:59:59'"], NO_ORDER),
    "char": Case("char(5)", ["'a'", "'a\\tb'", "'a\\t'", "'b'", "'c'"]),
    "text, padded": Case("varchar(5) COLLATE utf8mb4_bin", ["'a'", "'a\\t'", "'b\\t'", "'b'"]),
    "text": Case("varchar(5)", ["'a'", "'B'", "'c'", "'D'", "'é'", "'z'"]),
    "text of latin1": Case("varchar(5) character set latin1", ["'a'", "'B'", "'ä'", "'é'"]),
    "long text": Case("text", ["'a'", "'B'", "'c'", "'ö'", "'é'", "'z'"]),
    "blob": Case("blob", ["'a'", "'B'", "'c'", "x'00'", "x'ff'"]),
    "text, long": Case("text", long_texts(1000)),
    "text, too long": Case("text", long_texts(1025), "MySQL sorts by the beginning of so long"),
    "blob, too long": Case("blob", long_texts(8193), "MySQL sorts by the beginning of so long"),
    "enum": Case("enum('z','m','a','k')", ["'z'", "'m'", "'a'", "'k'"], AS_TEXT),
    "set": Case("set('z','m','a','k')", ["'z'", "'m'", "'a,z'", "'k'"], AS_TEXT),
}
SQLITE: Mapping[str, Case] = {
    "real": Case("real", [*DOUBLES, "5e-324", "9007199254740993"]),
    "real, infinite": Case("real", ["0", "9e999", "-9e999"], None, NOT_FINITE),
    "float": Case("float", FLOATS),
    "integer": Case("integer", [*BIG, "-9223372036854775808"]),
    "integer with others": Case(
        "integer", ["1", "1.5", "'x'", "9007199254740993", "9e15"], None, MIXED
    ),
    "of no type": Case("", ["1", "1.5", "'a'", "'1'", "x'00'", "2"], None, MIXED),
    "numeric": Case("numeric(9,2)", ["1.5", "2.25", "3", "1e20"]),
    "text": Case("text", ["'a'", "'B'", "'c'", "'D'", "'á'", "''"]),
    "text, any case": Case("text collate nocase", ["'a'", "'B'", "'c'", "'D'"]),
    "blob": Case("blob", ["'a'", "x'00'", "x'ff'", "x''", "x'01'"], None, MIXED),
    "date": Case("date", ["'2024-01-01'", "'2024-01-02'", "'2023'"], None, MIXED),
    "boolean": Case("boolean", ["1", "0"]),
}
SOME = {"real", "double", "uuid", "timestamptz, infinite", "text", "enum"}
"""Those of PostgreSQL that each change is tested with."""


class Tables:
    """Tables of one server, each in a database of its own."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def options(self):
        return {}

    def connection(self):
        return None

    def open(self, **options):
        connection = self.connection()
        source = Source(
            connector="sql",
            event="e",
            connection=None if connection is None else "shop",
            page_rows=1,
            options={"table": "t", **self.options(), **options},
        )
        secrets = {} if connection is None else {"shop": SecretStr(connection)}
        return open_connector(source, self.folder, connections=Connections(secrets))


class Sqlite(Tables):
    def __init__(self, folder, request) -> None:
        super().__init__(folder)

    def make(self, made):
        with sqlite3.connect(self.folder / "shop.db") as database:
            for statement in made:
                database.execute(statement)

    def options(self):
        return {"file": "shop.db"}


class Postgres(Tables):
    def __init__(self, folder, request) -> None:
        super().__init__(folder)
        self.dsn = request.getfixturevalue("postgres").database("source")
        self.make(
            [
                "CREATE TYPE mood AS ENUM ('z', 'm', 'a', 'k')",
                "CREATE DOMAIN feeling AS mood",
                "CREATE DOMAIN single AS real",
            ]
        )

    def make(self, made):
        with psycopg.connect(self.dsn) as connection:
            for statement in made:
                connection.execute(statement)

    def connection(self):
        return self.dsn


class MariaDb(Tables):
    def __init__(self, folder, request) -> None:
        super().__init__(folder)
        self.server = request.getfixturevalue("mariadb")
        self.name = self.server.database()

    def make(self, made):
        with self.server.connect(self.name) as connection, connection.cursor() as cursor:
            for statement in ["SET sql_mode = ''", *made]:
                cursor.execute(statement)

    def connection(self):
        return mysql_connection(self.server, self.name)


SERVERS = {"sqlite": Sqlite, "postgres": Postgres, "mariadb": MariaDb}


def params(server, cases, *, mark=(), some=()):
    return [
        pytest.param(server, case, id=f"{server}-{name}", marks=[] if name in some else mark)
        for name, case in cases.items()
    ]


@pytest.mark.parametrize(
    ("server", "case"),
    [
        *params("sqlite", SQLITE),
        *[
            pytest.param(*one.values, id=one.id, marks=[pytest.mark.serves, *one.marks])
            for one in params("postgres", POSTGRES, mark=[pytest.mark.campaign], some=SOME)
        ],
        *params("mariadb", MARIADB, mark=[pytest.mark.campaign]),
    ],
)
def test_a_column_orders_rows_exactly_or_is_refused_in_clear_words(request, tmp_path, server, case):
    tables = SERVERS[server](tmp_path, request)
    tables.make(statements(case.column, case.values))
    for way in WAYS:
        refused = case.refused or (case.as_cursor if way == "cursor" else None)
        require(tables.open, len(case.values), way, refused)


SAME = {
    "sqlite": "text COLLATE NOCASE",
    "mariadb": "varchar(9) COLLATE utf8mb4_unicode_ci",
}


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.campaign)])
def same(request, tmp_path):
    """A table in which the database has some texts for one: by their case, and accents."""
    tables = SERVERS[request.param](tmp_path, request)
    words = ["a", "A", "b", "B", "c", "C"]
    if request.param == "mariadb":
        words += ["á", "a ", "b  "]
    tables.make(statements(SAME[request.param], [f"'{word}'" for word in words]))
    tables.words = words
    return tables


def test_texts_that_the_database_has_for_one_are_a_cursor_by_which_each_row_is_sent_once(same):
    def opened():
        return same.open(**WAYS["cursor"])

    require(same.open, len(same.words), "cursor", None)
    _, cursor = read(opened, None, 100)
    same.make(["INSERT INTO t VALUES (99, 'c'), (-1, 'C')"])
    assert sorted(read(opened, cursor, 100)[0]) == [-1, 99]


def test_texts_that_the_database_has_for_one_are_no_key_of_rows(same):
    with pytest.raises(InputError, match="'t' has several rows of one k"):
        list(same.open(key=["k"]).read(None))
    with pytest.raises(InputError, match="'t' has several rows of one k"):
        list(same.open(cursor="id", key=["k"], backfill={"ranges": 3}).read(None))
