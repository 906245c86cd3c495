"""Example events of a pipeline, and what is expected of them.

``events.jsonl`` has a JSON object a line::

    {"note": "for people", "data": {…the payload…}, "rows": {"orders": [{"id": 1, "paid": true}]}}
    {"data": {…}, "parked": "null_value"}
    {"data": {…}, "filtered": true}
    {"data": {…}, "event": "refund", "op": "delete", "deleted": {"refunds": [{"id": 1}]}}

Of an expected row only the columns that it names are compared. An event that says nothing of what
is expected must not park.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from waybill.events import CATALOGUE, dumps, loads
from waybill.nearest_name import hint, shown_name
from waybill.pipelines import (
    EXAMPLES,
    DeclarationError,
    Pipeline,
    Problem,
    read_inside,
)
from waybill.testing.events import Event, declared_fields
from waybill.testing.runs import EventResult, Rows, converted, json_value

KEY_ONLY = (
    "a delete has its key, and no other field that is sure to be there: begin the transformation"
    ' with `if event.op == "delete": return event`, or say in events.jsonl what is to become of it:'
    ' {"op": "delete", "data": {…its key, or the whole row…}, "parked": "…"}'
)
"""What to do where a transformation takes no delete as a source brings it."""
MOST_BYTES = 16 * 1024**2
_MOST_SHOWN = 60
_STAGES = ("ingestion", "transformation", "mapping")
"""That an event meets without servers."""
_OPS = ("upsert", "delete")
_SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "data": (dict, "the payload, an object"),
    "note": (str, "text"),
    "rows": (dict, 'rows by table: {"<table>": [{"<column>": <value>}]}'),
    "deleted": (dict, 'keys of rows by table: {"<table>": [{"<column>": <value>}]}'),
    "parked": ((str, list), "an error type, or a list of them"),
    "filtered": (bool, "true"),
    "event": (str, "an event name of the pipeline"),
    "op": (str, "upsert or delete"),
}
"""What an example may say: of which type, and in words."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example event."""

    line: int
    """1-based, in its file."""
    data: dict[str, Any]
    note: str = ""
    rows: Rows | None = None
    """Expected, by table; None: they are not compared, unless ``deleted`` is given."""
    deleted: Rows | None = None
    """Expected: the keys of rows that it deletes."""
    parked: tuple[str, ...] = ()
    """Error types that it is expected to park with, each perhaps with its stage before it."""
    filtered: bool = False
    event: str | None = None
    """Its event name; None: as the pipeline's source names it."""
    op: Literal["upsert", "delete"] = "upsert"

    @property
    def given(self) -> Event:
        """Return the event itself."""
        return Event(self.data, self.event, self.op)


def read_examples(directory: Path) -> list[Example]:
    """Return the example events of a pipeline's folder.

    Raises:
        DeclarationError: the file is not there, is empty, or has mistakes; lists all.
    """
    file = str(directory / EXAMPLES)
    text, wrong = read_inside(directory, EXAMPLES, MOST_BYTES)
    if text is None:
        raise DeclarationError([Problem(file, 1, "", wrong)])
    return _read(file, text, payloads=False)


def parse_events(file: str, text: str) -> list[Example]:
    """Return the events of a text, a JSON object a line: a payload, or an example event.

    An example event is an object with ``data``, an object, and no field that no example event has.

    Raises:
        DeclarationError: the text is empty, or has mistakes; lists all.
    """
    return _read(file, text, payloads=True)


class TriedDelete(NamedTuple):
    """A delete with its key alone."""

    event: Event
    is_sure: bool
    """Whether the source brings such a one: others may bring the whole row, and the key may be made
    up."""


def untried_deletes(pipeline: Pipeline, examples: Sequence[Example]) -> list[TriedDelete]:
    """Return a delete of each event name, with its key alone.

    None where the source is not declared to bring any, and none of an event name that has a delete
    among its examples: that one says what is to become of it.

    Args:
        pipeline: with its source.
        examples: its example events; a delete has the key of the first that is to become rows.
    """
    source = pipeline.source
    if not source.brings_deletes:
        return []
    told = {one.event or source.event for one in examples if one.op == "delete"}
    declared = [pipeline.events[name] for name in source.event_names if name in pipeline.events]
    deletes = []
    for one in declared:
        if one.name not in told:
            row = _row_of(one.name, examples, source.event)
            fields = declared_fields(one) | row
            key = {name: fields[name] for name in one.key if name in fields}
            is_sure = source.connector == "sql" and row.keys() >= key.keys()
            deletes.append(TriedDelete(Event(key, one.name, "delete", version=0), is_sure))
    return deletes


