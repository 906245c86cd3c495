"""Commits into one destination, and into the tracker's books of it.

A load is a plan (``plans``), which names staged objects and is carried out in this process or by
executors (``delivery``): the destination merges their rows in its own transaction, which stores the
outcome of each commit number, and the tracker is told from those stored outcomes. A repeat, or a
second loader that wakes up, finds the outcomes and changes nothing. Only the loader speaks to the
tracker.

Traces are written before the destination commits, as only that load knows what became of each row.
One that fails afterwards is tried again and writes them again: of two traces with the same event,
batch and row number (``kafka_offset``) the later one counts.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection

from waybill.clusters import ApplicationLease
from waybill.destinations import Destination, Expected, LoadOutcome
from waybill.ledger import (
    LoadCommit,
    StagedReference,
    acquire_lease,
    check_lease,
    commit_load,
    write_copies,
)
from waybill.loading.delivery import DeliveryParts, deliver
from waybill.loading.failures import destination_errors
from waybill.loading.parked_rows import names_commits_before, without_commits_before
from waybill.loading.plans import LoadPlan, LoadReport, Place, PlannedObject
from waybill.loading.quarantine import note_lost
from waybill.loading.reload import Reload
from waybill.loading.sizes import is_small
from waybill.parking import OF_LOADS, ObjectDescriptor, Parking, SegmentDescriptor
from waybill.processing import TAIL_BYTES, Counts, staged_tables
from waybill.storage import ObjectMissingError, ObjectShorterError, ObjectStore, TrackerStore
from waybill.tracing import Recorder

_LOG = logging.getLogger(__name__)
_READERS = 4
_LONG_S = 300.0
"""A load that takes longer is told in the log, again each time so much has passed."""
T = TypeVar("T")

Beside = Callable[[Connection], None]
"""Written in the transaction that acknowledges a load."""
Executors: TypeAlias = Callable[[LoadPlan], Sequence[LoadReport]]
"""Carries a plan out in other processes, each of its tables by itself; raises what ``deliver``
raises, and ExecutorsFailedError where they did not come to it."""


class Loader:
    """Loads commits into one destination, or parks them, and keeps the tracker's books of it.

    Args:
        tracker: the books.
        objects: where staged and parked objects are.
        opening: opens the destination; called again after each failure.
        name: the destination's.
        recorder: for the traces of loads in this process.
        executors: carry out loads that are not small; None: all is done in this process.
        application: whose right to serve its cluster is checked as the lease is taken.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        tracker: TrackerStore,
        objects: ObjectStore,
        opening: Callable[[], Destination],
        *,
        name: str,
        recorder: Recorder | None = None,
        executors: Executors | None = None,
        application: ApplicationLease | None = None,
    ) -> None:
        self._tracker = tracker
        self._objects = objects
        self._parking = Parking(tracker, objects)
        self._opening = opening
        self._opened: Destination | None = None
        self._here = DeliveryParts(objects, self._destination, recorder)
        self._executors = executors
        self.name = name
        self.consumer = f"loading/{name}"
        cluster = "" if application is None else application.cluster
        check = None if application is None else application.check
        holder = f"{cluster}:{uuid.uuid4()}"  # read by those who ask which cluster loads it
        self._epoch = acquire_lease(tracker, self.consumer, holder=holder, check=check)
        self._reload = Reload(tracker, objects, self)
        self._expected: Expected | None = None
        """What the destination has at the least; None: not compared since it was opened."""

    def load(
        self,
        references: Sequence[StagedReference],
        *,
        after: int,
        until: int,
        beside: Beside | None = None,
    ) -> int:
        """Load commits ``after`` + 1 to ``until`` and acknowledge them; returns rows read.

        Args:
            references: the staged objects of these commits.
            after: where the destination stands.
            until: last commit of this load.
            beside: told to the tracker together with the load, if the destination had a part in it:
                commits without rows are acknowledged without it.

        Raises:
            NotTakenError: the destination is away, or does not take the load; nothing of it is
                visible there, or (when the answer to its commit was lost) all of it; where books
                are per table, that is so of each table by itself: call again.
            ExecutorsFailedError: executors did not carry it out.
            RetryError: the store or the tracker is away; nothing is half done.
            StopError: fenced.
        """
        plan = self._plan(references, range(after + 1, until + 1))
        report = LoadReport()
        if plan.objects:
            report = self._carry_out(replace(plan, expected=self._compared()))
        asked = beside if report.rows else None
        taken = plan.numbers if report.rows else ()
        self._acknowledge(report, taken, after=after, until=until, beside=asked)
        return report.rows

    def park(
        self,
        references: Sequence[StagedReference],
        *,
        after: int,
        until: int,
        code: str,
        message: str,
        beside: Beside | None = None,
    ) -> int:
        """Park all rows of commits ``after`` + 1 to ``until`` and acknowledge them; returns rows.

        So it is with rows that a load of which another table was refused left in their tables:
        they count as parked, and as duplicates once they are replayed.

        Args:
            references: as those of ``load``.
            after: as that of ``load``.
            until: as that of ``load``.
            code: the error type they are parked under.
            message: why they are parked.
            beside: as that of ``load``.

        Raises:
            RetryError: the store or the tracker is away; nothing is parked.
            StopError: fenced.
        """
        plan = self._plan(references, range(after + 1, until + 1))
        report = self._carry_out(replace(plan, park=(code, message)))
        self._acknowledge(report, (), after=after, until=until, beside=beside)
        return report.rows

    def load_again(
        self, references: Sequence[StagedReference], numbers: Sequence[int], rewind: int
    ) -> LoadReport:
        """Load commits again that the destination had, and acknowledge nothing.

        Args:
            references: their staged objects.
            numbers: of the commits.
            rewind: its id; what is parked bears it.

        Raises:
            NotTakenError: as ``load``.
            RetryError: the store is away.
        """
        return self._carry_out(replace(self._plan(references, numbers), reload=rewind))

    def probe(self) -> None:
        """Ask the destination whether it answers.

        Raises:
            NotTakenError: it does not.
        """
        with self._asking():
            self._destination().check()

    def compare(self) -> None:
        """Compare the destination's books with the tracker's; load again what it lacks.

        Done by itself when it was opened.

        Raises:
            NotTakenError: the destination is away, or does not take what is loaded again.
            RetryError: the tracker or the store is away.
        """
        self._expected = None
        self._compared()

    @contextmanager
    def books(self) -> Iterator[Connection]:
        """One transaction of the tracker, under the lease.

        Raises:
            FencedError: another loader has taken over.
            RetryError: the tracker is away.
        """
        with self._tracker.transaction() as connection:
            check_lease(connection, self.consumer, self._epoch)
            yield connection

    def close(self) -> None:
        """Close the destination; it is opened again when it is needed."""
        opened, self._opened, self._expected = self._opened, None, None
        if opened is not None:
            opened.close()

    def ask(self, call: Callable[[Destination], T]) -> T:
        """Ask the destination.

        Raises:
            NotTakenError: what it says; it is opened anew next time.
        """
        with self._asking():
            return call(self._destination())

    def _compared(self) -> Expected:
        if self._opened is None or self._expected is None:
            self._expected = self._reload.run()
        return self._expected

    def _destination(self) -> Destination:
        if self._opened is None:
            self._opened = self._opening()
        return self._opened

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise what the destination says as ``NotTakenError``; after that it is opened anew."""
        try:
            with destination_errors(self.consumer):
                yield
        except Exception:
            self.close()
            raise

    def _plan(self, references: Sequence[StagedReference], numbers: Sequence[int]) -> LoadPlan:
        objects = (
            PlannedObject(i.commit_number, i.key, i.rows, i.bytes, i.row_bytes, i.batch)
            for i in references
        )
        return LoadPlan(self.name, numbers, tuple(objects))

    def _carry_out(self, plan: LoadPlan) -> LoadReport:
        """Have a plan carried out; after any error the destination is opened anew.

        What is parked is parked here, some rows at a time: it may be because executors fail.
        """
        try:
            with self._told_if_long(plan):
                here = plan.park is not None or is_small(plan.rows, plan.row_bytes)
                if self._executors is None or here:
                    return deliver(plan, None, self._here)
                parts = replace(plan, tables=self._tables_of(plan))
                report = LoadReport.joined(self._executors(parts))
                report.check_whole(plan)
                return report
        except Exception:
            self.close()
            raise

    def _tables_of(self, plan: LoadPlan) -> tuple[Place | None, ...]:
        """Return the tables that are loaded each by itself; one None: all of them at once.

        So it is where a load is one transaction over all tables, and where an object does not say
        which it has rows of. Cost: a request of 64 KB an object.
        """
        with self._asking():
            per_table = self._destination().per_table
        if not per_table:
            return (None,)
        places: set[Place] = set()
        with ThreadPoolExecutor(_READERS) as pool:
            for found in pool.map(self._tables_in, plan.objects):
                if found is None:
                    return (None,)
                places |= found.keys()
        return tuple(sorted(places)) or (None,)

    def _tables_in(self, item: PlannedObject) -> Mapping[Place, int] | None:
        start = max(0, item.bytes - TAIL_BYTES)
        try:
            tail = self._objects.get(item.key, position=start, length=item.bytes - start)
        except (ObjectMissingError, ObjectShorterError):
            return {}  # who reads it whole says what is wrong
        return staged_tables(tail)

    @contextmanager
    def _told_if_long(self, plan: LoadPlan) -> Iterator[None]:
        """Say in the log, while it goes on, that a load takes long; from a thread of its own."""
        ended, began = threading.Event(), time.monotonic()

        def watch() -> None:
            while not ended.wait(_LONG_S):
                _LOG.warning(
                    "%s: a load of commits %d to %d (%d rows) has been going on for %.0f s: the "
                    "destination does not answer, or no executor is free",
                    self.consumer, plan.numbers[0], plan.numbers[-1], plan.rows,
                    time.monotonic() - began,
                )  # fmt: skip

        thread = threading.Thread(target=watch, name=f"watch-{self.consumer}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()

    def _acknowledge(
        self,
        report: LoadReport,
        taken: Sequence[int],
        *,
        after: int,
        until: int,
        beside: Beside | None,
    ) -> None:
        """Tell the tracker; ``taken``: the commits that the destination took."""
        outcomes = report.outcomes
        counts = {
            outcome.commit_number: list(_counts(outcome).by_pipeline()) for outcome in outcomes
        }
        replays = _of_replays(outcomes)
        commit = LoadCommit(
            self.consumer,
            self._epoch,
            self.name,
            after,
            until,
            counts,
            replays,
            taken=taken,
            tables=report.tables,
        )
        parked = self._parked(outcomes, after)

        def record(connection: Connection) -> None:
            new = [
                _parked_object(item)
                for key, item in sorted(parked.items())
                if not self._parking.knows(connection, key)
            ]
            copies = self._parking.record_once(
                connection, new, scope=f"{OF_LOADS}{self.name}", commit_number=after + 1
            )
            write_copies(connection, f"load:{self.name}:{after + 1}", copies)
            note_lost(connection, self.name, report.lost)
            if beside is not None:
                beside(connection)

        commit_load(self._tracker, commit, record)
        if taken and self._expected is not None:
            self._expected = Expected(taken[-1], {**self._expected.tables, **report.tables})

    def _parked(self, outcomes: Sequence[LoadOutcome], after: int) -> dict[str, Mapping[str, Any]]:
        """Return key to descriptor of what the outcomes name, without what is parked already."""
        descriptors = {item["key"]: item for outcome in outcomes for item in outcome.parked}
        mixed = [key for key, item in descriptors.items() if names_commits_before(item, after)]
        if mixed:
            with self._tracker.transaction() as connection:
                mixed = [key for key in mixed if not self._parking.knows(connection, key)]
        for key in mixed:
            rest = without_commits_before(self._objects, descriptors.pop(key), after)
            if rest is not None:
                descriptors[rest["key"]] = rest
        return descriptors


def _of_replays(outcomes: Sequence[LoadOutcome]) -> dict[str, Counter[str]]:
    """Return replay id to outcome to rows, over several commits."""
    by_replay: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for replay_id, numbers in outcome.replays.items():
            by_replay.setdefault(replay_id, Counter()).update(numbers)
    return by_replay


def _counts(outcome: LoadOutcome) -> Counts:
    counts = Counts()
    for row in outcome.counts:
        key = (row.pipeline_id, row.event_name, "destination", row.intake_minute)
        for name, number in (
            ("in_first", row.in_first),
            ("in_replayed", row.in_replayed),
            ("passed", row.delivered),
            ("out", row.delivered),
            ("superseded", row.superseded),
            ("duplicate", row.duplicate),
            ("parked", row.parked),
        ):
            if number:
                counts.add(key, name, number)
    return counts


def _parked_object(item: Mapping[str, Any]) -> ObjectDescriptor:
    """Return the descriptor of an object that holds rows which the destination refused."""
    segments = tuple(map(SegmentDescriptor.from_json, item["segments"]))
    return ObjectDescriptor(item["key"], item["size"], segments)
