"""Counts of what became of events: per (pipeline id, event name, stage, intake minute)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
