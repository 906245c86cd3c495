"""Names that an event's versions gave, whatever became of the columns since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Select, and_, cast, func, select
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH

from waybill.mappings.evolution import Given, NamedField
from waybill.mappings.overlay import translated_source
from waybill.pipelines import EventDeclaration
from waybill.storage.tracker import mapping_versions

_C = mapping_versions.c
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
    query = _newest(_TABLE["name"].astext, _CHILDREN).where(
        schema == base.table.schema_name, _TABLE["name"].astext != base.table.name
    )
    found: set[str] = set()
    for table, children in connection.execute(query):
        found.update([table, *children])
    return frozenset(found)


def child_tables(connection: Connection, pipeline_id: str) -> dict[str, list[tuple[str, str]]]:
    """Return (schema, table) of the items of each event name of a pipeline, as in force."""
    query = _newest(_C.event_name, _TABLE["schema_name"].astext, _CHILDREN)
    rows = connection.execute(query.where(_C.pipeline_id == pipeline_id))
    return {event: [(schema, name) for name in names] for event, schema, names in rows}


def _newest(*columns: Any) -> Select[Any]:
    """Return a query of the versions in force."""
    newest = (
        select(_C.pipeline_id, _C.event_name, func.max(_C.number).label("number"))
        .group_by(_C.pipeline_id, _C.event_name)
        .subquery()
    )
    same = [_C[name] == newest.c[name] for name in ("pipeline_id", "event_name", "number")]
    return select(*columns).select_from(mapping_versions.join(newest, and_(*same)))
