"""What must agree where payloads are nested, arrays have tables, or a table evolves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from waybill.pipelines.problems import shown_name
from waybill.pipelines.shape import Finding

_PATH = re.compile(r"(?:[^\\]|\\[\\.])*", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\.])")
_SEPARATOR = re.compile(r"(?:[^\\.]|\\.)*\.", re.DOTALL)


def escaped(name: str) -> str:
    """Return the path of a field at a payload's top, of a flattened event."""
    return name.replace("\\", "\\\\").replace(".", "\\.")


def unescaped(path: str) -> str:
    """Return the name of the field that a path of one part means."""
    return _ESCAPED.sub(r"\1", path)


def flattens(event: Any) -> bool:
    """Tell whether an event's ``from`` are paths."""
    return isinstance(event, dict) and event.get("nested") == "flatten"


def source_of(event: Any, column: str, shape: Any) -> str:
    """Return the payload field that a column is read from; its path where that is one."""
    given = _mapping(shape).get("from")
    if isinstance(given, str):
        return given
    return escaped(column) if flattens(event) else column


def check_nesting(events: dict[str, Any]) -> Iterator[Finding]:
    """Yield what does not agree in the events of one declaration."""
    tables = _tables(events)
    for name, event in events.items():
        yield from _depth(name, event)
        if flattens(event):
            yield from _paths(name, event)
        yield from _children(name, event, tables)
    yield from _evolving(events)


def _tables(events: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the events, each with the first that writes it."""
    found: dict[str, str] = {}
    for name, event in events.items():
        if isinstance(table := _mapping(event).get("table"), str):
            found.setdefault(table, name)
    return found


def _depth(name: str, event: Any) -> Iterator[Finding]:
    if "depth" in _mapping(event) and not flattens(event):
        words = "expected `nested: flatten` beside it: a depth is that of flattening; found none"
        yield ("events", name, "depth"), words


def _paths(name: str, event: dict[str, Any]) -> Iterator[Finding]:
    keys = event.get("key")
    json_paths: dict[str, str] = {}
    paths: dict[str, str] = {}
    for column, shape in _mapping(event.get("columns")).items():
        path = source_of(event, column, shape)
        place = ("events", name, "columns", column)
        if not _PATH.fullmatch(path):
            words = 'expected a path of fields: a.b, with "\\" before a "." or "\\" in a name'
            yield (*place, "from"), f"{words}; found {shown_name(path)!r}"
        elif isinstance(keys, list) and column in keys and _SEPARATOR.match(path):
            words = "expected a field of the payload itself, for keys are read before anything is"
            yield (*place, "from"), f"{words} flattened; found the path {shown_name(path)!r}"
        paths[column] = path
        if (shape if isinstance(shape, str) else _mapping(shape).get("type")) == "json":
            json_paths[path] = column
    for column, path in paths.items():
        for around in _around(path):
            if around in json_paths:
                yield (
                    ("events", name, "columns", column),
                    "expected a field of its own: it is inside the one that column"
                    f" {shown_name(json_paths[around])!r} takes whole, as json",
                )


def _around(path: str) -> Iterator[str]:
    """Yield the paths that a path is inside of."""
    end = 0
    while (match := _SEPARATOR.match(path, end)) is not None:
        end = match.end()
        yield path[: end - 1]


def _children(name: str, event: Any, tables: dict[str, str]) -> Iterator[Finding]:
    given = _mapping(event).get("key")
    found = given if isinstance(given, list) else ()
    keys = {key.casefold() for key in found if isinstance(key, str)}
    arrays: dict[str, str] = {}
    for table, child in _mapping(_mapping(event).get("children")).items():
        place = ("events", name, "children", table)
        other = tables.setdefault(table, name)
        if other != name or table == event.get("table"):
            words = f"expected a table of its own; event {shown_name(other)!r} writes it too"
            yield place, words
        array = _mapping(child).get("from")
        if isinstance(array, str) and arrays.setdefault(array, table) != table:
            words = f"expected each array once; found that of {shown_name(arrays[array])!r} again"
            yield (*place, "from"), words
        yield from _child_columns(place, _mapping(_mapping(child).get("columns")), keys)


def _child_columns(
    place: tuple[str, ...], columns: dict[str, Any], keys: set[str]
) -> Iterator[Finding]:
    folded: dict[str, str] = {}
    for column, shape in columns.items():
        where = (*place, "columns", column)
        twin = folded.setdefault(column.casefold(), column)
        if column.casefold() in keys:
            words = "expected a name that the event's key does not have: a child table has the key"
            yield where, f"{words}'s columns too; found {shown_name(column)!r}"
        elif twin != column:
            words = f"expected names that differ by more than case; found {shown_name(column)!r}"
            yield where, f"{words} beside {shown_name(twin)!r}, which warehouses take as one"
        if _mapping(shape).get("from") == "" and len(columns) > 1:
            words = 'expected no column beside one with `from: ""`, which is the whole item'
            yield where, f"{words}; found {len(columns) - 1}"


def _evolving(events: dict[str, Any]) -> Iterator[Finding]:
    """Refuse a table of two events of which one learns by itself: their columns would differ."""
    first: dict[str, tuple[str, bool]] = {}
    for name, event in events.items():
        table, evolves = _mapping(event).get("table"), _mapping(event).get("policy") == "evolve"
        if not isinstance(table, str):
            continue
        other, other_evolves = first.setdefault(table, (name, evolves))
        if other != name and (evolves or other_evolves):
            words = "expected a table of its own under `policy: evolve`; event"
            yield ("events", name, "table"), f"{words} {shown_name(other)!r} writes it too"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
