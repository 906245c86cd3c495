"""Versions of mappings in the tracker: each with its time, its author, and what it was made for.

A version is made under a lock of its event name, from the version in force that is read under that
lock, in one transaction: two who meet a new field at once make one version, and a death leaves all
of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    Connection,
    Integer,
    Row,
    Select,
    Text,
    and_,
    any_,
    cast,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH, distinct_on

from waybill.errors import InputError
from waybill.mappings.evolution import Given, LearnedFields, NamedField, with_learned
from waybill.mappings.naming import NameRules
from waybill.mappings.overlay import over, translated_source
from waybill.pipelines import EventDeclaration, Pipeline
from waybill.storage import AdvisoryLock, TrackerStore
from waybill.storage.tracker import mapping_versions, pipeline_versions

_C = mapping_versions.c
_DEPLOYED = "deployed"
_FIRST = "in force before versions were kept"


@dataclass(frozen=True, slots=True)
class MappingVersion:
    """What an event name maps to, from a time on."""

    pipeline_id: str
    event_name: str
    number: int
    """From 1; the greatest is in force."""
    declaration: EventDeclaration
    """What is declared, with all that was learned from events."""
    author: str
    """Who deployed, or the consumer whose events brought new fields."""
    reason: str
    pipeline_version: str
    """The pipeline's version that was deployed last."""
    created_at: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the version as JSON."""
        return {
            "pipeline_id": self.pipeline_id,
            "event_name": self.event_name,
            "number": self.number,
            "declaration": self.declaration.to_json(),
            "author": self.author,
            "reason": self.reason,
            "pipeline_version": self.pipeline_version,
            "created_at": self.created_at.isoformat(),
        }


class _Made(NamedTuple):
    """How a version came to be."""

    author: str
    reason: str
    pipeline_version: str


Place = Connection | TrackerStore
"""An open transaction, or the tracker, in which one is made."""


@contextmanager
def _connected(place: Place) -> Iterator[Connection]:
    if isinstance(place, TrackerStore):
        with place.transaction() as connection:
            yield connection
    else:
        yield place


def in_force(
    place: Place, pipeline_ids: Collection[str] | None = None
) -> dict[tuple[str, str], MappingVersion]:
    """Return {(pipeline id, event name): version in force}; None: of all pipelines.

    Event names that no deploy and no event has made a version of are not in it. Cost: one
    statement.
    """
    query = select(mapping_versions).ext(distinct_on(_C.pipeline_id, _C.event_name))
    if pipeline_ids is not None:
        query = query.where(_C.pipeline_id.in_(pipeline_ids))
    query = query.order_by(_C.pipeline_id, _C.event_name, _C.number.desc())
    with _connected(place) as connection:
        versions = [_version(row) for row in connection.execute(query)]
    return {(one.pipeline_id, one.event_name): one for one in versions}


def read_marks(connection: Connection, pipeline_ids: Collection[str]) -> dict[str, tuple[int, Any]]:
    """Return {pipeline id: a mark of its mappings}, of those that have any: it changes with each.

    Cost: one statement and a row a pipeline; it reads the table's index only, 0.2 µs a version.
    """
    rows = connection.execute(_MARKS, {"pipeline_ids": list(pipeline_ids)})
    return {row[0]: (row[1], row[2]) for row in rows}


_MARKS = text(
    "SELECT pipeline_id, count(*), sum(hashtextextended(event_name, number)) FROM mapping_versions "
    "WHERE pipeline_id = ANY(CAST(:pipeline_ids AS text[])) GROUP BY pipeline_id"
)


def numbers_in_force(
    connection: Connection, pipeline_ids: Collection[str]
) -> dict[tuple[str, str], int]:
    """Return {(pipeline id, event name): number of the version in force}.

    Cost: one statement, which reads the table's index only.
    """
    query = (
        select(_C.pipeline_id, _C.event_name, func.max(_C.number))
        .where(_C.pipeline_id == any_(cast(list(pipeline_ids), ARRAY(Text))))
        .group_by(_C.pipeline_id, _C.event_name)
    )
    return {(row[0], row[1]): int(row[2]) for row in connection.execute(query)}


def read_numbered(
    connection: Connection, wanted: Mapping[tuple[str, str], int]
) -> Callable[[], list[MappingVersion]]:
    """Read certain versions, one of an event name; what is not there is left out.

    Returns:
        what parses them: some milliseconds each, for which no transaction need wait.
    """
    if not wanted:
        return list
    asked = (  # arrays: a statement takes 65,535 parameters at most
        func.unnest(
            cast([pipeline_id for pipeline_id, _ in wanted], ARRAY(Text)),
            cast([event_name for _, event_name in wanted], ARRAY(Text)),
            cast(list(wanted.values()), ARRAY(Integer)),
        )
        .table_valued("pipeline_id", "event_name", "number", name="wanted")
        .render_derived()
    )
    query = select(mapping_versions).join(
        asked,
        and_(
            _C.pipeline_id == asked.c.pipeline_id,
            _C.event_name == asked.c.event_name,
            _C.number == asked.c.number,
        ),
    )
    rows = connection.execute(query).all()
    return lambda: [_version(row) for row in rows]


def history(place: Place, pipeline_id: str, event_name: str | None = None) -> list[MappingVersion]:
    """Return all versions of a pipeline's event names, or of one; by name, the newest first."""
    query = select(mapping_versions).where(_C.pipeline_id == pipeline_id)
    if event_name is not None:
        query = query.where(_C.event_name == event_name)
    with _connected(place) as connection:
        rows = connection.execute(query.order_by(_C.event_name, _C.number.desc())).all()
    return [_version(row) for row in rows]


