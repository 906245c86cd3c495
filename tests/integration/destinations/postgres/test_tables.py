"""Tables follow their declarations, and what cannot be followed is said in words."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import ValidationError
from tests.unit.destinations.orders import (
    Order,
    clean_database,
    commit_of,
    rows_of,
    spec_of,
    totals,
)

from waybill.destinations import Commit, open_destination
from waybill.errors import InputError, RetryError
from waybill.mappings import rules_of
from waybill.pipelines import Column
from waybill.settings import DestinationSettings

pytestmark = pytest.mark.serves

ID = Column(name="id", type="int64", nullable=False)


@pytest.fixture
def dsn(postgres):
    return clean_database(postgres)


@pytest.fixture
def destination(dsn):
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as opened:
        yield opened


def never_park(refused):
    raise AssertionError(f"refused: {refused}")


def ask(dsn, query):
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def columns(dsn, table="orders"):
    """Return {column: (type, not null)} without the system columns."""
    query = (
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE "
        f"attrelid = 'shop.{table}'::regclass AND attnum > 0 AND attname NOT LIKE '\\_waybill%'"
    )
    return {row[0]: row[1:] for row in ask(dsn, query)}


def version(*more, name="orders"):
    return spec_of(name, ID, *more)


def load(destination, number, spec, orders, **values):
    return destination.load([Commit(number, (rows_of(orders, spec, **values),))], never_park)


def test_a_table_is_made_with_its_key_types_and_nullability(destination, dsn):
    kinds = {
        "bool": "boolean",
        "int32": "integer",
        "int64": "bigint",
        "float64": "double precision",
        "decimal(12,3)": "numeric(12,3)",
        "string": "text",
        "timestamp": "timestamp with time zone",
        "date": "date",
        "bytes": "bytea",
        "json": "jsonb",
    }
    more = [Column(name=f"c {kind}", type=kind, nullable=kind != "date") for kind in kinds]
    destination.ensure_table(version(*more))
    destination.ensure_table(version(*more))
    assert columns(dsn) == {"id": ("bigint", True)} | {
        f"c {kind}": (found, kind == "date") for kind, found in kinds.items()
    }
    key = ask(dsn, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'p' "
                   "AND conrelid = 'shop.orders'::regclass")  # fmt: skip
    assert key == [("PRIMARY KEY (id)",)]


def test_a_column_that_may_be_null_now_takes_null(destination, dsn):
    strict = version(Column(name="what", type="string", nullable=False))
    loose = version(Column(name="what", type="string"))
    load(destination, 1, strict, [Order(1, 1, 1)])
    assert columns(dsn)["what"] == ("text", True)
    load(destination, 2, loose, [Order(2, 1, 1, None)])
    assert columns(dsn)["what"] == ("text", False)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (Column(name="n", type="int32"), Column(name="n", type="string"),
         r"shop\.orders, column 'n': found integer, expected text"),
        (Column(name="n", type="decimal(10,2)"), Column(name="n", type="float64"),
         r"column 'n': found numeric\(10,2\), expected double precision"),
        (Column(name="n", type="string"), Column(name="n", type="string", nullable=False),
         r"column 'n': found nullable, expected NOT NULL; .* SET NOT NULL"),
    ],
)  # fmt: skip
def test_a_conflict_names_table_column_found_and_expected(destination, first, then, words):
    destination.ensure_table(version(first))
    with pytest.raises(InputError, match=words):
        destination.ensure_table(version(then))
    with pytest.raises(InputError, match=words):
        load(destination, 1, version(then), [Order(1, 1, 1)], n=[None])


def test_a_conflict_loads_nothing_and_the_load_goes_on_once_it_is_resolved(destination, dsn):
    destination.ensure_table(version(Column(name="what", type="int32")))
    commits = [commit_of(1, [Order(1, 1, 1)])]
    with pytest.raises(InputError):
        destination.load(commits, never_park)
    assert ask(dsn, "SELECT * FROM waybill._waybill_commits") == []
    ask(dsn, "ALTER TABLE shop.orders ALTER COLUMN what TYPE text")
    assert totals(destination.load(commits, never_park))["delivered"] == 1


def test_a_new_column_that_takes_no_null_needs_an_empty_table(destination):
    load(destination, 1, version(), [Order(1, 1, 1)])
    with pytest.raises(InputError, match="has rows, and a new column of it is declared NOT NULL"):
        destination.ensure_table(version(Column(name="what", type="string", nullable=False)))


def test_another_key_than_the_tables_is_refused(destination, dsn):
    ask(dsn, "CREATE SCHEMA shop")
    ask(dsn, "CREATE TABLE shop.orders (id bigint, what text PRIMARY KEY, price numeric(10,2))")
    with pytest.raises(InputError, match=r"unique keys \['what'\], expected \['id'\]"):
        destination.ensure_table(spec_of())


def test_a_view_is_no_table(destination, dsn):
    ask(dsn, "CREATE SCHEMA shop")
    ask(dsn, "CREATE VIEW shop.orders AS SELECT 1 AS id")
    with pytest.raises(InputError, match="found a view"):
        destination.ensure_table(spec_of())


def test_a_users_own_table_is_taken_over_and_its_rows_give_way(destination, dsn):
    ask(dsn, "CREATE SCHEMA shop")
    ask(
        dsn,
        "CREATE TABLE shop.orders (id bigint PRIMARY KEY, what text, price numeric(10,2), "
        "mine text NOT NULL DEFAULT 'kept')",
    )
    ask(dsn, "INSERT INTO shop.orders VALUES (1, 'theirs'), (2, 'untouched')")
    found = destination.load([commit_of(1, [Order(1, -5, 1), Order(3, 1, 1)])], never_park)
    assert totals(found)["delivered"] == 2
    rows = ask(dsn, "SELECT id, what, mine FROM shop.orders ORDER BY id")
    assert rows == [(1, "thing", "kept"), (2, "untouched", "kept"), (3, "thing", "kept")]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of("t" * 64), "64 bytes, PostgreSQL allows 63"),
        (spec_of("漢" * 22), "66 bytes, PostgreSQL allows 63"),
        (spec_of("t", ID, Column(name="c" * 64, type="string")), "64 bytes"),
        (spec_of("t", ID, Column(name="a\0b", type="string")), "NUL"),
        (spec_of("t", ID, Column(name="xmin", type="string")), "'xmin' is reserved"),
        (spec_of("t", ID, Column(name="_waybill_id", type="string")), "reserved"),
        (spec_of("_waybill_commits", schema="waybill"), "Waybill's own"),
        (spec_of(schema="pg_mine"), "pg_mine"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_made(destination, dsn, spec, words):
    with pytest.raises(InputError, match=words):
        destination.ensure_table(spec)
    assert ask(dsn, "SELECT * FROM pg_namespace WHERE nspname = 'shop'") == []


def test_loaders_that_make_one_table_at_once_do_not_trip_over_each_other(dsn):
    start = threading.Barrier(4)
    specs = [version(Column(name=f"c{i}", type="string")) for i in range(4)]

    def ensure(spec):
        with open_destination("warehouse", DestinationSettings(dsn=dsn)) as destination:
            start.wait()
            destination.ensure_table(spec)
            return load(destination, int(spec.columns[1].name[1:]), spec, [Order(1, 1, 1)], **{
                spec.columns[1].name: ["x"]
            })  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ensure, specs))
    assert set(columns(dsn)) == {"id", "c0", "c1", "c2", "c3"}
    assert ask(dsn, "SELECT count(*) FROM waybill._waybill_commits") == [(4,)]


def test_a_table_dropped_meanwhile_is_made_again(destination, dsn):
    load(destination, 1, spec_of(), [Order(1, 1, 1)])
    ask(dsn, "DROP TABLE shop.orders")
    commits = [commit_of(2, [Order(2, 1, 1)])]
    with pytest.raises(RetryError, match="a table is gone"):
        destination.load(commits, never_park)
    assert totals(destination.load(commits, never_park))["delivered"] == 1


def with_dsn(dsn, **changes):
    return DestinationSettings(dsn=make_conninfo(**(conninfo_to_dict(dsn) | changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist.*create it, or correct'),
        ({"user": "nobody_here"}, 'role "nobody_here" does not exist'),
    ],
)
def test_a_misconfigured_destination_is_said_in_words(dsn, changes, words):
    with open_destination("warehouse", with_dsn(dsn, **changes)) as destination:
        with pytest.raises(InputError, match=words):
            destination.load([commit_of(1, [Order(1, 1, 1)])], never_park)


@pytest.mark.parametrize(
    "bad", ["mysql://user:geheim@host/db", "geheim", "postgresql://a:geheim@["]
)
def test_a_dsn_that_cannot_be_read_is_refused_without_showing_it(bad):
    with pytest.raises((InputError, ValidationError), match="postgresql://") as caught:
        open_destination("warehouse", DestinationSettings(dsn=bad))
    assert "geheim" not in str(caught.value)


def test_a_user_without_rights_is_told_which_are_missing(dsn):
    ask(dsn, "DROP ROLE IF EXISTS reader")
    ask(dsn, "CREATE ROLE reader LOGIN")
    try:
        with open_destination("warehouse", with_dsn(dsn, user="reader")) as destination:
            with pytest.raises(
                InputError, match=r"permission denied for database.*grant the right"
            ):
                destination.load([commit_of(1, [Order(1, 1, 1)])], never_park)
    finally:
        ask(dsn, "DROP ROLE reader")


def test_a_server_that_is_not_there_is_waited_for(dsn):
    with open_destination("warehouse", with_dsn(dsn, host="/nowhere")) as destination:
        with pytest.raises(RetryError, match="'warehouse' did not answer"):
            destination.load([commit_of(1, [Order(1, 1, 1)])], never_park)


def test_a_server_with_no_connection_left_is_waited_for(dsn):
    ask(dsn, "DROP ROLE IF EXISTS narrow")
    ask(dsn, "CREATE ROLE narrow LOGIN SUPERUSER CONNECTION LIMIT 0")
    ask(dsn, "ALTER ROLE narrow NOSUPERUSER")
    try:
        with open_destination("warehouse", with_dsn(dsn, user="narrow")) as destination:
            with pytest.raises(RetryError, match="too many connections"):
                destination.load([commit_of(1, [Order(1, 1, 1)])], never_park)
    finally:
        ask(dsn, "DROP ROLE narrow")


def test_a_table_of_as_many_columns_as_are_learned_takes_every_kind_of_load(destination, dsn):
    more = [Column(name=f"c{i}", type="int64") for i in range(rules_of("postgres").most_columns)]
    spec = version(*more[1:]).model_copy(update={"soft_delete": True})
    values = {column.name: [1] for column in more[1:]}
    for number, op in enumerate(("upsert", "upsert", "delete", "upsert"), 1):
        rows = rows_of([Order(1, number, number, op=op)], spec, **values)
        found = destination.load([Commit(number, (rows,))], never_park)
        assert totals(found)["delivered"] == 1
    assert ask(dsn, "SELECT _waybill_source_version FROM shop.orders") == [(4,)]


def test_a_table_with_more_columns_than_a_merge_takes_is_said_in_words(destination):
    spec = version(*(Column(name=f"c{i}", type="int64") for i in range(900)))
    rows = rows_of([Order(1, 1, 1)], spec, **{c.name: [1] for c in spec.columns[1:]})
    with pytest.raises(InputError, match="at most 800 columns"):
        destination.load([Commit(1, (rows,))], never_park)
