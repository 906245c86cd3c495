"""All that loads need, tried and told in words; nothing of it stays."""

from __future__ import annotations

import pytest
from tests.support.destined import load
from tests.unit.destinations.orders import SPEC, Order, spec_of

from waybill.destinations import CountLook

pytestmark = pytest.mark.serves


def test_a_warehouse_that_is_well_passes_every_step_and_keeps_nothing(destination, warehouse):
    found = destination.examine("shop")
    assert all(one.ok for one in found), found
    assert len({one.step for one in found}) == len(found) >= 4
    assert found[0].step == "connect"
    assert all(one.words for one in found)
    assert [f.ok for f in warehouse.open().examine("shop")] == [True] * len(found)
    load(destination, [Order(1, 1, 1)])
    assert len(warehouse.rows(SPEC)) == 1


def test_rows_that_loads_put_there_are_known_and_those_that_others_took_show(
    destination, warehouse
):
    def count(spec=SPEC):
        found = destination.count_rows([CountLook(spec)])
        return [(one.counted, one.expected, one.beside) for one in found]

    destination.ensure_table(SPEC)
    assert count() == [], "no load has written to it"
    load(destination, [Order(n, 1, 1) for n in range(5)])
    assert count() == [(5, 5, 0)]
    changes = [Order(1, 2, 2, None, op="delete"), Order(9, 1, 1), Order(2, 2, 2), Order(3, 0, 1)]
    load(destination, changes, start=2)
    assert count() == [(5, 5, 0)]
    warehouse.remove_behind(SPEC, 9)
    assert count() == [(4, 5, 0)]
    assert count(spec_of("none")) == []
