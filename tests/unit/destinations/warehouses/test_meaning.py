"""Whole loads in each warehouse's dialect, run on an engine that is here: what they mean."""

import random
from decimal import Decimal

import pytest
from tests.support.warehouse_wires import DuckWire
from tests.unit.destinations.orders import (
    Order,
    commit_of,
    cut,
    expected,
    rows_of,
    some_orders,
    spec_of,
    totals,
)
from tests.unit.destinations.warehouses.standing_in import KINDS, over

from waybill.destinations import Commit
from waybill.pipelines import ChildTable, Column, TableSpec

SPEC = spec_of()


def never(refused):
    raise AssertionError(refused)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1])
def test_loads_in_any_batching_end_in_the_newest_versions(kind, seed, monkeypatch):
    draw = random.Random(seed)
    wire = DuckWire(kind)
    orders = some_orders(draw, keys=5, events=12)
    parts = cut(draw, orders)
    with over(kind, wire, monkeypatch) as destination:
        first = []
        for number, part in enumerate(parts, 1):
            first += destination.load([commit_of(number, part)], never)
        again = destination.load([commit_of(n, p) for n, p in enumerate(parts, 1)], never)
    assert [o.counts for o in again] == [o.counts for o in first]
    assert totals(first)["in_first"] + totals(first)["in_replayed"] == len(orders)
    rows, gone = expected(orders)
    held = wire.connection.execute("SELECT id, what, _waybill_id FROM shop.orders ORDER BY id")
    assert held.fetchall() == [(k, o.what, o.event_id) for k, o in sorted(rows.items())]
    tombs = wire.connection.execute(
        "SELECT _waybill_id FROM waybill._waybill_tombstones ORDER BY 1"
    ).fetchall()
    assert tombs == [(i,) for i in sorted(o.event_id for o in gone.values())]
    [counted] = wire.connection.execute("SELECT rows FROM waybill._waybill_row_counts").fetchall()
    assert counted == (len(rows),)


LINES = ChildTable(
    name="lines",
    source="lines",
    columns=(Column(name="sku", type="string"), Column(name="day", type="date")),
)


def with_lines(number, *orders, **options):
    """Return a commit of orders with their lines: (order, [(sku, day)])."""
    spec = TableSpec(
        schema_name="shop", name="orders", columns=SPEC.columns, key=SPEC.key,
        children=(LINES,), **options,
    )  # fmt: skip
    lines = [None if o[1] is None else [{"sku": s, "day": d} for s, d in o[1]] for o in orders]
    rows = rows_of([order for order, _ in orders], spec, **{LINES.arrow_name: lines})
    return Commit(number, (rows,))


def held_lines(wire):
    return wire.connection.execute(
        "SELECT id, _waybill_item, sku, _waybill_id FROM shop.lines ORDER BY id, _waybill_item"
    ).fetchall()


@pytest.mark.parametrize("kind", KINDS)
def test_items_go_with_their_row(kind, monkeypatch):
    wire = DuckWire(kind)
    parked = []
    with over(kind, wire, monkeypatch) as destination:
        load = lambda commit: destination.load([commit], lambda rows: parked.extend(rows) or {})  # noqa: E731
        load(with_lines(1, (Order(1, 1, 1), [("a", 1), ("b", 2)]), (Order(2, 1, 1), [("c", 3)])))
        load(with_lines(2, (Order(1, 0, 9), [("old", 1)]), (Order(2, 1, 1), [("copy", 1)])))
        assert [row[:3] for row in held_lines(wire)] == [(1, 0, "a"), (1, 1, "b"), (2, 0, "c")]
        load(with_lines(3, (Order(1, 2, 2), [("d", 1)]), (Order(2, 2, 2, op="delete"), None)))
        load(with_lines(4, (Order(4, 1, 1), [("beyond", 5_000_000)]), (Order(5, 1, 1), None)))
    assert held_lines(wire) == [(1, 0, "d", "1/2/2")]
    assert [(row.event_id, row.error_code) for row in parked] == [
        ("4/1/1", "destination_value_refused")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_soft_delete_leaves_the_row_until_a_newer_event_revives_it(kind, monkeypatch):
    wire = DuckWire(kind)
    with over(kind, wire, monkeypatch) as destination:

        def load(number, *orders):
            commit = with_lines(number, *((order, []) for order in orders), soft_delete=True)
            return totals(destination.load([commit], never))

        def state():
            found = wire.connection.execute(
                "SELECT id, what, _waybill_deleted_at IS NULL FROM shop.orders ORDER BY id"
            )
            return found.fetchall()

        load(1, Order(1, 1, 1, "a"), Order(2, 1, 1, "b"))
        load(2, Order(1, 2, 2, op="delete"), Order(9, 1, 1, op="delete"))
        assert state() == [(1, "a", False), (2, "b", True)]
        assert load(3, Order(1, 1, 9, "late"), Order(9, 0, 1, "late"))["superseded"] == 2
        assert load(4, Order(1, 2, 2, op="delete"))["duplicate"] == 1
        load(5, Order(1, 3, 3, "back"))
        assert state() == [(1, "back", True), (2, "b", True)]


@pytest.mark.parametrize("kind", ["snowflake", "bigquery"])
def test_a_column_is_added_and_another_widened_between_loads(kind, monkeypatch):
    wire = DuckWire(kind)
    one = Column(name="id", type="int64", nullable=False)
    narrow = spec_of("t", one, Column(name="n", type="decimal(4,2)"))
    wide = spec_of("t", one, Column(name="n", type="decimal(9,2)"), Column(name="m", type="json"))
    with over(kind, wire, monkeypatch) as destination:
        first = rows_of([Order(1, 1, 1)], narrow, n=[Decimal("12.34")])
        second = rows_of([Order(2, 1, 1)], wide, n=[Decimal("1234567.89")], m=['{"x":1}'])
        destination.load([Commit(1, (first,))], never)
        destination.load([Commit(2, (second,))], never)
        third = rows_of(
            [Order(3, 1, 1), Order(1, 1, 1)], narrow, n=[Decimal("1.00"), Decimal("12.34")]
        )
        assert totals(destination.load([Commit(3, (third,))], never))["duplicate"] == 1
    held = wire.connection.execute("SELECT id, n, m FROM shop.t ORDER BY id").fetchall()
    assert held == [
        (1, Decimal("12.34"), None),
        (2, Decimal("1234567.89"), '{"x":1}'),
        (3, Decimal("1.00"), None),
    ]
