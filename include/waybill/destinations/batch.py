"""A load in Arrow: frames of one table joined into one batch, outcomes counted per commit.

A row's ordinal is its place in its table's batch: commit by commit, frame by frame, in the order
the events came. Frames are contiguous, so what belongs to a commit is found by slicing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from waybill.destinations.model import Commit, LoadOutcome, OutcomeCount, Rows
from waybill.destinations.specs import ITEM, union
from waybill.errors import InputError, StopError
from waybill.pipelines import ChildTable, TableSpec

DELIVERED, SUPERSEDED, DUPLICATE, PARKED = 0, 1, 2, 3
OUTCOMES = ("delivered", "superseded", "duplicate", "parked")
UPSERT, DELETE = "upsert", "delete"

_CONTEXT = {
    "_waybill_id": pa.string(),
    "_waybill_key": pa.string(),
    "_waybill_source_version": pa.int64(),
    "_waybill_intake_version": pa.int64(),
    "_waybill_intake_minute": pa.int32(),
    "_waybill_op": pa.string(),
    "_waybill_replayed": pa.bool_(),
}
_LATER = {"_waybill_replay": None, "_waybill_attempt": 0}
"""Columns that rows staged by an older release lack, with what they stand for then."""
_LATER_TYPES = {"_waybill_replay": pa.string(), "_waybill_attempt": pa.int32()}
_ROW_TYPES = {
    "event_id": pa.string(),
    "pipeline_id": pa.string(),
    "event_name": pa.string(),
    "outcome": pa.string(),
    "intake_minute": pa.int32(),
    "replayed": pa.bool_(),
    "replay_id": pa.string(),
    "number": pa.int64(),
    "op": pa.string(),
}
_EMPTY_ROWS = pa.schema(list(_ROW_TYPES.items()))

Place = tuple[str, str]
"""(schema, table)."""
GroupKey = tuple[str, str, int]
"""(pipeline id, event name, intake minute)."""


@dataclass(frozen=True, slots=True)
class RowFrame:
    """Where one ``Rows`` lies in its table's batch."""

    commit_number: int
    rows: Rows
    start: int
    end: int


@dataclass(slots=True)
class TableBatch:
    """All rows of a load for one table."""

    spec: TableSpec
    frames: list[RowFrame]
    columns: pa.Table
    """The user's columns, by the spec, and the items of its children."""
    context: pa.Table
    """The system columns, row by row beside ``columns``."""
    outcomes: np.ndarray[Any, np.dtype[np.int8]] = field(init=False)

    def __post_init__(self) -> None:
        self.outcomes = np.zeros(self.columns.num_rows, np.int8)

    @property
    def has_deletes(self) -> bool:
        """Say whether any row is a delete."""
        return bool(pa.compute.any(pa.compute.equal(self.context["_waybill_op"], DELETE)).as_py())

    @property
    def repeats_keys(self) -> bool:
        """Say whether two rows may have one key; False is sure. Cost: one hash pass over keys."""
        kinds = {column.name: column.type for column in self.spec.columns}
        if any(kinds[name] == "json" for name in self.spec.key):
            return True  # equal values may differ in their bytes
        names = [str(place) for place in range(len(self.spec.key))]  # names are no paths then
        keys = self.columns.select(self.spec.key).rename_columns(names)
        groups = keys.group_by(names, use_threads=False).aggregate([])
        return bool(groups.num_rows < self.columns.num_rows)

    def items(self, child: ChildTable) -> pa.Table:
        """Return a child's items: ``_waybill_n`` (the row), ``_waybill_item``, its columns."""
        lists = self.columns.column(child.arrow_name).combine_chunks()
        parents = pa.compute.list_parent_indices(lists)
        structs = pa.compute.list_flatten(lists)
        rows = np.asarray(parents, np.int64)
        begins = np.flatnonzero(np.diff(rows, prepend=-1))
        lengths = np.diff(begins, append=len(rows))
        positions = np.arange(len(rows)) - np.repeat(begins, lengths)
        fields = dict(zip((f.name for f in structs.type), structs.flatten(), strict=True))
        names = [column.name for column in child.columns]
        arrays = [pa.array(rows), pa.array(positions), *(fields[name] for name in names)]
        return pa.table(arrays, names=["_waybill_n", ITEM, *names])

    def frame_of(self, ordinal: int) -> RowFrame:
        """Return the frame a row came in."""
        return next(frame for frame in self.frames if frame.start <= ordinal < frame.end)


def batches_of(
    commits: Iterable[Commit], tables: Mapping[Place, TableSpec] | None = None
) -> list[TableBatch]:
    """Join the rows of all commits, a batch a table, tables in order of their names.

    Args:
        commits: whose rows.
        tables: tables as they are, whose types may be wider than their declarations: rows of
            these are cast to them.

    Raises:
        InputError: two versions of a table in one load whose types do not go together.
        StopError: a frame lacks one of its own columns, or names an operation that is none.
    """
    rows_by_table: dict[tuple[str, str], list[tuple[int, Rows]]] = {}
    for commit in commits:
        for rows in commit.rows:
            if rows.data.num_rows:
                place = (rows.table.schema_name, rows.table.name)
                rows_by_table.setdefault(place, []).append((commit.number, rows))
    known = tables or {}
    return [_batch(rows_by_table[place], known.get(place)) for place in sorted(rows_by_table)]


