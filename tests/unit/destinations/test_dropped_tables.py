"""Tables that are dropped with their pipeline: those that loads wrote to, and no others."""

from __future__ import annotations

import duckdb
import pytest

from waybill.destinations.adapters.duckdb.destination import DuckDestination
from waybill.errors import InputError
from waybill.pipelines import ChildTable, Column, TableSpec


def table(name):
    tags = (Column(name="value", type="string", source=""),)
    return TableSpec(
        schema_name="shop",
        name=name,
        columns=(Column(name="number", type="int64", nullable=False),),
        key=("number",),
        children=(ChildTable(name=f"{name}__tags", source="tags", columns=tags),),
    )


ORDERS, CUSTOMERS = table("orders"), table("cust\"omers'")
BY_HAND = "was never loaded by Waybill"


@pytest.fixture
def warehouse(tmp_path):
    """A file in which Waybill made one table, with that of its child."""
    made = DuckDestination("warehouse", str(tmp_path / "warehouse.duckdb"), {})
    made.ensure_table(ORDERS)
    return made


def run(warehouse, statement):
    with duckdb.connect(str(warehouse._file.path)) as connection:
        return connection.execute(statement).fetchall()


def tables(warehouse):
    query = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'shop' ORDER BY 1"
    return [name for (name,) in run(warehouse, query)]


@pytest.mark.parametrize("name", ['"cust""omers\'"', '"Cust""omers\'__TAGS"'])
def test_a_table_that_somebody_made_is_not_dropped_and_neither_are_the_others(warehouse, name):
    run(warehouse, f"CREATE TABLE shop.{name} AS SELECT 1 AS number")
    before, confirmed = tables(warehouse), []
    with pytest.raises(InputError, match=rf"shop\.cust.*{BY_HAND}.*--keep-tables"):
        warehouse.refuse_unloaded([ORDERS, CUSTOMERS])
    with pytest.raises(InputError, match=BY_HAND):
        warehouse.drop_tables([ORDERS, CUSTOMERS], lambda: confirmed.append(1))
    assert (tables(warehouse), confirmed) == (before, [])


def test_a_table_that_a_load_took_over_is_dropped_with_those_that_it_made(warehouse):
    run(warehouse, 'CREATE TABLE shop."cust""omers\'" (number bigint NOT NULL, note text)')
    warehouse.ensure_table(CUSTOMERS)
    warehouse.refuse_unloaded([ORDERS, CUSTOMERS])
    warehouse.drop_tables([ORDERS, CUSTOMERS], lambda: None)
    assert tables(warehouse) == []
    warehouse.refuse_unloaded([ORDERS, CUSTOMERS])
    warehouse.drop_tables([], lambda: None)


def test_a_file_that_is_not_there_has_no_tables_and_is_not_made(tmp_path):
    absent = DuckDestination("warehouse", str(tmp_path / "warehouse.duckdb"), {})
    absent.refuse_unloaded([ORDERS])
    assert list(tmp_path.iterdir()) == []
