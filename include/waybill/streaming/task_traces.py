"""The traces of one task: what its chain let pass at each stage, filtered and failed.

A batch of traces costs some 60 µs whatever it holds, and there may be 100,000 kinds of failure in
one micro-batch: groups of a few events share batches, with their names as columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress
from typing import Any

import pyarrow as pa

from waybill.events import STAGES
from waybill.stages import ChainResult, Failure
from waybill.stages.results import Mapped
from waybill.tracing import THROUGH, traces

_NOBODY = Mapped()
_Alike = tuple[str, str, str, str]
"""Pipeline id, event name, phase, outcome."""
_OWN_BATCH = 256
"""Events of one group that are worth a batch of their own: constant columns cost nothing a row."""


def trace_batches(
    result: ChainResult,
    *,
    topic: str,
    batch_id: str,
    staged_key: str,
    parked_key: str,
    now: datetime,
) -> list[pa.RecordBatch]:
    """Return the traces of all events of a task. Cost: about 0.5 µs an event."""
    common: dict[str, Any] = {
        "at_us": int(now.timestamp() * 1_000_000),
        "topic": topic,
        "batch": batch_id,
    }
    return [*_of_mapped(result, common, staged_key), *_of_failures(result, common, parked_key)]


@dataclass(slots=True)
class _Rows:
    """Traces of several groups, column by column."""

    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, count: int, constants: dict[str, Any], each: dict[str, Sequence[Any]]) -> None:
        for name, value in constants.items():
            self.columns.setdefault(name, []).extend([value] * count)
        for name, values in each.items():
            self.columns.setdefault(name, []).extend(values)

    def batches(self, common: dict[str, Any]) -> list[pa.RecordBatch]:
        return [_batch({**self.columns, **common})] if self.columns else []


def _batch(columns: dict[str, Any]) -> pa.RecordBatch:
    return traces(columns.pop("event_id"), **columns)


def _of_mapped(
    result: ChainResult, common: dict[str, Any], staged_key: str
) -> list[pa.RecordBatch]:
    small, batches = _Rows(), list[pa.RecordBatch]()
    for (pipeline_id, name, phase, outcome), group in _groups(result):
        constants = {
            "pipeline_id": pipeline_id,
            "event_name": name,
            "phase": phase,
            "outcome": outcome,
            "object_key": "" if phase == "transformation" else staged_key,
        }
        each = _each(group)
        if len(group.ids) >= _OWN_BATCH:
            same = {name: _one_or_all(values) for name, values in each.items()}
            batches.append(_batch({**constants, **same, "event_id": group.ids, **common}))
        elif group.ids:
            small.add(len(group.ids), constants, each)
    return [*batches, *small.batches(common)]


def _groups(result: ChainResult) -> Iterator[tuple[_Alike, Mapped]]:
    """Yield events that leave the same traces; who passed both stages is one line in the spool."""
    ended = result.mapped
    for (pipeline_id, name), group in result.transformed.items():
        mapped = ended.get((pipeline_id, name, "passed"), _NOBODY)
        through, only = (group, _NOBODY) if group == mapped else _shared(group, mapped)
        yield (pipeline_id, name, THROUGH, "passed"), through
        yield (pipeline_id, name, "transformation", "passed"), only
    for (pipeline_id, name, outcome), group in ended.items():
        if outcome != "passed":
            yield (pipeline_id, name, "transformation", outcome), group
            continue
        transformed = result.transformed.get((pipeline_id, name), _NOBODY)
        if group != transformed:
            yield (pipeline_id, name, "mapping", outcome), _shared(group, transformed)[1]


def _shared(group: Mapped, other: Mapped) -> tuple[Mapped, Mapped]:
    """Return those of a group that are in another as well, and those that are not."""
    known = set(zip(other.ids, other.partitions, other.offsets, strict=True))
    there = [one in known for one in zip(group.ids, group.partitions, group.offsets, strict=True)]
    return _chosen(group, there), _chosen(group, [not one for one in there])


def _chosen(group: Mapped, which: Sequence[bool]) -> Mapped:
    return Mapped(
        list(compress(group.ids, which)),
        list(compress(group.attempts, which)),
        list(compress(group.offsets, which)),
        list(compress(group.partitions, which)),
        list(compress(group.minutes, which)),
    )


def _each(group: Mapped) -> dict[str, Any]:
    return {
        "event_id": group.ids,
        "kafka_partition": group.partitions,
        "kafka_offset": group.offsets,
        "attempt": group.attempts,
        "intake_minute": group.minutes,
    }


def _one_or_all(values: list[Any]) -> Any:  # noqa: ANN401
    """Return a column's value where all are the same: one costs less than many to write down."""
    return values[0] if values.count(values[0]) == len(values) else values


def _of_failures(
    result: ChainResult, common: dict[str, Any], parked_key: str
) -> list[pa.RecordBatch]:
    """Return the traces of what parks; what could not be read has no id, so none."""
    failures = [failure for failure in result.failures if failure.event_id]
    if not failures:
        return []
    constants = {"outcome": "parked", "object_key": parked_key, **common}
    return [_batch({**_columns(failures), **constants})]


def _columns(failures: Iterable[Failure]) -> dict[str, Any]:
    rows = [
        (
            one.event_id,
            one.pipeline_id,
            one.event_name,
            one.stage if one.stage in STAGES else "transformation",
            one.fault.code,
            one.partition,
            one.offset,
            one.attempt,
            one.intake_minute or None,
            one.replay_id,
        )
        for one in failures
    ]
    return dict(zip(_FAILURE_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))


_FAILURE_COLUMNS = (
    "event_id",
    "pipeline_id",
    "event_name",
    "phase",
    "error_type",
    "kafka_partition",
    "kafka_offset",
    "attempt",
    "intake_minute",
    "replay_id",
)
