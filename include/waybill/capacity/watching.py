"""How an application follows the nodes that are announced, and says that it does.

As ``clusters.watching``: PostgreSQL's notification is a hint, looking is what counts.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Self

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from waybill.capacity.records import CHANNEL, acknowledge, newest_version, read_announced
from waybill.errors import RetryError
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)


class CapacityWatcher:
    """The announced nodes, as one application sees them. For one thread.

    Args:
        tracker: where they are.
        application: who says that it follows.
    """

    def __init__(self, tracker: TrackerStore, application: str) -> None:
        self._tracker, self._application = tracker, application
        self._listening: Connection | None = None
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
            newest = newest_version(connection)
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
        end = time.monotonic() + timeout_s
        try:
            if self._came(timeout_s):
                return True
        except (SQLAlchemyError, psycopg.Error, RetryError) as error:
            _LOG.info("no notifications, looking every %.0f s instead: %s", timeout_s, error)
            self.close()
        time.sleep(max(0.0, end - time.monotonic()))
        return False

    def _came(self, timeout_s: float) -> bool:
        if self._listening is None:
            connection = self._tracker.engine.connect()
            self._listening = connection.execution_options(isolation_level="AUTOCOMMIT")
            self._listening.execute(text(f"LISTEN {CHANNEL}"))
            with self._tracker.transaction() as looking:  # what came before nobody was told of
                if newest_version(looking) != self.version:
                    return True
        driver: Any = self._listening.connection.driver_connection
        return any(True for _ in driver.notifies(timeout=timeout_s, stop_after=1))

    def close(self) -> None:
        """Give the connection back."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.invalidate()  # no other user of the pool is to get notifications
            listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
