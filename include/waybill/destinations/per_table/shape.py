"""What a table's columns must be, and what has to change for it; the same for every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS, RESERVED_PREFIX
from waybill.destinations.specs import ITEM
from waybill.errors import InputError, RetryError
from waybill.pipelines import TableSpec, arrow_type, widened

MOST_NAME_BYTES = 255
_SIMPLE = ("bool", "int32", "int64", "float64", "string", "timestamp", "date", "bytes")
_NAMES = {arrow_type(name): name for name in _SIMPLE} | {
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "bytes",
    pa.binary_view(): "bytes",
}


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """What has to change of a table's columns."""

    add: tuple[pa.Field, ...] = ()
    widen: tuple[pa.Field, ...] = ()
    """Columns with their new types."""
    loosen: tuple[str, ...] = ()
    """Columns that must take null."""
    empty: bool = False
    """The table has no rows."""

    def __bool__(self) -> bool:
        return bool(self.add or self.widen or self.loosen)


def shape_of(spec: TableSpec) -> pa.Schema:
    """Return the columns that a table must have, the system's behind the user's."""
    fields = [
        pa.field(c.name, arrow_type(c.type), nullable=c.nullable and c.name not in spec.key)
        for c in spec.columns
    ]
    system = [*KEPT_COLUMNS, *([(DELETED_AT, "timestamp")] if spec.soft_delete else [])]
    return pa.schema([*fields, *(pa.field(name, arrow_type(kind)) for name, kind in system)])


def plan(spec: TableSpec, found: pa.Schema, *, empty: bool) -> ShapePlan:
    """Return what has to change of a table; columns that the declaration lacks must take null.

    Raises:
        InputError: a conflict that is the user's to resolve.
    """
    wanted = shape_of(spec)
    folded = {name.casefold(): name for name in found.names}
    changes = ShapePlan(empty=empty)
    for item in wanted:
        known = folded.get(item.name.casefold())
        if known is None:
            changes = _added(spec, changes, item)
        elif known != item.name:
            raise InputError(
                f"{_shown(spec)}: found column {known!r}, expected {item.name!r}, which is "
                "the same name in this format; rename one"
            )
        else:
            changes = _fitted(spec, changes, item, found.field(known))
    names = set(wanted.names)
    unknown = tuple(f.name for f in found if f.name not in names and not f.nullable)
    return replace(changes, loosen=(*changes.loosen, *unknown))


def check_unchanged(spec: TableSpec, found: pa.Schema) -> None:
    """Refuse a table that is no longer what it was brought to: values would be cut to what it has.

    Raises:
        RetryError: somebody changed it since; it must be brought to its declaration again.
    """
    try:
        changed = bool(plan(spec, found, empty=False))
    except InputError:
        changed = True
    if changed:
        raise RetryError(
            f"table {_shown(spec)} was changed by somebody else; it is compared with its "
            "declaration again"
        )


def _added(spec: TableSpec, changes: ShapePlan, item: pa.Field) -> ShapePlan:
    if not item.nullable and not changes.empty:
        raise InputError(
            f"table {_shown(spec)} has rows, and a new column of it is declared NOT NULL: "
            f"{item.name!r}; declare the column nullable"
        )
    return replace(changes, add=(*changes.add, item))


def _fitted(spec: TableSpec, changes: ShapePlan, wanted: pa.Field, found: pa.Field) -> ShapePlan:
    own, need = type_name(found.type), type_name(wanted.type)
    wider = widened(own, need) if own is not None and need is not None else None
    if wider is None:
        raise InputError(
            f"{_shown(spec)}, column {wanted.name!r}: found {own or found.type}, expected {need}; "
            "change the table's column or the declared type"
        )
    if wider != own:
        changes = replace(
            changes,
            widen=(*changes.widen, pa.field(wanted.name, arrow_type(wider), found.nullable)),
        )
    if wanted.nullable and not found.nullable:
        changes = replace(changes, loosen=(*changes.loosen, wanted.name))
    if found.nullable and not wanted.nullable and wanted.name not in spec.key:
        raise InputError(
            f"{_shown(spec)}, column {wanted.name!r}: found nullable, expected NOT NULL; declare "
            "the column nullable, or let the table's column take no null (SET NOT NULL)"
        )
    return changes


def type_name(kind: pa.DataType) -> str | None:
    """Return the column type of an Arrow type; None: no column has it."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit == "us":
        return "timestamp"
    return _NAMES.get(kind)


def plain_field(field: pa.Field) -> pa.Field:
    """Return a field with the type that the rest of Waybill has for it."""
    kind = field.type
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.field(field.name, kind, field.nullable)


def check_names(spec: TableSpec) -> None:
    """Refuse names that cannot be.

    Raises:
        InputError: names table and column, and what is wrong.
    """
    if spec.schema_name == "waybill" and spec.name.startswith(RESERVED_PREFIX):
        raise InputError(f"table {_shown(spec)} is Waybill's own; choose another name")
    columns = [column.name for column in spec.columns if column.name != ITEM]
    for name in (spec.schema_name, spec.name, *columns):
        where = f"table {_shown(spec)}: name {name!r}"
        if not name or "\0" in name:
            raise InputError(f"{where} is empty or holds a NUL, which no name may")
        if len(name.encode()) > MOST_NAME_BYTES:
            raise InputError(
                f"{where} has {len(name.encode())} bytes, {MOST_NAME_BYTES} are allowed; choose a "
                "shorter one"
            )
    _check_columns(spec, columns)


def _check_columns(spec: TableSpec, columns: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in columns:
        where = f"table {_shown(spec)}: column name {name!r}"
        if name.casefold().startswith(RESERVED_PREFIX):
            raise InputError(f"{where} is reserved; choose another")
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InputError(f"{where} and {other!r} are one name in this format; rename one")


def _shown(spec: TableSpec) -> str:
    return f"{spec.schema_name}.{spec.name}"