def _batch(items: Sequence[tuple[int, Rows]], table: TableSpec | None) -> TableBatch:
    spec = table or union([rows.table for _, rows in items])
    frames, at = [], 0
    for number, rows in items:
        frames.append(RowFrame(number, rows, at, at + rows.data.num_rows))
        at += rows.data.num_rows
    runs = _runs([rows for _, rows in items])
    return TableBatch(
        spec,
        frames,
        pa.concat_tables([_fitted(rows, spec) for rows in runs]),
        pa.concat_tables([_context(rows) for rows in runs]),
    )


def _runs(items: Sequence[Rows]) -> list[Rows]:
    """Join rows that follow each other and are of one kind: of many commits, few frames to shape.

    Rows of several pipelines or event names are not joined: errors say whose rows they are about.
    """
    runs: list[list[Rows]] = []
    for rows in items:
        if runs and _is_alike(runs[-1][-1], rows):
            runs[-1].append(rows)
        else:
            runs.append([rows])
    return [
        replace(run[0], data=pa.concat_tables([rows.data for rows in run]))
        if len(run) > 1
        else run[0]
        for run in runs
    ]


def _is_alike(first: Rows, second: Rows) -> bool:
    return (
        (first.pipeline_id, first.event_name) == (second.pipeline_id, second.event_name)
        and (first.table is second.table or first.table == second.table)
        and bool(first.data.schema == second.data.schema)
    )


def _fitted(rows: Rows, spec: TableSpec) -> pa.Table:
    """Return the frame's columns as the union spec has them; a column it does not know is null."""
    own = set(rows.table.arrow_schema().names)
    schema = spec.arrow_schema()
    arrays = []
    for item in schema:
        if item.name not in own:
            arrays.append(pa.nulls(rows.data.num_rows, item.type))
        else:
            column = _cast(rows, item.name, item.type)
            arrays.append(key_values(column) if item.name in spec.key else column)
    return pa.table(arrays, schema=pa.schema([pa.field(f.name, f.type) for f in schema]))


def key_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a key's values such that equal ones have the same bytes, and so the same text.

    Of floats -0.0 becomes 0.0, and there is one NaN; all others stay.
    """
    if not pa.types.is_floating(column.type):
        return column
    values = pa.compute.add(column, pa.scalar(0.0, column.type))
    no_number = pa.scalar(float("nan"), column.type)
    return pa.compute.if_else(pa.compute.is_nan(values), no_number, values)


def _cast(rows: Rows, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    where = f"{rows.table.schema_name}.{rows.table.name}, column {name!r}"
    if name not in rows.data.column_names:
        raise StopError(f"{where}: the staged rows of {rows.event_name!r} do not have it")
    column = rows.data.column(name)
    if column.type == kind:
        return column
    try:
        return _widened(column, kind)
    except pa.ArrowException as error:
        raise InputError(
            f"{where}: found {column.type} in rows of {rows.pipeline_id!r}, expected {kind}: "
            f"{error}; deploy a version whose types the waiting rows fit"
        ) from error


def _widened(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast values; of a list of structs each field, by its name, those that are new are null."""
    if not pa.types.is_list(kind):
        return column.cast(kind)
    return pa.chunked_array([_widened_list(chunk, kind) for chunk in column.chunks], type=kind)


def _widened_list(lists: pa.ListArray, kind: pa.DataType) -> pa.ListArray:
    if lists.offset:
        lists = lists.take(pa.array(np.arange(len(lists))))
    structs = lists.values
    known = {f.name: structs.field(f.name) for f in structs.type}
    wanted = list(kind.value_type)
    fields = [
        known[f.name].cast(f.type) if f.name in known else pa.nulls(len(structs), f.type)
        for f in wanted
    ]
    items = pa.StructArray.from_arrays(fields, fields=wanted)
    return pa.ListArray.from_arrays(lists.offsets, items, type=kind, mask=lists.is_null())


def _context(rows: Rows) -> pa.Table:
    data = rows.data
    missing = [name for name in _CONTEXT if name not in data.column_names]
    if missing:
        raise StopError(f"staged rows of {rows.event_name!r} lack {', '.join(missing)}")
    known = pa.compute.is_in(data["_waybill_op"], pa.array([UPSERT, DELETE]))
    if not pa.compute.all(known).as_py():
        raise StopError(f"staged rows of {rows.event_name!r} hold an unknown operation")
    arrays = [data.column(name).cast(kind) for name, kind in _CONTEXT.items()]
    for name, kind in _LATER_TYPES.items():
        if name in data.column_names:
            arrays.append(data.column(name).cast(kind))
        else:
            arrays.append(pa.repeat(pa.scalar(_LATER[name], kind), data.num_rows))
    return pa.table(arrays, names=[*_CONTEXT, *_LATER_TYPES])


