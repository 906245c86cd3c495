"""What event names map to: in force, at an earlier version, and what a deploy would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from waybill.deployment import active_pipeline, deployed_names
from waybill.errors import InputError, NotFoundError
from waybill.mappings import Difference, MappingVersion, differences, history, in_force, over
from waybill.nearest_name import hint
from waybill.pipelines import EventDeclaration, Pipeline, load_pipeline
from waybill.storage import TrackerStore
from waybill.storage.tracker import pipeline_versions


@dataclass(frozen=True, slots=True)
class ShownMapping:
    """What an event name maps to, or mapped to."""

    pipeline: str
    event: str
    destination: str
    number: int
    """0: no version is kept yet; it is what the pipeline declares."""
    newest: int
    author: str
    reason: str
    at: str
    """RFC 3339, or empty."""
    declaration: EventDeclaration
    declared: frozenset[tuple[str, str]]
    """(table, column) of those that the pipeline declares now; the others were learned."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; each column says whether it is declared or learned."""
        table = self.declaration.table
        return {
            "pipeline": self.pipeline,
            "event": self.event,
            "destination": self.destination,
            "number": self.number,
            "in_force": self.number == self.newest,
            "author": self.author,
            "reason": self.reason,
            "at": self.at,
            "schema": table.schema_name,
            "table": table.name,
            "key": list(table.key),
            "version": self.declaration.version,
            "personal": list(self.declaration.personal),
            "policy": self.declaration.policy,
            "nested": self.declaration.nested,
            "arrays": self.declaration.arrays,
            "deletes": "soft" if table.soft_delete else "hard",
            "columns": self._columns(table.name, table.columns),
            "children": [
                {
                    "table": child.name,
                    "source": child.source,
                    "columns": self._columns(child.name, child.columns),
                }
                for child in table.children
            ],
        }

    def _columns(self, table: str, columns: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {**column.to_json(), "origin": self.origin(table, column.name)} for column in columns
        ]

    def origin(self, table: str, column: str) -> str:
        """Return "declared" or "learned"."""
        return "declared" if (table, column) in self.declared else "learned"


@dataclass(frozen=True, slots=True)
class MappingDifference:
    """What differs between two mappings of an event name."""

    event: str
    before: str
    """"version 3", "deployed", ..."""
    after: str
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "event": self.event,
            "before": self.before,
            "after": self.after,
            "differences": [one.to_json() for one in self.differences],
        }


def show(
    tracker: TrackerStore, name: str, event: str | None = None, number: int | None = None
) -> list[ShownMapping]:
    """Return what a deployed pipeline's event names map to, or mapped to at a version.

    Raises:
        InputError: no such pipeline, event name or version.
    """
    pipeline = _deployed(tracker, name)
    if number is not None and event is None:
        event = _only_event(pipeline)
    versions = in_force(tracker, [pipeline.id])
    shown = []
    for one in _chosen(pipeline, [key[1] for key in versions], event):
        newest = versions.get((pipeline.id, one))
        version = newest
        if number is not None and (newest is None or newest.number != number):
            version = _numbered(tracker, pipeline.id, one, number)
        shown.append(_shown(pipeline, one, version, newest))
    return shown


def diff(
    tracker: TrackerStore,
    name: str,
    event: str | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
) -> list[MappingDifference]:
    """Return what differs between two versions: by default the newest, and the one before it.

    Raises:
        InputError: no such pipeline, event name or version.
    """
    pipeline = _deployed(tracker, name)
    if event is None and (first is not None or last is not None):
        event = _only_event(pipeline)
    versions: dict[str, list[MappingVersion]] = {}
    for version in history(tracker, pipeline.id, event):
        versions.setdefault(version.event_name, []).append(version)
    chosen = _chosen(pipeline, list(versions), event)
    return [_between(one, versions.get(one, []), first, last) for one in chosen]


