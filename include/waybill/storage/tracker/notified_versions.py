"""Waiting for a newer version of something in the tracker, by notifications or by time."""

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
        self._tracker, self._channel, self._newest = tracker, channel, newest
        self._listening: Connection | None = None

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
        except (SQLAlchemyError, psycopg.Error, RetryError) as error:
            _LOG.info("no notifications, looking every %.0f s instead: %s", timeout_s, error)
            self.close()
        time.sleep(max(0.0, end - time.monotonic()))
        return False

    def _came(self, seen: int, timeout_s: float) -> bool:
        if self._listening is None:
            connection = self._tracker.engine.connect()
            self._listening = connection.execution_options(isolation_level="AUTOCOMMIT")
            self._listening.execute(text(f"LISTEN {self._channel}"))
            with self._tracker.transaction() as looking:  # what came before nobody was told of
                if self._newest(looking) != seen:
                    return True
        driver: Any = self._listening.connection.driver_connection
        return any(True for _ in driver.notifies(timeout=timeout_s, stop_after=1))

    def close(self) -> None:
        """Give the connection back."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.invalidate()  # no other user of the pool is to get notifications
            listening.close()
