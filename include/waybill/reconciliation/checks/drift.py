"""Drift: a destination's table has other rows than loads put there: somebody deleted, or wrote.

Loads note by how much they change a table's number of rows (``transactional.row_counts``).
A table is counted when it is due; until it is again, what was found stands: the destination's own
books keep it. Who closes the breach by name accepts what is there as right from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from waybill.destinations import CountLook, RowCount, open_destination
from waybill.pipelines import Pipeline, TableSpec
from waybill.reconciliation.checks.findings import Finding, Key
from waybill.reconciliation.checks.limits import DriftLimits
from waybill.settings import DestinationSettings, S3Settings


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table, and the event name under which its drift is told."""

    pipeline_id: str
    event_name: str
    spec: TableSpec

    @property
    def key(self) -> Key:
        """Return the key of its findings."""
        return ("drift", self.pipeline_id, self.event_name, "destination")


def places_of(pipelines: Sequence[Pipeline]) -> Iterator[tuple[str, list[TablePlace]]]:
    """Yield each destination with the tables that pipelines load there, each table once."""
    found: dict[str, dict[tuple[str, str], TablePlace]] = {}
    for pipeline in sorted(pipelines, key=lambda one: one.id):
        for event in sorted(pipeline.events.values(), key=lambda one: one.name):
            table = (event.table.schema_name, event.table.name)
            place = TablePlace(pipeline.id, event.name, event.table)
            found.setdefault(pipeline.destination, {}).setdefault(table, place)
    yield from ((name, list(tables.values())) for name, tables in sorted(found.items()))


def look(
    name: str,
    settings: DestinationSettings,
    places: Sequence[TablePlace],
    limits: DriftLimits,
    *,
    accepted: Mapping[Key, datetime],
    s3: S3Settings | None = None,
) -> list[Finding]:
    """Return which tables of a destination drift.

    Args:
        name: of the destination.
        settings: how to reach it.
        places: its tables.
        limits: of the settings.
        accepted: when somebody closed a drift by name.
        s3: the object store, for a destination whose tables are objects there.

    Raises:
        RetryError, InputError: the destination is away, or not configured as it must be.
    """
    by_table = {(one.spec.schema_name, one.spec.name): one for one in places}
    looks = [
        CountLook(
            one.spec,
            every_s=limits.every_s,
            small_rows=limits.small_rows,
            exact_every_s=limits.exact_every_s,
            accepted_at=accepted.get(one.key),
        )
        for one in places
    ]
    with open_destination(name, settings, s3) as destination:
        counts = destination.count_rows(looks)
    found = [drift(by_table[one.spec.schema_name, one.spec.name], one) for one in counts]
    return [one for one in found if one is not None]


def drift(place: TablePlace, count: RowCount) -> Finding | None:
    """Return what a count says; None: the table has the rows that it must have."""
    gap = count.expected - count.counted
    if not gap:
        return None
    table = f"{count.spec.schema_name}.{count.spec.name}"
    who = "deleted" if gap > 0 else "added"
    return Finding(
        "drift",
        place.pipeline_id,
        f"table {table} has {count.counted:,} rows, loads put {count.expected:,} there: "
        f"{abs(gap):,} {'was' if abs(gap) == 1 else 'were'} {who} by somebody else",
        event_name=place.event_name,
        stage="destination",
        gap=gap,
        detail={"table": table, "rows": count.counted, "expected": count.expected},
    )
