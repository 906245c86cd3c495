"""What was loaded into tables since a look before: told from the ledger, for all at once.

A load writes its counts under its commit numbers, in the transaction that moves the destination's
position. So what is new in a table lies between two positions of its destination: counts of event
names that map to it, or to the parent of which it is a child table. The mapping is the one in force
now. Nothing is written, and nothing is kept for tables that nobody looks at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from waybill.ledger.balance import begin_snapshot
from waybill.storage.tracker import COUNT_COLUMNS

_DELIVERED = COUNT_COLUMNS.index("passed")
_MOST_COMMITS = 5_000
"""Of a destination that are looked through at a time; a look after a long time needs several."""
_PIPELINES = text("""
SELECT pipelines.team, pipelines.name, pipelines.id, newest.version
FROM pipelines
CROSS JOIN LATERAL (
  SELECT version FROM pipeline_versions WHERE pipeline_id = pipelines.id
  ORDER BY number DESC LIMIT 1) AS newest
WHERE pipelines.name = ANY(CAST(:names AS text[]))
""")
_DESTINATIONS = text("""
SELECT DISTINCT ON (pipeline_id) pipeline_id, declaration->>'destination'
FROM pipeline_versions WHERE pipeline_id = ANY(CAST(:ids AS text[]))
ORDER BY pipeline_id, number DESC
""")
_POSITIONS = text(
    "SELECT destination, last_commit FROM load_positions "
    "WHERE destination = ANY(CAST(:names AS text[]))"
)
_TABLES = """
SELECT found.pipeline_id, found.number, found.rows,
  mapping.declaration->'table'->>'name' AS table_name,
  jsonb_path_query_array(mapping.declaration, '$.table.children[*].name') AS children
FROM found CROSS JOIN LATERAL (
  SELECT declaration FROM mapping_versions
  WHERE pipeline_id = found.pipeline_id AND event_name = found.event_name
  ORDER BY number DESC LIMIT 1) AS mapping
