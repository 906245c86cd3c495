"""Tables that somebody else changes while loading runs: no value is cut to what they became."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.types import IntegerType
from tests.support.destined import held, load
from tests.unit.destinations.orders import SPEC, Order, rows_of

from waybill.destinations import Commit
from waybill.errors import RetryError, WaybillError
from waybill.pipelines import ChildTable, Column, TableSpec

pytestmark = pytest.mark.serves

PRICE = Decimal("2.25")
ITEMS = ChildTable(
    name="orders_items", source="items", columns=(Column(name="sku", type="string"),)
)
FAMILY = TableSpec(
    schema_name="shop",
    name="orders",
    columns=(Column(name="id", type="int64", nullable=False),),
    key=("id",),
    children=(ITEMS,),
)


def sql(warehouse, statement):
    if warehouse.kind == "duckdb":
        warehouse.ask(statement, write=True)
    else:
        warehouse.ask(statement)


def drop_column(warehouse, table, name):
    if warehouse.kind == "delta":
        found = warehouse.table("shop", table)
        rest = warehouse.read("shop", table).drop_columns([name])
        write_deltalake(found.table_uri, rest, mode="overwrite", schema_mode="overwrite")
    elif warehouse.kind == "iceberg":
        found = warehouse.catalog().load_table(("shop", table))
        with found.update_schema() as change:
            change.delete_column(name)
    else:
        sql(warehouse, f'ALTER TABLE shop.{table} DROP COLUMN "{name}"')


def narrow_price(warehouse):
    """Let the table's prices be whole numbers."""
    if warehouse.kind == "delta":
        rows = warehouse.read("shop", "orders")
        place = rows.column_names.index("price")
        rows = rows.set_column(place, "price", pa.nulls(rows.num_rows, pa.int32()))
        uri = warehouse.table("shop", "orders").table_uri
        write_deltalake(uri, rows, mode="overwrite", schema_mode="overwrite")
    elif warehouse.kind == "iceberg":
        drop_column(warehouse, "orders", "price")
        with warehouse.catalog().load_table(("shop", "orders")).update_schema() as change:
            change.add_column("price", IntegerType())
    else:
        sql(warehouse, "ALTER TABLE shop.orders ALTER COLUMN price TYPE integer")


def waited_for(action):
    """Do what the loader does: what is to be tried again is, once."""
    try:
        return action()
    except RetryError:
        return action()


def test_a_column_that_became_narrower_is_widened_again(destination, warehouse):
    load(destination, [Order(1, 1, 1)])
    narrow_price(warehouse)
    waited_for(lambda: load(destination, [Order(2, 1, 1, "thing", PRICE)], start=2))
    assert held(warehouse)[2][:2] == ("thing", PRICE)


def test_a_column_that_somebody_dropped_comes_back(destination, warehouse):
    load(destination, [Order(1, 1, 1)])
    drop_column(warehouse, "orders", "price")
    waited_for(lambda: load(destination, [Order(1, 2, 2, "new", PRICE)], start=2))
    assert held(warehouse)[1][:2] == ("new", PRICE)


def test_versions_that_somebody_dropped_come_back(destination, warehouse):
    load(destination, [Order(1, 1, 1)])
    if warehouse.kind == "iceberg":
        drop_column(warehouse, "orders", "_waybill_loaded_at")
    else:
        drop_column(warehouse, "orders", "_waybill_source_version")
    waited_for(lambda: load(destination, [Order(1, 2, 2, "new", PRICE)], start=2))
    assert held(warehouse)[1] == ("new", PRICE, "1/2/2", 2, 2)


def test_a_column_of_items_that_somebody_dropped_comes_back(destination, warehouse):
    def load_items(number, *skus):
        items = {ITEMS.arrow_name: [[{"sku": sku} for sku in skus]]}
        rows = rows_of([Order(1, number, number)], FAMILY, **items)
        return destination.load([Commit(number, (rows,))], lambda _: None)

    load_items(1, "a", "b")
    drop_column(warehouse, "orders_items", "sku")
    waited_for(lambda: load_items(2, "c"))
    assert [row["sku"] for row in warehouse.rows(FAMILY, "orders_items")] == ["c"]
    assert warehouse.rows(FAMILY)[0]["_waybill_source_version"] == 2


def test_a_type_that_nothing_joins_is_said_in_words(destination, warehouse):
    if warehouse.kind not in ("postgres", "duckdb"):
        pytest.skip("the formats' own tests have it")
    load(destination, [Order(1, 1, 1)])
    sql(warehouse, "ALTER TABLE shop.orders ALTER COLUMN price TYPE varchar(3)")
    with pytest.raises(WaybillError, match="column 'price': found"):
        waited_for(lambda: load(destination, [Order(2, 1, 1, "thing", PRICE)], start=2))
    assert set(held(warehouse, SPEC)) == {1}
