"""What becomes of versions, whatever their order and batching; on the real PostgreSQL."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Decimal

import psycopg
import pytest
from psycopg import sql
from tests.unit.destinations.orders import (
    MINUTE,
    Order,
    clean_database,
    commit_of,
    cut,
    expected,
    rows_of,
    some_orders,
    spec_of,
    totals,
)

from waybill.destinations import Commit, OutcomeCount, open_destination
from waybill.settings import DestinationSettings

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres):
    return clean_database(postgres)


@pytest.fixture
def destination(dsn):
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as opened:
        yield opened


def never_park(refused):
    raise AssertionError(f"refused: {refused}")


def table(dsn, name="orders", schema="shop"):
    """Return {id: (what, price, event id, source version, intake version)}."""
    query = sql.SQL(
        "SELECT id, what, price, _waybill_id, _waybill_source_version, _waybill_intake_version "
        "FROM {}"
    ).format(sql.Identifier(schema, name))
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(query).fetchall()
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}


def tombstones(dsn, name="orders"):
    """Return {key text: (event id, source version, intake version)}."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT key, _waybill_id, _waybill_source_version, _waybill_intake_version "
            "FROM waybill._waybill_tombstones WHERE table_name = %s",
            (name,),
        ).fetchall()
    return {row[0]: row[1:] for row in rows}


def as_row(order):
    return order.what, order.price, order.event_id, order.source, order.intake


def assert_ends_right(dsn, orders, name="orders"):
    rows, deleted = expected(orders)
    assert table(dsn, name) == {key: as_row(order) for key, order in rows.items()}
    assert tombstones(dsn, name) == {
        f"[{key}]": (o.event_id, o.source, o.intake) for key, o in deleted.items()
    }


def load(destination, *batches, start=1, park=never_park):
    commits = [commit_of(start + i, orders) for i, orders in enumerate(batches)]
    return destination.load(commits, park)


def outcomes(outcome):
    return outcome.rows.column("outcome").to_pylist()


def test_new_rows_are_delivered_with_their_versions(destination, dsn):
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
    }
    assert_ends_right(dsn, orders)


def test_counts_are_per_minute_and_tell_first_pass_from_replay(destination):
    orders = [Order(1, 1, 1), Order(2, 1, 2, minute=MINUTE + 1, replayed=True), Order(3, 1, 3)]
    (outcome,) = load(destination, orders)
    assert [(c.intake_minute, c.in_first, c.in_replayed, c.delivered) for c in outcome.counts] == [
        (MINUTE, 2, 0, 2),
        (MINUTE + 1, 0, 1, 1),
    ]


HELD = Order(1, source=5, intake=50, what="held")


@pytest.mark.parametrize(
    ("late", "outcome"),
    [
        (Order(1, 6, 10, "new"), "delivered"),
        (Order(1, 4, 99, "old"), "superseded"),
        (Order(1, 5, 50, "held"), "duplicate"),
        (Order(1, 5, 50, "same versions, whatever it holds"), "duplicate"),
        (Order(1, 5, 51, "held"), "duplicate"),
        (Order(1, 5, 49, "held"), "duplicate"),
        (Order(1, 5, 51, "changed"), "delivered"),
        (Order(1, 5, 49, "changed"), "superseded"),
        (Order(1, 6, 10, None, op="delete"), "delivered"),
        (Order(1, 5, 51, None, op="delete"), "delivered"),
        (Order(1, 5, 49, None, op="delete"), "superseded"),
        (Order(1, 4, 99, None, op="delete"), "superseded"),
    ],
)
def test_a_row_in_the_table_gives_way_only_to_a_newer_one(destination, dsn, late, outcome):
    load(destination, [HELD])
    (found,) = load(destination, [late], start=2)
    assert outcomes(found) == [outcome]
    if late.version != HELD.version:
        assert_ends_right(dsn, [HELD, late])


@pytest.mark.parametrize(
    ("late", "outcome"),
    [
        (Order(1, 6, 10, "new"), "delivered"),
        (Order(1, 5, 51, "after the delete"), "delivered"),
        (Order(1, 5, 49, "before the delete"), "superseded"),
        (Order(1, 4, 99, "old"), "superseded"),
        (Order(1, 6, 10, None, op="delete"), "delivered"),
        (Order(1, 5, 51, None, op="delete"), "duplicate"),
        (Order(1, 5, 50, None, op="delete"), "duplicate"),
        (Order(1, 4, 99, None, op="delete"), "superseded"),
    ],
)
def test_a_deleted_row_comes_back_only_by_a_newer_one(destination, dsn, late, outcome):
    gone = Order(1, 5, 50, None, op="delete")
    load(destination, [gone])
    assert tombstones(dsn) == {"[1]": ("1/5/50", 5, 50)}
    (found,) = load(destination, [late], start=2)
    assert outcomes(found) == [outcome]
    assert_ends_right(dsn, [gone, late])


