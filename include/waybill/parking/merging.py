"""Segments of one commit as one stream: events in the order of their offsets.

A task writes one frame for each fingerprint, so events of one key may stand in several. Segments
that share commit number, scope and Kafka partition are a group: they go back together, merged, so
that a key's events keep the order of the source (G4).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

from waybill.parking.event import ParkedEvent
from waybill.parking.model import Segment
from waybill.parking.packed import CorruptSegmentError, check_segment
from waybill.parking.queries import events_of, read_frame
from waybill.storage import ObjectStore, TrackerStore

_READERS = 4
_AHEAD_GROUPS = 32
_AHEAD_BYTES = 8 * 1024**2
"""Compressed."""


def group_of(segment: Segment) -> tuple[int, str, int]:
    """Return what the segments of one group have in common."""
    return segment.commit_number, segment.scope, segment.kafka_partition


def groups(in_order: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield segments in replay order as groups. Memory: one group's rows."""
    for _, group in groupby(in_order, group_of):
        yield list(group)


def merged(
    group: Sequence[Segment], read: Callable[[Segment], Iterator[ParkedEvent]]
) -> Iterator[tuple[Segment, ParkedEvent]]:
    """Yield the events of a group's segments by offset, each with its segment.

    Args:
        group: segments in replay order.
        read: opens one; called when the stream has come to its first offset.

    Events of one segment keep their order, whatever their offsets. Memory: the segments that
    overlap where the stream is.
    """
    heap: list[_Head] = []
    waiting = 0
    while heap or waiting < len(group):
        while waiting < len(group) and (not heap or group[waiting].first_offset <= heap[0][0]):
            _push(heap, waiting, read(group[waiting]))
            waiting += 1
        if not heap:
            continue
        _, index, event, rest = heapq.heappop(heap)
        yield group[index], event
        if heap:
            _push(heap, index, rest)
            continue
        end = group[waiting].first_offset if waiting < len(group) else math.inf
        for event in rest:  # alone up to there
            if event.kafka_offset >= end:
                heap.append((event.kafka_offset, index, event, rest))
                break
            yield group[index], event


_Head: TypeAlias = tuple[int, int, ParkedEvent, Iterator[ParkedEvent]]
"""Offset, index of the segment, the event there, those behind it."""


def _push(heap: list[_Head], index: int, rest: Iterator[ParkedEvent]) -> None:
    event = next(rest, None)
    if event is not None:
        heapq.heappush(heap, (event.kafka_offset, index, event, rest))


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group's events, and what of it is damaged."""

    segments: tuple[Segment, ...]
    """Those that are whole."""
    events: Iterator[tuple[Segment, ParkedEvent]]
    """Theirs, merged, each with its segment; to be read once."""
    damaged: tuple[tuple[Segment, CorruptSegmentError], ...]


def read_group(
    tracker: TrackerStore, objects: ObjectStore, group: Sequence[Segment]
) -> GroupReading:
    """Read a group, each segment checked whole; see ``Parking.read_group``."""
    return _reading([(one, partial(_checked, tracker, objects, one)) for one in group])


def read_groups(
    tracker: TrackerStore, objects: ObjectStore, groups: Iterable[list[Segment]]
) -> Generator[GroupReading]:
    """Read groups, some ahead, each segment checked whole; see ``Parking.read_groups``."""
    pool = ThreadPoolExecutor(_READERS, "waybill-reading-parked")
    ahead: deque[Sequence[tuple[Segment, Callable[[], bytes]]]] = deque()
    try:
        for group in groups:
            reads = [(one, pool.submit(_checked, tracker, objects, one).result) for one in group]
            ahead.append(reads)
            while len(ahead) > 1 and _is_much(ahead):
                yield _reading(ahead.popleft())
        while ahead:
            yield _reading(ahead.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _is_much(ahead: Sequence[Iterable[tuple[Segment, object]]]) -> bool:
    size = sum(segment.length for reads in ahead for segment, _ in reads)
    return len(ahead) > _AHEAD_GROUPS or size > _AHEAD_BYTES


def _reading(reads: Iterable[tuple[Segment, Callable[[], bytes]]]) -> GroupReading:
    frames: dict[int, bytes] = {}
    damaged: list[tuple[Segment, CorruptSegmentError]] = []
    whole: list[Segment] = []
    for segment, read in reads:
        try:
            frames[segment.id] = read()
            whole.append(segment)
        except CorruptSegmentError as error:
            damaged.append((segment, error))
    stream = merged(whole, lambda segment: events_of(segment, frames.pop(segment.id)))
    return GroupReading(tuple(whole), stream, tuple(damaged))


def _checked(tracker: TrackerStore, objects: ObjectStore, segment: Segment) -> bytes:
    frame = read_frame(tracker, objects, segment)
    lines = segment.count + len(segment.copies)
    check_segment(frame or b"", segment.sha256, lines, segment.object_key, segment.position)
    return frame or b""