def _row_of(name: str, examples: Sequence[Example], own: str) -> dict[str, Any]:
    """Return the first example of an event name that is to become rows; empty: there is none."""
    for one in examples:
        is_row = not one.parked and not one.filtered and one.op == "upsert"
        if is_row and (one.event or own) == name:
            return one.data
    return {}


def _read(file: str, text: str, *, payloads: bool) -> list[Example]:
    examples: list[Example] = []
    problems: list[Problem] = []
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        value, mistakes = _parsed(content, payloads=payloads)
        problems += [Problem(file, line, field, message) for field, message in mistakes]
        if not mistakes:
            examples.append(_example(line, value))
    if not examples and not problems:
        each = "event" if payloads else "example event"
        shape = "{…the payload…}" if payloads else '{"data": {…the payload…}}'
        expected = f"expected a line {shape} for each {each}"
        problems.append(Problem(file, 1, "", f"{expected}; the file is empty"))
    if problems:
        raise DeclarationError(problems)
    return examples


def _parsed(content: str, *, payloads: bool) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return a line's value, and what is wrong with it: (field, message)."""
    try:
        value = loads(content.encode())
    except (ValueError, RecursionError) as error:
        return {}, [("", f"expected a JSON object; found {shown_name(str(error))}")]
    if not isinstance(value, dict):
        kind = type(value).__name__
        shape = "{…the payload…}" if payloads else '{"data": {…}}'
        return {}, [("", f"expected a JSON object {shape}; found {kind}")]
    if payloads and not (isinstance(value.get("data"), dict) and value.keys() <= _SHAPES.keys()):
        return {"data": value}, []
    return value, list(_mistakes(value))