def keep_declared(
    connection: Connection, pipeline: Pipeline, rules: NameRules, author: str
) -> dict[str, MappingVersion]:
    """Lay a pipeline's declarations over what its events taught; in the deploy's transaction.

    Call it before or after the deploy writes the pipeline's version.

    Returns:
        The new versions by event name: of those that changed something.

    Raises:
        InputError: a declared type and a kept one have no type in common, there are more columns
            than a table takes, or a table is that of another event's items; says what to do.
    """
    numbers = {}
    before = _deployed_before(connection, pipeline)
    items = child_tables(connection, pipeline.id)
    for name in sorted(pipeline.events):
        _lock(connection, pipeline.id, name)
        kept = _newest(connection, pipeline.id, name)
        declared = pipeline.events[name]
        _refuse_too_many(declared, rules)
        _refuse_anothers_table(declared, items)
        if kept is not None:
            declared = over(declared, kept.declaration, before.get(name))
            if declared == kept.declaration:
                continue
        how = _Made(author, _DEPLOYED, pipeline.version)
        numbers[name] = _insert(connection, pipeline.id, kept, declared, how)
    return numbers


def learn_once(  # noqa: PLR0913, PLR0917 - what, from what, for whom
    connection: Connection,
    pipeline_id: str,
    declared: EventDeclaration,
    learned: Iterable[LearnedFields],
    rules: NameRules,
    author: str,
    reason: str = "",
) -> MappingVersion:
    """Make room for what was learned from events, unless somebody has by now.

    Args:
        connection: an open transaction. Whoever learns for several event names in one takes them in
            the order of (pipeline id, event name), so that no two wait for each other.
        pipeline_id: whose event name it is.
        declared: the event's declaration as the caller knows it; the first version, if there is
            none in force.
        learned: by one or several who met its events at once.
        rules: of the destination.
        author: the consumer.
        reason: what was met; by default the names of what is new.

    Returns:
        The version in force; the caller maps with it. A new one, if there was something to learn.
    """
    _lock(connection, pipeline_id, declared.name)
    kept = _newest(connection, pipeline_id, declared.name)
    base = declared if kept is None else kept.declaration
    given = names_given(connection, pipeline_id, base)
    roomy = base
    for fields in learned:
        roomy = with_learned(roomy, fields, rules, given) or roomy
    if roomy == base:
        made = _Made(author, reason or _FIRST, "")
        return kept or _insert(connection, pipeline_id, None, declared, made)
    version = "" if kept is None else kept.pipeline_version
    made = _Made(author, reason or in_words(base, roomy), version)
    return _insert(connection, pipeline_id, kept, roomy, made)


