"""Loads of news alone are merged without being judged first; what is not news undoes that."""

from __future__ import annotations

import pytest
from tests.unit.destinations.orders import SPEC, Order, clean_database, commit_of

from waybill.destinations import CountLook, open_destination
from waybill.settings import DestinationSettings

pytestmark = pytest.mark.serves


@pytest.fixture
def destination(postgres):
    dsn = clean_database(postgres)
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as opened:
        yield opened


def load(destination, number, *orders):
    (outcome,) = destination.load([commit_of(number, orders)], never_park)
    return outcome.rows.column("outcome").to_pylist()


def never_park(refused):
    raise AssertionError(f"refused: {refused}")


def judged(destination):
    """Return whether the next load of the table is judged at once."""
    return bool(destination._engine._mixed)


def test_what_is_not_all_news_is_judged_until_a_load_is_again(destination):
    assert load(destination, 1, Order(1, 5, 1), Order(2, 5, 2)) == ["delivered"] * 2
    assert load(destination, 2, Order(1, 6, 3), Order(3, 1, 4)) == ["delivered"] * 2
    assert not judged(destination)
    late = Order(2, 4, 5, "late")
    assert load(destination, 3, Order(4, 1, 6), late) == ["delivered", "superseded"]
    assert judged(destination)
    assert load(destination, 4, Order(2, 4, 7, "later")) == ["superseded"]
    assert judged(destination)
    assert load(destination, 5, Order(2, 6, 8)) == ["delivered"]
    assert not judged(destination)
    (count,) = destination.count_rows([CountLook(SPEC)])
    assert (count.counted, count.expected) == (4, 4)


def test_equal_source_versions_are_no_news(destination):
    load(destination, 1, Order(1, 5, 10, "same"))
    assert load(destination, 2, Order(1, 5, 11, "same")) == ["duplicate"]
    assert load(destination, 3, Order(1, 5, 12, "other")) == ["delivered"]


def test_a_key_that_was_deleted_is_no_news(destination):
    load(destination, 1, Order(1, 5, 10))
    load(destination, 2, Order(1, 6, 11, op="delete"))
    assert load(destination, 3, Order(1, 5, 12, "before the delete")) == ["superseded"]
