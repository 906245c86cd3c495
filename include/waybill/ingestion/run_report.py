"""What one run of a connector did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

_COUNTS = ("read", "accepted", "parked", "refused", "resumed", "pages")


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What one run of a connector did."""

    pipeline: str
    read: int
    """Rows read, good and bad."""
    accepted: int
    """Events in the log, by this run or found there from one that died."""
    parked: int
    """Rows that could not become events, but for those that were parked before."""
    refused: int
    """Events of the log that Kafka refused for good, parked since this run opened it."""
    resumed: int
    """Events of an unfinished page that were found in the log."""
    pages: int
    seconds: float
    """From where the run began to open source, Kafka and log, in all of its turns."""
    stopped: str = ""
    """Who had the run end at a page, before the source's end; empty: nobody."""
    waiting: str = ""
    """What the source left to the next run, and why, such as files that are being written."""

    @classmethod
    def nothing(cls, pipeline: str) -> Self:
        """Return the report of a run that has done nothing yet."""
        return cls(pipeline, 0, 0, 0, 0, 0, 0, 0.0)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what ``to_json`` made JSON of, be it of a version with other fields."""
        known = {one.name: value[one.name] for one in fields(cls) if one.name in value}
        return replace(cls.nothing(""), **known)

    def after(self, before: Self) -> Self:
        """Return the report of both: of a run that goes on from where it was."""
        sums = {name: getattr(before, name) + getattr(self, name) for name in _COUNTS}
        return replace(self, **sums, seconds=round(before.seconds + self.seconds, 2))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)
