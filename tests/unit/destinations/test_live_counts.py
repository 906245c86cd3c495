"""Tables that are read as they are now: between the count and the keys somebody may write."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.destined import never_park
from tests.support.lake_warehouses import delta_folder
from tests.unit.destinations.orders import SPEC, Order, commit_of

from waybill.destinations import CountLook
from waybill.destinations.per_table.table import RowStamp


@pytest.fixture
def warehouse(request, tmp_path):
    made = delta_folder(request, tmp_path)
    yield made
    made.close()


def test_a_row_that_goes_between_the_count_and_the_look_at_the_keys_is_told_next_time(
    warehouse, monkeypatch
):
    destination = warehouse.open()
    destination.load([commit_of(1, [Order(n, 1, 1) for n in range(5)])], never_park)
    table = destination._lake.table(SPEC.schema_name, SPEC.name)
    assert table.refresh()
    table.commit(None, RowStamp("", 0, replace(table.record(), keys=None)))  # an older release
    scan = type(table).scan

    def scan_what_is_now(self, columns, bounds):
        warehouse.remove_behind(SPEC, 1)
        self.refresh()
        return scan(self, columns, bounds)

    monkeypatch.setattr(type(table), "scan", scan_what_is_now)
    [found] = destination.count_rows([CountLook(SPEC)])
    assert (found.counted, found.expected) == (5, 5)
    monkeypatch.undo()
    [found] = destination.count_rows([CountLook(SPEC)])
    assert (found.counted, found.expected) == (4, 5)
