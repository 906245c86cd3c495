"""Events of a source, as tests write them down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from waybill.errors import InputError
from waybill.ingestion.connectors import Record
from waybill.mappings import decode_path
from waybill.pipelines import EXAMPLES, PUSHED, EventDeclaration, Pipeline, load_pipeline

_VALUES: Mapping[str, Any] = {
    "bool": True,
    "int32": 1,
    "int64": 1,
    "float64": 1.0,
    "string": "text",
    "bytes": "",
    "timestamp": "2026-01-01T08:00:00Z",
    "date": "2026-01-01",
    "json": {},
}
"""One that a column of each type takes; a decimal takes 0."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, before it is taken in: what a source gives, not yet an id or a version.

    Events are values: ``with_fields``, ``without`` and ``deleted`` give others, and change none.
    """

    data: Mapping[str, Any]
    """The payload, as the connector gives it: JSON values, times as RFC 3339 text, decimals as
    text."""
    name: str | None = None
    """The event name; None: as the pipeline's source names it."""
    op: Literal["upsert", "delete"] = "upsert"
    version: int | None = None
    """The source's own version of the record; None: the declared field has it, if there is one."""

    def with_fields(self, /, **fields: Any) -> Event:
        """Return the event with these fields of its payload as given."""
        return replace(self, data={**self.data, **fields})

    def without(self, *names: str) -> Event:
        """Return the event without these fields of its payload."""
        return replace(self, data={n: v for n, v in self.data.items() if n not in names})

    def deleted(self, *key: str) -> Event:
        """Return the delete of the same record.

        Args:
            key: the fields that a delete has at this source; none: all of them.
        """
        kept = {n: v for n, v in self.data.items() if n in key} if key else self.data
        return replace(self, op="delete", data=kept)

    def record(self, pipeline: Pipeline, place: str = "event") -> Record:
        """Return it as a connector's row.

        Raises:
            InputError: its payload is no mapping, or its op is none.
        """
        if not isinstance(self.data, Mapping):
            kind = type(self.data).__name__
            raise InputError(f"{place}: expected a mapping, got {kind}")
        if self.op not in ("upsert", "delete"):
            raise InputError(f"{place}: expected op upsert or delete, got {str(self.op)[:100]!r}")
        name = self.name if self.name is not None else _name_of(pipeline, self.data)
        version = self.version
        if version is None and self.op == "delete":
            version = _version_of_delete(pipeline, name, self.data)
        return Record(dict(self.data), event=name, op=self.op, version=version)


def _version_of_delete(pipeline: Pipeline, name: str | None, data: Mapping[str, Any]) -> int | None:
    """Return a version for a delete without the field that has it, where its source gives it."""
    declared = pipeline.events.get(name or pipeline.source.event)
    lacks = declared is not None and declared.version is not None and declared.version not in data
    return 0 if lacks and pipeline.source.brings_deletes else None


_FIELD = "field:"


def _name_of(pipeline: Pipeline, data: Mapping[str, Any]) -> str | None:
    """Return the event name that a payload says, where the collector would find it there."""
    source = pipeline.source
    place = source.options.get("event_name")
    if source.connector != PUSHED or not isinstance(place, str) or not place.startswith(_FIELD):
        return None
    name = data.get(place.removeprefix(_FIELD))
    return name if isinstance(name, str) else None


def example_event(folder: str | Path, name: str | None = None) -> Event:
    """Return the first example event that is to become rows, or else `declared_event`.

    An example has values as the source gives them, which a transformation is written for; a
    column's type says what comes out of it.

    Args:
        folder: the pipeline's, with its events.jsonl.
        name: of the event; None: as the pipeline's source names it.

    Raises:
        DeclarationError: the declaration, or the examples, have mistakes.
        InputError: there is no example of this name, and no declaration.
    """
    from waybill.testing.examples import read_examples

    folder = Path(folder)
    own = load_pipeline(folder).source.event
    wanted = name or own
    for one in read_examples(folder) if (folder / EXAMPLES).exists() else ():
        is_row = not one.parked and not one.filtered and one.op == "upsert"
        if is_row and (one.event or own) == wanted:
            return one.given
    return declared_event(folder, name)


def declared_event(folder: str | Path, name: str | None = None) -> Event:
    """Return an event that has a value for each field that a pipeline declares a column for.

    Args:
        folder: the pipeline's.
        name: of the event; None: as the pipeline's source names it.

    Raises:
        DeclarationError: the declaration has mistakes, or no columns yet.
        InputError: it declares no event of this name.
    """
    pipeline = load_pipeline(Path(folder))
    declared = pipeline.events.get(name or pipeline.source.event)
    if declared is None:
        raise InputError(f"pipeline {pipeline.name!r} declares no event {name!r}")
    return Event(declared_fields(declared), name)


def declared_fields(declared: EventDeclaration) -> dict[str, Any]:
    """Return a payload with a value for each field that has a column."""
    data: dict[str, Any] = {}
    for column in declared.table.columns:
        parts = decode_path(column.source) if declared.nested == "flatten" else (column.source,)
        inside = data
        for part in parts[:-1]:
            inside = inside.setdefault(part, {})
        inside[parts[-1]] = _VALUES.get(column.type, 0)
    return data