def test_within_a_batch_the_newest_wins_and_copies_are_duplicates(destination, dsn):
    orders = [
        Order(1, 2, 20, "second"),
        Order(1, 1, 10, "first"),
        Order(1, 1, 10, "first", replayed=True),
        Order(1, 2, 20, "second"),
        Order(1, 2, 19, "second"),
    ]
    (found,) = load(destination, orders)
    assert outcomes(found) == ["delivered", "superseded", "duplicate", "duplicate", "duplicate"]
    assert_ends_right(dsn, orders)


def test_a_batch_may_create_and_delete_and_create_again(destination, dsn):
    orders = [Order(1, 1, 1), Order(1, 2, 2, None, op="delete"), Order(1, 3, 3, "again")]
    load(destination, orders)
    load(destination, [Order(2, 1, 1), Order(2, 2, 2, None, op="delete")], start=2)
    assert_ends_right(dsn, [*orders, Order(2, 2, 2, None, op="delete")])


def test_a_re_read_copy_moves_the_version_on_but_not_the_time_it_was_written(destination, dsn):
    load(destination, [Order(1, 0, 10, "same")])
    written = _loaded_at(dsn)
    (found,) = load(destination, [Order(1, 0, 30, "same")], start=2)
    assert outcomes(found) == ["duplicate"]
    assert _loaded_at(dsn) == written
    (found,) = load(destination, [Order(1, 0, 20, "in between")], start=3)
    assert outcomes(found) == ["superseded"]
    assert table(dsn)[1] == ("same", None, "1/0/30", 0, 30)


def _loaded_at(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT _waybill_loaded_at FROM shop.orders").fetchone()


ONE_KEY = [
    Order(1, 0, 1, "red"),
    Order(1, 0, 3, "red"),
    Order(1, 0, 2, None, op="delete"),
    Order(1, 1, 0, "blue"),
]


@pytest.mark.parametrize("commits", ["one", "two", "four", "four loads"])
def test_every_order_and_batching_of_four_versions_ends_alike(destination, dsn, commits):
    cuts = {"one": (4,), "two": (2, 2)}.get(commits, (1, 1, 1, 1))
    for trial, orders in enumerate(itertools.permutations(ONE_KEY)):
        keyed = iter([replace(order, id=trial) for order in orders])
        made = [
            commit_of(trial * 10 + i, list(itertools.islice(keyed, size)))
            for i, size in enumerate(cuts)
        ]
        groups = [[c] for c in made] if commits == "four loads" else [made]
        found = [o for group in groups for o in destination.load(group, never_park)]
        assert totals(found)["in_first"] == len(ONE_KEY)
    rows = table(dsn)
    assert len(rows) == 24
    assert {row[:2] + row[3:] for row in rows.values()} == {("blue", None, 1, 0)}
    assert tombstones(dsn) == {}


@pytest.mark.parametrize("seed", range(12))
def test_any_permutation_and_batching_of_many_versions_ends_in_the_same_table(dsn, seed):
    draw = random.Random(seed)
    orders = some_orders(draw, keys=4, events=24)
    for trial in range(4):
        draw.shuffle(orders)
        name = f"orders_{trial}"
        parts = cut(draw, orders)
        commits = [commit_of(i + 1, part, spec_of(name)) for i, part in enumerate(parts)]
        with open_destination(f"trial {trial}", DestinationSettings(dsn=dsn)) as destination:
            found = []
            while commits:
                size = draw.randint(1, 3)
                found += destination.load(commits[:size], never_park)
                commits = commits[size:]
        sums = totals(found)
        assert sums["in_first"] + sums["in_replayed"] == len(orders)
        assert sums["parked"] == 0
        assert_ends_right(dsn, orders, name)


def test_two_pipelines_may_write_one_table_and_are_counted_apart(destination, dsn):
    one = commit_of(1, [Order(1, 1, 1, "ours")]).rows[0]
    other = replace(commit_of(1, [Order(1, 2, 2, "theirs")]).rows[0], pipeline_id="other")
    (found,) = destination.load([Commit(1, (one, other))], never_park)
    assert [(c.pipeline_id, c.delivered, c.superseded) for c in found.counts] == [
        ("other", 1, 0),
        ("shop-orders", 0, 1),
    ]
    assert table(dsn)[1][0] == "theirs"


def test_many_tables_in_one_load_each_get_their_rows(destination, dsn):
    specs = [spec_of(f"t{i}") for i in range(30)]
    commit = Commit(1, tuple(rows_of([Order(i, 1, 1)], s) for i, s in enumerate(specs)))
    (found,) = destination.load([commit], never_park)
    assert totals([found])["delivered"] == 30
    assert [list(table(dsn, spec.name)) for spec in specs] == [[i] for i in range(30)]


def test_an_empty_commit_is_remembered_as_loaded(destination):
    assert [o.counts for o in load(destination, [])] == [[]]
    (again,) = load(destination, [])
    assert (again.counts, again.rows) == ([], None)
