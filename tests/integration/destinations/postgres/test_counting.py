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
