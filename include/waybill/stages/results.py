"""What goes into a chain and what comes out: messages, rows, failures, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from waybill.events import Event
from waybill.stages.counts import Counts
from waybill.stages.failures import Fault
from waybill.stages.staged import StagedPacker


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
    """Events of one (pipeline, event name) that ended alike; columns."""

    ids: list[str] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    minutes: list[int] = field(default_factory=list)
    """Of intake."""

    def extend(self, more: Mapped) -> None:
        """Add other events."""
        self.ids.extend(more.ids)
        self.attempts.extend(more.attempts)
        self.offsets.extend(more.offsets)
        self.partitions.extend(more.partitions)
        self.minutes.extend(more.minutes)


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


@dataclass(slots=True)
class Items:
    """Events of a chunk, each with its place there."""

    events: list[Event] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    _minutes: Counter[int] | None = None
    _columns: Mapped | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.events)

    def add(self, event: Event, place: int) -> None:
        """Add one; not after `minutes` or `columns` was asked for."""
        self.events.append(event)
        self.places.append(place)

    def pick(self, indexes: Sequence[int]) -> Items:
        """Return some of them."""
        events, places = self.events, self.places
        return Items([events[i] for i in indexes], [places[i] for i in indexes])

    @property
    def minutes(self) -> Counter[int]:
        """How many there are of each intake minute."""
        if self._minutes is None:
            self._minutes = Counter([event.intake_minute for event in self.events])
        return self._minutes

    def columns(self, chunk: Chunk) -> Mapped:
        """Return what the traces of these events of a chunk say; put together once."""
        if self._columns is None:
            events, places = self.events, self.places
            offsets, partitions = chunk.offsets, chunk.partitions
            self._columns = Mapped(
                [event.id for event in events],
                [event.attempt for event in events],
                [offsets[place] for place in places],
                [partitions[place] for place in places],
                [event.intake_minute for event in events],
            )
        return self._columns
