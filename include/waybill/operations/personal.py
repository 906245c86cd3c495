"""Which payload fields are personal, as the active versions of the pipelines declare them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select

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
    """Read what all versions of these pipelines have declared. Cost: one query.

    What was personal when an event parked stays so, whatever was deployed since.
    """
    table = pipeline_versions.c
    query = select(table.pipeline_id, table.declaration["events"]).where(
        table.pipeline_id.in_(sorted(set(pipeline_ids)))
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query.order_by(table.number)).all()
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for pipeline_id, events in rows:
        declared = found.setdefault(pipeline_id, {})
        for name, event in events.items():
            declared[name] = tuple(sorted({*declared.get(name, ()), *_fields(event)}))
    return Personal(found)


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
