"""Where an event is, or was: the questions, how one is watched, and what every backend shares.

A trail joins two places: the node's spool (the last seconds, or as long as the object store was
away) and the object store (all nodes). What lies in spools of other nodes comes in when they ship.

A query runs in the thread that asked; ``Watched`` may be looked at, and cancelled, from any other.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from waybill.errors import InputError, WaybillError
from waybill.tracing.files import Spool, SpoolFile
from waybill.tracing.layout import KnownLayout, TraceStore, line_of
from waybill.tracing.parquet import read_events
from waybill.tracing.shipping import trace_spool
from waybill.tracing.sql import (
    MINUTE_SCHEMA,
    OBJECT_SCHEMA,
    Engine,
    Statement,
    minute_statement,
    object_statement,
)
from waybill.tracing.trace import Trace, to_traces

LOG = logging.getLogger(__name__)


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
    return [
        event_id
        for event_id in dict.fromkeys(event_ids)
        if wanted.isdisjoint([*line_of(event_id)][1:])
    ]


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
    trails: dict[str, list[Trace]] = {event_id: [] for event_id in event_ids}
    for trace in found:
        if (since is None or trace.at >= since) and (until is None or trace.at <= until):
            for event_id in line_of(trace.event_id):
                if event_id in trails:
                    trails[event_id].append(trace)
    return {
        event_id: sorted(some, key=lambda trace: trace.order) for event_id, some in trails.items()
    }


def spooled(spool_dir: Path | None, event_ids: Sequence[str]) -> tuple[list[Trace], int]:
    """Return the traces of events in the finished files of this node's spool, and how many files.

    A file that is shipped meanwhile is left out: call this before the store is read. A damaged file
    is logged; the shipper has it as ``failed``. Cost: 1-3 ms a file of 50,000 traces.
    """
    if spool_dir is None:
        return [], 0
    in_spool: list[Trace] = []
    spool = trace_spool(spool_dir)
    files = spool.files()
    for file in files:
        try:
            in_spool += to_traces(_events_of(spool, file, event_ids))
        except FileNotFoundError:
            continue  # it was shipped since the listing: the store has it
        except (OSError, ValueError) as error:
            LOG.warning("trace file %s cannot be read: %s", file.path, error)
    return in_spool, len(files)


def _events_of(spool: Spool, file: SpoolFile, event_ids: Sequence[str]) -> pa.Table:
    """Return the traces of events in a file, also when it is tracked since the listing."""
    try:
        return read_events(file.path, event_ids)
    except FileNotFoundError:
        return read_events(spool.path(file.id), event_ids)


class QueryCancelledError(WaybillError):
    """The query was cancelled before it had an answer."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a query looks through: for an answer "not found", in which is said where."""

    backend: str
    """"duckdb" or "athena"."""
    since: datetime | None
    """None: from the first trace on."""
    until: datetime | None
    hours: int
    """Hours of traces that hold objects to read. Athena finds them by itself: 0."""
    objects: int
    """Objects to read; Athena: 0."""
    spool_files: int
    """Finished files of this node that are not shipped yet. Those of other nodes are not seen."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON: times in ISO 8601, or null."""
        times = {"since": self.since, "until": self.until}
        return {
            **asdict(self),
            **{name: at and at.isoformat() for name, at in times.items()},
        }


class QueryWatch(Protocol):
    """What a query tells while it runs, and asks. Calls come from the thread that queries."""

    def searching(self, searched: Searched) -> None:
        """Take where the query looks; before the first object is read."""
        ...

    def started(self, external_id: str) -> None:
        """Take the query service's own id, by which it can be stopped there."""
        ...

    def progress(self, *, objects_read: int, bytes_scanned: int) -> None:
        """Take how far the query is: totals so far, never less than before."""
        ...

    def cancelled(self) -> bool:
        """Tell whether the query shall end; asked a few times a second. Called from any thread."""
        ...


