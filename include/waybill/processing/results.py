"""What goes into a chain and what comes out: messages, rows, failures, counts.

Counts of what became of events: per (pipeline id, event name, stage, intake minute).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from waybill.errors import RetryError
from waybill.events import Event, Heads
from waybill.processing.failures import Fault
from waybill.processing.staged import EventColumns, StagedPacker, head_array

COUNT_NAMES = (
    "in_first",
    "in_replayed",
    "passed",
    "out",
    "parked",
    "filtered",
    "superseded",
    "duplicate",
)
_INDEX = {name: index for index, name in enumerate(COUNT_NAMES)}

_INT = pa.int32()

Key = tuple[str, str, str, int]


class Counts:
    """A sparse table of counters; adding is cheap when many events share a minute."""

    def __init__(self) -> None:
        self._rows: dict[Key, list[int]] = {}

    def add(self, key: Key, name: str, number: int = 1) -> None:
        """Add to one counter."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [0] * len(COUNT_NAMES)
        row[_INDEX[name]] += number

    def add_minutes(
        self,
        pipeline_id: str,
        event_name: str,
        stage: str,
        name: str,
        minutes: Mapping[int, int],
    ) -> None:
        """Add ``{minute: number}``."""
        for minute, number in minutes.items():
            self.add((pipeline_id, event_name, stage, int(minute)), name, number)

    def merge(self, other: Counts) -> None:
        """Add all of another table."""
        for key, row in other._rows.items():
            mine = self._rows.setdefault(key, [0] * len(COUNT_NAMES))
            for index, number in enumerate(row):
                mine[index] += number

    @property
    def pipeline_ids(self) -> set[str]:
        """Return the ids of the pipelines that something is counted of."""
        return {key[0] for key in self._rows}

    def drop(self, pipeline_id: str) -> None:
        """Take out the counters of a pipeline."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] != pipeline_id}

    def total(self, name: str, *, stage: str | None = None) -> int:
        """Return the sum of one counter, of one stage or all."""
        index = _INDEX[name]
        return sum(
            row[index] for key, row in self._rows.items() if stage is None or key[2] == stage
        )

    def by_pipeline(self) -> Iterator[tuple[str, list[list[Any]]]]:
        """Yield (pipeline id, packed rows) as the ledger keeps them."""
        packed: dict[str, list[list[Any]]] = {}
        for (pipeline_id, event_name, stage, minute), row in sorted(self._rows.items()):
            packed.setdefault(pipeline_id, []).append([event_name, stage, minute, row])
        yield from packed.items()

    def to_json(self) -> list[list[Any]]:
        """Return rows of [pipeline id, event name, stage, minute, counters]."""
        return [[*key, row] for key, row in sorted(self._rows.items())]

    @classmethod
    def from_json(cls, rows: Iterable[list[Any]]) -> Counts:
        """Read what ``to_json`` gave."""
        counts = cls()
        for pipeline_id, event_name, stage, minute, row in rows:
            counts._rows[(pipeline_id, event_name, stage, minute)] = list(row)
        return counts


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages in log order, column by column."""

    values: Sequence[bytes]
    partitions: Sequence[int]
    offsets: Sequence[int]
    times_us: Sequence[int]
    """When the broker took each, in microseconds since 1970."""

    def part(self, start: int, end: int) -> Chunk:
        """Return the messages from ``start``, before ``end``."""
        return Chunk(
            self.values[start:end],
            self.partitions[start:end],
            self.offsets[start:end],
            self.times_us[start:end],
        )

    def time(self, index: int) -> str:
        """Return when the broker took a message, RFC 3339."""
        moment = datetime.fromtimestamp(self.times_us[index] / 1e6, UTC)
        return moment.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Failure:
    """One event that could not pass a stage."""

    pipeline_id: str
    event_name: str
    stage: str
    fault: Fault
    value: bytes
    partition: int
    offset: int
    event_id: str
    event_at: str
    attempt: int
    pipeline_version: str
    source_version: int = 0
    intake_version: int = 0
    intake_minute: int = 0
    replay_id: str | None = None
    source: bytes = b""
    """The message that a transformation made the event from; only where the pipeline keeps it."""


