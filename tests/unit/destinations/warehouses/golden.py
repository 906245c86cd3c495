"""The statements of each warehouse, in files that people read.

``python -m tests.unit.destinations.warehouses.golden`` writes them anew; read the difference before
you keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from waybill.destinations.adapters.bigquery.dialect import BIGQUERY
from waybill.destinations.adapters.clickhouse import dialect as clickhouse
from waybill.destinations.adapters.databricks import dialect as databricks
from waybill.destinations.adapters.redshift.dialect import REDSHIFT
from waybill.destinations.adapters.snowflake.dialect import SNOWFLAKE
from waybill.destinations.merging import KEPT_COLUMNS, MergeStatements
from waybill.destinations.per_table.table import ShapePlan, shape_of
from waybill.destinations.specs import child_spec
from waybill.destinations.transactional import books
from waybill.destinations.transactional import warehouse_tables as schema
from waybill.destinations.transactional.dialect import Dialect
from waybill.destinations.transactional.warehouse_tables import WarehouseColumn
from waybill.pipelines import ChildTable, Column, TableSpec

FOLDER = Path(__file__).parents[1] / "golden"
DIALECTS: Mapping[str, Dialect] = {
    "snowflake": SNOWFLAKE, "bigquery": BIGQUERY, "redshift": REDSHIFT
}  # fmt: skip
COLUMNS = {
    "id": "int64", "ok": "bool", "small": "int32", "rate": "float64", "price": "decimal(10,2)",
    "exact": "decimal(38,20)", "what": "string", "at": "timestamp", "day": "date",
    "raw": "bytes", "more": "json",
}  # fmt: skip
SPEC = TableSpec(
    schema_name="shop",
    name="orders",
    columns=tuple(Column(name=n, type=t, nullable=n != "id") for n, t in COLUMNS.items()),
    key=("id",),
)
CHILD = ChildTable(name="lines", source="lines", columns=(Column(name="sku", type="string"),))
SOFT = SPEC.model_copy(update={"soft_delete": True})
STAGE, VERDICT, LOSERS, MET, ITEMS = (
    f"_waybill_work_1_{name}" for name in ("stage", "verdict", "losers", "met", "items_0")
)
OLDER = TableSpec(
    schema_name="shop",
    name="orders",
    columns=(
        Column(name="id", type="int64"),
        Column(name="n", type="decimal(21,2)"),
        Column(name="new", type="json"),
    ),
    key=("id",),
)


def statements(kind: str) -> dict[str, list[str]]:
    """Return names to statements, as they are sent."""
    dialect = DIALECTS[kind]
    made = MergeStatements(SPEC, STAGE, VERDICT)
    soft = MergeStatements(SOFT, STAGE, VERDICT, marked=True)
    key = f's."{books.KEY_TEXT}"'
    defined = {
        "find_losers": made.find_losers(LOSERS),
        "judge_losers": made.judge_losers(LOSERS),
        "find_met": made.find_met(MET),
        "judge_met": made.judge_met(MET),
        "judge_tombstones": made.judge_tombstones(books.TOMBSTONES, key),
        "count_met": made.count_met(),
        "merge": made.merge(judged=True),
        "clear_tombstones": made.clear_tombstones(books.TOMBSTONES, key),
        "drop_tombstones": made.drop_tombstones(books.TOMBSTONES, key),
        "soft_merge": soft.merge(judged=True),
        "soft_tombstones": soft.write_tombstones(books.TOMBSTONES, key, key),
        "clear_items": made.clear_items(CHILD),
        "write_items": made.write_items(CHILD, ITEMS),
        "write_tombstones": made.write_tombstones(books.TOMBSTONES, key, key),
    }
    return {
        "books": books.creations(dialect),
        "columns": [dialect.columns_query(SPEC)],
        "table": schema.plan(dialect, SPEC, {}),
        "child_table": schema.plan(dialect, child_spec(SPEC, CHILD), {}),
        "changes": schema.plan(dialect, OLDER, _found(dialect)),
        **{name: dialect.rendered(text) for name, text in defined.items()},
    }


def clickhouse_statements() -> dict[str, list[str]]:
    """Return the same of ClickHouse, whose tables are other ones."""
    place, shape = "`shop`.`orders`", shape_of(SOFT)
    free = [name for name in shape.names if name != "more"]
    wide = pa.field("small", pa.int64(), nullable=False)
    changes = ShapePlan(add=(pa.field("new", pa.string()),), widen=(wide,), loosen=("small",))
    return {
        "books": list(clickhouse.CREATE_BOOKS),
        "table": clickhouse.creation("shop", "orders", shape, SPEC.key, ()),
        "appended_table": clickhouse.creation("waybill", "facts", shape, SPEC.key, ("what",)),
        "changes": clickhouse.alterations(place, shape, changes),
        "stage": [clickhouse.stage_table("stage", list(shape), SPEC.key)],
        "insert": [clickhouse.insertion(place, "stage", shape, free, SPEC.key, joined=False)],
        "insert_joined": [clickhouse.insertion(place, "stage", shape, free, SPEC.key, joined=True)],
    }


def databricks_statements() -> dict[str, list[str]]:
    """Return the same of Databricks."""
    place, shape = "`shop`.`orders`", shape_of(SOFT)
    wide = pa.field("small", pa.int64(), nullable=False)
    changes = ShapePlan(add=(pa.field("new", pa.string()),), widen=(wide,), loosen=("small",))
    source = "parquet.`/Volumes/main/waybill/staging/_waybill_1.parquet`"
    return {
        "books": list(databricks.CREATE_BOOKS),
        "table": databricks.creation("shop", "orders", shape, ()),
        "appended_table": databricks.creation("waybill", "facts", shape, ("what",)),
        "changes": databricks.alterations(place, shape, changes),
        "merge": [databricks.merge(place, source, shape.names, SPEC.key)],
    }


def _found(dialect: Dialect) -> dict[str, WarehouseColumn]:
    """Return a table to be changed; of one that cannot be widened the column is wide already."""
    kinds = {"id": "int64", "n": "decimal(20,2)", "gone": "string"}
    if not dialect.widens("decimal(20,2)", "decimal(21,2)"):
        kinds["n"] = "decimal(38,2)"
    found = {
        name: WarehouseColumn(
            _spelt(dialect, kind), not_null=name != "id" and bool(dialect.relaxing)
        )
        for name, kind in kinds.items()
    }
    return found | {
        name: WarehouseColumn(_spelt(dialect, kind), not_null=True)
        for name, kind in KEPT_COLUMNS
        if name != "_waybill_loaded_at"
    }


def _spelt(dialect: Dialect, kind: str) -> str:
    """Return a type as the catalogue spells it: one that ``known`` reads."""
    text = dialect.sql_type(kind).replace(", ", ",")
    words = {"VARCHAR(65535)": "character varying", "TIMESTAMPTZ": "timestamp with time zone",
             "VARBYTE(1024000)": "binary varying", "TIMESTAMP_TZ(6)": "TIMESTAMP_TZ"}  # fmt: skip
    return words.get(text, text)


def path_of(kind: str, name: str) -> Path:
    return FOLDER / kind / f"{name}.sql"


def text_of(found: list[str]) -> str:
    return "".join(f"{statement};\n" for statement in found)


def main() -> None:
    """Write all files."""
    every = {kind: statements(kind) for kind in DIALECTS} | {
        "clickhouse": clickhouse_statements(),
        "databricks": databricks_statements(),
    }
    for kind, named in every.items():
        for name, found in named.items():
            path_of(kind, name).parent.mkdir(parents=True, exist_ok=True)
            path_of(kind, name).write_text(text_of(found))


if __name__ == "__main__":
    main()
