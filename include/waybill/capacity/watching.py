"""How an enhancer follows the nodes that are announced, and says that it does.

Applications do so with their reports (``clusters.Heartbeat``). As in ``clusters.watching``,
PostgreSQL's notification is a hint, looking is what counts.
"""

from __future__ import annotations

from typing import Any, Self

from waybill.clusters import ANNOUNCED, acknowledge, newest_announcement, read_announced
from waybill.storage import NotifiedVersions, TrackerStore


class CapacityWatcher:
    """The announced nodes, as one application sees them. For one thread.

    Args:
        tracker: where they are.
        application: who says that it follows.
    """

    def __init__(self, tracker: TrackerStore, application: str) -> None:
        self._tracker, self._application = tracker, application
        self._notified = NotifiedVersions(tracker, ANNOUNCED, newest_announcement)
        self.version = 0
        """That was read and acknowledged last; 0: none."""
        self.nodes: dict[str, dict[str, Any]] = {}
        """{name: {kind, state, units}} of that version."""

    def read(self) -> bool:
        """Read the newest version and acknowledge it; True: it is another one.

        Raises:
            RetryError: the tracker does not answer; the caller keeps to what it had.
        """
        with self._tracker.transaction() as connection:
            newest = newest_announcement(connection)
            if newest == self.version:
                return False
            nodes = read_announced(connection, newest)
            acknowledge(connection, self._application, newest)
        self.version, self.nodes = newest, nodes
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is a newer version, at most so long; True: a notification came.

        It raises nothing: where the tracker does not notify, the time is waited.
        """
        return self._notified.wait(self.version, timeout_s)

    def close(self) -> None:
        """Give the connection back."""
        self._notified.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
