"""Waiting for what the tracker notifies, or for a newer version of something in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from waybill.errors import RetryError
from waybill.storage.tracker.engine import TrackerStore

_LOG = logging.getLogger(__name__)
NOTIFYING_ERRORS = (SQLAlchemyError, psycopg.Error, RetryError)
"""What waiting for a notification fails with: the tracker is away, or does not notify."""


class Notifications:
    """What PostgreSQL notifies on a channel. For one thread.

    They are a hint: a connection that was lost, or a pooler that does not pass them on, loses some.

    Args:
        tracker: that notifies.
        channel: of PostgreSQL, a plain identifier.
    """

    def __init__(self, tracker: TrackerStore, channel: str) -> None:
        self._tracker, self._channel = tracker, channel
        self._listening: Connection | None = None

    def open(self) -> bool:
        """Listen; True: it did not before, and nobody was told of what came until now.

        Raises:
            NOTIFYING_ERRORS: close it, and try again later.

        Cost: where it did not, one connection of the pool, which is kept.
        """
        if self._listening is not None:
            return False
        connection = self._tracker.engine.connect()
        self._listening = connection.execution_options(isolation_level="AUTOCOMMIT")
        self._listening.execute(text(f"LISTEN {self._channel}"))
        return True

    def wait(self, timeout_s: float) -> list[str]:
        """Return what is told next, all that comes together; empty: nothing was, for so long.

        It listens by now. Signals are handled meanwhile, and do not end it.

        Raises:
            NOTIFYING_ERRORS: close it, and try again later.
        """
        assert self._listening is not None  # noqa: S101 - narrows a type
        driver: Any = self._listening.connection.driver_connection
        # after one: it ends with the packet that brought it, and drops what of that nobody took
        return [told.payload for told in driver.notifies(timeout=timeout_s, stop_after=1)]

    def close(self) -> None:
        """Give the connection back."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.invalidate()  # no other user of the pool is to get notifications
            listening.close()


class NotifiedVersions:
    """Waits for versions that are told by NOTIFY. For one thread.

    Args:
        tracker: that notifies.
        channel: of PostgreSQL, a plain identifier.
        newest: returns the newest version.
    """

    def __init__(
        self, tracker: TrackerStore, channel: str, newest: Callable[[Connection], int]
    ) -> None:
        self._tracker, self._newest = tracker, newest
        self._told = Notifications(tracker, channel)

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Wait until there is a newer version, at most so long; True: a notification came.

        Where the tracker is away it takes as long as connecting does, should that be longer. It
        raises nothing: where the tracker does not answer, or does not notify, the time is
        waited, and reading says what is. Signals are handled meanwhile, and do not end it.

        Args:
            seen: the version that was read last.
            timeout_s: in seconds.

        Cost: one connection, kept open; 1 ms of CPU a second.
        """
        end = time.monotonic() + timeout_s
        try:
            if self._came(seen, timeout_s):
                return True
        except NOTIFYING_ERRORS as error:
            _LOG.info("no notifications, looking every %.0f s instead: %s", timeout_s, error)
            self.close()
        time.sleep(max(0.0, end - time.monotonic()))
        return False

    def _came(self, seen: int, timeout_s: float) -> bool:
        if self._told.open():
            with self._tracker.transaction() as looking:
                if self._newest(looking) != seen:
                    return True
        return bool(self._told.wait(timeout_s))

    def close(self) -> None:
        """Give the connection back."""
        self._told.close()
