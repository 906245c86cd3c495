"""Soft deletes: the row stays, and says when it was deleted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.support.destined import assert_ends_right, held, load, words
from tests.unit.destinations.orders import SPEC, Order, commit_of, expected, some_orders

pytestmark = pytest.mark.serves

SOFT = SPEC.model_copy(update={"soft_delete": True})


def deleted(warehouse):
    """Return id to whether its row is marked."""
    return {row["id"]: row["_waybill_deleted_at"] is not None for row in warehouse.rows(SOFT)}


def gone(key, source, intake):
    return Order(key, source, intake, None, op="delete")


def test_a_delete_marks_the_row_and_moves_its_versions(destination, warehouse):
    load(destination, [Order(1, 1, 1, "red"), Order(2, 1, 1)], spec=SOFT)
    assert deleted(warehouse) == {1: False, 2: False}
    (found,) = load(destination, [gone(1, 2, 2)], start=2, spec=SOFT)
    assert words(found) == ["delivered"]
    assert deleted(warehouse) == {1: True, 2: False}
    assert held(warehouse, SOFT)[1] == ("red", None, "1/2/2", 2, 2)
    assert warehouse.tombstones(SOFT) == {}


def test_a_newer_row_revives_and_an_older_one_does_not(destination, warehouse):
    load(destination, [Order(1, 1, 1)], spec=SOFT)
    load(destination, [gone(1, 5, 50)], start=2, spec=SOFT)
    lates = [
        (Order(1, 4, 99, "old"), "superseded"),
        (gone(1, 5, 50), "duplicate"),
        (gone(1, 5, 60), "duplicate"),
        (Order(1, 5, 55, "before the copy"), "superseded"),
        (gone(1, 4, 99), "superseded"),
    ]
    for number, (late, outcome) in enumerate(lates, start=3):
        (found,) = load(destination, [late], start=number, spec=SOFT)
        assert words(found) == [outcome], late
        assert deleted(warehouse) == {1: True}
    (found,) = load(destination, [Order(1, 5, 61, "thing")], start=20, spec=SOFT)
    assert words(found) == ["delivered"]
    assert deleted(warehouse) == {1: False}
    assert held(warehouse, SOFT)[1] == ("thing", None, "1/5/61", 5, 61)


def test_a_delete_of_a_key_without_a_row_leaves_a_tombstone(destination, warehouse):
    load(destination, [gone(1, 2, 2)], spec=SOFT)
    assert (deleted(warehouse), list(warehouse.tombstones(SOFT))) == ({}, ["[1]"])
    (found,) = load(destination, [Order(1, 1, 9)], start=2, spec=SOFT)
    assert words(found) == ["superseded"]
    load(destination, [Order(1, 3, 3)], start=3, spec=SOFT)
    assert (deleted(warehouse), warehouse.tombstones(SOFT)) == ({1: False}, {})


def test_any_order_ends_alike(destination, warehouse):
    draw = random.Random(20261123)
    orders = some_orders(draw, keys=10, events=90)
    draw.shuffle(orders)
    for number in range(9):
        part = orders[number * 10 : number * 10 + 10]
        destination.load([commit_of(number, part, SOFT)], lambda refused: None)
    rows, dead = expected(orders)
    marked = deleted(warehouse)
    assert {key for key, mark in marked.items() if not mark} == rows.keys()
    buried = {int(key.strip("[]")) for key in warehouse.tombstones(SOFT)}
    assert {key for key, mark in marked.items() if mark} | buried == dead.keys()
    assert not buried & marked.keys()
    there = held(warehouse, SOFT)
    assert {key: there[key][-2:] for key in marked} == {
        key: (o.source, o.intake) for key, o in (rows | dead).items() if key in marked
    }


def test_a_table_whose_deletes_were_soft_once_revives_rows(destination, warehouse):
    load(destination, [Order(1, 1, 1), Order(2, 1, 1)], spec=SOFT)
    load(destination, [gone(1, 2, 2), gone(2, 2, 2)], start=2, spec=SOFT)
    found = load(destination, [Order(1, 3, 3), gone(2, 2, 3)], start=3, spec=SPEC)
    assert words(found[0]) == ["delivered", "duplicate"]
    assert deleted(warehouse)[1] is False
    load(destination, [gone(1, 4, 4)], start=4, spec=SPEC)
    assert 1 not in deleted(warehouse)


def test_a_table_whose_deletes_become_soft_keeps_its_tombstones(destination, warehouse):
    load(destination, [Order(1, 1, 1), Order(2, 1, 1)], spec=SPEC)
    load(destination, [gone(1, 2, 2)], start=2, spec=SPEC)
    orders = [Order(1, 1, 5, "late"), gone(2, 2, 2)]
    (found,) = load(destination, orders, start=3, spec=SOFT)
    assert words(found) == ["superseded", "delivered"]
    assert deleted(warehouse) == {2: True}


def test_hard_deletes_are_as_ever(destination, warehouse):
    orders = [Order(1, 1, 1), replace(gone(1, 2, 2))]
    load(destination, orders[:1])
    load(destination, orders[1:], start=2)
    assert_ends_right(warehouse, orders)
