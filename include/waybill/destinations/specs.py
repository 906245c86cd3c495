"""Several declarations of one table in one load: their union, the newest first."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.errors import InputError
from waybill.pipelines import Column, TableSpec


def union(specs: Sequence[TableSpec]) -> TableSpec:
    """Return one declaration that takes the rows of all.

    The newest (last) gives order, types and key. A column that only older ones have is kept and
    takes null, for the newer rows do not have it; one that any of them lets take null takes null.

    Raises:
        InputError: they have different keys.
    """
    newest = specs[-1]
    distinct = list({id(spec): spec for spec in specs}.values())
    if all(spec == newest for spec in distinct):
        return newest
    for spec in distinct:
        if set(spec.key) != set(newest.key):
            raise InputError(
                f"table {newest.schema_name}.{newest.name}: found key {list(spec.key)} in waiting "
                f"rows, expected {list(newest.key)}; a table keeps its key: declare another table"
            )
    columns = {column.name: column for column in newest.columns}
    for spec in reversed(distinct):
        for column in spec.columns:
            kept = columns.get(column.name)
            if kept is None:
                columns[column.name] = _nullable(column)
            elif column.nullable and not kept.nullable:
                columns[column.name] = _nullable(kept)
    return TableSpec(
        schema_name=newest.schema_name,
        name=newest.name,
        columns=tuple(columns.values()),
        key=newest.key,
    )


def _nullable(column: Column) -> Column:
    return Column(name=column.name, type=column.type, nullable=True, source=column.source)
