"""Bringing tables to their declarations in a warehouse."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from waybill.destinations.specs import child_spec
from waybill.destinations.warehouses.errors import WarehouseError
from waybill.destinations.warehouses.schema import (
    Found,
    FoundColumn,
    as_it_is,
    check_names,
    is_marked,
    plan,
)
from waybill.destinations.warehouses.session import Session
from waybill.pipelines import TableSpec

_LOG = logging.getLogger(__name__)


def found_columns(session: Session, spec: TableSpec) -> Found:
    """Return a table's columns as the catalogue has them; empty: there is no such table."""
    try:
        rows = session.query(session.dialect.columns_query(spec)).to_pylist()
    except WarehouseError as error:
        if not error.code or error.code != session.dialect.absent:
            raise
        return {}
    return {row["name"]: FoundColumn(row["type"], bool(row["required"])) for row in rows}


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is."""

    spec: TableSpec
    """Its declaration, with the table's own types where those are wider."""
    marked: bool
    """It has ``_waybill_deleted_at``."""


def ensure_table(session: Session, spec: TableSpec) -> Table:
    """Bring a table and its children's to their declarations; return it as it then is.

    Cost: one query a table when nothing is to be done. Statements are safe to run twice, but for
    columns that two loaders add at once: one of them fails, looks again when it is called again,
    and finds the column.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    children = []
    for child in spec.children:
        found = _brought(session, child_spec(spec, child))[0]
        names = {column.name for column in child.columns}
        own = tuple(column for column in found.columns if column.name in names)
        children.append(child.model_copy(update={"columns": own}))
    whole, marked = _brought(session, spec)
    return Table(
        TableSpec(
            schema_name=whole.schema_name,
            name=whole.name,
            columns=whole.columns,
            key=whole.key,
            children=tuple(children),
            soft_delete=whole.soft_delete,
        ),
        marked,
    )


def _brought(session: Session, spec: TableSpec) -> tuple[TableSpec, bool]:
    check_names(session.dialect, spec)
    found = found_columns(session, spec)
    for statement in plan(session.dialect, spec, found):
        _LOG.info("%s", statement)
        session.execute(statement)
    return as_it_is(session.dialect, spec, found), is_marked(spec, found)