"""
# OFFSET 0: each reference is looked up; the planner would read the whole index.
_SINCE = text(f"""
WITH found AS (
  SELECT asked.pipeline_id, number, row->>0 AS event_name,
    sum((row->3->>{_DELIVERED})::bigint)::bigint AS rows
  FROM unnest(CAST(:ids AS text[]), CAST(:destinations AS text[]), CAST(:afters AS bigint[]),
    CAST(:untils AS bigint[])) AS asked (pipeline_id, destination, after, until)
  CROSS JOIN LATERAL generate_series(asked.after + 1, asked.until) AS number
  CROSS JOIN LATERAL (
    SELECT counts FROM ledger WHERE pipeline_id = asked.pipeline_id
      AND reference = concat('load:', asked.destination, ':', number) OFFSET 0) AS loaded
  CROSS JOIN LATERAL jsonb_array_elements(loaded.counts) AS row
  WHERE row->>1 = 'destination' AND (row->3->>{_DELIVERED})::bigint > 0
  GROUP BY 1, 2, 3)
{_TABLES}
""")
_EVER = text(f"""
WITH found AS (
  SELECT pipeline_id, 0 AS number, event_name, sum(rows)::bigint AS rows
  FROM (
    SELECT pipeline_id, event_name, passed AS rows FROM ledger_totals
    WHERE stage = 'destination' AND pipeline_id = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT pipeline_id, row->>0, (row->3->>{_DELIVERED})::bigint
    FROM ledger CROSS JOIN LATERAL jsonb_array_elements(counts) AS row
    WHERE NOT folded AND pipeline_id = ANY(CAST(:ids AS text[])) AND reference LIKE 'load:%'
      AND row->>1 = 'destination') AS counted
  GROUP BY 1, 3 HAVING sum(rows) > 0)
{_TABLES}
""")


class TableName(NamedTuple):
    """A table of a pipeline, as people name it."""

    team: str
    pipeline: str
    table: str


@dataclass(frozen=True, slots=True)
class TableLoad:
    """What came into a table between two positions of its destination."""

    after: int | None
    """Commits up to this one were looked at before; ``None``: the table was not."""
    position: int
    """Commits up to this one are loaded."""
    rows: int
    """Events that the destination took, deletes as well; child tables count their parents' events.
    0: none of it was the table's."""
    version: str
    """Of the pipeline that is deployed now."""

    @property
    def went_back(self) -> bool:
        """Tell whether the tracker stands before what was looked at: it was restored."""
        return self.after is not None and self.position < self.after

    @property
    def is_news(self) -> bool:
        """Tell whether what reads the table has to look again."""
        return self.rows > 0 or self.went_back

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON: numbers and a digest, no name that comes from payloads."""
        return asdict(self)


class TableLoads:
    """Reads what is new in tables; one of them serves all tables of a process."""

    def __init__(self) -> None:
        self._destinations: dict[str, str] = {}
        """By pipeline id: no version goes elsewhere than the first."""
        self.unknown: frozenset[TableName] = frozenset()
        """Tables of the last look whose team has deployed no such pipeline."""

    def read(
        self, connection: Connection, positions: Mapping[TableName, int | None]
    ) -> dict[TableName, TableLoad]:
        """Return what is new in each table whose destination has moved.

        Args:
            connection: a transaction that has asked nothing yet.
            positions: how far each table was looked at; ``None``: never, so that all it ever got is
                new.

        Returns:
            Also what had no rows for the table, as its position moves. A table whose pipeline is
            not deployed by this team is left out.

        Cost: four statements, whatever there is to look at; an indexed row for each commit and
        pipeline that is new.

        Raises:
            RetryError: the tracker does not answer.
        """
        begin_snapshot(connection)
        names = {table.pipeline for table in positions}
        # No pipeline has another name, and one that PostgreSQL refuses would stop all tables.
        asked = sorted(name for name in names if name.isascii() and name.isprintable())
        found = connection.execute(_PIPELINES, {"names": asked})
        pipelines = {(row[0], row[1]): (str(row[2]), str(row[3])) for row in found}
        self.unknown = frozenset(table for table in positions if table[:2] not in pipelines)
        stands = self._positions(connection, [pipeline_id for pipeline_id, _ in pipelines.values()])
        looks = [
            _Look(table, after, *pipelines[table[:2]])
            for table, after in positions.items()
            if table[:2] in pipelines and pipelines[table[:2]][0] in stands
        ]
        return {
            **_ever(connection, [look for look in looks if look.after is None], stands),
            **self._since(connection, [look for look in looks if look.after is not None], stands),
        }

    def _positions(self, connection: Connection, ids: Iterable[str]) -> dict[str, int]:
        """Return {pipeline id: the last commit that is loaded into its destination}."""
        wanted = set(ids)
        if new := sorted(wanted - self._destinations.keys()):
            self._destinations |= dict(connection.execute(_DESTINATIONS, {"ids": new}).all())
        names = {self._destinations[pipeline_id] for pipeline_id in wanted}
        rows = connection.execute(_POSITIONS, {"names": sorted(names)})
        last = {str(row[0]): int(row[1]) for row in rows}
        placed = ((pipeline_id, self._destinations[pipeline_id]) for pipeline_id in wanted)
        return {pipeline_id: last[name] for pipeline_id, name in placed if name in last}

    def _since(
        self, connection: Connection, looks: list[_Look], stands: Mapping[str, int]
    ) -> dict[TableName, TableLoad]:
        moved = [look for look in looks if stands[look.pipeline_id] != look.after]
        spans: dict[str, tuple[int, int]] = {}
        for look in moved:
            after = min(look.since, spans.get(look.pipeline_id, (look.since, 0))[0])
            until = min(stands[look.pipeline_id], after + _MOST_COMMITS)
            spans[look.pipeline_id] = (after, until)
        if not moved:
            return {}
        asked = {
            "ids": list(spans),
            "destinations": [self._destinations[pipeline_id] for pipeline_id in spans],
            "afters": [after for after, _ in spans.values()],
            "untils": [until for _, until in spans.values()],
        }
        rows = _by_pipeline(connection.execute(_SINCE, asked))
        loads = {}
        for look in moved:
            until = spans[look.pipeline_id][1]
            if until > look.since or stands[look.pipeline_id] < look.since:
                loads[look.table] = look.load(until, rows[look.pipeline_id])
        return loads


class _Look(NamedTuple):
    """One table to look at."""

    table: TableName
    after: int | None
    pipeline_id: str
    version: str

    @property
    def since(self) -> int:
        return self.after or 0

    def load(self, position: int, rows: Iterable[Any]) -> TableLoad:
        mine = sum(self._mine(rows))
        return TableLoad(self.after, position, mine, self.version)

    def _mine(self, rows: Iterable[Any]) -> Iterator[int]:
        for row in rows:
            is_new = self.after is None or row.number > self.after
            if is_new and self.table.table in {row.table_name, *row.children}:
                yield int(row.rows)


def _ever(
    connection: Connection, looks: list[_Look], stands: Mapping[str, int]
) -> dict[TableName, TableLoad]:
    if not looks:
        return {}
    ids = sorted({look.pipeline_id for look in looks})
    rows = _by_pipeline(connection.execute(_EVER, {"ids": ids}))
    return {
        look.table: look.load(stands[look.pipeline_id], rows[look.pipeline_id]) for look in looks
    }


def _by_pipeline(rows: Iterable[Any]) -> Mapping[str, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row.pipeline_id].append(row)
    return found


__all__ = ["TableLoad", "TableLoads", "TableName"]
