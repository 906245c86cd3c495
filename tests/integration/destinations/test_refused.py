"""Rows that a warehouse does not take park alone; their neighbours go on."""

from __future__ import annotations

import time

import pytest
from tests.support.destined import Park, commits_of, held, load
from tests.unit.destinations.orders import SPEC, Order, commit_of, rows_of, spec_of, totals

from waybill.destinations import Commit
from waybill.events import CATALOGUE
from waybill.pipelines import Column

pytestmark = pytest.mark.serves

STRICT = spec_of(
    "strict",
    Column(name="id", type="int64"),
    Column(name="what", type="string", nullable=False),
)


@pytest.fixture
def park():
    return Park()


@pytest.fixture
def checked(warehouse):
    """A warehouse whose table of orders takes nothing "bad"."""
    if not warehouse.takes_checks:
        pytest.skip(f"{warehouse.kind} has no constraints beside NOT NULL")
    warehouse.check(SPEC, "what <> 'bad'")
    return warehouse


def test_a_key_without_value_and_a_column_that_takes_no_null_are_refused(destination, park):
    orders = [Order(1, 1, 1), Order(2, 1, 1), Order(3, 1, 1, None), Order(4, 1, 1)]
    rows = rows_of(orders, STRICT, id=[1, None, 3, 4], what=["a", "b", None, "d"])
    (found,) = destination.load([Commit(1, (rows,))], park)
    assert park.codes == dict.fromkeys("23", "destination_not_null_violation")
    assert all(CATALOGUE[code].stage == "destination" for code in park.codes.values())
    assert found.rows["outcome"].to_pylist() == ["delivered", "parked", "parked", "delivered"]
    assert found.counts[0].delivered == 2


def test_a_delete_needs_no_values_but_its_key(destination, warehouse, park):
    destination.load([Commit(1, (rows_of([Order(1, 1, 1)], STRICT, what=["a"]),))], park)
    rows = rows_of([Order(1, 2, 2, op="delete")], STRICT, what=[None])
    (found,) = destination.load([Commit(2, (rows,))], park)
    assert found.rows["outcome"].to_pylist() == ["delivered"]
    assert warehouse.rows(STRICT) == []
    assert park.calls == []


def test_a_row_that_lost_only_to_one_without_a_value_is_delivered(destination, warehouse, park):
    orders = [Order(1, 1, 1), Order(1, 2, 2), Order(1, 3, 3), Order(2, 1, 1)]
    rows = rows_of(orders, STRICT, what=["one", "two", None, "other"])
    (found,) = destination.load([Commit(1, (rows,))], park)
    assert found.rows["outcome"].to_pylist() == ["superseded", "delivered", "parked", "delivered"]
    assert {row["id"]: row["what"] for row in warehouse.rows(STRICT)} == {1: "two", 2: "other"}


def test_refused_rows_park_with_all_that_a_replay_needs(checked, park):
    orders = [Order(i, 1, 100 + i, "bad" if i in (3, 700) else "good") for i in range(1_000)]
    commits = commits_of(orders[:500], orders[500:], [])
    destination = checked.open()
    found = destination.load(commits, park)
    assert sorted(held(checked)) == [i for i in range(1_000) if i not in (3, 700)]
    assert [(r.commit_number, r.event_id) for r in park.rows] == [(1, "3/1/103"), (2, "700/1/800")]
    assert [o.parked for o in found] == [({"key": "parked-1"},), ({"key": "parked-1"},), ()]
    assert totals(found) | {"delivered": 998, "parked": 2} == totals(found)
    first = park.rows[0]
    assert first.row == {"id": 3, "what": "bad", "price": None}
    assert (first.pipeline_id, first.event_name, first.key) == ("shop-orders", "order", "[3]")
    assert (first.source_version, first.intake_version, first.op) == (1, 103, "upsert")
    assert first.table == "shop.orders"
    assert first.error_code == "destination_check_violation"
    assert "check" in first.message.lower()
    again = destination.load(commits, park)
    assert [o.parked for o in again] == [o.parked for o in found]
    assert len(park.calls) == 1


def test_a_row_that_lost_only_to_a_refused_one_is_delivered(checked, park):
    versions = ["one", "two", "bad", "bad"]
    orders = [Order(1, i, i, what) for i, what in enumerate(versions)]
    (found,) = load(checked.open(), [*orders, Order(2, 1, 1, "other")], park=park)
    assert {key: row[0] for key, row in held(checked).items()} == {1: "two", 2: "other"}
    outcomes = found.rows["outcome"].to_pylist()
    assert outcomes == ["superseded", "delivered", "parked", "parked", "delivered"]


def test_a_delete_that_lost_to_a_refused_row_still_leaves_its_tombstone(checked, park):
    destination = checked.open()
    load(destination, [Order(1, 1, 1, "here")], park=park)
    load(
        destination, [Order(1, 2, 2, None, op="delete"), Order(1, 3, 3, "bad")], start=2, park=park
    )
    (found,) = load(destination, [Order(1, 1, 5, "late")], start=3, park=park)
    assert found.rows["outcome"].to_pylist() == ["superseded"]
    assert held(checked) == {}


def test_a_deleted_key_whose_newer_row_is_refused_stays_deleted(checked, park):
    destination = checked.open()
    load(destination, [Order(1, 2, 2, None, op="delete")], park=park)
    load(destination, [Order(1, 3, 3, "bad")], start=2, park=park)
    (found,) = load(destination, [Order(1, 1, 5, "late")], start=3, park=park)
    assert found.rows["outcome"].to_pylist() == ["superseded"]
    assert held(checked) == {}


def test_a_refused_change_leaves_the_row_as_it_is(checked, park):
    destination = checked.open()
    load(destination, [Order(1, 1, 1, "good")], park=park)
    (found,) = load(destination, [Order(1, 2, 2, "bad"), Order(2, 1, 1)], start=2, park=park)
    assert found.rows["outcome"].to_pylist() == ["parked", "delivered"]
    assert {key: row[0] for key, row in held(checked).items()} == {1: "good", 2: "thing"}


def test_a_batch_where_every_row_is_refused_ends_soon(checked, park):
    began = time.monotonic()
    checked.open().load([commit_of(1, [Order(i, 1, 1, "bad") for i in range(2_000)])], park)
    assert len(park.rows) == 2_000
    assert held(checked) == {}
    assert time.monotonic() - began < 150


def test_many_refused_rows_among_many_are_found(checked, park):
    orders = [Order(i, 1, 1, "good" if i % 20 else "bad") for i in range(5_000)]
    (found,) = load(checked.open(), orders, park=park)
    assert totals([found]) | {"delivered": 4_750, "parked": 250} == totals([found])
    assert len(held(checked)) == 4_750