def group_inputs(commit: Commit) -> dict[GroupKey, tuple[int, int]]:
    """Return (first-pass in, replayed in) of each group of a commit. Cost: one hash pass."""
    inputs: dict[GroupKey, tuple[int, int]] = {}
    for rows in commit.rows:
        names = ["_waybill_intake_minute", "_waybill_replayed"]
        groups = rows.data.select(names).group_by(names).aggregate([([], "count_all")])
        for group in groups.to_pylist():
            key = (rows.pipeline_id, rows.event_name, group["_waybill_intake_minute"])
            first, replayed = inputs.get(key, (0, 0))
            if group["_waybill_replayed"]:
                replayed += group["count_all"]
            else:
                first += group["count_all"]
            inputs[key] = (first, replayed)
    return inputs


def outcomes_of(
    commits: Sequence[Commit],
    batches: Sequence[TableBatch],
    *,
    before: Mapping[int, int] | None = None,
) -> list[LoadOutcome]:
    """Return the outcome of each commit, without what was parked. Cost: one hash pass over rows.

    Args:
        commits: of whose rows the batches are.
        batches: in the order in which their rows are numbered.
        before: commit number to rows of it that come before those of the batches.
    """
    pieces: dict[int, list[pa.Table]] = {commit.number: [] for commit in commits}
    numbers = Counter(before)
    counts: dict[int, dict[GroupKey, dict[str, int]]] = {commit.number: {} for commit in commits}
    for batch in batches:
        rows = _outcome_rows(batch, numbers)
        for frame in batch.frames:
            part = rows.slice(frame.start, frame.end - frame.start)
            pieces[frame.commit_number].append(part)
        _count(counts, batch, rows)
    outcomes = []
    for commit in commits:
        groups = sorted(counts[commit.number].items())
        rows = pa.concat_tables(pieces[commit.number] or [_EMPTY_ROWS.empty_table()])
        outcomes.append(
            LoadOutcome(
                commit.number,
                [_outcome_count(*item) for item in groups],
                _of_replays(rows),
                (),
                rows,
            )
        )
    return outcomes


def _of_replays(rows: pa.Table) -> dict[str, dict[str, int]]:
    """Count the outcomes of each replay's rows."""
    by_replay: dict[str, dict[str, int]] = {}
    ids = rows.column("replay_id")
    if ids.null_count == rows.num_rows:  # nearly always
        return by_replay
    names = ["replay_id", "outcome"]
    groups = rows.select(names).filter(ids.is_valid()).group_by(names)
    for group in groups.aggregate([([], "count_all")]).to_pylist():
        by_replay.setdefault(group["replay_id"], {})[group["outcome"]] = group["count_all"]
    return by_replay


def _outcome_count(key: GroupKey, found: Mapping[str, int]) -> OutcomeCount:
    numbers = {name: found.get(name, 0) for name in ("in_first", "in_replayed", *OUTCOMES)}
    return OutcomeCount(key[0], key[1], key[2], **numbers)


def _outcome_rows(batch: TableBatch, numbers: Counter[int]) -> pa.Table:
    """Return what became of each row of a batch.

    Args:
        batch: whose outcomes are known.
        numbers: commit number to its rows before; those of the batch are added.
    """
    firsts = []
    for frame in batch.frames:
        firsts.append(numbers[frame.commit_number] - frame.start)
        numbers[frame.commit_number] += frame.end - frame.start
    places = _frame_places(batch)
    context = batch.context
    codes = pa.DictionaryArray.from_arrays(pa.array(batch.outcomes), pa.array(OUTCOMES))
    return pa.table(
        [
            context["_waybill_id"],
            pa.array([frame.rows.pipeline_id for frame in batch.frames], pa.string()).take(places),
            pa.array([frame.rows.event_name for frame in batch.frames], pa.string()).take(places),
            codes.dictionary_decode(),
            context["_waybill_intake_minute"],
            context["_waybill_replayed"],
            context["_waybill_replay"],
            pa.array(np.arange(len(places)) + np.array(firsts, np.int64)[places]),
            context["_waybill_op"],
        ],
        names=list(_ROW_TYPES),
    )


def _frame_places(batch: TableBatch) -> pa.Int32Array:
    """Return the place of each row's frame among those of its batch."""
    lengths = [frame.end - frame.start for frame in batch.frames]
    return pa.array(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths))


def _count(
    counts: dict[int, dict[GroupKey, dict[str, int]]], batch: TableBatch, rows: pa.Table
) -> None:
    columns = {
        "frame": _frame_places(batch),
        "intake_minute": rows["intake_minute"],
        "replayed": rows["replayed"],
        "outcome": pa.array(batch.outcomes),
    }
    groups = pa.table(columns).group_by(list(columns)).aggregate([([], "count_all")])
    for group in groups.to_pylist():
        frame = batch.frames[group["frame"]]
        key = (frame.rows.pipeline_id, frame.rows.event_name, group["intake_minute"])
        group_counts = counts[frame.commit_number].setdefault(key, {})
        way = "in_replayed" if group["replayed"] else "in_first"
        for name in (way, OUTCOMES[group["outcome"]]):
            group_counts[name] = group_counts.get(name, 0) + group["count_all"]