def diff_folder(
    tracker: TrackerStore, folder: Path, event: str | None = None
) -> list[MappingDifference]:
    """Return what a deploy of a folder would change in what is in force.

    Raises:
        DeclarationError: the folder's declaration has mistakes.
        InputError: no such event name, or what is declared cannot be laid over what is in force.
    """
    proposed = load_pipeline(folder)
    active = _newest(tracker, proposed.id)
    versions = in_force(tracker, [proposed.id])
    made = []
    for name in _chosen(proposed, [], event):
        kept = versions.get((proposed.id, name))
        before = None if active is None else active.events.get(name)
        there = before if kept is None else kept.declaration
        after = proposed.events[name]
        if there is not None:
            after = over(after, there, before)
        words = "nothing" if there is None else f"version {0 if kept is None else kept.number}"
        changes = tuple(differences(there, after))
        made.append(MappingDifference(name, words, "deployed", changes))
    return made


def _deployed(tracker: TrackerStore, name: str) -> Pipeline:
    """Return the active version of one pipeline, by name or id; reads no other's."""
    for known in deployed_names(tracker, None):
        if name in {known["name"], known["id"]}:
            found = _newest(tracker, known["id"])
            if found is not None:
                return found
    return active_pipeline(tracker, name)  # says which there are


def _newest(tracker: TrackerStore, pipeline_id: str) -> Pipeline | None:
    table = pipeline_versions.c
    query = select(table.declaration).where(table.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        document = connection.execute(query.order_by(table.number.desc()).limit(1)).scalar()
    return None if document is None else Pipeline.from_json(document)


def _between(
    event: str, versions: list[MappingVersion], first: int | None, last: int | None
) -> MappingDifference:
    by_number = {version.number: version for version in versions}
    newest = max(by_number, default=0)
    last = newest if last is None else last
    first = last - 1 if first is None else first
    for number in (last, first):
        if number not in by_number and number != 0:
            raise NotFoundError(_no_version(event, number, newest))
    before, after = by_number.get(first), by_number.get(last)
    changes = (
        ()
        if after is None
        else differences(None if before is None else before.declaration, after.declaration)
    )
    old, new = ("nothing" if n == 0 else f"version {n}" for n in (first, last))
    return MappingDifference(event, old, new, tuple(changes))


def _only_event(pipeline: Pipeline) -> str:
    if len(pipeline.events) > 1:
        names = ", ".join(sorted(pipeline.events))
        raise InputError(f"each event name has versions of its own; choose one: --event {names}")
    return next(iter(pipeline.events))


def _chosen(pipeline: Pipeline, kept: Sequence[str], event: str | None) -> list[str]:
    """Return event names: the one asked for, or those declared, then those that were once."""
    names = list(dict.fromkeys([*pipeline.events, *kept]))
    if event is None:
        return names
    if event not in names:
        known = ", ".join(names)
        raise NotFoundError(
            f"pipeline {pipeline.name!r} has no event {event!r} (it has {known})"
            f"{hint(event, names)}"
        )
    return [event]


def _numbered(tracker: TrackerStore, pipeline_id: str, event: str, number: int) -> MappingVersion:
    versions = history(tracker, pipeline_id, event)
    for version in versions:
        if version.number == number:
            return version
    raise NotFoundError(_no_version(event, number, max((v.number for v in versions), default=0)))


def _no_version(event: str, number: int, newest: int) -> str:
    there = (
        f"versions 1 to {newest}" if newest else "none yet: `waybill pipelines deploy` makes one"
    )
    return f"event {event!r} has no mapping version {number}; it has {there}"


def _shown(
    pipeline: Pipeline, event: str, version: MappingVersion | None, newest: MappingVersion | None
) -> ShownMapping:
    declared = pipeline.events.get(event)
    declaration = declared if version is None else version.declaration
    if declaration is None:
        raise NotFoundError(
            f"pipeline {pipeline.name!r} has no event {event!r}{hint(event, pipeline.events)}"
        )
    return ShownMapping(
        pipeline=pipeline.name,
        event=event,
        destination=pipeline.destination,
        number=0 if version is None else version.number,
        newest=0 if newest is None else newest.number,
        author="" if version is None else version.author,
        reason="" if version is None else version.reason,
        at="" if version is None else version.created_at.isoformat(),
        declaration=declaration,
        declared=_declared(declared),
    )


def _declared(event: EventDeclaration | None) -> frozenset[tuple[str, str]]:
    if event is None:
        return frozenset()
    tables = {event.table.name: event.table.columns}
    tables |= {child.name: child.columns for child in event.table.children}
    return frozenset(
        (table, column.name) for table, columns in tables.items() for column in columns
    )
