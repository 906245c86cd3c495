"""Items of arrays in tables of their own: replaced with their row as a whole, gone with it."""

from __future__ import annotations

import random

import pytest
from tests.support.destined import Park, never_park
from tests.unit.destinations.orders import Order, expected, rows_of, some_orders

from waybill.destinations import Commit
from waybill.pipelines import ChildTable, Column, TableSpec

pytestmark = pytest.mark.serves

ITEMS = ChildTable(
    name="orders_items",
    source="items",
    columns=(
        Column(name="sku", type="string"),
        Column(name="count", type="int32"),
        Column(name="n", type="bool"),
        Column(name="more", type="json"),
    ),
)


def spec_with(*children, soft_delete=False, strict=False):
    return TableSpec(
        schema_name="shop",
        name="orders",
        columns=(
            Column(name="id", type="int64", nullable=False),
            Column(name="what", type="string", nullable=not strict),
        ),
        key=("id",),
        children=children,
        soft_delete=soft_delete,
    )


SPEC = spec_with(ITEMS)


def item(sku, count=1, more=None):
    return {"sku": sku, "count": count, "n": None, "more": more}


def load(destination, number, *events, spec=SPEC, park=never_park, **columns):
    """Load events: (order, items)."""
    orders, lists = [order for order, _ in events], [items for _, items in events]
    values = {child.arrow_name: lists for child in spec.children}
    rows = rows_of(orders, spec, **{**values, **columns})
    (found,) = destination.load([Commit(number, (rows,))], park)
    return found.rows["outcome"].to_pylist()


def items_in(warehouse, spec=SPEC, table="orders_items"):
    """Return (id, place, sku) of all items, in order."""
    rows = warehouse.rows(spec, table)
    return sorted((row["id"], row["_waybill_item"], row["sku"]) for row in rows)


def test_items_are_rows_with_their_parents_key_place_and_versions(destination, warehouse):
    load(destination, 1, (Order(1, 5, 9), [item("a", 2, '{"x": 1}'), item(None, None)]),
         (Order(2, 1, 1), []), (Order(3, 1, 1), None), (Order(4, 1, 1), [item("b")]))  # fmt: skip
    rows = sorted(warehouse.rows(SPEC, "orders_items"), key=lambda r: (r["id"], r["_waybill_item"]))
    assert [(r["id"], r["_waybill_item"], r["sku"], r["count"]) for r in rows] == [
        (1, 0, "a", 2),
        (1, 1, None, None),
        (4, 0, "b", 1),
    ]
    assert [r["more"] for r in rows] == ['{"x": 1}', None, None]
    assert rows[0]["_waybill_id"] == "1/5/9"
    assert (rows[0]["_waybill_source_version"], rows[0]["_waybill_intake_version"]) == (5, 9)
    assert len(warehouse.rows(SPEC)) == 4


def test_items_are_replaced_as_a_whole_and_shrink(destination, warehouse):
    load(destination, 1, (Order(1, 1, 1), [item("a"), item("b"), item("c")]),
         (Order(2, 1, 1), [item("z")]))  # fmt: skip
    load(destination, 2, (Order(1, 2, 2), [item("d")]))
    assert items_in(warehouse) == [(1, 0, "d"), (2, 0, "z")]
    load(destination, 3, (Order(1, 3, 3), []), (Order(2, 2, 2), None))
    assert items_in(warehouse) == []


def test_a_parent_that_lost_or_is_a_copy_changes_no_items(destination, warehouse):
    load(destination, 1, (Order(1, 5, 5), [item("a")]))
    assert load(destination, 2, (Order(1, 4, 9), [item("old")])) == ["superseded"]
    assert load(destination, 3, (Order(1, 5, 5), [item("copy")])) == ["duplicate"]
    assert load(destination, 4, (Order(1, 4, 9, op="delete"), None)) == ["superseded"]
    assert items_in(warehouse) == [(1, 0, "a")]


def test_of_several_versions_in_a_batch_the_newest_ones_items_stay(destination, warehouse):
    load(destination, 1, (Order(1, 2, 2), [item("new"), item("new2")]),
         (Order(1, 1, 1), [item("old")]), (Order(1, 0, 0), None))  # fmt: skip
    assert items_in(warehouse) == [(1, 0, "new"), (1, 1, "new2")]


