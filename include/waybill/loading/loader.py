"""Commits into one destination, and into the tracker's books of it.

A load: staged objects are read, the destination merges them in its own transaction (which stores
the outcome of each commit number), and the tracker is told from those stored outcomes. A repeat, or
a second loader that wakes up, finds the outcomes and changes nothing.

Traces are written before the destination commits, as only that load knows what became of each row.
One that fails afterwards is tried again and writes them again: of two traces with the same event,
batch and row number (``kafka_offset``) the later one counts.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection

from waybill.destinations import Commit, Destination, Expected, LoadOutcome, RefusedRow, Rows
from waybill.errors import InputError, RetryError, WaybillError
from waybill.ledger import (
    LoadCommit,
    StagedReference,
    acquire_lease,
    check_lease,
    commit_load,
    write_copies,
)
from waybill.loading.parked_rows import (
    names_commits_before,
    park_commits,
    park_refused,
    without_commits_before,
)
from waybill.loading.quarantine import note_lost
from waybill.loading.reload import Reload
from waybill.loading.traces import load_traces
from waybill.parking import OF_LOADS, ObjectDescriptor, Parking, SegmentDescriptor
from waybill.processing import Counts, StagedFrame, StagedObjectError, read_staged
from waybill.storage import ObjectMissingError, ObjectStore, TrackerStore
from waybill.tracing import Recorder

_LOG = logging.getLogger(__name__)
_READERS = 4
T = TypeVar("T")

Beside = Callable[[Connection], None]
"""Written in the transaction that acknowledges a load."""
Origins = Mapping[tuple[str, str], tuple[str, str]]
"""(pipeline id, event name) to (team, pipeline version)."""


class NotTakenError(WaybillError):
    """The destination did not take a load, for a reason of its own.

    Args:
        error: what it said.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.code: str = _code(error)
        self.by_hand_only = not isinstance(error, RetryError | InputError)
        """Nobody knows what it means: what waits is parked only by order."""


def _code(error: Exception) -> str:
    if isinstance(error, RetryError):
        return error.code or "destination_unreachable"
    if isinstance(error, InputError):
        return error.code or "destination_schema_conflict"
    return "unexpected_error"


