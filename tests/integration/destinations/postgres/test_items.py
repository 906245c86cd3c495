"""A row with an item that PostgreSQL cannot hold parks whole: neither it nor its items are there."""

from __future__ import annotations

import psycopg
import pytest
from tests.integration.destinations.test_children import ITEMS, item, spec_with
from tests.support.destined import Park
from tests.unit.destinations.orders import Order, clean_database, rows_of

from waybill.destinations import Commit, open_destination
from waybill.settings import DestinationSettings

pytestmark = pytest.mark.serves

NOTES = ITEMS.model_copy(update={"name": "orders_notes", "source": "notes"})
SPEC = spec_with(ITEMS, NOTES)
BAD = {"text with NUL": item("b\0"), "JSON with NUL": item("b", more='"\\u0000"')}


@pytest.fixture
def dsn(postgres):
    return clean_database(postgres)


@pytest.fixture
def destination(dsn):
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as opened:
        yield opened


def load(destination, number, *events):
    """Load events: (order, items, notes); return their outcomes and how many parked."""
    park = Park()
    orders, items, notes = zip(*events, strict=True)
    lists = {ITEMS.arrow_name: list(items), NOTES.arrow_name: list(notes)}
    (outcome,) = destination.load([Commit(number, (rows_of(orders, SPEC, **lists),))], park)
    return outcome.rows["outcome"].to_pylist(), sum(map(len, park.calls))


def there(dsn):
    """Return (id, source version) of rows, and (id, sku) of items and notes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [
            sorted(connection.execute(f"SELECT id, {column} FROM shop.{table}").fetchall())
            for table, column in (
                ("orders", "_waybill_source_version"),
                ("orders_items", "sku"),
                ("orders_notes", "sku"),
            )
        ]


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("child", ["items", "notes"])
def test_a_row_with_an_item_that_cannot_be_held_changes_nothing(destination, dsn, bad, child):
    good = [item("a")]
    load(destination, 1, (Order(1, 1, 1), good, good))
    lists = ([item("x"), bad], [item("y")])
    items, notes = lists if child == "items" else reversed(lists)
    neighbour = (Order(2, 1, 1), [item("c")], [item("d")])
    found = load(destination, 2, (Order(1, 2, 2), items, notes), neighbour)
    assert found == (["parked", "delivered"], 1)
    assert there(dsn) == [[(1, 1), (2, 1)], [(1, "a"), (2, "c")], [(1, "a"), (2, "d")]]
    assert load(destination, 3, (Order(1, 2, 3), [item("z")], [])) == (["delivered"], 0)
    assert there(dsn) == [[(1, 2), (2, 1)], [(1, "z"), (2, "c")], [(2, "d")]]


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_an_older_version_beside_it_is_merged(destination, dsn, bad):
    """The newer one parks: what it would have replaced is the newest there is."""
    found = load(destination, 1, (Order(1, 2, 2), [bad], None), (Order(1, 1, 1), [item("a")], None))
    assert found == (["parked", "delivered"], 1)
    assert there(dsn) == [[(1, 1)], [(1, "a")], []]