def test_items_go_with_their_row_and_come_back_with_it(destination, warehouse):
    load(destination, 1, (Order(1, 1, 1), [item("a")]), (Order(2, 1, 1), [item("b")]))
    load(destination, 2, (Order(1, 2, 2, op="delete"), None))
    assert items_in(warehouse) == [(2, 0, "b")]
    load(destination, 3, (Order(1, 3, 3), [item("c")]))
    assert items_in(warehouse) == [(1, 0, "c"), (2, 0, "b")]


def test_a_soft_delete_leaves_the_items(destination, warehouse):
    spec = spec_with(ITEMS, soft_delete=True)
    load(destination, 1, (Order(1, 1, 1), [item("a")]), spec=spec)
    load(destination, 2, (Order(1, 2, 2, op="delete"), None), spec=spec)
    assert items_in(warehouse) == [(1, 0, "a")]
    load(destination, 3, (Order(1, 3, 3), [item("b")]), spec=spec)
    assert items_in(warehouse) == [(1, 0, "b")]


def test_a_refused_parent_keeps_the_items_that_are_there_and_parks_its_own(destination, warehouse):
    spec, park = spec_with(ITEMS, strict=True), Park()
    load(destination, 1, (Order(1, 1, 1), [item("a")]), spec=spec)
    found = load(
        destination, 2, (Order(1, 2, 2), [item("b", 3, '{"y": 2}')]), (Order(2, 1, 1), [item("c")]),
        spec=spec, park=park, what=[None, "so"],
    )  # fmt: skip
    assert found == ["parked", "delivered"]
    assert items_in(warehouse) == [(1, 0, "a"), (2, 0, "c")]
    assert park.rows[0].row == {
        "id": 1,
        "what": None,
        ITEMS.arrow_name: [{"sku": "b", "count": 3, "n": None, "more": {"y": 2}}],
    }


def test_a_child_that_is_new_and_one_that_has_a_new_column(destination, warehouse):
    bare, wide = spec_with(), ITEMS.model_copy(
        update={"columns": (*ITEMS.columns[:1], Column(name="count", type="int64"),
                            Column(name="note", type="string"))}
    )  # fmt: skip
    load(destination, 1, (Order(1, 1, 1), None), spec=bare)
    load(destination, 2, (Order(2, 1, 1), [item("a", 2)]))
    more = [{"sku": "b", "count": 2**40, "note": "n"}]
    load(destination, 3, (Order(3, 1, 1), more), spec=spec_with(wide))
    load(destination, 4, (Order(4, 1, 1), [item("d", 7)]))
    rows = sorted(warehouse.rows(SPEC, "orders_items"), key=lambda row: row["id"])
    assert [(r["id"], r["count"], r["note"]) for r in rows] == [
        (2, 2, None),
        (3, 2**40, "n"),
        (4, 7, None),
    ]
    both = [
        Commit(5, (rows_of([Order(5, 1, 1)], SPEC, **{ITEMS.arrow_name: [[item("e")]]}),)),
        Commit(6, (rows_of([Order(6, 1, 1)], spec_with(wide), **{ITEMS.arrow_name: [more]}),)),
    ]
    destination.load(both, never_park)
    assert items_in(warehouse)[-2:] == [(5, 0, "e"), (6, 0, "b")]


def test_items_are_those_of_the_row_whatever_the_order(destination, warehouse):
    draw = random.Random(20261123)
    orders = some_orders(draw, keys=12, events=120)
    known = {o.event_id: None if o.op == "delete" else _made(o) for o in orders}
    draw.shuffle(orders)
    for number in range(6):
        part = orders[number * 20 : number * 20 + 20]
        load(destination, number, *[(o, known[o.event_id]) for o in part])
    rows, _ = expected(orders)
    there = {row["id"]: row["_waybill_id"] for row in warehouse.rows(SPEC)}
    assert there.keys() == rows.keys()
    wanted = [
        (key, place, one["sku"])
        for key, o in rows.items()
        for place, one in enumerate(known[o.event_id])
    ]
    assert items_in(warehouse) == sorted(wanted)


def _made(order):
    """Return items that follow from (key, source, content): a copy of an event has the same."""
    return [item(f"{order.id}/{order.source}/{order.what}/{n}") for n in range(order.source)]