class Watched:
    """A watch that keeps what it is told. Safe for several threads."""

    def __init__(self) -> None:
        self.searched: list[Searched] = []
        """One for each statement's plan: a question may take several."""
        self.external_id = ""
        """Of the last statement."""
        self.objects = 0
        """To be read, as far as planned."""
        self.objects_read = 0
        self.bytes_scanned = 0
        self._done = (0, 0)
        self._cancelled = threading.Event()

    def searching(self, searched: Searched) -> None:
        """Keep it; what is read from now on counts on top of what was read."""
        self.searched.append(searched)
        self.objects += searched.objects
        self._done = (self.objects_read, self.bytes_scanned)

    def started(self, external_id: str) -> None:
        """Keep it."""
        self.external_id = external_id

    def progress(self, *, objects_read: int, bytes_scanned: int) -> None:
        """Keep the totals."""
        self.objects_read = self._done[0] + objects_read
        self.bytes_scanned = self._done[1] + bytes_scanned

    def cancel(self) -> None:
        """Let the query end by ``QueryCancelledError`` soon."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        """Tell whether ``cancel`` was called."""
        return self._cancelled.is_set()


def check_cancelled(watch: QueryWatch | None) -> None:
    """End the query when its watch says so.

    Raises:
        QueryCancelledError: it does.
    """
    if watch is not None and watch.cancelled():
        raise QueryCancelledError("the query was cancelled")


Window = tuple[datetime | None, datetime | None]
"""Times of traces, both included; None: no limit."""
StatementOf = Callable[[tuple[datetime, datetime], Sequence[str]], Statement]
"""Makes a statement for a window, and for compactions whose outputs do not count yet."""


class TraceQuery(ABC):
    """Looks traces up. Every call may be watched, and cancelled through the watch.

    All of them raise:
        RetryError: the object store, or the query service, is away.
        InputError: a time without a zone, or the store refuses.
        QueryCancelledError: the watch said so.

    Args:
        store: states the layout.
        spool_dir: this node's spool; None: only what is shipped.
    """

    engine: Engine

    def __init__(self, store: TraceStore, *, spool_dir: Path | None) -> None:
        self._store = store
        self._layout = KnownLayout(store)
        self._spool_dir = spool_dir

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
        return self.trails([event_id], since=since, until=until, watch=watch)[event_id]

    def trails(
        self,
        event_ids: Sequence[str],
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        watch: QueryWatch | None = None,
    ) -> dict[str, list[Trace]]:
        """Return the trail of each of many events, in the order asked; empty: nothing is known."""
        check_window(since, until)
        since, until = self._widened((since, until))
        check_cancelled(watch)
        wanted = list(dict.fromkeys(event_ids))
        in_spool, files = spooled(self._spool_dir, wanted)  # before the store: invariant I6
        shipped = self._shipped(tops(wanted), (since, until), watch, files)
        return by_event(wanted, self._joined(in_spool, shipped), since, until)

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
        check_window(since, until)
        names = (pipeline_id, event_name)
        yield from self._by_time(
            lambda window, runs: minute_statement(self.engine, names, intake_minute, window, runs),
            MINUTE_SCHEMA,
            (since, until),
            watch,
        )

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
        check_window(since, until)
        keys = list(dict.fromkeys(object_keys))
        yield from self._by_time(
            lambda window, runs: object_statement(self.engine, keys, window, runs),
            OBJECT_SCHEMA,
            (since, until),
            watch,
        )

    def _widened(self, window: Window) -> Window:
        """Return the window that is searched."""
        return window

    @abstractmethod
    def _shipped(
        self, event_ids: Sequence[str], window: Window, watch: QueryWatch | None, spool_files: int
    ) -> list[Trace]:
        """Return the traces of events in the store; tell the watch where it looks, first."""

    @abstractmethod
    def _joined(self, in_spool: list[Trace], shipped: list[Trace]) -> list[Trace]:
        """Return the traces of both places; what both hold counts once."""

    @abstractmethod
    def _by_time(
        self,
        statement_of: StatementOf,
        schema: pa.Schema,
        window: tuple[datetime, datetime],
        watch: QueryWatch | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what a statement finds in a window."""
