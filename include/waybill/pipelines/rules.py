"""Rules between the fields of a declaration, which its shape alone cannot express.

The rules read the plain document, not the form, so that they also speak when the shape is wrong
elsewhere; what has the wrong shape they pass over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from waybill.nearest_name import hint, shown_name
from waybill.pipelines.form import Finding


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
    known = unescaped(known) if paths else known
    return any(
        f"{name}.".startswith(f"{known}.") or (paths and known.startswith(f"{name}."))
        for name in (field, unescaped(field))
    )


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
    texts = _mapping(value).get(name)
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        return []
    return texts


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
        message = "expected `nested: flatten` beside it: a depth is that of flattening; found none"
        yield ("events", name, "depth"), message


def _paths(name: str, event: dict[str, Any]) -> Iterator[Finding]:
    keys = event.get("key")
    json_paths: dict[str, str] = {}
    paths: dict[str, str] = {}
    for column, shape in _mapping(event.get("columns")).items():
        path = source_of(event, column, shape)
        place = ("events", name, "columns", column)
        if not _PATH.fullmatch(path):
            message = 'expected a path of fields: a.b, with "\\" before a "." or "\\" in a name'
            yield (*place, "from"), f"{message}; found {shown_name(path)!r}"
        elif isinstance(keys, list) and column in keys and _SEPARATOR.match(path):
            message = "expected a field of the payload itself, for keys are read before anything is"
            yield (*place, "from"), f"{message} flattened; found the path {shown_name(path)!r}"
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
            message = f"expected a table of its own; event {shown_name(other)!r} writes it too"
            yield place, message
        array = _mapping(child).get("from")
        if isinstance(array, str) and arrays.setdefault(array, table) != table:
            message = f"expected each array once; found that of {shown_name(arrays[array])!r} again"
            yield (*place, "from"), message
        yield from _child_columns(place, _mapping(_mapping(child).get("columns")), keys)


def _child_columns(
    place: tuple[str, ...], columns: dict[str, Any], keys: set[str]
) -> Iterator[Finding]:
    folded: dict[str, str] = {}
    for column, shape in columns.items():
        where = (*place, "columns", column)
        twin = folded.setdefault(column.casefold(), column)
        if column.casefold() in keys:
            message = (
                "expected a name that the event's key does not have: a child table has the key"
            )
            yield where, f"{message}'s columns too; found {shown_name(column)!r}"
        elif twin != column:
            message = f"expected names that differ by more than case; found {shown_name(column)!r}"
            yield where, f"{message} beside {shown_name(twin)!r}, which warehouses take as one"
        if _mapping(shape).get("from") == "" and len(columns) > 1:
            message = 'expected no column beside one with `from: ""`, which is the whole item'
            yield where, f"{message}; found {len(columns) - 1}"


def _evolving(events: dict[str, Any]) -> Iterator[Finding]:
    """Refuse a table of two events of which one learns by itself: their columns would differ."""
    first: dict[str, tuple[str, bool]] = {}
    for name, event in events.items():
        table, evolves = _mapping(event).get("table"), _mapping(event).get("policy") == "evolve"
        if not isinstance(table, str):
            continue
        other, other_evolves = first.setdefault(table, (name, evolves))
        if other != name and (evolves or other_evolves):
            message = "expected a table of its own under `policy: evolve`; event"
            yield ("events", name, "table"), f"{message} {shown_name(other)!r} writes it too"
