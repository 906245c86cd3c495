"""What a table lacks is known exactly, whoever deletes and whoever brings back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from tests.support.destined import never_park
from tests.support.loader_child import place_of
from tests.unit.destinations.orders import SPEC, Order, commit_of, rows_of, spec_of

from waybill.destinations import Commit, CountLook
from waybill.pipelines import Column, TableSpec

pytestmark = pytest.mark.serves


LAKES = ("delta", "iceberg")


def lacks(destination, spec=SPEC, **look):
    [found] = destination.count_rows([CountLook(spec, **look)])
    return found.expected - found.counted


def load(destination, number, *orders):
    destination.load([commit_of(number, list(orders))], never_park)


@pytest.fixture
def filled(destination):
    """A destination with five rows, counted."""
    load(destination, 1, *(Order(n, 1, 1) for n in range(5)))
    assert lacks(destination) == 0
    return destination


def test_a_row_that_the_source_brings_back_is_missing_no_more(filled, warehouse):
    warehouse.remove_behind(SPEC, 1)
    assert lacks(filled) == 1
    load(filled, 2, Order(1, 2, 2), Order(9, 1, 2))
    assert lacks(filled) == 0
    assert lacks(warehouse.open()) == 0, "it is kept"
    warehouse.remove_behind(SPEC, 9)
    assert lacks(filled) == 1, "what is gone now is told"


def test_of_two_that_are_gone_one_comes_back_and_one_is_missing(filled, warehouse):
    warehouse.remove_behind(SPEC, 1)
    warehouse.remove_behind(SPEC, 3)
    load(filled, 2, Order(1, 2, 2), Order(7, 1, 2))  # not counted in between
    assert lacks(filled) == 1
    warehouse.remove_behind(SPEC, 1)
    load(filled, 3, Order(1, 3, 3))
    warehouse.remove_behind(SPEC, 1)
    assert lacks(filled) == 2, "1 was put there three times, and is gone"
    load(filled, 4, Order(1, 4, 4), Order(3, 4, 4))
    assert lacks(filled) == 0


def test_rows_that_are_new_hide_none_that_are_missing(filled, warehouse):
    warehouse.remove_behind(SPEC, 1)
    load(filled, 2, *(Order(n, 1, 2) for n in range(10, 500)))
    assert lacks(filled) == 1
    load(filled, 3, *(Order(n, 2, 3) for n in range(10, 500)))
    assert lacks(filled) == 1


def test_deletes_of_the_source_hide_none_and_add_none(filled, warehouse):
    load(filled, 2, Order(0, 2, 2, op="delete"), Order(1, 2, 2, op="delete"))
    assert lacks(filled) == 0
    load(filled, 3, Order(0, 3, 3))
    warehouse.remove_behind(SPEC, 0)
    assert lacks(filled) == 1, "the source deleted it once, and brought it back since"
    load(filled, 4, Order(0, 4, 4))
    assert lacks(filled) == 0


def test_a_row_that_its_source_deleted_as_well_is_missed_by_nobody(filled, warehouse):
    warehouse.remove_behind(SPEC, 1)
    warehouse.remove_behind(SPEC, 2)
    load(filled, 2, Order(1, 2, 2, op="delete"))
    assert lacks(filled) == (2 if warehouse.kind in LAKES else 1)


def test_a_table_that_was_emptied_and_read_again_is_whole_but_for_what_did_not_come(
    destination, warehouse
):
    load(destination, 1, *(Order(n, 1, 1) for n in range(600)))
    assert lacks(destination) == 0
    warehouse.remove_below(SPEC, 100)
    assert lacks(destination) == 100
    load(
        destination, 2, *(Order(n, 1, 1) for n in range(97)), *(Order(n, 1, 2) for n in (700, 701))
    )
    load(destination, 3, Order(702, 1, 2), Order(599, 2, 2))
    assert lacks(destination) == 3


def test_a_drift_that_was_accepted_is_right_from_then_on_and_what_comes_back_is_right_too(
    filled, warehouse
):
    warehouse.remove_behind(SPEC, 1)
    assert lacks(filled) == 1
    soon = datetime.now(UTC) + timedelta(seconds=1)
    assert lacks(filled, accepted_at=soon) == 0
    load(filled, 2, Order(1, 2, 2))
    assert lacks(filled) == 0
    warehouse.remove_behind(SPEC, 1)
    assert lacks(filled) == 1


def test_what_is_missing_is_known_after_deletes_and_loads_of_all_kinds(destination, warehouse):
    draw, live = random.Random(7), set(range(60))
    load(destination, 1, *(Order(n, 1, 1) for n in live))
    assert lacks(destination) == 0
    rounds = 6 if warehouse.kind in LAKES else 30
    for number in range(2, rounds):
        for n in draw.sample(range(60), draw.choice((0, 0, 1, 3))):
            warehouse.remove_behind(SPEC, n)
        if draw.random() < 0.5:
            lacks(destination)
        there = {row["id"] for row in warehouse.rows(SPEC)}
        orders = [
            Order(
                n, number, number, op="delete" if n in there and draw.random() < 0.1 else "upsert"
            )
            for n in draw.sample(range(70), draw.choice((1, 3, 30)))
        ]
        load(destination, number, *orders)
        for order in orders:
            (live.discard if order.op == "delete" else live.add)(order.id)
        there = {row["id"] for row in warehouse.rows(SPEC)}
        assert lacks(destination) == len(live - there), number


KEYS = {
    "id": "int32",
    "text": "string",
    "at": "timestamp",
    "day": "date",
    "price": "decimal(12,3)",
    "raw": "bytes",
    "yes": "bool",
    "share": "float64",
}
COLUMNS = tuple(Column(name=name, type=kind, nullable=False) for name, kind in KEYS.items())
WIDE = TableSpec(schema_name="shop", name="wide", columns=COLUMNS, key=tuple(KEYS))


def wide_commit(number, ids, op="upsert"):
    noon = datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC)
    return Commit(
        number,
        (
            rows_of(
                [Order(n, number, number, op=op) for n in ids],
                WIDE,
                text=[f'it\'s "é" {n}' + "long" * n * 20 for n in ids],
                at=[noon + timedelta(microseconds=n) for n in ids],
                day=[date(1969, 12, 31) + timedelta(days=n) for n in ids],
                price=[Decimal(n) / 8 - 1 for n in ids],
                raw=[bytes([n, 0, 255]) for n in ids],
                yes=[n % 2 == 0 for n in ids],
                share=[n / 3 for n in ids],
            ),
        ),
    )


def test_keys_of_all_types_are_known_again(destination, warehouse):
    destination.load([wide_commit(1, range(8))], never_park)
    assert lacks(destination, WIDE) == 0
    warehouse.remove_below(WIDE, 5)
    destination.load([wide_commit(2, [0, 1, 2])], never_park)
    assert lacks(destination, WIDE) == 2
    if warehouse.kind not in LAKES:
        destination.load([wide_commit(3, [3], op="delete")], never_park)
        assert lacks(destination, WIDE) == 1


def test_what_is_missing_is_known_after_a_key_was_widened(destination, warehouse):
    small = spec_of("orders", Column(name="id", type="int32", nullable=False))
    destination.load([Commit(1, (rows_of([Order(n, 1, 1) for n in range(5)], small),))], never_park)
    assert lacks(destination, small) == 0
    warehouse.remove_behind(small, 1)
    warehouse.remove_behind(small, 2)
    wide = spec_of("orders", Column(name="id", type="int64", nullable=False))
    orders = [Order(1, 2, 2), Order(2**40, 2, 2)]
    destination.load([Commit(2, (rows_of(orders, wide),))], never_park)
    assert lacks(destination, wide) == lacks(warehouse.open(), small) == 1


DYING = """
import os, signal, sys
from tests.support.loader_child import opened
from tests.unit.destinations.orders import Order, commit_of
def die(*_told):
    os.kill(os.getpid(), signal.SIGKILL)
destination, kind = opened(sys.argv[1]), sys.argv[2]
if kind in ("delta", "iceberg"):
    destination.hook = lambda step: die() if step == "table" else None
destination.load([commit_of(2, [Order(1, 2, 2), Order(9, 2, 2)])], lambda _rows: None, die)
"""


def test_a_load_that_dies_between_its_merge_and_its_commit_brought_nothing_back(filled, warehouse):
    warehouse.remove_behind(SPEC, 1)
    warehouse.remove_behind(SPEC, 2)
    assert lacks(filled) == 2
    place = place_of(warehouse.settings, warehouse.s3)
    dead = subprocess.run(
        [sys.executable, "-c", DYING, place, warehouse.kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["include", "."])},
        timeout=240,
        check=False,
    )
    assert dead.returncode == -signal.SIGKILL
    assert lacks(filled) == 2
    load(filled, 2, Order(1, 2, 2), Order(9, 2, 2))
    assert lacks(filled) == 1
    load(filled, 2, Order(1, 2, 2), Order(9, 2, 2))
    assert lacks(filled) == 1
