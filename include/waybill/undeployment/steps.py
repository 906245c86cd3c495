"""What keeps a pipeline from being undeployed, what of it is on its way, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from waybill.access import Decision
from waybill.deployment import (
    Undeployment,
    end_undeployment,
    hold_undeployment,
    shared_tables,
)
from waybill.deployment import begin_drop as note_drop
from waybill.destinations import RevertingDestination, open_destination
from waybill.errors import InputError, StopError
from waybill.ledger import LogLine, SourceFilter, SourceLine, ask_reread, read_logs, read_sources
from waybill.mappings import TablePlaces
from waybill.pipelines import PUSHED, Pipeline, TableSpec
from waybill.processing import mappings_in_force
from waybill.reconciliation import balance
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import KafkaLog, TrackerStore


class DropRefusedError(InputError):
    """A destination refuses to drop tables: it will until somebody mends what it says."""


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
_OPEN_LOGS = text("""
SELECT count(*) FROM write_ahead_logs WHERE pipeline_id = :id AND state = 'open'
""")
_LAST_REPLAY = text("""
SELECT max(replays.started_at) FROM replays
JOIN parked_partitions AS own ON own.id = replays.partition_id WHERE own.pipeline_id = :id
""")
_STILL_THERE = text("SELECT 1")
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
    last_replay: datetime | None = None
    """When the last replay of its events had begun; later ones may have sent more since."""

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
            found += [_open_log(log) for log in self.logs]
        if self.events:
            found.append(f"{self.events:,} events are in Kafka or staged: processing and loading")
        return found


def _open_log(log: LogLine) -> str:
    is_open = f"write-ahead log {log.path} of {log.node} is open"
    if log.purpose != "ingestion":
        return is_open
    return (
        f"{is_open}, with {log.unsettled:,} events that were not committed when it was told last: "
        "the same command on that machine sends them. If its disk is gone: `waybill logs settle "
        f"{log.wal_id} --why …`; what it had not sent is read from the source once the pipeline "
        "is deployed again"
    )


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
    with tracker.transaction() as connection:
        last_replay = _last_replay(connection, pipeline)
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
    return OnTheWay(run, logs, events, last_replay)


def _last_replay(connection: Connection, pipeline: Pipeline) -> datetime | None:
    found: datetime | None = connection.execute(_LAST_REPLAY, {"id": pipeline.id}).scalar()
    return found


@dataclass(frozen=True, slots=True)
class Drained:
    """A pipeline of which nothing was on its way when somebody looked."""

    pipeline: Pipeline
    begun: Undeployment
    looked: OnTheWay
    leave_parked: bool
    """Parked events are no reason not to go on."""


def _is_quiet(connection: Connection, drained: Drained) -> bool:
    """Tell whether nothing began to send events since somebody looked.

    Raises:
        InputError: a replay is open, or events are parked.
    """
    pipeline = drained.pipeline
    refuse_hindered(connection, pipeline, leave_parked=drained.leave_parked)
    logs = int(connection.execute(_OPEN_LOGS, {"id": pipeline.id}).scalar_one())
    return not logs and _last_replay(connection, pipeline) == drained.looked.last_replay


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
    *,
    looks: bool,
) -> None:
    """Refuse to drop tables that others write, that no load wrote to, or where that is not done.

    Args:
        tracker: where pipelines are kept.
        pipeline: whose tables.
        configured: the destinations.
        s3: the object store.
        looks: look into the destination for tables that no load wrote to. False: dropping began,
            and looks there itself.

    Raises:
        InputError: says why, and what to do.
        RetryError: the destination is away or busy.
    """
    name, tables = pipeline.destination, tables_of(tracker, pipeline)
    if name not in configured:
        raise InputError(_not_configured(name))
    with open_destination(name, configured[name], s3) as destination:
        reverting = _reverting(name, destination)
        with tracker.transaction() as connection:
            others = shared_tables(connection, pipeline, TablePlaces(configured), tables)
        if others:
            raise InputError(f"its tables are not dropped: {others[0]}")
        if looks:
            reverting.refuse_unloaded(tables)


def begin_drop(
    tracker: TrackerStore, drained: Drained, configured: Mapping[str, DestinationSettings]
) -> bool:
    """Note that a pipeline's tables are about to be dropped; no deploy and no replay gets between.

    False: a replay began since somebody looked what is on its way; look again.

    Args:
        tracker: where it is noted.
        drained: the pipeline.
        configured: the destinations.

    Raises:
        InputError: something became open meanwhile, it was deployed, or another pipeline writes
            its tables.
        RetryError: somebody else goes on with it at this moment.
    """
    pipeline, begun = drained.pipeline, drained.begun
    tables = tables_of(tracker, pipeline)
    with tracker.transaction() as connection:
        found = hold_undeployment(connection, pipeline, begun)
        if found.dropping_at is None and not _is_quiet(connection, drained):
            return False
        note_drop(connection, begun, pipeline, tables, TablePlaces(configured))
    return True


def drop_tables(
    tracker: TrackerStore,
    pipeline: Pipeline,
    begun: Undeployment,
    configured: Mapping[str, DestinationSettings],
    s3: S3Settings,
) -> None:
    """Drop a pipeline's tables in one transaction; what is gone already is passed over.

    Nobody else goes on with the undeployment meanwhile: who does would let a deploy in, and new
    tables would be dropped. Should the tracker end this one's hold, the tables stay. Other
    pipelines are looked at once more: what is configured may have changed since dropping began.

    Raises:
        RetryError: the destination or the tracker is away, a table is in use, or somebody else goes
            on with the undeployment at this moment.
        DropRefusedError: the destination refuses, its kind is none whose tables are dropped, or
            another pipeline writes one of them.
        InputError: the undeployment ended meanwhile.
    """
    specs, settings = tables_of(tracker, pipeline), configured.get(pipeline.destination)
    with tracker.transaction(long_idle=True) as connection:
        found = hold_undeployment(connection, pipeline, begun, alone=False)
        if found.dropping_at is None:
            raise InputError(f"pipeline {pipeline.name!r}: nobody began to drop its tables")
        if settings is None:
            raise DropRefusedError(_not_configured(pipeline.destination))
        if others := shared_tables(connection, pipeline, TablePlaces(configured), specs):
            raise DropRefusedError(f"destination {pipeline.destination!r}: {others[0]}")
        try:
            with open_destination(pipeline.destination, settings, s3) as destination:
                _reverting(pipeline.destination, destination).drop_tables(
                    specs, lambda: connection.execute(_STILL_THERE)
                )
        except (InputError, StopError) as error:
            raise DropRefusedError(str(error)) from error


def _not_configured(name: str) -> str:
    return (
        f"destination {name!r} is not among the settings here (WAYBILL_DESTINATIONS), so its "
        "tables cannot be dropped from here"
    )


def _reverting(name: str, destination: object) -> RevertingDestination:
    if not isinstance(destination, RevertingDestination):
        raise InputError(
            f"destination {name!r}: tables are dropped in PostgreSQL and DuckDB alone; elsewhere "
            "books are kept beside each table. Undeploy without --drop-tables, and leave them"
        )
    return destination


def finish(
    tracker: TrackerStore, drained: Drained, decision: Decision, dropped: Sequence[str]
) -> bool:
    """Say that a pipeline is undeployed; where tables may be gone, its source begins anew.

    False: a replay began since somebody looked what is on its way; look again.

    Args:
        tracker: where it is noted.
        drained: the pipeline.
        decision: whose it is, and why.
        dropped: tables, by name.

    Raises:
        InputError: something became open meanwhile, or it was deployed.
        RetryError: somebody else goes on with it at this moment.
    """
    pipeline, begun = drained.pipeline, drained.begun
    with tracker.transaction() as connection:
        found = hold_undeployment(connection, pipeline, begun)
        if found.dropping_at is None and not _is_quiet(connection, drained):
            return False
        end_undeployment(connection, begun, decision, dropped)
        if found.dropping_at is not None:
            ask_reread(connection, pipeline.id)
    return True
