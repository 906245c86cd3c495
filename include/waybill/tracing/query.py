"""Where an event is, or was: the interface, and what every backend shares.

A trail joins two places: the node's spool (the last seconds, or as long as the object store was
away) and the object store (all nodes). What lies in spools of other nodes comes in when they ship.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from waybill.errors import InputError
from waybill.tracing.files import Spool, SpoolFile
from waybill.tracing.layout import line_of
from waybill.tracing.parquet import read_events
from waybill.tracing.shipping import trace_spool
from waybill.tracing.trace import TRACE_SCHEMA, Trace, to_traces
from waybill.tracing.watch import QueryWatch

LOG = logging.getLogger(__name__)
MINUTE_COLUMNS = (
    "event_id",
    "phase",
    "outcome",
    "batch",
    "kafka_partition",
    "kafka_offset",
    "commit_number",
    "attempt",
    "replay_id",
    "at",
)
MINUTE_SCHEMA = pa.schema([TRACE_SCHEMA.field(name) for name in MINUTE_COLUMNS])
"""What ``minute_traces`` yields."""
OBJECT_COLUMNS = (
    "object_key",
    "event_id",
    "pipeline_id",
    "event_name",
    "phase",
    "outcome",
    "error_type",
    "kafka_partition",
    "kafka_offset",
)
OBJECT_SCHEMA = pa.schema([TRACE_SCHEMA.field(name) for name in OBJECT_COLUMNS])
"""What ``object_traces`` yields."""


class TraceQuery(Protocol):
    """Looks traces up. Every call may be watched, and cancelled through the watch.

    All of them raise:
        RetryError: the object store, or the query service, is away.
        InputError: a time without a zone, or the store refuses.
        QueryCancelledError: the watch said so.
    """

    def trail(
        self,
        event_id: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        watch: QueryWatch | None = None,
    ) -> list[Trace]:
        """Return the traces of one event and of its children, by time, then in the way's order.

        A child is ``<event_id>/<index>``; ``Trace.event_id`` says whose a trace is. With a
        ``waybill.events.key_id``: the lines that name the events of a primary key.

        Args:
            event_id: whole id.
            since: earliest time of a trace, with a time zone; limits the hours that are read.
            until: latest one, itself included.
            watch: told how far it is.
        """
        ...

    def trails(
        self,
        event_ids: Sequence[str],
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        watch: QueryWatch | None = None,
    ) -> dict[str, list[Trace]]:
        """Return the trail of each of many events, in the order asked; empty: nothing is known."""
        ...

    def minute_traces(
        self,
        pipeline_id: str,
        event_name: str,
        intake_minute: int,
        *,
        since: datetime,
        until: datetime,
        watch: QueryWatch | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all shipped traces of the events of one intake minute, with ``MINUTE_SCHEMA``.

        In no order; a trace that was written twice comes twice. Memory is bounded whatever the
        number. Spools are not read.

        Args:
            pipeline_id: immutable id.
            event_name: whole name.
            intake_minute: minutes since 1970.
            since: earliest time of a trace.
            until: latest one, itself included.
            watch: told how far it is.

        Raises (while it is iterated, too):
            RetryError: also when an hour was compacted for the whole time; ask again from the
                start.
        """
        ...

    def object_traces(
        self,
        object_keys: Sequence[str],
        *,
        since: datetime,
        until: datetime,
        watch: QueryWatch | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all shipped traces that name one of these objects, with ``OBJECT_SCHEMA``.

        In no order; a trace that was written twice comes twice. Memory is bounded whatever the
        number. Spools are not read.

        Args:
            object_keys: of staged or parked objects, a few hundred at most.
            since: earliest time of a trace.
            until: latest one, itself included.
            watch: told how far it is.

        Raises (while it is iterated, too): as ``minute_traces``.
        """
        ...


def check_window(since: datetime | None, until: datetime | None) -> None:
    """Refuse times that have no time zone, or are the wrong way round."""
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.utcoffset() is None:
            raise InputError(f"{name} {moment.isoformat()} has no time zone; add one, as in +00:00")
    if since is not None and until is not None and since > until:
        raise InputError(f"since {since.isoformat()} is later than until {until.isoformat()}")


def joined(in_spool: Iterable[Trace], shipped: Iterable[Trace]) -> list[Trace]:
    """Return the traces of both places; what both hold was shipped in between, and counts once.

    A trace that is twice in one place was written twice, and stays.
    """
    return list((Counter(in_spool) | Counter(shipped)).elements())


def tops(event_ids: Sequence[str]) -> list[str]:
    """Return each id once, without those that are children of another one here."""
    wanted = set(event_ids)
    return [one for one in dict.fromkeys(event_ids) if wanted.isdisjoint([*line_of(one)][1:])]


def only_of(event_ids: Sequence[str], found: Iterable[Trace]) -> Iterator[Trace]:
    """Yield the traces of events and their children; a statement finds a few others beside them."""
    wanted = frozenset(event_ids)
    return (trace for trace in found if not wanted.isdisjoint(line_of(trace.event_id)))


def by_event(
    event_ids: Sequence[str],
    found: Iterable[Trace],
    since: datetime | None,
    until: datetime | None,
) -> dict[str, list[Trace]]:
    """Return the trail of each event: its own and its children's traces inside the window."""
    trails: dict[str, list[Trace]] = {one: [] for one in event_ids}
    for trace in found:
        if (since is None or trace.at >= since) and (until is None or trace.at <= until):
            for one in line_of(trace.event_id):
                if one in trails:
                    trails[one].append(trace)
    return {one: sorted(some, key=lambda trace: trace.order) for one, some in trails.items()}


def spooled(spool_dir: Path | None, event_ids: Sequence[str]) -> tuple[list[Trace], int]:
    """Return the traces of events in the finished files of this node's spool, and how many files.

    A file that is shipped meanwhile is left out: call this before the store is read. A damaged file
    is logged; the shipper has it as ``failed``. Cost: 1-3 ms a file of 50,000 traces.
    """
    if spool_dir is None:
        return [], 0
    found: list[Trace] = []
    spool = trace_spool(spool_dir)
    files = spool.files()
    for file in files:
        try:
            found += to_traces(_events_of(spool, file, event_ids))
        except FileNotFoundError:
            continue  # it was shipped since the listing: the store has it
        except (OSError, ValueError) as error:
            LOG.warning("trace file %s cannot be read: %s", file.path, error)
    return found, len(files)


def _events_of(spool: Spool, file: SpoolFile, event_ids: Sequence[str]) -> pa.Table:
    """Return the traces of events in a file, also when it is tracked since the listing."""
    try:
        return read_events(file.path, event_ids)
    except FileNotFoundError:
        return read_events(spool.path(file.id), event_ids)
