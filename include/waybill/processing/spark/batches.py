"""A micro-batch as its tasks tell of it: descriptors, and the offsets that they saw.

Pure, but for `run_tasks`, which is the one Spark action, and `read_offsets`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame

from waybill.errors import RetryError, StopError, WaybillError
from waybill.parking import ObjectDescriptor, SegmentStream
from waybill.processing import Counts
from waybill.processing.spark.tasks import DESCRIPTOR_SCHEMA, Task

Descriptor = dict[str, Any]
"""What one task tells of one topic; see ``StageTask``."""
Ranges = Mapping[int, tuple[int, int]]
"""{partition: (first offset, after the last)}."""
Holes = Mapping[int, Sequence[tuple[int, int]]]
"""{partition: (first, after) of offsets without a record}."""


@dataclass(frozen=True, slots=True)
class SeenOffsets:
    """What the tasks of a batch saw of one partition."""

    first: int
    last: int
    count: int
    at_ms: int
    """Timestamp of the last record."""
    digest: str
    """Of the last record's value."""


class HoleError(StopError):
    """Some records of a batch did not come.

    Args:
        message: which.
        partitions: their numbers.
    """

    def __init__(self, message: str, partitions: Sequence[int]) -> None:
        super().__init__(message)
        self.partitions = partitions


def run_tasks(numbers: DataFrame, task: Task) -> dict[str, list[Descriptor]]:
    """Run a batch as one Spark action; return {topic: what its tasks tell of it}."""
    rows = numbers.mapInArrow(task, DESCRIPTOR_SCHEMA).collect()
    descriptors = defaultdict[str, list[Descriptor]](list)
    while rows:  # each is freed once it is read
        descriptor = read_descriptor(*rows.pop(0))
        descriptors[descriptor["topic"]].append(descriptor)
    return descriptors


def made_bytes(descriptors: Sequence[Descriptor]) -> int:
    """Return what tasks made of a topic's events: rows in memory, and results that parked."""
    return sum(int(descriptor.get("made_bytes", 0)) for descriptor in descriptors)


def gave_up(descriptors: Sequence[Descriptor], limit_bytes: float = math.inf) -> bool:
    """Tell whether a task gave a topic up, or all of them together made more than the limit."""
    is_over = made_bytes(descriptors) > limit_bytes
    return is_over or any("gave_up" in descriptor for descriptor in descriptors)


class UnreadError(RetryError):
    """Records of a topic could not be read, and those of its neighbours could."""


def unread_of(descriptors: Mapping[str, Sequence[Descriptor]]) -> dict[str, WaybillError]:
    """Return {topic: why some of its records could not be read}; of several errors the gravest.

    Where none of the topics could be read, all are as good: a server is away.
    """
    unread = dict[str, WaybillError]()
    for topic, found in descriptors.items():
        told = sorted((one for one in found if "unread" in one), key=lambda one: one["stops"])
        if told:
            kind = StopError if told[-1]["stops"] else UnreadError
            unread[topic] = kind(told[-1]["unread"])
    if len(unread) == len(descriptors):
        return {
            topic: RetryError(str(error)) if isinstance(error, UnreadError) else error
            for topic, error in unread.items()
        }
    return unread


def needed_by(descriptors: Sequence[Descriptor]) -> set[str]:
    """Return the ids of pipelines that tasks needed and were not sent."""
    return {ident for descriptor in descriptors for ident in descriptor.get("needed", ())}


def counts_of(descriptors: Sequence[Descriptor]) -> Counts:
    """Return the counts of all tasks."""
    counts = Counts()
    for descriptor in descriptors:
        counts.merge(Counts.from_json(descriptor["counts"]))
    return counts


def read_descriptor(descriptor: bytes, segments: bytes) -> Descriptor:
    """Return a task's row; ``parked`` is an ``ObjectDescriptor``, or None."""
    report: Descriptor = orjson.loads(descriptor)
    if report["parked"]:
        report["parked"] = ObjectDescriptor(**report["parked"], segments=SegmentStream(segments))
    return report


def ranges_seen(descriptors: Sequence[Descriptor]) -> dict[int, SeenOffsets]:
    """Return what was seen of each partition over all tasks."""
    seen: dict[int, SeenOffsets] = {}
    for descriptor in descriptors:
        for number, *span in descriptor["ranges"]:
            records = SeenOffsets(*span)
            if (before := seen.get(number)) is not None:
                newest = max(records, before, key=lambda item: item.last)
                first, count = min(records.first, before.first), records.count + before.count
                records = replace(newest, first=first, count=count)
            seen[number] = records
    return seen


def check_ranges_seen(
    topic: str, ranges: Ranges, seen: Mapping[int, SeenOffsets], holes: Holes
) -> dict[int, int]:
    """Refuse a batch whose records are not exactly the offsets it is to cover.

    Args:
        topic: its name, for words.
        ranges: {partition: (first offset, after the last)} asked for.
        seen: what came.
        holes: offsets that were settled as having no record.

    Returns:
        {partition: how many of its offsets have no record, all of them settled}.

    Raises:
        HoleError: others have none, or records came twice.
        StopError: records of other partitions.
    """
    absent = {}
    wrong = []
    for number, (start, end) in ranges.items():
        gaps = [(max(a, start), min(b, end)) for a, b in holes.get(number, ())]
        absent[number] = sum(b - a for a, b in gaps if a < b)
        there = seen.get(number)
        count = 0 if there is None else there.count
        inside = there is None or (there.first >= start and there.last < end)
        if not inside or count + absent[number] != end - start:
            wrong.append(number)
    if extra := set(seen) - set(ranges):
        raise StopError(f"{topic}: records of partitions {sorted(extra)} that no one asked for")
    if wrong:
        asked = "; ".join(
            f"{topic}/{n}: offsets {ranges[n][0]} to {ranges[n][1] - 1} were asked for, "
            f"{seen[n].count if n in seen else 0} records came"
            for n in wrong
        )
        raise HoleError(asked, wrong)
    return absent


def checkpoint_location(checkpoint: Path) -> str:
    """Return where Spark writes a query's checkpoint: on the driver's disk.

    Without the scheme it is on ``fs.defaultFS``, where ``read_offsets`` does not look.
    """
    return f"file://{checkpoint.resolve()}"


def read_offsets(checkpoint: Path, spark_batch_id: int) -> dict[str, Any]:
    """Return the end offsets that Spark wrote for a batch before it ran."""
    text = (checkpoint / "offsets" / str(spark_batch_id)).read_text(encoding="utf-8")
    offsets: dict[str, Any] = orjson.loads(text.strip().splitlines()[-1])
    return offsets
