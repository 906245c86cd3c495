"""Rows that loads put into a table are known exactly, whatever they met; others' changes show."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from tests.unit.destinations.orders import (
    SPEC,
    Order,
    clean_database,
    commit_of,
    rows_of,
    some_orders,
    spec_of,
)

from waybill.destinations import Commit, CountLook, open_destination
from waybill.destinations.adapters.postgres import books
from waybill.destinations.transactional import row_counts
from waybill.pipelines import Column, TableSpec
from waybill.settings import DestinationSettings

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres):
    return clean_database(postgres)


@pytest.fixture
def destination(dsn):
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as opened:
        yield opened


def ask(dsn, query):
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def park(_refused):
    return {"key": "parked"}


def count(destination, spec=SPEC, **look):
    found = destination.count_rows([CountLook(spec, **look)])
    return None if not found else (found[0].counted, found[0].expected, found[0].beside)


@pytest.mark.parametrize("version", [180_000, 150_000])
def test_a_tables_rows_are_known_after_any_loads(destination, dsn, monkeypatch, version):
    """With a MERGE that tells what it did, and with one that does not; with refused rows."""
    if version < books._MERGE_TELLS:
        monkeypatch.setattr(books, "merge_tells", lambda _session: False)
    draw = random.Random(version)
    destination.ensure_table(SPEC)
    ask(dsn, "ALTER TABLE shop.orders ADD CHECK (what IS DISTINCT FROM 'green' OR id % 3 > 0)")
    sizes, refused = set(), 0
    for number in range(1, 26):
        orders = some_orders(draw, keys=60, events=draw.randrange(1, 60))
        outcomes = destination.load([commit_of(number, orders)], park)
        refused += sum(one.parked for outcome in outcomes for one in outcome.counts)
        rows = ask(dsn, "SELECT count(*) FROM shop.orders")[0][0]
        assert count(destination) == (rows, rows, 0)
        sizes.add(rows)
    assert refused > 3
    assert len(sizes) > 5


def test_rows_from_before_waybill_are_no_drift_and_those_of_others_are(destination, dsn):
    ask(dsn, "CREATE SCHEMA shop")
    ask(dsn, "CREATE TABLE shop.orders (id bigint PRIMARY KEY, what text, price numeric(10,2))")
    ask(dsn, "INSERT INTO shop.orders SELECT n, 'old' FROM generate_series(100, 106) AS n")
    assert count(destination) is None  # no load has written to it
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (12, 12, 7)
    destination.load([commit_of(2, [Order(n, 1, 1) for n in range(3, 9)])], park)
    assert count(destination) == (16, 16, 7)
    ask(dsn, "DELETE FROM shop.orders WHERE id IN (1, 100)")
    assert count(destination) == (14, 16, 7)
    ask(dsn, "INSERT INTO shop.orders VALUES (1, 'back'), (100, 'back'), (101000, 'new')")
    assert count(destination) == (17, 16, 7)
    ask(dsn, "DROP TABLE shop.orders")
    assert count(destination) == (0, 16, 7)


@pytest.mark.parametrize("tells", [True, False], ids=["MERGE tells", "counted"])
def test_what_is_missing_is_known_whatever_version_the_server_has(
    destination, dsn, monkeypatch, tells
):
    if not tells:
        monkeypatch.setattr(books, "merge_tells", lambda _session: False)
    draw, live = random.Random(7), set(range(200))
    destination.load([commit_of(1, [Order(n, 1, 1) for n in live])], park)
    assert count(destination) == (200, 200, 0)
    for number in range(2, 40):
        gone = draw.sample(range(200), draw.choice((0, 0, 1, 2, 5)))
        ask(dsn, f"DELETE FROM shop.orders WHERE id = ANY(ARRAY{gone}::bigint[])")
        if draw.random() < 0.5:
            destination.count_rows([CountLook(SPEC)])
        orders = [
            Order(n, number, number, op="delete" if draw.random() < 0.1 else "upsert")
            for n in draw.sample(range(220), draw.choice((1, 3, 40)))
        ]
        destination.load([commit_of(number, orders)], park)
        for order in orders:
            (live.discard if order.op == "delete" else live.add)(order.id)
        there = {row[0] for row in ask(dsn, "SELECT id FROM shop.orders")}
        found = destination.count_rows([CountLook(SPEC)])[0]
        assert found.counted == len(there)
        assert found.expected - found.counted == len(live - there), number


def test_rows_that_a_constraint_refuses_bring_nothing_back(destination, dsn):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (5, 5, 0)
    ask(dsn, "ALTER TABLE shop.orders ADD CHECK (what IS DISTINCT FROM 'green')")
    ask(dsn, "DELETE FROM shop.orders WHERE id < 3")
    destination.load([commit_of(2, [Order(0, 2, 2, "green"), Order(1, 2, 2)])], park)
    assert count(destination)[:2] == (3, 5)
    destination.load([commit_of(3, [Order(0, 3, 3)])], park)
    assert count(destination)[:2] == (4, 5)


def test_books_of_an_older_release_learn_of_keys_once_nothing_is_missing(destination, dsn):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (5, 5, 0)
    dropped = "DROP COLUMN keys, DROP COLUMN keys_beside"
    ask(dsn, f"ALTER TABLE waybill._waybill_row_counts {dropped}")
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as newer:
        assert count(newer) == (5, 5, 0)
        ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
        newer.load([commit_of(2, [Order(1, 2, 2)])], park)
        assert count(newer)[:2] == (5, 5)
        ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
        noted_nothing = "UPDATE waybill._waybill_row_counts SET rows = rows + 1"
        ask(dsn, noted_nothing)  # an older release brought it back
        ask(dsn, "INSERT INTO shop.orders VALUES (1, 'x', 1, 'i', 1, 1, now())")
        assert count(newer)[:2] == (5, 6), "sums that do not fit are not gone by"
        ask(dsn, "ALTER TABLE shop.orders RENAME COLUMN _waybill_loaded_at TO mine")
        ask(dsn, "DELETE FROM shop.orders WHERE id = 2")
        assert count(newer)[:2] == (4, 6), "rows are counted whatever became of the columns"


def test_a_drift_that_was_accepted_is_right_from_then_on_and_the_next_is_not(destination, dsn):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (5, 5, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    before = datetime.now(UTC) - timedelta(hours=1)
    assert count(destination, accepted_at=before) == (4, 5, 0)
    now = datetime.now(UTC) + timedelta(seconds=1)
    assert count(destination, accepted_at=now, every_s=900.0) == (4, 4, -1)
    ask(dsn, "DELETE FROM shop.orders WHERE id = 2")
    assert count(destination, accepted_at=before) == (3, 4, -1)


def test_a_table_is_counted_when_it_is_due_and_a_large_one_when_its_estimate_is_off(
    destination, dsn
):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(50)])], park)
    assert count(destination, every_s=3_600.0) == (50, 50, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    assert count(destination, every_s=3_600.0) == (50, 50, 0)
    ask(dsn, "ANALYZE shop.orders")
    large = {"small_rows": 10, "exact_every_s": 900.0}
    assert count(destination, **large) == (50, 50, 0)  # 49 by the estimate: close enough
    assert count(destination, small_rows=10, exact_every_s=0.0) == (49, 50, 0)
    destination.load([commit_of(2, [Order(50, 1, 1)])], park)
    assert count(destination, every_s=3_600.0) == (50, 51, 0)  # what was found stands
    ask(dsn, "DELETE FROM shop.orders WHERE id < 30 OR id = 50")
    ask(dsn, "ANALYZE shop.orders")
    assert count(destination, **large) == (20, 51, 0)


def test_a_load_that_fails_changes_no_count(destination, dsn):
    destination.load([commit_of(1, [Order(1, 1, 1)])], park)

    def fail(_refused):
        raise OSError("no place to park")

    ask(dsn, "ALTER TABLE shop.orders ADD CHECK (id < 100)")
    with pytest.raises(OSError, match="no place"):
        destination.load([commit_of(2, [Order(2, 1, 1), Order(200, 1, 1)])], fail)
    assert count(destination) == (1, 1, 0)
    destination.load([commit_of(2, [Order(2, 1, 1), Order(200, 1, 1)])], park)
    assert count(destination) == (2, 2, 0)


def test_tables_are_counted_each_for_itself(destination, dsn):
    other = spec_of("parcels")
    destination.load([commit_of(1, [Order(1, 1, 1)]), commit_of(2, [Order(5, 1, 1)], other)], park)
    ask(dsn, "DELETE FROM shop.parcels")
    found = destination.count_rows([CountLook(SPEC), CountLook(other), CountLook(spec_of("none"))])
    assert [(one.spec.name, one.counted) for one in found] == [("orders", 1), ("parcels", 0)]


def test_loads_go_on_while_the_keys_of_a_table_are_read(destination, dsn, monkeypatch):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (5, 5, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id < 3")
    destination.load([commit_of(2, [Order(0, 2, 2)])], park)
    hashed = row_counts.key_hashes

    def load_meanwhile(types, columns):
        ask(dsn, "SELECT FROM waybill._waybill_row_counts FOR UPDATE NOWAIT")
        with open_destination("warehouse", DestinationSettings(dsn=dsn)) as other:
            other.load([commit_of(3, [Order(1, 3, 3), Order(9, 3, 3)])], park)
        return hashed(types, columns)

    monkeypatch.setattr(row_counts, "key_hashes", load_meanwhile)
    assert count(destination)[:2] == (3, 5), "as it was when it was counted"
    monkeypatch.undo()
    assert count(destination)[:2] == (5, 6)


def test_a_key_of_19_digits_that_the_source_deleted_as_well_is_missed_by_nobody(destination, dsn):
    first = 1_800_000_000_000_000_000
    destination.load([commit_of(1, [Order(first + n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (5, 5, 0)
    ask(dsn, f"DELETE FROM shop.orders WHERE id < {first + 2}")
    destination.load([commit_of(2, [Order(first, 2, 2, op="delete")])], park)
    assert count(destination)[:2] == (3, 4)


def brought_back(destination, dsn, spec, one, again):
    """Load rows, remove one behind Waybill's back, and load what brings it back; count each time.

    Args:
        destination: with the table.
        dsn: its database.
        spec: of the table.
        one: a commit of three rows, of which one's ``what`` is gone.
        again: one that brings it back.
    """
    destination.load([one], park)
    assert count(destination, spec)[:2] == (3, 3)
    ask(dsn, "DELETE FROM shop.orders WHERE what = 'gone'")
    assert count(destination, spec)[:2] == (2, 3)
    destination.load([again], park)


def json_commit(number, *documents, op="upsert"):
    orders = [
        Order(n, number, number, what="gone" if n == 0 else "thing", op=op)
        for n in range(len(documents))
    ]
    return Commit(number, (rows_of(orders, DOCUMENTS, doc=list(documents)),))


DOCUMENTS = TableSpec(
    schema_name="shop",
    name="orders",
    columns=(
        Column(name="doc", type="json", nullable=False),
        Column(name="id", type="int64"),
        Column(name="what", type="string"),
    ),
    key=("doc",),
)


def test_json_keys_are_known_again_as_the_server_writes_them(destination, dsn):
    spelt = ('{"b": 1.0, "a": [1e2, "x"]}', '"text"', "[2, 1]")
    brought_back(destination, dsn, DOCUMENTS, json_commit(1, *spelt), json_commit(2, spelt[0]))
    assert count(destination, DOCUMENTS)[:2] == (3, 3)
    again = '{"a":[100,"x"],"b":1}'
    ask(dsn, "DELETE FROM shop.orders WHERE what = 'gone'")
    destination.load([json_commit(3, again)], park)
    assert count(destination, DOCUMENTS)[:2] == (3, 3)
    ask(dsn, "DELETE FROM shop.orders WHERE doc = '\"text\"'")
    assert count(destination, DOCUMENTS)[:2] == (2, 3)
    destination.load([json_commit(4, spelt[1], op="delete")], park)
    assert count(destination, DOCUMENTS)[:2] == (2, 2), "its source deleted it, too"


@pytest.mark.parametrize(
    ("column", "kind", "way"),
    [
        ("_waybill_loaded_at", "text", "'at ' || _waybill_loaded_at"),
        ("_waybill_loaded_at", "bigint[]", "ARRAY[1]::bigint[]"),
        ("id", "bigint[]", "ARRAY[id]"),
    ],
)
def test_a_table_of_which_somebody_retyped_a_column_is_counted_by_numbers_alone(
    destination, dsn, caplog, column, kind, way
):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(3)])], park)
    assert count(destination) == (3, 3, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    ask(dsn, f"ALTER TABLE shop.orders ALTER {column} DROP DEFAULT, "
             f"ALTER {column} TYPE {kind} USING {way}")  # fmt: skip
    assert count(destination) == (2, 3, 0)
    assert "which rows of shop.orders are missing is not known" in caplog.text


@pytest.mark.parametrize("place", ["_counted", "_settled", "_has_columns"])
def test_a_table_that_is_dropped_while_it_is_counted_is_counted_no_more(
    destination, dsn, monkeypatch, place
):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(3)])], park)
    assert count(destination) == (3, 3, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    step = getattr(row_counts, place)

    def dropped(*given, **more):
        ask(dsn, "DELETE FROM waybill._waybill_row_counts")
        return step(*given, **more)

    monkeypatch.setattr(row_counts, place, dropped)
    assert count(destination) is None