def _mistakes(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _unknown(value)
    if "data" not in value:
        yield "data", "expected the payload, an object; it is missing"
    for name, (kind, expected) in _SHAPES.items():
        if name in value and not isinstance(value[name], kind):
            yield name, f"expected {expected}; found {shown_name(_shown(value[name]))}"
    for name in ("rows", "deleted"):
        yield from _wrong_rows(name, value.get(name))
    yield from _wrong_types(value.get("parked"))
    yield from _wrong_filter(value)
    if isinstance(op := value.get("op"), str) and op not in _OPS:
        yield "op", f"expected upsert or delete; found {shown_name(op)!r}{hint(op, _OPS)}"


def _unknown(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    known = ", ".join(_SHAPES)
    for name in value:
        if name not in _SHAPES:
            near = hint(name, _SHAPES)
            yield shown_name(name), f"expected one of {known}; found {shown_name(name)!r}{near}"


def _wrong_filter(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if value.get("filtered") is False:
        yield "filtered", "expected true; leave it out otherwise"
    others = [name for name in ("rows", "deleted", "parked") if value.get(name)]
    if value.get("filtered") is True and others:
        yield "filtered", f"expected no {others[0]} beside it: what is filtered goes nowhere"


def _wrong_rows(name: str, tables: object) -> Iterator[tuple[str, str]]:
    for table, rows in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            place = f"{name}.{shown_name(table)}"
            yield place, f"expected a list of objects; found {shown_name(_shown(rows))}"


def _wrong_types(parked: object) -> Iterator[tuple[str, str]]:
    if parked == []:
        yield "parked", "expected one error type or more; found none"
    for way in parked if isinstance(parked, list) else [parked]:
        if isinstance(way, str):
            stage, slash, code = way.rpartition("/")
            if code not in CATALOGUE:
                expected = "expected an error type of docs/error-types.md"
                yield "parked", f"{expected}; found {shown_name(way)!r}{hint(code, CATALOGUE)}"
            elif slash and stage not in _STAGES:
                expected = f"expected one of {', '.join(_STAGES)} before the error type"
                yield "parked", f"{expected}; found {shown_name(stage)!r}{hint(stage, _STAGES)}"
        elif isinstance(parked, list):
            yield "parked", f"expected text; found {shown_name(_shown(way))}"


def _example(line: int, value: Mapping[str, Any]) -> Example:
    parked = value.get("parked", ())
    return Example(
        line=line,
        data=value["data"],
        note=value.get("note", ""),
        rows=value.get("rows"),
        deleted=value.get("deleted"),
        parked=(parked,) if isinstance(parked, str) else tuple(dict.fromkeys(parked)),
        filtered=value.get("filtered", False),
        event=value.get("event"),
        op=value.get("op", "upsert"),
    )


def differences(example: Example, result: EventResult) -> list[str]:
    """Return in which ways a result is not what is expected, in words; none: it is as expected."""
    mismatches = list(_parking_differences(example, result))
    if example.filtered and not result.filtered and not mismatches:
        mismatches.append("expected it to be filtered; it passes")
    expected = (example.rows, example.deleted)
    if expected == (None, None) or (mismatches and not result.rows):
        return mismatches
    if result.filtered:
        return ["expected rows; it is filtered"] if any(expected) else []
    mismatches += _row_differences("", example.rows or {}, result.rows, result.types)
    mismatches += _row_differences("deleted ", example.deleted or {}, result.deleted, result.types)
    return mismatches


def _parking_differences(example: Example, result: EventResult) -> Iterator[str]:
    left = list(result.parked)
    for expected in example.parked:
        match = next((cause for cause in left if expected in (cause.error_type, cause.way)), None)
        if match is not None:
            left.remove(match)
        elif result.parked:
            ways = ", ".join(cause.way for cause in result.parked)
            yield f"expected it to park with {expected}; it parks with {ways}"
            return
        else:
            end = "is filtered" if result.filtered else "passes"
            yield f"expected it to park with {expected}; it {end}"
            return
    for cause in left:
        yield f"expected it not to park; it parks with {cause.way}"


def _row_differences(
    label: str, expected: Rows, actual: Rows, types: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    for table in dict.fromkeys([*expected, *actual]):
        left, right = expected.get(table, []), actual.get(table, [])
        place = f"{label}{shown_name(table)}"
        if len(left) != len(right):
            near = "" if right or table in types else hint(table, actual)
            yield f"{place}: expected {_counted(left)}; found {_counted(right)}{near}"
        for number, (wanted, row) in enumerate(zip(left, right, strict=False), 1):
            where = f"{place}, row {number}"
            yield from _value_differences(where, wanted, row, types.get(table, {}))


def _counted(rows: Sequence[object]) -> str:
    return f"{len(rows) or 'no'} row{'' if len(rows) == 1 else 's'}"


def _value_differences(
    place: str, expected: Mapping[str, Any], row: Mapping[str, Any], types: Mapping[str, str]
) -> Iterator[str]:
    for column, wanted in expected.items():
        if column not in row:
            yield f"{place}: there is no column {shown_name(column)!r}{hint(column, row)}"
            continue
        try:
            same = _same(converted(types[column], wanted), row[column])
        except Exception:  # noqa: BLE001 - a value may refuse in any way; it is no value of the row
            same = False
        if not same:
            left, right = _apart(_shown(wanted), _shown(row[column]))
            yield f"{place}, {shown_name(column)}: expected {left}; found {right}"


def _same(left: object, right: object) -> bool:
    return bool(left == right) or repr(left) == repr(right)  # a NaN is like any other


def _shown(value: object) -> str:
    try:
        return dumps(json_value(value)).decode()
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__} that cannot be written as JSON"


def _apart(left: str, right: str) -> tuple[str, str]:
    """Return two values cut short around where they first differ."""
    pairs = enumerate(zip(left, right, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(left), len(right)))
    start = max(0, same - _MOST_SHOWN // 2) if max(len(left), len(right)) > _MOST_SHOWN else 0
    return _cut(left, start), _cut(right, start)


def _cut(text: str, start: int) -> str:
    end = start + _MOST_SHOWN
    return ("…" if start else "") + text[start:end] + ("…" if len(text) > end else "")
