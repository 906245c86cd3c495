"""Drift: a destination's table has other rows than loads put there: somebody deleted, or wrote.

Loads note by how much they change a table's number of rows (``transactional.row_counts``).
A table is counted when it is due; until it is again, what was found stands: the destination's own
books keep it. Who closes the breach by name accepts what is there as right from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from waybill.destinations import CountLook, RowCount, open_destination
from waybill.pipelines import TableSpec
from waybill.reconciliation.checks.findings import Finding, Key
from waybill.reconciliation.checks.limits import DriftLimits
from waybill.reconciliation.minutes import numbered
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import TrackerStore


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


_PLACES = text("""
SELECT active.declaration->>'destination' AS destination, active.pipeline_id, loaded.event_name,
  active.declaration->'events'->loaded.event_name->'table' AS spec
FROM ledger_totals AS loaded CROSS JOIN LATERAL (
  SELECT pipeline_id, declaration FROM pipeline_versions WHERE pipeline_id = loaded.pipeline_id
  ORDER BY number DESC LIMIT 1) AS active
WHERE NOT EXISTS (SELECT FROM undeployments WHERE pipeline_id = loaded.pipeline_id)
  AND loaded.stage = 'destination' AND active.declaration->'events' ? loaded.event_name
ORDER BY active.pipeline_id, loaded.event_name
""")


def read_places(tracker: TrackerStore) -> dict[str, list[TablePlace]]:
    """Return {destination: the tables that were loaded there}, each table once.

    What is declared and had no event yet has no rows to look at. Cost: one statement; for each
    event name that was loaded its table is sent and read.
    """
    with tracker.transaction() as connection:
        rows = connection.execute(_PLACES).all()
    found: dict[str, dict[tuple[str, str], TablePlace]] = {}
    for row in rows:
        spec = TableSpec.from_json(row.spec)
        place = TablePlace(row.pipeline_id, row.event_name, spec)
        found.setdefault(row.destination, {}).setdefault((spec.schema_name, spec.name), place)
    return {name: list(tables.values()) for name, tables in sorted(found.items())}


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
        f"table {table} has {numbered(count.counted, 'row')}, loads put {count.expected:,} there: "
        f"{abs(gap):,} {'was' if abs(gap) == 1 else 'were'} {who} by somebody else",
        event_name=place.event_name,
        stage="destination",
        gap=gap,
        detail={"table": table, "rows": count.counted, "expected": count.expected},
    )
