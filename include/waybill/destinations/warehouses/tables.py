"""Bringing tables to their declarations in a warehouse."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from waybill.destinations.warehouses.errors import WarehouseError
from waybill.destinations.warehouses.schema import Found, FoundColumn, check_names, plan
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


def ensure_tables(session: Session, specs: Sequence[TableSpec]) -> None:
    """Bring tables to their declarations. Cost: one query a table when nothing is to be done.

    Statements are safe to run twice, but for columns that two loaders add at once: one of them
    fails, looks again when it is called again, and finds the column.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    for spec in specs:
        check_names(session.dialect, spec)
        for statement in plan(session.dialect, spec, found_columns(session, spec)):
            _LOG.info("%s", statement)
            session.execute(statement)
