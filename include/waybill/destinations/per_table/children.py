"""Tables of items: their rows are replaced as a whole when the parent's row is.

A child's rows carry the parent's versions. Those of a parent that are as new as what comes, or
newer, stay: so a load that is repeated, or that another one overtook, changes nothing of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.destinations.batch import TableBatch
from waybill.destinations.merging import KEPT_COLUMNS, quoted
from waybill.destinations.per_table.table import (
    DELETE,
    FILE,
    OP,
    UPSERT,
    Bounds,
    Changes,
    LakeTable,
    RowStamp,
    check_unchanged,
)
from waybill.destinations.per_table.verdicts import INTAKE, SOURCE
from waybill.destinations.specs import ITEM, child_spec
from waybill.errors import RetryError
from waybill.pipelines import ChildTable

if TYPE_CHECKING:
    import duckdb

_VERSIONS = [name for name, _ in KEPT_COLUMNS[:-1]]
_AT = KEPT_COLUMNS[-1][0]
_N = "_waybill_n"
_UNBEATEN = f"{_N} NOT IN (SELECT {_N} FROM met WHERE as_new)"
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class ChildItems:
    """The items of a batch for one child table."""

    table: LakeTable
    """The child's."""
    parents: TableBatch
    child: ChildTable
    connection: duckdb.DuckDBPyConnection

    def commit(self, delivered: Numbers, bounds: Bounds) -> None:
        """Replace the items of parents that were delivered; of deleted ones they go.

        Args:
            delivered: ordinals of parents.
            bounds: of their keys.

        Raises:
            ConflictError: somebody else wrote to the table meanwhile.
            RetryError: somebody dropped it, or changed its columns.
        """
        if not self.table.refresh():
            raise RetryError(
                f"table {self.parents.spec.schema_name}.{self.child.name} is gone; it is looked "
                "for again"
            )
        check_unchanged(child_spec(self.parents.spec, self.child), self.table.fields())
        upserts = np.asarray(pc.equal(self.parents.context["_waybill_op"], "upsert"), np.bool_)
        if self.parents.spec.soft_delete:
            delivered = delivered[upserts[delivered]]
        if not len(delivered):
            return
        self._register(delivered, upserts, bounds)
        changes = self._changes()
        if changes is not None:
            self.table.commit(changes, RowStamp("", 0, None))

    def _register(self, delivered: Numbers, upserts: Any, bounds: Bounds) -> None:
        """Give DuckDB the parents, their new items, and what the table has of them."""
        key = list(self.parents.spec.key)
        connection = self.connection
        parents = self.parents.columns.select(key).take(pa.array(delivered))
        versions = self.parents.context.select([SOURCE, INTAKE]).take(pa.array(delivered))
        for name in (SOURCE, INTAKE):
            parents = parents.append_column(name, versions[name])
        connection.register("parents", parents.append_column(_N, pa.array(delivered)))
        takes = np.zeros(len(upserts), np.bool_)
        takes[delivered] = upserts[delivered]
        items = self.parents.items(self.child)
        items = items.rename_columns([_N, *items.column_names[1:]])  # a column may be called n
        connection.register("items", items.filter(pa.array(takes[items[_N].to_numpy()])))
        columns = [*child_spec(self.parents.spec, self.child).key, SOURCE, INTAKE]
        connection.register("held", self.table.scan(columns, bounds))
        on = " AND ".join(f"h.{quoted(name)} = p.{quoted(name)}" for name in key)
        newer = f"h.{SOURCE} > p.{SOURCE} OR (h.{SOURCE} = p.{SOURCE} AND h.{INTAKE} >= p.{INTAKE})"
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE met AS SELECT p.{_N}, h.{FILE} AS file, "
            f"h.{ITEM} AS item, coalesce({newer}, false) AS as_new "
            f"FROM parents p JOIN held h ON {on}"
        )

    def _changes(self) -> Changes | None:
        connection = self.connection
        puts = connection.execute(
            f"SELECT i.*, m.item IS NOT NULL AS _waybill_met FROM items i LEFT JOIN met m "
            f"ON m.{_N} = i.{_N} AND m.item = i.{ITEM} WHERE i.{_UNBEATEN}"
        ).to_arrow_table()
        drops = connection.execute(
            f"SELECT m.{_N}, m.item AS {ITEM} FROM met m ANTI JOIN items i "
            f"ON m.{_N} = i.{_N} AND m.item = i.{ITEM} WHERE m.{_UNBEATEN}"
        ).to_arrow_table()
        if not puts.num_rows and not drops.num_rows:
            return None
        files = connection.execute(f"SELECT DISTINCT file FROM met WHERE {_UNBEATEN}").fetchall()
        rows = pa.concat_tables([self._rows(puts), self._rows(drops)])
        ops = [UPSERT] * puts.num_rows + [DELETE] * drops.num_rows
        old = np.flatnonzero(np.asarray(puts["_waybill_met"], np.bool_))
        met = np.concatenate([old, np.arange(puts.num_rows, rows.num_rows)])
        return Changes(
            rows.append_column(OP, pa.array(ops, pa.string())),
            child_spec(self.parents.spec, self.child).key,
            met,
            frozenset(file for (file,) in files),
        )

    def _rows(self, found: pa.Table) -> pa.Table:
        """Return rows of the child's table, with its types; columns that are not found are null."""
        n = found[_N]
        context = self.parents.context.take(n)
        now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
        columns: dict[str, Any] = {
            name: self.parents.columns[name].take(n) for name in self.parents.spec.key
        }
        columns |= {name: context[name] for name in _VERSIONS}
        columns[_AT] = pa.repeat(now, found.num_rows)
        fields = self.table.fields()
        names = [ITEM, *(column.name for column in self.child.columns)]
        for name in names:
            kind = fields.field(name).type
            columns[name] = (
                found[name] if name in found.column_names else pa.nulls(found.num_rows, kind)
            )
        order = [f for f in fields if f.name in columns]
        return pa.table(
            [columns[f.name].cast(f.type) for f in order],
            schema=pa.schema([pa.field(f.name, f.type) for f in order]),
        )
