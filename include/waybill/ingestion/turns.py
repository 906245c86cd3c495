"""Turns: a run that gives its slot back at a page, and goes on from there later.

A run has a slot of a worker for a *turn*. The turn ends at a page before the source does when its
team is over its share and another team waits (``share``), or when Kafka took nothing for some
seconds (``kafka``). What was read is then as safe as at any page: committed, or in the write-ahead
log up to a mark. Whoever runs it waits without a slot, and begins the next turn of the same run.

Who dies when: before ``TurnEndedError`` is raised the run is one that was killed at this page, and
the next one finds the log; after it, all that a turn hands to the next are counts for people: what
is read next stands in the tracker, and what is to be sent in the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self
from uuid import UUID

from waybill.errors import RetryError
from waybill.ingestion.run_report import IngestReport
from waybill.ledger import RunFigures

WaitsFor = Literal["share", "kafka"]
_GAP_S = 60.0
"""Asked again after so long, a wait is another one."""


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """A run between two turns: all that it did, for people."""

    run: UUID
    """Under which the tracker has it."""
    report: IngestReport
    """Of all its turns."""
    figures: RunFigures

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        found = {"report": self.report.to_json(), "figures": asdict(self.figures)}
        return {"run": str(self.run), **found}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what ``to_json`` made JSON of, be it of a version with other fields."""
        known = {one.name for one in fields(RunFigures)}
        figures = {name: one for name, one in value["figures"].items() if name in known}
        report = IngestReport.from_json(value["report"])
        return cls(UUID(value["run"]), report, RunFigures(**figures))


@dataclass(frozen=True, slots=True)
class Turn:
    """A slot that a run has for a while."""

    kafka_wait_s: float | None = None
    """So long the run holds the slot while Kafka takes nothing; None: as long as it takes."""
    is_ended: Callable[[], bool] = lambda: False
    """Tells whether the run is to end at its next page, as when its process is told to."""
    before: RunSoFar | None = None
    """What the run did in the turns before; None: this is its first."""


class TurnEndedError(RetryError):
    """The run gives its slot back here, before its source's end. It goes on in its next turn.

    Args:
        waits_for: what it waits for.
        words: the same, for people.
        so_far: all that the run did.
    """

    def __init__(self, waits_for: WaitsFor, words: str, so_far: RunSoFar) -> None:
        super().__init__(words)
        self.waits_for: WaitsFor = waits_for
        self.so_far = so_far


class KafkaWaitError(RetryError):
    """Kafka took nothing for as long as a run may wait for it with a slot."""


class WaitLimit:
    """Ends the waits of one thread for Kafka in which nothing moves.

    Args:
        limit_s: longest wait.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._thread = threading.get_ident()
        self._mark = -1
        self._moved_at = self._asked_at = float("-inf")

    def check(self, mark: int) -> None:
        """Take note of a wait that goes on; ``mark``: another number once something has moved.

        Raises:
            KafkaWaitError: nothing has moved for too long.
        """
        if threading.get_ident() != self._thread:
            return
        now = time.monotonic()
        if mark != self._mark or now - self._asked_at > _GAP_S:
            self._mark, self._moved_at = mark, now
        self._asked_at = now
        if now - self._moved_at > self.limit_s:
            raise KafkaWaitError(f"Kafka took nothing for {self.limit_s:.0f} s")
