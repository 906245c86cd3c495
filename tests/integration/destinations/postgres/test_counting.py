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
    some_orders,
    spec_of,
)

from waybill.destinations import CountLook, open_destination
from waybill.destinations.adapters.postgres import books
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


def test_a_row_that_a_load_brought_back_is_missing_no_more(destination, dsn):
    """Loads put it there twice; it is there once."""
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (5, 5, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id IN (1, 3)")
    assert count(destination) == (3, 5, 0)
    destination.load([commit_of(2, [Order(1, 2, 2), Order(7, 1, 2)])], park)
    found = destination.count_rows([CountLook(SPEC)])
    assert found[0].expected - found[0].counted == 1, "3 is missing; 1 was brought back"
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    destination.load([commit_of(3, [Order(1, 3, 3)])], park)
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    found = destination.count_rows([CountLook(SPEC)])
    assert found[0].expected - found[0].counted == 2, "1 was put three times, and is gone"
    destination.load([commit_of(4, [Order(1, 4, 4), Order(3, 4, 4)])], park)
    for _ in range(2):
        found = destination.count_rows([CountLook(SPEC)])
        assert found[0].expected == found[0].counted == 6
    ask(dsn, "DELETE FROM shop.orders WHERE id = 7")
    assert count(destination)[1] - count(destination)[0] == 1, "what is gone now is told"


@pytest.mark.parametrize("tells", [True, False], ids=["MERGE tells", "counted"])
def test_what_is_missing_is_known_whoever_deletes_and_loads(destination, dsn, monkeypatch, tells):
    """Deletes by others and by the source, loads of all kinds, at random; counted now and then."""
    if not tells:
        monkeypatch.setattr(books, "merge_tells", lambda _session: False)
    draw = random.Random(7)
    wrong = looks = 0
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(200)])], park)
    assert count(destination) == (200, 200, 0)
    live = set(range(200))
    for number in range(2, 40):
        gone = draw.sample(range(200), draw.choice((0, 0, 1, 2, 5)))
        ask(dsn, f"DELETE FROM shop.orders WHERE id = ANY(ARRAY{gone}::bigint[])")
        if draw.random() < 0.5:
            destination.count_rows([CountLook(SPEC)])
        orders = [
            Order(n, number, number, "delete" if draw.random() < 0.1 else "upsert")
            for n in draw.sample(range(220), draw.choice((1, 3, 40)))
        ]
        destination.load([commit_of(number, orders)], park)
        there = {row[0] for row in ask(dsn, "SELECT id FROM shop.orders")}
        for order in orders:
            (live.discard if order.op == "delete" else live.add)(order.id)
        found = destination.count_rows([CountLook(SPEC)])[0]
        assert found.counted == len(there)
        looks += 1
        wrong += found.expected - found.counted != len(live - there)
    assert wrong == 0, f"{wrong} of {looks}"


def test_a_table_that_was_emptied_and_read_again_is_whole(destination, dsn):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(2_000)])], park)
    assert count(destination) == (2_000, 2_000, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id < 1500")
    assert count(destination) == (500, 2_000, 0)
    destination.load([commit_of(2, [Order(n, 2, 2) for n in range(1_500)])], park)
    found = destination.count_rows([CountLook(SPEC)])[0]
    assert (found.counted, found.expected) == (2_000, 2_000)


def test_books_of_an_older_release_learn_of_keys_once_nothing_is_missing(destination, dsn):
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], park)
    assert count(destination) == (5, 5, 0)
    columns = ("keys", "keys_baseline", "clean_at")
    dropped = ", ".join(f"DROP COLUMN {name}" for name in columns)
    ask(dsn, f"ALTER TABLE waybill._waybill_row_counts {dropped}")
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as newer:
        assert count(newer) == (5, 5, 0)
        ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
        assert count(newer) == (4, 5, 0)
        newer.load([commit_of(2, [Order(1, 2, 2)])], park)
        assert count(newer)[:2] == (5, 5)


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
    assert count(destination, every_s=60.0) == (50, 50, 0)
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    assert count(destination, every_s=60.0) == (50, 50, 0)
    ask(dsn, "ANALYZE shop.orders")
    large = {"small_rows": 10, "exact_every_s": 900.0}
    assert count(destination, **large) == (50, 50, 0)  # 49 by the estimate: close enough
    assert count(destination, small_rows=10, exact_every_s=0.0) == (49, 50, 0)
    destination.load([commit_of(2, [Order(50, 1, 1)])], park)
    assert count(destination, every_s=60.0) == (50, 51, 0)  # what was found stands
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
