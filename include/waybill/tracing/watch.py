"""How a query is watched while it runs: how far it is, where it searches, and that it shall end.

A query runs in the thread that asked; ``Watched`` may be looked at, and cancelled, from any other.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from waybill.errors import WaybillError


class QueryCancelledError(WaybillError):
    """The query was cancelled before it had an answer."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a query looks through: for an answer "not found", in which is said where."""

    backend: str
    """"duckdb" or "athena"."""
    since: datetime | None
    """None: from the first trace on."""
    until: datetime | None
    hours: int
    """Hours of traces that hold objects to read. Athena finds them by itself: 0."""
    objects: int
    """Objects to read; Athena: 0."""
    spool_files: int
    """Finished files of this node that are not shipped yet. Those of other nodes are not seen."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON: times in ISO 8601, or null."""
        times = {"since": self.since, "until": self.until}
        return {
            **asdict(self),
            **{name: at and at.isoformat() for name, at in times.items()},
        }


class QueryWatch(Protocol):
    """What a query tells while it runs, and asks. Calls come from the thread that queries."""

    def searching(self, searched: Searched) -> None:
        """Take where the query looks; before the first object is read."""
        ...

    def started(self, external_id: str) -> None:
        """Take the query service's own id, by which it can be stopped there."""
        ...

    def progress(self, *, objects_read: int, bytes_scanned: int) -> None:
        """Take how far the query is: totals so far, never less than before."""
        ...

    def cancelled(self) -> bool:
        """Tell whether the query shall end; asked a few times a second. Called from any thread."""
        ...


class Watched:
    """A watch that keeps what it is told. Safe for several threads."""

    def __init__(self) -> None:
        self.searched: list[Searched] = []
        """One for each statement's plan: a question may take several."""
        self.external_id = ""
        """Of the last statement."""
        self.objects = 0
        """To be read, as far as planned."""
        self.objects_read = 0
        self.bytes_scanned = 0
        self._done = (0, 0)
        self._cancelled = threading.Event()

    def searching(self, searched: Searched) -> None:
        """Keep it; what is read from now on counts on top of what was read."""
        self.searched.append(searched)
        self.objects += searched.objects
        self._done = (self.objects_read, self.bytes_scanned)

    def started(self, external_id: str) -> None:
        """Keep it."""
        self.external_id = external_id

    def progress(self, *, objects_read: int, bytes_scanned: int) -> None:
        """Keep the totals."""
        self.objects_read = self._done[0] + objects_read
        self.bytes_scanned = self._done[1] + bytes_scanned

    def cancel(self) -> None:
        """Let the query end by ``QueryCancelledError`` soon."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        """Tell whether ``cancel`` was called."""
        return self._cancelled.is_set()


def check_cancelled(watch: QueryWatch | None) -> None:
    """End the query when its watch says so.

    Raises:
        QueryCancelledError: it does.
    """
    if watch is not None and watch.cancelled():
        raise QueryCancelledError("the query was cancelled")
