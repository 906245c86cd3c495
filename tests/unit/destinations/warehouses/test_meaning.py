"""Whole loads in each warehouse's dialect, run on an engine that is here: what they mean."""

import random

import pytest
from tests.support.warehouse_wires import DuckWire
from tests.unit.destinations.orders import commit_of, cut, expected, some_orders, spec_of, totals
from tests.unit.destinations.warehouses.standing_in import KINDS, over

SPEC = spec_of()


def never(refused):
    raise AssertionError(refused)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_loads_in_any_batching_end_in_the_newest_versions(kind, seed, monkeypatch):
    draw = random.Random(seed)
    wire = DuckWire(kind)
    orders = some_orders(draw, keys=5, events=14)
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
