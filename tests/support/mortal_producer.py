"""A lossless producer in memory whose process can die at any of its steps; the log survives."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class Death(BaseException):
    """The process was killed here."""


class Fate:
    """Counts the steps of one life and ends it at one of them; None: never."""

    def __init__(self, draw: random.Random, *, last: int | None) -> None:
        self._left = None if last is None else draw.randrange(last)

    def step(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise Death
            self._left -= 1


@dataclass
class Log:
    """A write-ahead log, and the topic that all of its records reach once."""

    records: list[bytes | None] = field(default_factory=list)
    """The values of data records; None where a mark stands."""
    marks: dict[int, bytes] = field(default_factory=dict)
    confirmed: int = -1
    topic: list[bytes] = field(default_factory=list)


class MortalProducer:
    """What a replay uses of a ``LosslessProducer``."""

    capacity_bytes = 1024**3
    wal_id = "0" * 32

    def __init__(self, log: Log, fate: Fate, draw: random.Random) -> None:
        self._log, self._fate, self._draw = log, fate, draw
        last = max(log.marks, default=-1)
        self.recovered = SimpleNamespace(
            marks=[(lsn, log.marks[lsn]) for lsn in sorted(log.marks) if lsn > log.confirmed],
            unmarked=[SimpleNamespace(value=value) for value in log.records[last + 1 :]],
        )

    def produce(self, _topic: str, value: bytes, _key: bytes) -> None:
        self._fate.step()
        self._log.records.append(value)
        self._log.topic.append(value)
        self._fate.step()

    def mark(self, payload: bytes) -> int:
        self._fate.step()
        lsn = len(self._log.records)
        self._log.records.append(None)
        self._log.marks[lsn] = payload
        self._fate.step()
        return lsn

    def settled(self, _lsn: int) -> bool:
        return self._draw.random() < 0.5

    def poll(self, _limit_s: float) -> int:
        return 0

    def flush(self, _limit_s: float) -> int:
        return 0

    def confirm(self, lsn: int) -> None:
        self._fate.step()
        self._log.confirmed = max(self._log.confirmed, lsn)
        self._fate.step()


def mortal(parking: Any, fate: Fate) -> Any:
    """Return a ``Parking`` whose changes of a replay may be the last thing its process does."""

    class Mortal:
        def __getattr__(self, name: str) -> Any:
            return getattr(parking, name)

        def mark_replayed(self, *arguments: Any) -> bool:
            fate.step()
            answer = parking.mark_replayed(*arguments)
            fate.step()
            return bool(answer)

        def begin_replay(self, *arguments: Any, **options: Any) -> Any:
            fate.step()
            answer = parking.begin_replay(*arguments, **options)
            fate.step()
            return answer

        def decide_entry(self, *arguments: Any) -> Any:
            fate.step()
            answer = parking.decide_entry(*arguments)
            fate.step()
            return answer

    return Mortal()
