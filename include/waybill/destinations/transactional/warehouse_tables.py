"""Tables brought to their declarations: what is missing is made, what is too narrow is widened.

Engines differ in what they alter. What one cannot, is the user's to do, and an InputError says the
statements. A column that is wider than the declaration stays: rows are cast to it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from waybill.destinations.drivers import WarehouseError
from waybill.destinations.merging import DELETED_AT, RESERVED_PREFIX
from waybill.destinations.specs import ITEM, child_spec
from waybill.destinations.transactional.dialect import Dialect, not_null
from waybill.destinations.transactional.session import WarehouseSession
from waybill.destinations.transactional.tables import Table, kept_columns, shown
from waybill.errors import InputError
from waybill.mappings import rules_of
from waybill.pipelines import Column, TableSpec, widened

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WarehouseColumn:
    """A column as the catalogue has it."""

    type: str
    """As the catalogue spells it."""
    not_null: bool


Found = Mapping[str, WarehouseColumn]
"""A table's columns by name; empty: there is no such table."""


def check_names(dialect: Dialect, spec: TableSpec) -> None:
    """Refuse names that the engine, or Waybill's own columns, do not allow.

    Raises:
        InputError: names table and column, and what is wrong.
    """
    rules = rules_of(dialect.kind)
    own = [column.name for column in spec.columns if column.name != ITEM]
    names = [spec.schema_name, spec.name, *own]
    for name in names:
        where = f"table {shown(spec)}, name {name!r}"
        if not name or len(name.encode()) > rules.longest:
            raise InputError(
                f"{where}: found {len(name.encode())} bytes, expected 1 to {rules.longest}, all "
                f"that {dialect.title} takes; declare a shorter one"
            )
        for character, description in dialect.forbidden.items():
            if character in name:
                raise InputError(
                    f"{where}: found {description}, which {dialect.title} does not take in names; "
                    "declare another"
                )
        if name.startswith(RESERVED_PREFIX):
            raise InputError(f"{where}: names that begin with {RESERVED_PREFIX} are Waybill's own")
    columns = [column.name for column in spec.columns]
    folded = [name.lower() for name in columns] if rules.folds else columns
    if len(set(folded)) != len(folded):
        raise InputError(
            f"table {shown(spec)}: {dialect.title} takes two of the column names for one; declare "
            "names that differ in more than case"
        )


def plan(dialect: Dialect, spec: TableSpec, found: Found) -> list[str]:
    """Return the statements that bring a table to its declaration, in the engine's words.

    Raises:
        InputError: a conflict; names table, column, found, expected and what to run.
    """
    if not found:
        return creation(dialect, spec)
    by_name = _by_name(dialect, found)
    statements: list[str] = []
    for column in spec.columns:
        statements += _column_changes(
            dialect, spec, column, by_name.get(_key(dialect, column.name))
        )
    declared = {_key(dialect, column.name) for column in spec.columns}
    statements += [
        _relaxation(dialect, spec, name, column.type)
        for name, column in found.items()
        if column.not_null
        and _key(dialect, name) not in declared
        and not name.startswith(RESERVED_PREFIX)
    ]
    statements += [
        _filled(dialect.adding, dialect, spec, name, dialect.sql_type(kind))
        for name, kind in kept_columns(marked=spec.soft_delete)
        if _key(dialect, name) not in by_name
    ]
    return statements


def as_it_is(dialect: Dialect, spec: TableSpec, found: Found) -> TableSpec:
    """Return a declaration with the types that its table has once ``plan`` is carried out."""
    by_name = _by_name(dialect, found)

    def own(column: Column) -> Column:
        known = by_name.get(_key(dialect, column.name))
        holds = None if known is None else dialect.known(known.type)
        if holds is None or dialect.sql_type(holds) == dialect.sql_type(column.type):
            return column
        return column.model_copy(update={"type": widened(holds, column.type)})

    return spec.model_copy(update={"columns": tuple(own(column) for column in spec.columns)})


def is_marked(spec: TableSpec, found: Found) -> bool:
    """Say whether a table has the column that soft deletes mark."""
    return spec.soft_delete or DELETED_AT in found


def creation(dialect: Dialect, spec: TableSpec) -> list[str]:
    """Return the statements that make the schema and the table."""
    columns = [
        definition(dialect, column.name, column.type, required=not_null(spec, column))
        for column in spec.columns
    ]
    columns += [
        definition(dialect, name, kind, required=name != DELETED_AT)
        for name, kind in kept_columns(marked=spec.soft_delete)
    ]
    key = ", ".join(dialect.quoted(name) for name in spec.key)
    table = dialect.table(spec.schema_name, spec.name)
    return [
        f"CREATE SCHEMA IF NOT EXISTS {dialect.quoted(spec.schema_name)}",
        f"CREATE TABLE IF NOT EXISTS {table} "
        f"({', '.join(columns)}{dialect.key_clause.format(key=key)})"
        f"{dialect.table_suffix.format(key=key)}",
    ]


