"""Rows of the tracker that all triggers of a triggerer read by one query."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
Key = TypeVar("Key")
Value = TypeVar("Value")


class SharedRows(Generic[Key, Value]):
    """Rows, read once for all triggers of this process.

    :param query: reads them.
    """

    def __init__(self, query: Callable[[Connection], Mapping[Key, Value]]) -> None:
        self._query = query
        self._lock = asyncio.Lock()
        self._tracker: TrackerStore | None = None
        self._rows: Mapping[Key, Value] | None = None
        self._read_at = float("-inf")
        self.reads = 0
        """Queries so far."""

    async def read(self, max_age_s: float) -> Mapping[Key, Value] | None:
        """Return the rows, at most so old; None: the tracker does not answer now."""
        async with self._lock:
            if time.monotonic() - self._read_at >= max_age_s:
                self._rows = await asyncio.to_thread(self._read)
                self._read_at = time.monotonic()
            return self._rows

    def _read(self) -> Mapping[Key, Value] | None:
        from waybill.errors import RetryError
        from waybill.storage import open_tracker
        from waybill_airflow.hooks.waybill import WaybillHook

        self.reads += 1
        if self._tracker is None:
            self._tracker = open_tracker(WaybillHook().get_conn().tracker)
        try:
            with self._tracker.transaction() as connection:
                return self._query(connection)
        except RetryError as error:
            _LOG.warning("triggers wait while the tracker does not answer: %s", error)
            return None


__all__ = ["SharedRows"]
