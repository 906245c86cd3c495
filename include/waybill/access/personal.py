"""Which payload fields are personal, as all versions of the pipelines have declared them.

An event's key is personal where a field that it is made of is: it stands in the envelope, also of
the events that a transformation makes, which keep the key of the one that they were made from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from sqlalchemy import select

from waybill.events import HELD_ERROR
from waybill.mappings import decode_path
from waybill.pipelines import ChildTable, EventDeclaration, Pipeline
from waybill.storage import TrackerStore
from waybill.storage.tracker import mapping_versions, pipeline_versions

Proposed = tuple[str, dict[str, dict[str, Any]]]
"""A pipeline's id, and its event names with their declarations as JSON."""
MASK = "•••"
"""Stands where a personal value is not shown."""
KEY = "(key)"
"""Stands among personal fields for an event's key, which the envelope holds as `subject`."""
ANY_EVENT = ""
"""No event name that a pipeline declares: its personal fields are those of all its events."""


@lru_cache(maxsize=4096)
def same_name(name: str) -> str:
    """Return a name without what does not count in it: case, blanks, Unicode's ways to write it."""
    composed = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in composed if not _is_blank(character))


def _is_blank(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Cf", "Cc")


def field_paths(field: str) -> frozenset[str]:
    r"""Return what a declared personal field names, its parts joined by ``.``: mostly one path.

    A field ``a.b`` is one inside another, or one whose name has a dot: both are masked. So is what
    ``a\.b`` names, as `from` of a flattened event writes it.
    """
    return frozenset((same_name(field), same_name(".".join(decode_path(field)))))


def masked_fields(
    row: dict[str, Any],
    personal: Iterable[str],
    replacement: Callable[[Any], Any] = lambda _value: MASK,
) -> dict[str, Any]:
    """Return a row with its personal fields masked: a copy, where there are any.

    Names are the same as of ``same_name``; what stands where a path ends too early is masked whole,
    and of a list each item; a field that is nested too deeply to look through, whole.

    Args:
        row: a payload, or one inside it.
        personal: fields, as declared.
        replacement: makes of a value, that is not null, what stands in its place.
    """
    for path in sorted({path for name in personal for path in field_paths(name)}):
        try:
            row = _masked(row, path, replacement)
        except RecursionError:
            row = {
                name: MASK if f"{path}.".startswith(f"{same_name(name)}.") else item
                for name, item in row.items()
            }
    return row


def _masked(value: Any, path: str, replacement: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_masked(item, path, replacement) for item in value]
    if not isinstance(value, dict):
        return None if value is None else replacement(value)  # it ends before its field
    masked = dict(value)
    for name, item in value.items():
        same = same_name(name)
        if same == path and item is not None:
            masked[name] = replacement(item)
        elif path.startswith(f"{same}."):
            masked[name] = _masked(item, path[len(same) + 1 :], replacement)
    return masked


class Failed(Protocol):
    """Parked events of one kind."""

    @property
    def pipeline_id(self) -> str:
        """Return whose they are."""

    @property
    def event_name(self) -> str:
        """Return what they are."""

    @property
    def stage(self) -> str:
        """Return where they failed."""

    @property
    def error_type(self) -> str:
        """Return why."""


@dataclass(slots=True)
class _Declared:
    """What one pipeline has declared of one event name."""

    personal: set[str] = field(default_factory=set)
    key: set[str] = field(default_factory=set)


class Personal:
    """The personal fields of some pipelines' events, as ever declared.

    Args:
        events: pipeline ids, each with its event names and their declarations as JSON; the same
            name may come again, of another version.
        columns: pipeline ids, each with the columns that its deployed versions name.
    """

    def __init__(
        self,
        events: Iterable[tuple[str, dict[str, dict[str, Any]]]],
        columns: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self._columns = columns or {}
        self._declared: dict[str, dict[str, _Declared]] = {}
        for pipeline_id, declarations in events:
            known = self._declared.setdefault(pipeline_id, {})
            for name, declaration in declarations.items():
                _add(known.setdefault(name, _Declared()), declaration)

    def fields(self, pipeline_id: str, event_name: str) -> tuple[str, ...] | None:
        """Return the personal fields of an event name, ``KEY`` among them if its key is.

        Of an event name that the pipeline does not declare: those of all its events. None: nobody
        deployed the pipeline, so nobody knows.
        """
        events = self._declared.get(pipeline_id)
        if events is None:
            return None
        named = [events[event_name]] if event_name in events else [*events.values()]
        found = {one for event in named for one in event.personal}
        keys = {one for event in events.values() for one in event.key}
        own = any(_overlap(event.key, event.personal) for event in events.values())
        return tuple(sorted(found | {KEY} if own or _overlap(keys, found) else found))

    def is_key_personal(self, pipeline_id: str, event_name: str = ANY_EVENT) -> bool:
        """Tell whether the key of an event name is personal, or may be: nobody deployed it."""
        fields = self.fields(pipeline_id, event_name)
        return fields is None or KEY in fields

    def columns(self, pipeline_id: str) -> frozenset[str]:
        """Return the columns that versions of a pipeline name, without those that were learned."""
        return self._columns.get(pipeline_id, frozenset())

    def of(self, partition: Failed) -> tuple[str, ...] | None:
        """Return the personal fields of a partition's events, as of ``fields``."""
        return self.fields(partition.pipeline_id, _meant(partition))

    def are_in(self, partition: Failed) -> bool:
        """Tell whether a partition's events may hold something personal."""
        return self.of(partition) != ()

    def are_there(self, pipeline_id: str, event_name: str) -> bool:
        """Tell whether such an event may hold something personal."""
        return self.fields(pipeline_id, event_name) != ()


def personal_of(
    tracker: TrackerStore, pipeline_ids: Iterable[str], proposed: Iterable[Proposed] = ()
) -> Personal:
    """Read what all versions of these pipelines have declared. Cost: two queries.

    Args:
        tracker: where the versions are.
        pipeline_ids: of these pipelines.
        proposed: what counts beside them: versions that are not deployed, mappings not kept.

    What was personal when an event parked stays so, whatever was deployed since; so do the columns
    that personal fields were learned to have.
    """
    table, mapped = pipeline_versions.c, mapping_versions.c
    wanted = sorted(set(pipeline_ids))
    declared = select(table.pipeline_id, table.declaration["events"]).where(
        table.pipeline_id.in_(wanted)
    )
    learned = select(mapped.pipeline_id, mapped.event_name, mapped.declaration).where(
        mapped.pipeline_id.in_(wanted), mapped.declaration["personal"].astext != "[]"
    )
    with tracker.transaction() as connection:
        rows = connection.execute(declared.order_by(table.number)).all()
        mappings = connection.execute(learned.order_by(mapped.number)).all()
    versions = [(row[0], row[1]) for row in rows]
    learned_of = [(row[0], {row[1]: row[2]}) for row in mappings]
    columns: dict[str, set[str]] = {}
    for pipeline_id, events in versions:
        named = columns.setdefault(pipeline_id, set())
        for event in events.values():
            named.update(column["name"] for column in event["table"]["columns"])
    frozen = {pipeline_id: frozenset(names) for pipeline_id, names in columns.items()}
    return Personal([*versions, *learned_of, *proposed], frozen)


def proposed_by(version: Pipeline, mappings: Iterable[EventDeclaration]) -> list[Proposed]:
    """Return what a version that is not deployed declares, and mappings as they would be."""
    events = version.model_dump(mode="json", include={"events"})["events"]
    return [(version.id, events), *((version.id, {m.name: m.to_json()}) for m in mappings)]


def _meant(partition: Failed) -> str:
    """Return the event name whose personal fields count.

    What came in raw may become any event of its pipeline: rows, and what a held pipeline left as it
    came.
    """
    raw = partition.stage == "ingestion" or partition.error_type == HELD_ERROR
    return ANY_EVENT if raw else partition.event_name


def _add(known: _Declared, declaration: dict[str, Any]) -> None:
    """Add the declared names, and those under which a column holds the same or is read from."""
    personal, key = set(declaration.get("personal", ())), set(declaration.get("key", ()))
    paths = declaration.get("nested") == "flatten"
    personal |= {".".join(decode_path(field)) for field in personal}
    for column in declaration["table"]["columns"]:
        source, name = column.get("source") or column["name"], column["name"]
        source = ".".join(decode_path(source)) if paths else source
        for fields in (personal, key):
            if _same(fields) & {same_name(source), same_name(name)}:
                fields.update((source, name))
            fields.update(_under_another_name(fields, source, name, paths=paths))
    for child in declaration["table"].get("children", ()):
        items = ChildTable.from_json(child)
        for column in items.columns:
            source = ".".join(
                part
                for path in (items.source, column.source)
                for part in (decode_path(path) if paths else (path,))
                if part
            )
            name = f"{items.arrow_name}.{column.name}"
            personal |= _under_another_name(personal, source, name, paths=True)
    known.personal |= personal
    known.key |= key


def _under_another_name(fields: set[str], source: str, name: str, *, paths: bool) -> set[str]:
    """Return the names in a row of what is personal of the field that a column is read from.

    A field around it makes the column personal, where sources are paths; of one inside of it, which
    stays an object, the part is personal.
    """
    around = {path for path in _around(source)} if paths else {source}
    found = {name} if _same(fields) & _same(around) else set()
    inside = f"{same_name(source)}."
    within = (one for one in map(same_name, fields) if one.startswith(inside))
    return found | {f"{name}.{one.removeprefix(inside)}" for one in within}


def _overlap(key: set[str], personal: set[str]) -> bool:
    """Tell whether a key holds a personal field, a part of one, or one with a personal part."""
    key, personal = _same(key), _same(personal)
    around_key = {path for one in key for path in _around(one)}
    around_personal = {path for one in personal for path in _around(one)}
    return bool(key & around_personal or personal & around_key)


def _same(names: Iterable[str]) -> set[str]:
    """Return names as masking compares them."""
    return {same_name(name) for name in names}


def _around(path: str) -> Iterator[str]:
    """Yield a field, and the fields that it is in: ``a.b.c``, ``a.b``, ``a``."""
    while path:
        yield path
        path = path.rpartition(".")[0]
