"""What becomes of versions, whatever their order and batching."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Decimal

import pytest
from tests.support.destined import assert_ends_right, held, load, never_park, words
from tests.unit.destinations.orders import (
    MINUTE,
    Order,
    commit_of,
    cut,
    expected,
    rows_of,
    some_orders,
    spec_of,
    totals,
)

from waybill.destinations import Commit, OutcomeCount
from waybill.pipelines import Column

pytestmark = pytest.mark.serves


def test_new_rows_are_delivered_with_their_versions(destination, warehouse):
    orders = [Order(1, 5, 100, "red", Decimal("9.99")), Order(2, 7, 101, None, None)]
    (outcome,) = load(destination, orders)
    assert outcome.counts == [OutcomeCount("shop-orders", "order", MINUTE, in_first=2, delivered=2)]
    assert outcome.rows.to_pylist()[0] == {
        "event_id": "1/5/100",
        "pipeline_id": "shop-orders",
        "event_name": "order",
        "outcome": "delivered",
        "intake_minute": MINUTE,
        "replayed": False,
        "replay_id": None,
        "op": "upsert",
        "number": 0,
    }
    assert_ends_right(warehouse, orders)


def test_counts_are_per_minute_and_tell_first_pass_from_replay(destination):
    orders = [Order(1, 1, 1), Order(2, 1, 2, minute=MINUTE + 1, replayed=True), Order(3, 1, 3)]
    (outcome,) = load(destination, orders)
    assert [(c.intake_minute, c.in_first, c.in_replayed, c.delivered) for c in outcome.counts] == [
        (MINUTE, 2, 0, 2),
        (MINUTE + 1, 0, 1, 1),
    ]


HELD = Order(0, source=5, intake=50, what="held")
AGAINST_A_ROW = [
    (Order(1, 6, 10, "new"), "delivered"),
    (Order(2, 4, 99, "old"), "superseded"),
    (Order(3, 5, 50, "held"), "duplicate"),
    (Order(4, 5, 50, "same versions, whatever it holds"), "duplicate"),
    (Order(5, 5, 51, "held"), "duplicate"),
    (Order(6, 5, 49, "held"), "duplicate"),
    (Order(7, 5, 51, "changed"), "delivered"),
    (Order(8, 5, 49, "changed"), "superseded"),
    (Order(9, 6, 10, None, op="delete"), "delivered"),
    (Order(10, 5, 51, None, op="delete"), "delivered"),
    (Order(11, 5, 49, None, op="delete"), "superseded"),
    (Order(12, 4, 99, None, op="delete"), "superseded"),
    (Order(13, 5, 51, None), "delivered"),
]


def test_a_row_in_the_table_gives_way_only_to_a_newer_one(destination, warehouse):
    first = [replace(HELD, id=late.id) for late, _ in AGAINST_A_ROW]
    lates = [late for late, _ in AGAINST_A_ROW]
    load(destination, first)
    (found,) = load(destination, lates, start=2)
    assert words(found) == [outcome for _, outcome in AGAINST_A_ROW]
    assert_ends_right(warehouse, [*first, *lates])


AGAINST_A_DELETE = [
    (Order(1, 6, 10, "new"), "delivered"),
    (Order(2, 5, 51, "after the delete"), "delivered"),
    (Order(3, 5, 49, "before the delete"), "superseded"),
    (Order(4, 4, 99, "old"), "superseded"),
    (Order(5, 6, 10, None, op="delete"), "delivered"),
    (Order(6, 5, 51, None, op="delete"), "duplicate"),
    (Order(7, 5, 50, None, op="delete"), "duplicate"),
    (Order(8, 4, 99, None, op="delete"), "superseded"),
]


@pytest.mark.parametrize("was_there", [False, True])
def test_a_deleted_row_comes_back_only_by_a_newer_one(destination, warehouse, was_there):
    lates = [late for late, _ in AGAINST_A_DELETE]
    first = [Order(late.id, 5, 50, None, op="delete") for late in lates]
    if was_there:
        load(destination, [Order(late.id, 1, 1) for late in lates], start=3)
    load(destination, first)
    (found,) = load(destination, lates, start=2)
    assert words(found) == [outcome for _, outcome in AGAINST_A_DELETE]
    assert_ends_right(warehouse, [*first, *lates])


def test_within_a_batch_the_newest_wins_and_copies_are_duplicates(destination, warehouse):
    orders = [
        Order(1, 2, 20, "second"),
        Order(1, 1, 10, "first"),
        Order(1, 1, 10, "first", replayed=True),
        Order(1, 2, 20, "second"),
        Order(1, 2, 19, "second"),
    ]
    (found,) = load(destination, orders)
    assert words(found) == ["delivered", "superseded", "duplicate", "duplicate", "duplicate"]
    assert_ends_right(warehouse, orders)


def test_a_batch_may_create_and_delete_and_create_again(destination, warehouse):
    first = [Order(1, 1, 1), Order(1, 2, 2, None, op="delete"), Order(1, 3, 3, "again")]
    then = [Order(2, 1, 1), Order(2, 2, 2, None, op="delete")]
    load(destination, first)
    load(destination, then, start=2)
    assert_ends_right(warehouse, [*first, *then])


def test_a_re_read_copy_moves_the_version_on_but_not_the_time_it_was_written(
    destination, warehouse
):
    load(destination, [Order(1, 0, 10, "same")])
    (written,) = warehouse.rows(spec_of())
    (found,) = load(destination, [Order(1, 0, 30, "same")], start=2)
    assert words(found) == ["duplicate"]
    (row,) = warehouse.rows(spec_of())
    assert row["_waybill_loaded_at"] == written["_waybill_loaded_at"]
    (found,) = load(destination, [Order(1, 0, 20, "in between")], start=3)
    assert words(found) == ["superseded"]
    assert held(warehouse) == {1: ("same", None, "1/0/30", 0, 30)}


ONE_KEY = [
    Order(1, 0, 1, "red"),
    Order(1, 0, 3, "red"),
    Order(1, 0, 2, None, op="delete"),
    Order(1, 1, 0, "blue"),
]


@pytest.mark.parametrize("loads", ["one commit", "two", "four", "four loads"])
def test_every_order_and_batching_of_four_versions_ends_alike(destination, warehouse, loads):
    """Of 24 keys each comes in another order, all in the same commits."""
    sizes = {"one commit": (4,), "two": (2, 2)}.get(loads, (1, 1, 1, 1))
    keyed = [
        [replace(order, id=key) for order in orders]
        for key, orders in enumerate(itertools.permutations(ONE_KEY))
    ]
    ends = list(itertools.accumulate(sizes))
    made = [
        commit_of(end, [o for orders in keyed for o in orders[end - size : end]])
        for end, size in zip(ends, sizes, strict=True)
    ]
    groups = [[commit] for commit in made] if loads == "four loads" else [made]
    found = [o for group in groups for o in destination.load(group, never_park)]
    assert totals(found)["in_first"] == 24 * len(ONE_KEY)
    rows = held(warehouse)
    assert len(rows) == 24
    assert {(row[0], *row[3:]) for row in rows.values()} == {("blue", 1, 0)}
    assert warehouse.tombstones(spec_of()) == {}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 4))]
)
def test_any_permutation_and_batching_of_many_versions_ends_in_the_same_table(warehouse, seed):
    draw = random.Random(seed)
    orders = some_orders(draw, keys=6, events=36)
    for trial in range(2):
        draw.shuffle(orders)
        spec = spec_of(f"orders_{trial}")
        commits = [commit_of(i + 1, part, spec) for i, part in enumerate(cut(draw, orders))]
        destination, found = warehouse.open(f"trial {trial}"), []
        while commits:
            size = draw.randint(1, 4)
            found += destination.load(commits[:size], never_park)
            commits = commits[size:]
        sums = totals(found)
        assert sums["in_first"] + sums["in_replayed"] == len(orders)
        assert sums["parked"] == 0
        rows, deleted = expected(orders)
        assert sums["delivered"] >= len(rows) + len(deleted)
        assert_ends_right(warehouse, orders, spec)


def test_two_pipelines_may_write_one_table_and_are_counted_apart(destination, warehouse):
    one = commit_of(1, [Order(1, 1, 1, "ours")]).rows[0]
    other = replace(commit_of(1, [Order(1, 2, 2, "theirs")]).rows[0], pipeline_id="other")
    (found,) = destination.load([Commit(1, (one, other))], never_park)
    assert [(c.pipeline_id, c.delivered, c.superseded) for c in found.counts] == [
        ("other", 1, 0),
        ("shop-orders", 0, 1),
    ]
    assert held(warehouse)[1][0] == "theirs"


def test_many_tables_in_one_load_each_get_their_rows(destination, warehouse):
    specs = [spec_of(f"t{i}") for i in range(8)]
    commit = Commit(1, tuple(rows_of([Order(i, 1, 1)], s) for i, s in enumerate(specs)))
    (found,) = destination.load([commit], never_park)
    assert totals([found])["delivered"] == 8
    assert [list(held(warehouse, spec)) for spec in specs] == [[i] for i in range(8)]


def test_an_empty_commit_is_remembered_as_loaded(destination):
    assert [o.counts for o in load(destination, [])] == [[]]
    (again,) = load(destination, [])
    assert (again.counts, again.rows) == ([], None)


def test_a_delete_needs_no_value_but_its_key(destination, warehouse):
    """As a source gives it that knows no more of the row: columns that take no null are null."""
    strict = spec_of(
        "strict",
        Column(name="id", type="int64", nullable=False),
        Column(name="what", type="string", nullable=False),
    )
    rows = [Order(1, 1, 1, "one"), Order(2, 1, 2, "two")]
    (first,) = load(destination, rows, spec=strict)
    gone = [Order(1, 2, 3, None, op="delete"), Order(9, 2, 4, None, op="delete")]
    (second,) = load(destination, gone, start=2, spec=strict)
    assert words(first) + words(second) == ["delivered"] * 4
