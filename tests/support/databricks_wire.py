"""DuckDB in Databricks's clothes: tables with a history, rows in a volume."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp
from tests.support.warehouse_wires import Answer, DuckWire, WireError

_FILE = re.compile(r"parquet\.`([^`]*)`")


@dataclass
class DatabricksWire(DuckWire):
    """Each change of a table is a version of its history, with the session's metadata."""

    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    metadata: str | None = None

    def _run(self, statement: str) -> Answer:
        words = statement.split(" ")
        if words[0] in ("SET", "RESET"):
            self.metadata = words[-1] if words[0] == "SET" else None
            return Answer()
        if statement.startswith("DESCRIBE HISTORY"):
            found = self.history.get(words[2], [])[: int(words[-1])]
            return Answer(found, names=["version", "userMetadata"])
        if statement.startswith("SHOW TBLPROPERTIES"):
            return Answer([], names=["key", "value"])
        if "information_schema.columns" in statement:
            return self._described(statement)
        if words[0] == "REMOVE" or "SET TBLPROPERTIES" in statement:
            return Answer()
        return self._changed(statement)

    def _changed(self, statement: str) -> Answer:
        match = _FILE.search(statement)
        if match:
            self.connection.register("a_file", self.staged[match[1]])
            statement = _FILE.sub("a_file", statement)
        tree = sqlglot.parse_one(statement, read="databricks")
        target = tree.find(exp.Table)
        try:
            found = self.connection.execute(self._translated(tree))
        except duckdb.CatalogException as error:
            raise WireError(f"[TABLE_OR_VIEW_NOT_FOUND] {error}") from error
        if isinstance(tree, exp.Select):
            rows = found.to_arrow_table()
            return Answer(rows.to_pylist(), names=rows.column_names)
        if isinstance(tree, exp.Create) and tree.kind == "SCHEMA":
            return Answer()
        entries = self.history.setdefault(f"`{target.db}`.`{target.name}`", [])
        if isinstance(tree, exp.Create) and entries:
            return Answer()
        version = entries[0]["version"] + 1 if entries else 0
        entries.insert(0, {"version": version, "userMetadata": self.metadata})
        return Answer()

    def _described(self, statement: str) -> Answer:
        schema = re.search(r"table_schema = '([^']*)'", statement)[1]
        table = re.search(r"table_name = '([^']*)'", statement)[1]
        rows = self.connection.execute(
            "SELECT column_name, data_type, is_nullable = 'YES' FROM information_schema.columns "
            "WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position",
            [schema, table],
        ).fetchall()
        return Answer(
            [{"name": n, "type": _type(kind), "nullable": nullable} for n, kind, nullable in rows],
            names=["name", "type", "nullable"],
        )


def _type(kind: str) -> str:
    return {
        "VARCHAR": "string", "BIGINT": "bigint", "INTEGER": "int", "BOOLEAN": "boolean",
        "DOUBLE": "double", "DATE": "date", "BLOB": "binary", "TIMESTAMP WITH TIME ZONE": "timestamp",
    }.get(kind, kind.lower())  # fmt: skip
