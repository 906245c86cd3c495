"""Which payload fields are personal, as the active versions of the pipelines declare them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select

from waybill.pipelines import Pipeline
from waybill.storage import TrackerStore
from waybill.storage.tracker.tables import pipeline_versions

ANY_EVENT = ""
"""No event name that a pipeline declares: its personal fields are those of all its events."""


class Personal:
    """The personal fields of some pipelines' events, as declared now."""

    def __init__(self, declared: dict[str, dict[str, tuple[str, ...]]]) -> None:
        self._declared = declared

    def fields(self, pipeline_id: str, event_name: str) -> tuple[str, ...] | None:
        """Return the personal fields of an event name.

        Of an event name that the pipeline does not declare: those of all its events. None: nobody
        deployed the pipeline, so nobody knows.
        """
        events = self._declared.get(pipeline_id)
        if events is None:
            return None
        if event_name in events:
            return events[event_name]
        return tuple(sorted({field for fields in events.values() for field in fields}))

    def are_there(self, pipeline_id: str, event_name: str) -> bool:
        """Tell whether such an event may hold something personal."""
        return self.fields(pipeline_id, event_name) != ()


def personal_of(tracker: TrackerStore, pipeline_ids: Iterable[str]) -> Personal:
    """Read what the active versions of these pipelines declare. Cost: one query."""
    table = pipeline_versions.c
    newest = (
        select(table.pipeline_id, func.max(table.number).label("number"))
        .where(table.pipeline_id.in_(sorted(set(pipeline_ids))))
        .group_by(table.pipeline_id)
        .subquery()
    )
    query = select(table.pipeline_id, table.declaration["events"]).join(
        newest,
        (table.pipeline_id == newest.c.pipeline_id) & (table.number == newest.c.number),
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return Personal(
        {row[0]: {name: _fields(event) for name, event in row[1].items()} for row in rows}
    )


def personal_in(versions: Iterable[Pipeline], event_name: str) -> tuple[str, ...]:
    """Return the personal fields of an event name in any of a pipeline's versions."""
    found: set[str] = set()
    for version in versions:
        declared = version.model_dump(mode="json", include={"events"})["events"]
        events = {name: _fields(event) for name, event in declared.items()}
        found.update(Personal({version.id: events}).fields(version.id, event_name) or ())
    return tuple(sorted(found))


def _fields(event: dict[str, Any]) -> tuple[str, ...]:
    """Return the declared names, and those under which a column holds the same or is read from."""
    declared = set(event.get("personal", ()))
    for column in event["table"]["columns"]:
        source, name = column.get("source") or column["name"], column["name"]
        if source in declared or name in declared:
            declared |= {source, name}
    return tuple(sorted(declared))
