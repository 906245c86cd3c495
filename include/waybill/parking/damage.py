"""What a look at parked events could not read, told beside what it could."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from waybill.parking.event import ParkedEvent
from waybill.parking.model import Segment
from waybill.parking.packed import CorruptSegmentError


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Events of one parked object that could not be read."""

    object_key: str
    events: int
    """All of the segments that were looked at, whatever the window or the cause asked for."""
    reason: str

    @property
    def words(self) -> str:
        """Return it as a sentence for people."""
        noun = "event" if self.events == 1 else "events"
        return f"{self.events:,} {noun} of {self.object_key} left out: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class Damage:
    """Collects what could not be read. For one look; not for several threads."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, str]] = Counter()
        self.segments = 0
        """How many segments could not be read, or not to their end."""

    @property
    def events(self) -> int:
        """Return how many events could not be read so far."""
        return self._found.total()

    @property
    def listed(self) -> tuple[Unreadable, ...]:
        """Return what was found so far, an object and reason each, in the order it was met."""
        return tuple(Unreadable(key, events, why) for (key, why), events in self._found.items())

    def readable(
        self, segment: Segment, begin: Callable[[], Iterator[ParkedEvent]]
    ) -> Iterator[ParkedEvent]:
        """Yield a segment's events as far as they can be read, and note the others."""
        given = 0
        try:
            for event in begin():
                given += 1
                yield event
        except CorruptSegmentError as error:
            self.note(error, segment.count - given)

    def note(self, error: CorruptSegmentError, events: int) -> None:
        """Note so many events of one segment as not read."""
        self.segments += 1
        self._found[error.key, error.reason] += events
