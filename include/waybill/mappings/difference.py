"""The differences between two mappings of an event name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from waybill.pipelines import Column, EventDeclaration

_FIELDS = ("version", "policy", "nested", "depth", "arrays", "personal")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs."""

    what: str
    """``table``, ``column``, ``type``, ``null``, ``source``, ``key``, or a declaration's field."""
    table: str
    name: str
    """The column; empty when the whole table, or the event, is meant."""
    before: str | None
    """None: it was not there."""
    after: str | None
    """None: it is not there any more."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return asdict(self)


def differences(before: EventDeclaration | None, after: EventDeclaration) -> list[Difference]:
    """Return what differs: the event's own fields, its table's columns, its child tables."""
    if before is None:
        return [
            Difference("table", table, "", None, _size(columns))
            for table, columns in _tables(after).items()
        ]
    return [*_fields(before, after), *_of_tables(before, after)]


def _fields(before: EventDeclaration, after: EventDeclaration) -> Iterator[Difference]:
    table = after.table.name
    pairs: list[tuple[str, Any, Any]] = [
        (name, getattr(before, name), getattr(after, name)) for name in _FIELDS
    ]
    pairs += [
        ("key", before.table.key, after.table.key),
        ("table", _place(before), _place(after)),
        ("deletes", _deletes(before), _deletes(after)),
    ]
    for name, old, new in pairs:
        if old != new:
            yield Difference(name, table, "", _shown(old), _shown(new))


def _place(event: EventDeclaration) -> str:
    return f"{event.table.schema_name}.{event.table.name}"


def _deletes(event: EventDeclaration) -> str:
    return "soft" if event.table.soft_delete else "hard"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)


def _tables(event: EventDeclaration) -> dict[str, Sequence[Column]]:
    children = {child.name: child.columns for child in event.table.children}
    return {event.table.name: event.table.columns, **children}


def _size(columns: Sequence[Column]) -> str:
    return f"{len(columns)} column{'' if len(columns) == 1 else 's'}"


def _of_tables(before: EventDeclaration, after: EventDeclaration) -> Iterator[Difference]:
    old, new = _tables(before), _tables(after)
    old[after.table.name] = old.pop(before.table.name)
    for table, columns in new.items():
        if table in old:
            yield from _columns(table, old[table], columns)
        else:
            yield Difference("table", table, "", None, _size(columns))
    for table in old:
        if table not in new:
            yield Difference("table", table, "", _size(old[table]), None)


def _columns(table: str, before: Sequence[Column], after: Sequence[Column]) -> Iterator[Difference]:
    old = {column.name: column for column in before}
    for column in after:
        there = old.pop(column.name, None)
        if there is None:
            yield Difference("column", table, column.name, None, column.type)
        else:
            yield from _column(table, there, column)
    for name, column in old.items():
        yield Difference("column", table, name, column.type, None)


def _column(table: str, before: Column, after: Column) -> Iterator[Difference]:
    for what, old, new in (
        ("type", before.type, after.type),
        ("null", _null(before), _null(after)),
        ("source", before.source, after.source),
    ):
        if old != new:
            yield Difference(what, table, after.name, old, new)


def _null(column: Column) -> str:
    return "null" if column.nullable else "not null"