def in_words(before: EventDeclaration, after: EventDeclaration) -> str:
    """Return what is new in a version: "new columns a, b; column c is int64"."""
    known = {column.name: column.type for column in before.table.columns}
    new = [column.name for column in after.table.columns if column.name not in known]
    wider = [c for c in after.table.columns if known.get(c.name, c.type) != c.type]
    tables = {child.name: child for child in before.table.children}
    phrases = [f"new column{'s' if len(new) > 1 else ''} {_few(new)}"] if new else []
    phrases += [f"column {_few([f'{c.name} is {c.type}' for c in wider])}"] if wider else []
    for child in after.table.children:
        if child.name not in tables:
            phrases.append(f"new table {child.name}")
        elif child != tables[child.name]:
            phrases.append(f"table {child.name} has other columns")
    return "; ".join(phrases)


def _few(names: Sequence[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _lock(connection: Connection, pipeline_id: str, event_name: str) -> None:
    AdvisoryLock.MAPPING_VERSION.take(connection, pipeline_id, event_name)


def _newest(connection: Connection, pipeline_id: str, event_name: str) -> MappingVersion | None:
    query = select(mapping_versions).where(
        _C.pipeline_id == pipeline_id, _C.event_name == event_name
    )
    row = connection.execute(query.order_by(_C.number.desc()).limit(1)).first()
    return None if row is None else _version(row)


def _deployed_before(connection: Connection, pipeline: Pipeline) -> dict[str, EventDeclaration]:
    """Return what the version declared that this one follows; nothing, if it is the first."""
    table = pipeline_versions.c
    query = select(table.declaration["events"]).where(
        table.pipeline_id == pipeline.id, table.version != pipeline.version
    )
    declaration = connection.execute(query.order_by(table.number.desc()).limit(1)).scalar()
    return {name: EventDeclaration.from_json(one) for name, one in (declaration or {}).items()}


def _refuse_too_many(declared: EventDeclaration, rules: NameRules) -> None:
    number = len(declared.table.columns)
    if number > rules.most_columns:
        raise InputError(
            f"event {declared.name!r}: expected at most {rules.most_columns:,} columns, which is "
            f"what a table takes there; found {number:,}. Leave some out, or keep them in one "
            "JSON column"
        )


def _refuse_anothers_table(
    declared: EventDeclaration, items: Mapping[str, Collection[tuple[str, str]]]
) -> None:
    """Refuse a table that another event's arrays have made their own."""
    schema = declared.table.schema_name
    for name in (declared.table.name, *(child.name for child in declared.table.children)):
        for event, tables in items.items():
            if event != declared.name and (schema, name) in tables:
                raise InputError(
                    f"event {declared.name!r}: table {name!r} has the items of an array of event "
                    f"{event!r}; choose another name"
                )


def _insert(
    connection: Connection,
    pipeline_id: str,
    kept: MappingVersion | None,
    declaration: EventDeclaration,
    made: _Made,
) -> MappingVersion:
    row = connection.execute(
        mapping_versions.insert()
        .values(
            pipeline_id=pipeline_id,
            event_name=declaration.name,
            number=1 if kept is None else kept.number + 1,
            declaration=declaration.to_json(),
            author=made.author,
            reason=made.reason,
            pipeline_version=made.pipeline_version,
        )
        .returning(mapping_versions)
    ).one()
    return _version(row)


def _version(row: Row[Any]) -> MappingVersion:
    return MappingVersion(
        pipeline_id=row.pipeline_id,
        event_name=row.event_name,
        number=row.number,
        declaration=EventDeclaration.from_json(row.declaration),
        author=row.author,
        reason=row.reason,
        pipeline_version=row.pipeline_version,
        created_at=row.created_at,
    )


_TABLE = _C.declaration["table"]
_CHILDREN = func.jsonb_path_query_array(
    _C.declaration, cast("$.table.children[*].name", JSONPATH), type_=JSONB
)


def names_given(connection: Connection, pipeline_id: str, base: EventDeclaration) -> Given:
    """Return the names that any version of an event gave, by source as ``base`` reads them.

    What is learned takes nothing away: besides the newest version only those are read that a deploy
    followed.
    """
    columns, children = _Names(), _Names()
    items: dict[str, _Names] = {}
    for content in _last_before_deploys(connection, pipeline_id, base.name):
        nested = content.get("nested", "json")
        columns.add(content["table"]["columns"], nested, base.nested)
        for child in content["table"].get("children", ()):
            children.add([child], nested, base.nested)
            source = translated_source(child["source"], nested, base.nested)
            if source is not None:
                items.setdefault(source, _Names()).add(child["columns"], nested, base.nested)
    return Given(
        columns.named(),
        children.named(),
        {source: names.named() for source, names in items.items()},
        _tables(connection, base) if base.arrays == "child" else frozenset(),
    )


class _Names:
    """Gathers the names of columns, or child tables, from stored versions."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._spent: set[str] = set()

    def add(self, ones: Iterable[Any], nested: str, wanted: str) -> None:
        """Add columns whose sources are read as ``nested`` says, and are wanted as ``wanted``."""
        for one in ones:
            source = translated_source(one["source"], nested, wanted)
            if source is not None:
                self._last.pop(source, None)
                self._last[source] = one["name"]
            self._spent.add(one["name"])

    def named(self) -> NamedField:
        return NamedField(self._last, frozenset(self._spent))


def _last_before_deploys(
    connection: Connection, pipeline_id: str, event_name: str
) -> Iterable[dict[str, Any]]:
    """Return declarations in order: the last of each deployed version of the pipeline."""
    following = func.lead(_C.pipeline_version).over(order_by=_C.number)
    runs = (
        select(_C.number, _C.declaration, _C.pipeline_version, following.label("following"))
        .where(_C.pipeline_id == pipeline_id, _C.event_name == event_name)
        .subquery()
    )
    query = select(runs.c.declaration).where(
        runs.c.following.is_distinct_from(runs.c.pipeline_version)
    )
    return connection.execute(query.order_by(runs.c.number)).scalars()


def _tables(connection: Connection, base: EventDeclaration) -> frozenset[str]:
    """Return the names of the tables in the event's schema, but its own and its children's."""
    schema = _TABLE["schema_name"].astext
    query = _of_newest(_TABLE["name"].astext, _CHILDREN).where(
        schema == base.table.schema_name, _TABLE["name"].astext != base.table.name
    )
    names: set[str] = set()
    for table, children in connection.execute(query):
        names.update([table, *children])
    return frozenset(names)


def child_tables(connection: Connection, pipeline_id: str) -> dict[str, list[tuple[str, str]]]:
    """Return (schema, table) of the items of each event name of a pipeline, as in force."""
    query = _of_newest(_C.event_name, _TABLE["schema_name"].astext, _CHILDREN)
    rows = connection.execute(query.where(_C.pipeline_id == pipeline_id))
    return {event: [(schema, name) for name in names] for event, schema, names in rows}


def _of_newest(*columns: Any) -> Select[Any]:
    """Return a query of the versions in force."""
    newest = (
        select(_C.pipeline_id, _C.event_name, func.max(_C.number).label("number"))
        .group_by(_C.pipeline_id, _C.event_name)
        .subquery()
    )
    same = [_C[name] == newest.c[name] for name in ("pipeline_id", "event_name", "number")]
    return select(*columns).select_from(mapping_versions.join(newest, and_(*same)))
