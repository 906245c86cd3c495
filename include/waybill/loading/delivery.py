"""A plan carried out: staged objects are read, and loaded or parked. In any process.

It has no way to the tracker. Killed at any time, or run twice, it is done once: the destination's
books say what it took, and what it parked is named by them, or is garbage.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from waybill.destinations import Commit, Destination, LoadOutcome, RefusedRow, Rows
from waybill.loading.failures import destination_errors
from waybill.loading.parked_rows import park_commits, park_refused
from waybill.loading.plans import LoadPlan, LoadReport, Place, PlannedObject
from waybill.loading.traces import load_traces
from waybill.processing import StagedFrame, StagedObjectError, read_staged, staged_tables
from waybill.storage import ObjectMissingError, ObjectStore
from waybill.tracing import Recorder

_LOG = logging.getLogger(__name__)
_READERS = 4
Origins = Mapping[tuple[str, str], tuple[str, str]]
"""(pipeline id, event name) to (team, pipeline version)."""


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    """What a plan is carried out with."""

    objects: ObjectStore
    """With staged and parked objects."""
    destination: Callable[[], Destination]
    """Returns it, opened; asked for only where there are rows to load."""
    recorder: Recorder | None = None
    """For the traces."""


def deliver(plan: LoadPlan, table: Place | None, parts: DeliveryParts) -> LoadReport:
    """Load one table's part of a plan, or all of it; or park it, if the plan says so.

    A park does not ask the destination: rows that a try before left in some table are parked, too.

    Args:
        plan: with ``table`` among its tables.
        table: whose rows are loaded; None: those of all.
        parts: what it needs.

    Raises:
        NotTakenError: the destination is away, or does not take the load; nothing of it is visible
            there, or (when the answer to its commit was lost) all of it; where books are per table,
            that is so of each table by itself: call again.
        RetryError: the object store is away; nothing is half done.

    Memory: the rows of one load, as the destination takes them.
    """
    rows = _read_all(plan, table, parts.objects)
    if plan.park is not None:
        code, message = plan.park
        outcomes = park_commits(
            parts.objects,
            rows.commits,
            rows.origins,
            destination=plan.destination,
            code=code,
            message=message,
        )
        ids = (one.rows["event_id"].to_pylist() for one in outcomes if one.rows is not None)
        _trace(plan, rows, outcomes, {event_id: code for some in ids for event_id in some}, parts)
        return LoadReport(rows.number, tuple(outcomes), lost=rows.lost)
    if not rows.number and plan.reload is None:
        return LoadReport(lost=rows.lost)
    return _load(plan, rows, parts)


@dataclass(frozen=True, slots=True)
class _PlannedRows:
    """What was read of a plan."""

    commits: list[Commit]
    origins: Origins
    lost: Mapping[str, str]
    before: Mapping[int, int]
    """Of one table's part: commit number to rows of tables whose names come before."""

    @property
    def number(self) -> int:
        return sum(part.data.num_rows for commit in self.commits for part in commit.rows)


def _load(plan: LoadPlan, rows: _PlannedRows, parts: DeliveryParts) -> LoadReport:
    refused: list[RefusedRow] = []
    own: list[Exception] = []
    mark = {} if plan.reload is None else {"reload": plan.reload}

    def park(found_now: Sequence[RefusedRow]) -> Mapping[str, object] | None:
        with _noting(own):
            refused.extend(found_now)
            found = park_refused(parts.objects, found_now, rows.origins)
            return found if found is None else {**found, **mark}

    def note(outcomes: Sequence[LoadOutcome]) -> None:
        with _noting(own):
            codes = {row.event_id: row.error_code for row in refused}
            _trace(plan, rows, outcomes, codes, parts)

    with destination_errors(f"loading/{plan.destination}", own):
        destination = parts.destination()
        outcomes = destination.load(
            rows.commits, park, note if plan.reload is None else None, expected=plan.expected
        )
    tables = _tables_of(rows.commits) if destination.per_table else {}
    return LoadReport(rows.number, tuple(outcomes), tables, rows.lost)


def _trace(
    plan: LoadPlan,
    rows: _PlannedRows,
    outcomes: Sequence[LoadOutcome],
    codes: Mapping[str, str],
    parts: DeliveryParts,
) -> None:
    if parts.recorder is not None:
        now_us = time.time_ns() // 1000
        traces = load_traces(plan.destination, outcomes, codes, now_us=now_us, before=rows.before)
        parts.recorder.write(traces)


def _read_all(plan: LoadPlan, table: Place | None, objects: ObjectStore) -> _PlannedRows:
    """Read the staged objects; those that are lost are left out."""
    lost: dict[str, str] = {}
    rows_by_commit: dict[int, list[Rows]] = {number: [] for number in plan.numbers}
    origins: dict[tuple[str, str], tuple[str, str]] = {}
    before = Counter[int]()
    batches = {item.commit_number: item.batch for item in plan.objects}

    def read(item: PlannedObject) -> tuple[list[StagedFrame], int] | str:
        """Return an object's frames, and how many rows of tables before them it has.

        What is wrong with it, where it is gone or damaged.
        """
        try:
            body = objects.get(item.key)
            frames = read_staged(body, key=item.key, table=table)
        except (ObjectMissingError, StagedObjectError) as error:
            _LOG.error("loading/%s: %s", plan.destination, error)
            return str(error)
        others = {} if table is None else staged_tables(body) or {}
        return frames, sum(n for place, n in others.items() if table and place < table)

    with ThreadPoolExecutor(_READERS) as pool:
        for item, found in zip(plan.objects, pool.map(read, plan.objects), strict=True):
            if isinstance(found, str):
                lost[item.key] = found
                continue
            before[item.commit_number] += found[1]
            for f in found[0]:
                rows = Rows(f.pipeline_id, f.event_name, f.table, f.data)
                rows_by_commit[item.commit_number].append(rows)
                origins[f.pipeline_id, f.event_name] = (f.team, f.pipeline_version)
    commits = [
        Commit(number, tuple(rows), batches.get(number, ""))
        for number, rows in rows_by_commit.items()
    ]
    return _PlannedRows(commits, origins, lost, before)


def _tables_of(commits: Sequence[Commit]) -> dict[Place, int]:
    """Return each table's newest commit with rows for it."""
    return {
        (rows.table.schema_name, rows.table.name): commit.number
        for commit in commits
        for rows in commit.rows
        if rows.data.num_rows
    }


@contextmanager
def _noting(own: list[Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        own.append(error)
        raise