def definition(dialect: Dialect, name: str, kind: str, *, required: bool) -> str:
    """Return a column of a CREATE TABLE."""
    return f"{dialect.quoted(name)} {dialect.sql_type(kind)}{' NOT NULL' if required else ''}"


def _column_changes(
    dialect: Dialect, spec: TableSpec, column: Column, found: WarehouseColumn | None
) -> list[str]:
    kind = dialect.sql_type(column.type)
    if found is None:
        return [_filled(dialect.adding, dialect, spec, column.name, kind)]
    where = f"table {shown(spec)}, column {column.name!r}"
    holds = dialect.known(found.type)
    wider = _wider(dialect, holds, column.type)
    statements = []
    if wider is None:
        raise InputError(
            f"{where}: found {found.type}, expected {kind}; change the column's type there, or "
            "declare the column under another name"
        )
    if wider != holds and dialect.sql_type(wider) != dialect.sql_type(str(holds)):
        if not dialect.widens(str(holds), wider):
            raise InputError(
                f"{where}: found {found.type}, expected {dialect.sql_type(wider)}; "
                + _by_hand(dialect, spec, column.name, dialect.sql_type(wider))
            )
        to = dialect.sql_type(wider)
        statements.append(_filled(dialect.altering, dialect, spec, column.name, to))
    if found.not_null and not not_null(spec, column):
        statements.append(_relaxation(dialect, spec, column.name, dialect.sql_type(wider)))
    return statements


def _relaxation(dialect: Dialect, spec: TableSpec, name: str, kind: str) -> str:
    if not dialect.relaxing:
        raise InputError(
            f"table {shown(spec)}, column {name!r}: found NOT NULL, expected nullable; "
            + _by_hand(dialect, spec, name, kind)
        )
    return _filled(dialect.relaxing, dialect, spec, name, kind)


def _wider(dialect: Dialect, holds: str | None, declared: str) -> str | None:
    """Return the type that takes both; types that the engine spells alike are one."""
    if holds is None:
        return None
    if dialect.sql_type(holds) == dialect.sql_type(declared):
        return holds
    return widened(holds, declared)


def _by_hand(dialect: Dialect, spec: TableSpec, name: str, kind: str) -> str:
    """Return what to run where the engine does not alter a column so."""
    table = dialect.table(spec.schema_name, spec.name)
    column, other = dialect.quoted(name), dialect.quoted(f"{name}_new")
    update = f"UPDATE {table} SET {other} = CAST({column} AS {kind}) WHERE TRUE"
    return (
        f"{dialect.title} does not alter a column so: stop the pipeline's loads, run "
        f"{_filled(dialect.adding, dialect, spec, f'{name}_new', kind)}; {update}; "
        f"ALTER TABLE {table} DROP COLUMN {column}; "
        f"ALTER TABLE {table} RENAME COLUMN {other} TO {column}"
    )


def _filled(form: str, dialect: Dialect, spec: TableSpec, name: str, kind: str) -> str:
    table = dialect.table(spec.schema_name, spec.name)
    return form.format(table=table, column=dialect.quoted(name), type=kind)


def _by_name(dialect: Dialect, found: Found) -> dict[str, WarehouseColumn]:
    return {_key(dialect, name): column for name, column in found.items()}


def _key(dialect: Dialect, name: str) -> str:
    return name.lower() if rules_of(dialect.kind).folds else name


def found_columns(session: WarehouseSession, spec: TableSpec) -> Found:
    """Return a table's columns as the catalogue has them; empty: there is no such table."""
    try:
        rows = session.query_native(session.dialect.columns_query(spec)).to_pylist()
    except WarehouseError as error:
        if not error.code or error.code != session.dialect.absent:
            raise
        return {}
    return {row["name"]: WarehouseColumn(row["type"], bool(row["required"])) for row in rows}


def ensure_table(session: WarehouseSession, spec: TableSpec) -> Table:
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
    return Table(whole.model_copy(update={"children": tuple(children)}), marked)


def _brought(session: WarehouseSession, spec: TableSpec) -> tuple[TableSpec, bool]:
    check_names(session.dialect, spec)
    found = found_columns(session, spec)
    for statement in plan(session.dialect, spec, found):
        _LOG.info("%s", statement)
        session.execute_native(statement)
    return as_it_is(session.dialect, spec, found), is_marked(spec, found)