class Loader:
    """Loads commits into one destination, or parks them, and keeps the tracker's books of it.

    Args:
        tracker: the books.
        objects: where staged and parked objects are.
        opening: opens the destination; called again after each failure.
        name: the destination's.
        recorder: for the traces.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        objects: ObjectStore,
        opening: Callable[[], Destination],
        *,
        name: str,
        recorder: Recorder | None = None,
    ) -> None:
        self._tracker = tracker
        self._objects = objects
        self._parking = Parking(tracker, objects)
        self._opening = opening
        self._opened: Destination | None = None
        self._recorder = recorder
        self.name = name
        self.consumer = f"loading/{name}"
        self._epoch = acquire_lease(tracker, self.consumer, holder=str(uuid.uuid4()))
        self._reload = Reload(tracker, objects, self)
        self._expected: Expected | None = None
        """What the destination has at the least; None: not compared since it was opened."""
        self._lost: dict[str, str] = {}
        """Staged objects of the load at work that are gone or damaged: key to what is wrong."""

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
                visible there, or (when the answer to its commit was lost) all of it: call again.
            RetryError: the store or the tracker is away; nothing is half done.
            StopError: fenced.
        """
        commits, origins = self._commits(references, after, until)
        rows = _rows_of(commits)
        outcomes = self._deliver(commits, origins) if rows else []
        asked = beside if rows else None
        taken = commits if rows else []
        self._acknowledge(outcomes, taken, after=after, until=until, beside=asked)
        return rows

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
        commits, origins = self._commits(references, after, until)
        outcomes = park_commits(
            self._objects, commits, origins, destination=self.name, code=code, message=message
        )
        ids = (one.rows["event_id"].to_pylist() for one in outcomes if one.rows is not None)
        self._trace(outcomes, {event_id: code for some in ids for event_id in some})
        self._acknowledge(outcomes, (), after=after, until=until, beside=beside)
        return _rows_of(commits)

    def probe(self) -> None:
        """Ask the destination whether it answers.

        Raises:
            NotTakenError: it does not.
        """
        with self._asking(()):
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

    def ask(self, call: Callable[[Destination], T], own: Sequence[Exception] = ()) -> T:
        """Ask the destination.

        Args:
            call: what is asked.
            own: errors that are not the destination's; they are raised as they are.

        Raises:
            NotTakenError: what it says; it is opened anew next time.
        """
        with self._asking(own):
            return call(self._destination())

    def _compared(self) -> Expected:
        if self._opened is None or self._expected is None:
            self._expected = self._reload.run()
        return self._expected

    def _destination(self) -> Destination:
        if self._opened is None:
            self._opened = self._opening()
        return self._opened

    def _deliver(self, commits: Sequence[Commit], origins: Origins) -> list[LoadOutcome]:
        refused: list[RefusedRow] = []
        own: list[Exception] = []

        def park(rows: Sequence[RefusedRow]) -> Mapping[str, object] | None:
            with _noting(own):
                refused.extend(rows)
                return park_refused(self._objects, rows, origins)

        def note(outcomes: Sequence[LoadOutcome]) -> None:
            with _noting(own):
                self._trace(outcomes, {row.event_id: row.error_code for row in refused})

        expected = self._compared()
        with self._asking(own):
            return self._destination().load(commits, park, note, expected=expected)

    @contextmanager
    def _asking(self, own: Sequence[Exception]) -> Iterator[None]:
        """Tell the destination's errors from our own; after any it is opened anew."""
        try:
            yield
        except Exception as error:
            self.close()
            if any(error is one for one in own):
                raise
            if not isinstance(error, WaybillError):
                _LOG.exception("%s: an error without a class", self.consumer)
            raise NotTakenError(error) from error

    def _commits(
        self, references: Sequence[StagedReference], after: int, until: int
    ) -> tuple[list[Commit], Origins]:
        """Read the staged objects; those that are lost are left out, and noted with the load."""
        commits, origins, self._lost = self._read_all(references, range(after + 1, until + 1))
        return commits, origins

    def read(
        self, references: Sequence[StagedReference], numbers: Iterable[int]
    ) -> tuple[list[Commit], Origins, set[int]]:
        """Read the staged objects of some commits; their rows are not copied.

        Returns:
            The commits, where their rows came from, and the commits of which an object is lost.

        Raises:
            RetryError: the store is away.
        """
        commits, origins, lost = self._read_all(references, numbers)
        return commits, origins, {i.commit_number for i in references if i.key in lost}

    def _read_all(
        self, references: Sequence[StagedReference], numbers: Iterable[int]
    ) -> tuple[list[Commit], Origins, dict[str, str]]:
        """Return commits, origins, and key to what is wrong with it of objects that are lost."""
        lost: dict[str, str] = {}
        rows_by_commit: dict[int, list[Rows]] = {number: [] for number in numbers}
        origins: dict[tuple[str, str], tuple[str, str]] = {}
        batches = {item.commit_number: item.batch for item in references}
        with ThreadPoolExecutor(_READERS) as pool:
            for item, frames in zip(references, pool.map(self._read, references), strict=True):
                if isinstance(frames, str):
                    lost[item.key] = frames
                    continue
                for f in frames:
                    rows = Rows(f.pipeline_id, f.event_name, f.table, f.data)
                    rows_by_commit[item.commit_number].append(rows)
                    origins[f.pipeline_id, f.event_name] = (f.team, f.pipeline_version)
        commits = [
            Commit(number, tuple(rows), batches.get(number, ""))
            for number, rows in rows_by_commit.items()
        ]
        return commits, origins, lost

    def _read(self, item: StagedReference) -> list[StagedFrame] | str:
        """Return an object's frames; what is wrong with it, where it is gone or damaged."""
        try:
            return read_staged(self._objects.get(item.key), key=item.key)
        except (ObjectMissingError, StagedObjectError) as error:
            _LOG.error("%s: %s", self.consumer, error)
            return str(error)

    def _acknowledge(
        self,
        outcomes: Sequence[LoadOutcome],
        taken: Sequence[Commit],
        *,
        after: int,
        until: int,
        beside: Beside | None,
    ) -> None:
        """Tell the tracker; ``taken``: the commits that the destination took."""
        counts = {
            outcome.commit_number: list(_counts(outcome).by_pipeline()) for outcome in outcomes
        }
        replays = _of_replays(outcomes)
        per_table = self._opened is not None and self._opened.per_table
        tables = _tables_of(taken) if per_table else {}
        commit = LoadCommit(
            self.consumer,
            self._epoch,
            self.name,
            after,
            until,
            counts,
            replays,
            taken=[one.number for one in taken],
            tables=tables,
        )
        parked, lost = self._parked(outcomes, after), self._lost

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
            note_lost(connection, self.name, lost)
            if beside is not None:
                beside(connection)

        commit_load(self._tracker, commit, record)
        if taken and self._expected is not None:
            self._expected = Expected(taken[-1].number, {**self._expected.tables, **tables})

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

    def _trace(self, outcomes: Sequence[LoadOutcome], codes: Mapping[str, str]) -> None:
        if self._recorder is None:
            return
        batches = load_traces(self.name, outcomes, codes, now_us=time.time_ns() // 1000)
        self._recorder.write(batches)


@contextmanager
def _noting(own: list[Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        own.append(error)
        raise


def _tables_of(commits: Sequence[Commit]) -> dict[tuple[str, str], int]:
    """Return each table's newest commit with rows for it."""
    return {
        (rows.table.schema_name, rows.table.name): commit.number
        for commit in commits
        for rows in commit.rows
        if rows.data.num_rows
    }


def _rows_of(commits: Sequence[Commit]) -> int:
    return sum(rows.data.num_rows for commit in commits for rows in commit.rows)


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
