"""DuckDB's file, whatever it is called."""

from __future__ import annotations

import duckdb
import pytest
from tests.unit.destinations.orders import SPEC, Order, commit_of

from waybill.destinations import CountLook, open_destination
from waybill.settings import DestinationSettings


@pytest.mark.parametrize("stem", ["shop", "waybill", "orders", "it's odd", "memory", "temp"])
def test_a_file_may_be_called_as_a_schema_or_table_is(tmp_path, stem):
    path = tmp_path / f"{stem}.duckdb"
    settings = DestinationSettings.model_validate({"kind": "duckdb", "dsn": str(path)})
    with open_destination("warehouse", settings) as destination:
        destination.load([commit_of(1, [Order(1, 1, 1), Order(2, 1, 2)])], never_park)
        destination.load([commit_of(2, [Order(1, 2, 3, op="delete")])], never_park)
        assert destination.count_rows([CountLook(SPEC)])[0].counted == 1
        assert all(finding.ok for finding in destination.examine("shop"))
    with duckdb.connect() as connection:
        quoted = str(path).replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS found (READ_ONLY)")
        assert connection.execute("SELECT id FROM found.shop.orders").fetchall() == [(2,)]


def never_park(refused):
    raise AssertionError(f"refused: {refused}")
