"""What a shape cannot say: names that must agree with each other.

The rules read the plain document, not the form, so that they also speak when the shape is wrong
elsewhere; what has the wrong shape they pass over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from waybill.pipelines.nesting_rules import check_nesting, flattens, source_of, unescaped
from waybill.pipelines.problems import hint, shown_name
from waybill.pipelines.shape import Finding


def check_rules(document: Any) -> Iterator[Finding]:
    """Yield every disagreement within one declaration."""
    source, events = _mapping(document, "source"), _mapping(document, "events")
    yield from _source_event(source, events)
    yield from _order_by(source)
    for name, event in events.items():
        columns = _mapping(event, "columns")
        yield from _key(name, event, columns)
        yield from _twins(name, columns)
        yield from _personal(name, event, source)
        if name == source.get("event"):
            yield from _source_fields(name, event, columns, source)
    yield from _shared_tables(events)
    yield from check_nesting(events)


def _source_event(source: dict[str, Any], events: dict[str, Any]) -> Iterator[Finding]:
    name = source.get("event")
    if isinstance(name, str) and events and name not in events:
        yield ("source", "event"), _unknown(name, "an event name of this pipeline", events)


def _order_by(source: dict[str, Any]) -> Iterator[Finding]:
    columns = _mapping(source, "columns")
    for index, name in enumerate(_texts(source, "order_by")):
        if columns and name not in columns:
            place = ("source", "order_by", index)
            yield place, _unknown(name, "a column of source.columns", columns)


def _key(name: str, event: Any, columns: dict[str, Any]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, key in enumerate(_texts(event, "key")):
        place = ("events", name, "key", index)
        if columns and key not in columns:
            yield place, _unknown(key, "a column of this event", columns)
        if key in seen:
            yield place, f"expected each column once; found {shown_name(key)!r} again"
        seen.add(key)
        if _mapping(columns, key).get("nullable") is True:
            where = ("events", name, "columns", key, "nullable")
            yield where, "expected false; found true, but a key column is never null"


def _twins(name: str, columns: dict[str, Any]) -> Iterator[Finding]:
    folded: dict[str, str] = {}
    for column in columns:
        twin = folded.setdefault(column.casefold(), column)
        if twin != column:
            yield (
                ("events", name, "columns", column),
                f"expected names that differ by more than case; found {shown_name(column)!r}"
                f" beside {shown_name(twin)!r}, which warehouses take as one",
            )


def _personal(name: str, event: Any, source: dict[str, Any]) -> Iterator[Finding]:
    """Refuse unknown names: a misspelt one would leave the field open to everybody.

    Not under ``policy: evolve``: a field may be personal before it is met.
    """
    columns = _mapping(event, "columns")
    if not columns:
        return
    known = {*columns, *(source_of(event, *column) for column in columns.items())}
    arrays = (_mapping(child).get("from") for child in _mapping(event, "children").values())
    known |= {array for array in arrays if isinstance(array, str)}
    open_ended, paths = _mapping(event).get("policy") == "evolve", flattens(event)
    if name == source.get("event"):
        known |= set(_mapping(source, "columns"))
    fields = {field: None for field in known if isinstance(field, str)}
    seen: set[str] = set()
    for index, field in enumerate(_texts(event, "personal")):
        place = ("events", name, "personal", index)
        if not open_ended and not any(_reaches(field, one, paths=paths) for one in fields):
            expected = "a field of the payload: a column, or what one is read from"
            if name == source.get("event"):
                expected += ", or a column of source.columns"
            yield place, _unknown(field, expected, fields)
        elif field in seen:
            yield place, f"expected each field once; found {shown_name(field)!r} again"
        seen.add(field)


def _reaches(field: str, known: str, *, paths: bool) -> bool:
    """Tell whether a field is a known one, inside of it, or (where those are paths) around it."""
    around = paths and known.startswith(f"{field}.")
    return field == known or field.startswith(f"{known}.") or around


def _source_fields(
    name: str,
    event: Any,
    columns: dict[str, Any],
    source: dict[str, Any],
) -> Iterator[Finding]:
    """Key and version make an event's identity, so their types must not be guessed."""
    declared = _mapping(source, "columns")
    if not declared:
        return
    for index, key in enumerate(_texts(event, "key")):
        field = source_of(event, key, columns.get(key))
        field = unescaped(field) if flattens(event) else field
        if key in columns and field not in declared:
            yield (
                ("events", name, "key", index),
                _unknown(field, "a key that is read from a column of source.columns", declared),
            )
    version = _mapping(event).get("version")
    if isinstance(version, str) and version not in declared:
        place = ("events", name, "version")
        yield place, _unknown(version, "a column of source.columns", declared)


def _shared_tables(events: dict[str, Any]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for name, event in events.items():
        table = _mapping(event).get("table")
        if not isinstance(table, str):
            continue
        other = first.setdefault(table, name)
        if other != name and not _same_table(event, events[other]):
            yield (
                ("events", name, "table"),
                f"expected the same columns and key as event {shown_name(other)!r}, which"
                f" writes table {shown_name(table)!r} too; found others",
            )


def _same_table(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def named(event: dict[str, Any]) -> Any:
        columns = _mapping(event, "columns")
        parts = [str(event.get(part)) for part in ("nested", "depth", "children", "deletes")]
        return event.get("key"), [(c, str(v)) for c, v in columns.items()], parts

    return bool(named(one) == named(other))


def _unknown(name: str, expected: str, choices: dict[str, Any]) -> str:
    return f"expected {expected}; found {shown_name(name)!r}{hint(name, choices)}"


def _mapping(value: Any, *path: str) -> dict[str, Any]:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _texts(value: Any, name: str) -> list[str]:
    """Return a list of texts, or nothing when it is not one."""
    found = _mapping(value).get(name)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        return []
    return found
