"""Rows that meet older ones: replaced where that comes to the same as to update them."""

from __future__ import annotations

import duckdb
import pytest
from tests.unit.destinations.orders import SPEC, Order, commit_of

from waybill.destinations import CountLook, open_destination
from waybill.destinations.adapters.duckdb import engine
from waybill.settings import DestinationSettings


@pytest.fixture
def path(tmp_path):
    return tmp_path / "warehouse.duckdb"


@pytest.fixture
def destination(path):
    settings = DestinationSettings.model_validate({"kind": "duckdb", "dsn": str(path)})
    with open_destination("warehouse", settings) as opened:
        yield opened


@pytest.fixture
def replaced(monkeypatch):
    """A list that grows by one with each batch that is replaced, not merged."""
    found = []

    def noting(*args, **named):
        found.append(1)
        return real(*args, **named)

    real = engine.replace_rows
    monkeypatch.setattr(engine, "replace_rows", noting)
    return found


def never_park(refused):
    raise AssertionError(f"refused: {refused}")


def load(destination, number, *orders):
    (outcome,) = destination.load([commit_of(number, orders)], never_park)
    return outcome.rows.column("outcome").to_pylist()


def ask(path, statement):
    with duckdb.connect(str(path)) as connection:
        return connection.execute(statement).fetchall()


def test_a_table_of_waybills_own_has_its_rows_replaced(destination, path, replaced):
    load(destination, 1, Order(1, 1, 1), Order(2, 1, 2), Order(3, 1, 3))
    late = Order(3, 0, 6, "late")
    newer = [Order(1, 2, 4, "newer"), Order(2, 2, 5, op="delete"), late, Order(4, 1, 7)]
    assert load(destination, 2, *newer) == ["delivered", "delivered", "superseded", "delivered"]
    assert len(replaced) == 2
    assert ask(path, "SELECT id, what FROM shop.orders ORDER BY id") == [
        (1, "newer"),
        (3, "thing"),
        (4, "thing"),
    ]
    (count,) = destination.count_rows([CountLook(SPEC)])
    assert (count.counted, count.expected) == (3, 3)


def test_a_copy_with_a_later_intake_only_moves_the_versions_on(destination, path, replaced):
    load(destination, 1, Order(1, 5, 10, "same"))
    before = ask(path, "SELECT _waybill_loaded_at FROM shop.orders")
    assert load(destination, 2, Order(1, 5, 12, "same")) == ["duplicate"]
    assert load(destination, 3, Order(1, 5, 11, "other")) == ["superseded"]
    assert len(replaced) == 3
    assert ask(path, "SELECT what, _waybill_intake_version FROM shop.orders") == [("same", 12)]
    assert ask(path, "SELECT _waybill_loaded_at FROM shop.orders") == before


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE shop.orders ADD COLUMN note VARCHAR DEFAULT 'mine'",
        "CREATE UNIQUE INDEX own ON shop.orders (id)",
    ],
)
def test_a_table_that_users_changed_is_merged(destination, path, replaced, change):
    load(destination, 1, Order(1, 1, 1), Order(2, 1, 2))
    ask(path, change)
    replaced.clear()
    assert load(destination, 2, Order(1, 2, 3, "newer")) == ["delivered"]
    assert not replaced
    rows = ask(path, "SELECT * FROM shop.orders ORDER BY id")
    assert [row[1] for row in rows] == ["newer", "thing"]
    if "note" in change:
        assert {row[-1] for row in rows} == {"mine"}, "a column of the user's was emptied"
