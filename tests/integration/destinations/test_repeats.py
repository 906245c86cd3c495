"""A commit number is loaded once, whoever comes with it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.support.destined import (
    Park,
    commits_of,
    held,
    load,
    never_park,
    without_rows,
)
from tests.unit.destinations.orders import Order, rows_of, spec_of, totals

from waybill.destinations import Commit
from waybill.errors import RetryError, StopError
from waybill.pipelines import Column

pytestmark = pytest.mark.serves

TWO = ([Order(1, 1, 1), Order(2, 1, 2)], [Order(1, 0, 3, "old"), Order(3, 1, 4)])


def test_a_repeat_changes_nothing_and_reports_the_same(warehouse):
    first = load(warehouse.open(), *TWO)
    before = warehouse.rows(spec_of())
    again = load(warehouse.open(), *TWO)
    assert warehouse.rows(spec_of()) == before
    assert [o.rows for o in again] == [None, None]
    assert again == without_rows(first)
    assert totals(first) == totals(again)


def test_only_what_is_missing_is_loaded_and_all_is_reported(destination, warehouse):
    commits = commits_of(*[[Order(i, 1, i)] for i in range(1, 6)])
    destination.load([commits[1], commits[3]], never_park)
    found = destination.load(commits, never_park)
    assert [o.commit_number for o in found] == [1, 2, 3, 4, 5]
    assert [o.rows is None for o in found] == [False, True, False, True, False]
    assert totals(found)["delivered"] == 5
    assert len(held(warehouse)) == 5


def test_what_a_load_will_have_done_is_told_before_it_is_done(destination, warehouse):
    """So that traces are on disk before the commit; one that fails is told of again."""
    told = []

    def note(outcomes):
        told.append([(o.commit_number, o.rows.num_rows) for o in outcomes])
        if len(told) == 1:
            raise RetryError("the spool is full")

    with pytest.raises(RetryError, match="spool"):
        destination.load(commits_of(*TWO), never_park, note)
    assert held(warehouse) == {}
    found = destination.load(commits_of(*TWO), never_park, note)
    assert told == [[(1, 2), (2, 2)]] * 2
    assert totals(found)["delivered"] == 3
    assert len(held(warehouse)) == 3
    destination.load(commits_of(*TWO), never_park, note)
    assert len(told) == 2, "nothing is told of what was loaded before"


def test_destinations_of_different_names_do_not_share_commit_numbers(warehouse):
    load(warehouse.open("one"), [Order(1, 1, 1)])
    (found,) = load(warehouse.open("other"), [Order(2, 1, 1)])
    assert found.rows is not None
    assert len(held(warehouse)) == 2


def named(batch, *batches, start=1):
    """Commits whose batches are called ``<batch>-<number>``."""
    commits = commits_of(*batches, start=start)
    return [replace(commit, batch=f"{batch}-{commit.number}") for commit in commits]


def test_other_contents_under_a_number_with_the_same_counts_are_loaded(warehouse):
    """The tracker lost a commit, and its number was given to a batch of other events."""
    warehouse.open().load(named("old", [Order(1, 1, 1)], [Order(2, 1, 2)]), never_park)
    again = named("new", [Order(1, 1, 1)], [Order(3, 1, 3, "other")])
    found = warehouse.open().load(again, never_park)
    assert [o.rows is None for o in found] == [False, False]
    assert totals(found) | {"delivered": 1, "duplicate": 1} == totals(found)
    assert set(held(warehouse)) == {1, 2, 3}
    repeat = warehouse.open().load(again, never_park)
    assert repeat == without_rows(found), "the books are those of the new batches"
    assert warehouse.open().load(named("new", TWO[0], start=3), never_park)[0].rows is not None


def test_other_contents_bring_back_no_deleted_row(warehouse):
    """The old batch's tombstone counts for the new one, which has its number."""
    warehouse.open().load(named("old", [Order(1, 1, 1)], [Order(1, 5, 5, op="delete")]), never_park)
    warehouse.open().load(named("new", [Order(1, 3, 3)], start=2), never_park)
    assert held(warehouse) == {}


def test_other_contents_with_other_counts_are_loaded_where_batches_are_not_known(warehouse):
    """Books of an older release have no batches: counts tell."""
    load(warehouse.open(), *TWO)
    same = warehouse.open().load(named("any", *TWO), never_park)
    assert [o.rows for o in same] == [None, None]
    found = load(warehouse.open(), [Order(1, 1, 1)], TWO[1])
    assert [o.rows is None for o in found] == [False, True]
    assert set(held(warehouse)) == {1, 2, 3}


def test_a_commit_number_given_twice_stops(destination):
    with pytest.raises(StopError, match="twice"):
        destination.load([*commits_of(*TWO), commits_of(*TWO)[0]], never_park)


def load_patiently(destination, commits):
    """Load as the loading application does: what is busy is tried again."""
    for _ in range(6_000):
        try:
            return destination.load(commits, never_park)
        except RetryError:
            threading.Event().wait(0.05)
    raise AssertionError("it stayed busy")


def test_two_loaders_of_the_same_commits_load_them_once(warehouse):
    orders = [Order(i, 1, i) for i in range(6_000)]
    commits = commits_of(orders[:3_000], orders[3_000:])
    start = threading.Barrier(2)

    def run(_):
        destination = warehouse.open()
        start.wait()
        return load_patiently(destination, commits)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, range(2)))
    assert sorted(o[0].rows is None for o in found) == [False, True]
    assert without_rows(found[0]) == without_rows(found[1])
    assert len(held(warehouse)) == 6_000


def test_two_loaders_of_one_table_by_other_names_both_load(warehouse):
    """Two pipelines' destinations, one table: the newer versions win, no row is there twice."""
    start = threading.Barrier(2)

    def run(place):
        destination = warehouse.open(f"loader {place}")
        start.wait()
        found = []
        for number in range(4):
            orders = [Order(i, number, place, f"{number}/{place}") for i in range(300)]
            found += load_patiently(destination, commits_of(orders, start=number))
        return totals(found)

    with ThreadPoolExecutor(2) as pool:
        sums = list(pool.map(run, range(2)))
    assert [one["in_first"] for one in sums] == [1_200, 1_200]
    assert {row[0] for row in held(warehouse).values()} == {"3/1"}


STRICT = spec_of(
    "orders",
    Column(name="id", type="int64"),
    Column(name="what", type="string", nullable=False),
)


def strict_commit(number, **values):
    orders = [Order(i, 1, i) for i in values["id"]]
    return Commit(number, (rows_of(orders, STRICT, **values),))


def test_a_park_that_fails_leaves_nothing(destination, warehouse):
    commits = [strict_commit(1, id=[1, 2], what=["good", None])]

    def store_is_away(refused):
        raise RetryError("the object store is away")

    with pytest.raises(RetryError, match="object store"):
        destination.load(commits, store_is_away)
    assert warehouse.rows(STRICT) == []
    park = Park()
    (found,) = destination.load(commits, park)
    assert (totals([found])["parked"], found.parked) == (1, ({"key": "parked-1"},))
    (again,) = destination.load(commits, never_park)
    assert again.parked == ({"key": "parked-1"},)
