"""A table in a lake, whatever its format: what loads ask of it, and what its columns must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from waybill.destinations.key_sums import (
    MOST_ROWS,
    Hashes,
    KeySums,
    Numbers,
    key_hashes,
    key_types,
    moments,
)
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS, RESERVED_PREFIX
from waybill.destinations.specs import ITEM
from waybill.errors import InputError, RetryError
from waybill.pipelines import TableSpec, arrow_type, widened

if TYPE_CHECKING:
    from waybill.destinations.per_table.books import LoadRecord

FILE = "_waybill_file"
"""Column of a scan: which of the snapshot's files a row lies in (int32)."""
OP = "_waybill_op"
UPSERT, DELETE, SOFT_DELETE, TOUCH = "upsert", "delete", "soft", "touch"
"""What a changed row does: put it there; remove it; mark it deleted; move its versions on."""

Bounds = Mapping[str, tuple[Any, Any]]
"""Column to the least and the greatest value that are looked for; both are in."""


class ConflictError(RetryError):
    """Somebody else wrote to the table since it was read: read and judge again."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit does to a table's rows."""

    rows: pa.Table
    """Columns of the table, and ``OP``; one row a key at most. Of a delete only the key counts, of
    a soft delete and a touch the key and the system columns."""
    key: tuple[str, ...]
    met: np.ndarray[Any, np.dtype[np.int64]]
    """Places in ``rows`` of those whose key is in the table,"""
    files: frozenset[int]
    """and the files they lie in, by the numbers that the scan gave."""


@dataclass(frozen=True, slots=True)
class RowStamp:
    """What a commit says of itself: for which destination, up to which commit number, the books."""

    destination: str
    """Empty: none; then the table's commit numbers stay as they are."""
    number: int
    record: LoadRecord | None
    """None: a table that has no books, for it is no event's own."""


class LakeTable(Protocol):
    """One table, as of the snapshot that ``refresh`` read."""

    schema_name: str
    name: str

    def refresh(self) -> bool:
        """Read the newest snapshot; returns whether the table is there."""
        ...

    def fields(self) -> pa.Schema:
        """Return its columns; nullable or not as it has them."""
        ...

    def checks(self) -> Mapping[str, str]:
        """Return its CHECK constraints: name to expression, in Spark's SQL."""
        ...

    def last_number(self, destination: str) -> int | None:
        """Return the greatest commit number of a destination that the table has."""
        ...

    def record(self) -> LoadRecord | None:
        """Return the books that the newest commit of a load left; None: there are none."""
        ...

    def count(self) -> int:
        """Return how many rows it has. Cost: of metadata, not of rows."""
        ...

    def scan(self, columns: Sequence[str], bounds: Bounds) -> pa.RecordBatchReader:
        """Read columns and ``FILE`` of all rows within the bounds, perhaps of more."""
        ...

    def commit(self, changes: Changes | None, stamp: RowStamp) -> None:
        """Change rows and leave the stamp, in one commit on top of the snapshot; then refresh.

        Raises:
            ConflictError: there is a newer snapshot.
        """
        ...

    def append(self, rows: pa.Table) -> None:
        """Add rows, whatever others do."""
        ...

    def replace(self, column: str, value: str, rows: pa.Table) -> None:
        """Put ``rows`` in the place of those with this value.

        Raises:
            ConflictError: there is a newer snapshot.
        """
        ...

    def create(self, schema: pa.Schema) -> None:
        """Make the table; nothing happens when somebody else just did."""
        ...

    def alter(self, plan: ShapePlan) -> None:
        """Bring its columns to a plan.

        Raises:
            ConflictError: there is a newer snapshot.
        """
        ...

    def drop(self) -> None:
        """Remove the table, its rows too."""
        ...


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The keys of a table's rows, by their hashes."""

    hashes: Hashes
    loaded_at: Numbers
    """When each was loaded, in microseconds; rows that no load put there: the least number."""
    sums: KeySums

    @classmethod
    def can_read(cls, table: LakeTable, spec: TableSpec, rows: int) -> bool:
        """Tell whether they may be read: not of too many rows, or where the key's columns went."""
        names = {*spec.key, KEPT_COLUMNS[-1][0]}
        return rows <= MOST_ROWS and names <= set(table.fields().names)

    @classmethod
    def read(cls, table: LakeTable, spec: TableSpec) -> TableKeys:
        """Read them. Cost: a pass over the key's columns; 16 bytes a row are held."""
        types, at = key_types(spec), KEPT_COLUMNS[-1][0]
        hashes, loaded = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for batch in table.scan([*spec.key, at], {}):
            columns = [pa.chunked_array([batch.column(name)]) for name in spec.key]
            hashes.append(key_hashes(types, columns))
            loaded.append(moments(batch.column(at)))
        found = np.concatenate(hashes)
        return cls(found, np.concatenate(loaded), KeySums.of(found))


class Lake(Protocol):
    """A place with tables of one format."""

    def table(self, schema_name: str, name: str) -> LakeTable:
        """Return a table that may be there or not; ``refresh`` tells."""
        ...

    def check(self) -> None:
        """See whether it answers."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


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
            f"somebody else changed table {_shown(spec)} during the load; it is compared with its "
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
