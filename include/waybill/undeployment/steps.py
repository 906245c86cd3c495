"""What keeps a pipeline from being undeployed, what of it is on its way, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from waybill.access import Decision
from waybill.deployment import end_undeployment, shared_tables
from waybill.destinations import RevertingDestination, open_destination
from waybill.errors import InputError
from waybill.ledger import LogLine, SourceFilter, SourceLine, ask_reread, read_logs, read_sources
from waybill.pipelines import PUSHED, Pipeline, TableSpec
from waybill.processing import mappings_in_force
from waybill.reconciliation import balance
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import KafkaLog, TrackerStore

_GOING_ON = frozenset({"running", "stopping"})
_PARKED = text("""
SELECT coalesce(sum(parked + quarantined), 0)::bigint AS parked,
  coalesce(sum(replaying), 0)::bigint AS replaying
FROM parked_partitions WHERE pipeline_id = :id
""")
_REPLAYS = text("""
SELECT count(*) FROM replays JOIN parked_partitions AS own ON own.id = replays.partition_id
WHERE own.pipeline_id = :id AND replays.state = 'running'
""")
_CAMPAIGNS = text("""
SELECT DISTINCT campaigns.id FROM campaigns
JOIN campaign_groups AS part ON part.campaign_id = campaigns.id
JOIN parked_partitions AS own ON own.id = part.partition_id
WHERE campaigns.ended_at IS NULL AND part.state IN ('waiting', 'launched')
  AND own.pipeline_id = :id
ORDER BY 1
""")


@dataclass(frozen=True, slots=True)
class OnTheWay:
    """What of a pipeline is on its way."""

    run: SourceLine | None
    """A run of its source that goes on."""
    logs: tuple[LogLine, ...]
    """Write-ahead logs that hold, or may hold, events of it."""
    events: int
    """In Kafka or staged, not processed or loaded yet."""

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return bool(self.run or self.logs or self.events)

    @property
    def is_left_by_dead(self) -> bool:
        """Tell whether there are logs, and nobody who is at work on them."""
        return self.run is None and any(log.purpose == "ingestion" for log in self.logs)

    def lines(self) -> list[str]:
        """Return a sentence for each thing that is waited for."""
        found = []
        if self.run is not None:
            found.append(f"a run of its source goes on, on {self.run.node}; it ends at a page")
        elif self.logs:
            found += [f"write-ahead log {log.path} of {log.node} is open" for log in self.logs]
        if self.events:
            found.append(f"{self.events:,} events are in Kafka or staged: processing and loading")
        return found


def refuse_hindered(connection: Connection, pipeline: Pipeline, *, leave_parked: bool) -> None:
    """Refuse while replays of a pipeline are open, or events of it are parked.

    Args:
        connection: to the tracker.
        pipeline: the one.
        leave_parked: parked events are no reason.

    Raises:
        InputError: says what is open and what to do.
    """
    name, given = pipeline.name, {"id": pipeline.id}
    parked = connection.execute(_PARKED, given).one()
    replays = int(connection.execute(_REPLAYS, given).scalar_one())
    campaigns = [str(row[0]) for row in connection.execute(_CAMPAIGNS, given)]
    if campaigns:
        raise InputError(
            f"pipeline {name!r}: campaign {', '.join(campaigns)} is to replay events of it; wait "
            "for its end, or cancel it (waybill campaigns)"
        )
    if replays or parked.replaying:
        raise InputError(
            f"pipeline {name!r}: {replays:,} replays are open, of {parked.replaying:,} events; "
            "wait for their end (waybill parked list --all)"
        )
    if parked.parked and not leave_parked:
        raise InputError(
            f"pipeline {name!r}: {parked.parked:,} events are parked; replay or discard them "
            f"(waybill parked list -p {name}), or leave them where they are with --leave-parked: "
            "they can be replayed once it is deployed again"
        )


def on_the_way(tracker: TrackerStore, log: KafkaLog, pipeline: Pipeline) -> OnTheWay:
    """Return what of a pipeline is on its way.

    Raises:
        RetryError: Kafka or the tracker is away.

    Cost: that of a balance.
    """
    sources = read_sources(tracker, SourceFilter(name=pipeline.name)).sources
    run = next(
        (one for one in sources if one.pipeline_id == pipeline.id and one.state in _GOING_ON), None
    )
    logs = tuple(
        one for one in read_logs(tracker) if one.pipeline_id == pipeline.id and one.state == "open"
    )
    report = balance(tracker, log, pipeline_id=pipeline.id)
    events = sum(
        counts.in_flight + counts.in_flight_replayed
        for group in report.pipelines
        for counts in group.stages.values()
    )
    return OnTheWay(run, logs, events)


def refuse_pushed(pipeline: Pipeline) -> None:
    """Refuse a pipeline whose source sends: its events lie in logs of collectors that are open.

    Raises:
        InputError: it is one.
    """
    if pipeline.source.connector == PUSHED:
        raise InputError(
            f"pipeline {pipeline.name!r}: its source sends to the collector, and what it was "
            "answered for may be in a collector's log; such pipelines cannot be undeployed. Take "
            "its secret away: then it accepts nothing"
        )


def tables_of(tracker: TrackerStore, pipeline: Pipeline) -> list[TableSpec]:
    """Return a pipeline's tables, with the children that were learned."""
    learned = mappings_in_force(tracker, pipeline.id)
    return [
        learned[name].declaration.table if name in learned else event.table
        for name, event in sorted(pipeline.events.items())
    ]


def refuse_drop(
    tracker: TrackerStore,
    pipeline: Pipeline,
    configured: Mapping[str, DestinationSettings],
    s3: S3Settings,
) -> None:
    """Refuse to drop tables that others write, or in a destination that is not known to do it.

    Nothing is asked of the destination.

    Raises:
        InputError: says why, and what to do.
    """
    name = pipeline.destination
    if name not in configured:
        raise InputError(
            f"destination {name!r} is not among the settings here (WAYBILL_DESTINATIONS), so its "
            "tables cannot be dropped from here"
        )
    with open_destination(name, configured[name], s3) as destination:
        _reverting(name, destination)
    with tracker.transaction() as connection:
        others = shared_tables(connection, pipeline, tables_of(tracker, pipeline))
    if others:
        raise InputError(f"its tables are not dropped: {others[0]}")


def drop_tables(
    name: str, settings: DestinationSettings, s3: S3Settings, specs: Sequence[TableSpec]
) -> None:
    """Drop tables in a destination, in one transaction; what is gone already is passed over.

    Raises:
        RetryError: the destination is away.
        InputError: it refuses, or its kind is none whose tables are dropped here.
    """
    with open_destination(name, settings, s3) as destination:
        _reverting(name, destination).drop_tables(specs)


def _reverting(name: str, destination: object) -> RevertingDestination:
    if not isinstance(destination, RevertingDestination):
        raise InputError(
            f"destination {name!r}: tables are dropped in PostgreSQL and DuckDB alone; elsewhere "
            "books are kept beside each table. Undeploy without --drop-tables, and leave them"
        )
    return destination


def finish(
    tracker: TrackerStore,
    pipeline: Pipeline,
    decision: Decision,
    dropped: Sequence[str],
    *,
    leave_parked: bool,
) -> None:
    """Say that a pipeline is undeployed; where tables were dropped, its source begins anew.

    Raises:
        InputError: something became open meanwhile, or it was deployed.
    """
    with tracker.transaction() as connection:
        if not dropped:
            refuse_hindered(connection, pipeline, leave_parked=leave_parked)
        end_undeployment(connection, pipeline, decision, dropped)
        if dropped:
            ask_reread(connection, pipeline.id)