@dataclass(slots=True)
class Mapped:
    """Events of one (pipeline, event name) that ended alike; columns, slice by slice."""

    parts: list[EventColumns] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        """All ids, in order. Cost: a copy."""
        return [event_id for part in self.parts for event_id in part.ids.to_pylist()]

    @property
    def offsets(self) -> list[int]:
        """All offsets, in order. Cost: a copy."""
        return [offset for part in self.parts for offset in part.offsets.to_pylist()]


class TooMuchMadeError(RetryError):
    """What was made of events is more than who runs them is to hold."""


@dataclass(slots=True)
class ChainResult:
    """What came of the messages so far.

    ``failures``, ``mapped`` and ``transformed`` may be taken and cleared.
    """

    counts: Counts = field(default_factory=Counts)
    staged: StagedPacker = field(default_factory=StagedPacker)
    failures: list[Failure] = field(default_factory=list)
    mapped: dict[tuple[str, str, str], Mapped] = field(default_factory=dict)
    """By pipeline id, event name, and "passed" or "filtered"."""
    transformed: dict[tuple[str, str], Mapped] = field(default_factory=dict)
    """What passed the transformation, by pipeline id and the event name that it came with."""
    replayed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Messages of replays, by (replay id, event name, stage of entry)."""
    parked_bytes: int = 0
    """Of results of user code that parked; what parks as it came is no larger than its message."""
    most_bytes: float = math.inf
    """See ``check_size``."""

    @property
    def made_bytes(self) -> int:
        """Return the bytes of all rows, in memory, and of results that parked."""
        return self.staged.row_bytes + self.parked_bytes

    def check_size(self) -> None:
        """Refuse more than ``most_bytes``.

        Raises:
            TooMuchMadeError: it is more.
        """
        if self.made_bytes > self.most_bytes:
            raise TooMuchMadeError(f"{self.made_bytes:,} bytes were made of events")


def _only(values: Sequence[int]) -> int | None:
    """Return the number that all are, as partitions and minutes of a slice mostly are."""
    return values[0] if values and values.count(values[0]) == len(values) else None


def _numbers(values: Sequence[int]) -> pa.Array:
    """Return an array of 32 bits."""
    one = _only(values)
    return pa.array(values, _INT) if one is None else pa.repeat(pa.scalar(one, _INT), len(values))


@dataclass(slots=True)
class Items:
    """Events of a chunk, each with its place there."""

    events: Sequence[Event]
    places: Sequence[int]
    _minutes: list[int] | None = None
    _counted: Counter[int] | None = None
    _columns: EventColumns | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.events)

    def pick(self, indexes: Sequence[int]) -> Items:
        """Return some of them."""
        events, places = self.events, self.places
        chosen = [places[i] for i in indexes]
        if isinstance(events, Heads) and indexes:
            return Items(events.pick(indexes), chosen)
        return Items([events[i] for i in indexes], chosen)

    @property
    def minutes(self) -> Counter[int]:
        """How many there are of each intake minute."""
        if self._counted is None:
            minutes = self._intake_minutes()
            one = _only(minutes)
            self._counted = Counter(minutes) if one is None else Counter({one: len(minutes)})
        return self._counted

    def columns(self, chunk: Chunk) -> EventColumns:
        """Return what traces and staged rows share of these events of a chunk; made once."""
        if self._columns is None:
            events, places = self.events, self.places
            offsets, partitions = chunk.offsets, chunk.partitions
            if len(places) < len(offsets) or places != range(len(offsets)):
                offsets = [offsets[place] for place in places]
                partitions = [partitions[place] for place in places]
            if isinstance(events, Heads):
                ids = head_array(events, "ids")
                attempts = pa.repeat(pa.scalar(0, _INT), len(events))
            else:
                ids = pa.array([e.id for e in events], pa.string())
                attempts = pa.array([e.attempt for e in events], _INT)
            self._columns = EventColumns(
                ids,
                attempts,
                pa.array(offsets, pa.int64()),
                _numbers(partitions),
                _numbers(self._intake_minutes()),
            )
        return self._columns

    def _intake_minutes(self) -> list[int]:
        if self._minutes is None:
            events = self.events
            if isinstance(events, Heads):
                self._minutes = events.intake_minutes
            else:
                self._minutes = [event.intake_minute for event in events]
        return self._minutes
