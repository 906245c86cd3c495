"""Wait until an application's row asks for a look: stale reports, or another wanted state."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent

from waybill_airflow.supervision import is_news, read_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from waybill.clusters import Application, ApplicationKind
    from waybill.storage import TrackerStore
    from waybill_airflow.supervision import Request

_LOG = logging.getLogger(__name__)
_REQUEST_MAX_AGE_S = 30.0
_UNANSWERED_S = 60.0
"""After so long without the tracker a task looks, which says what is wrong."""


class SharedRows:
    """The rows of all applications, read once for all triggers of this process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tracker: TrackerStore | None = None
        self._rows: Mapping[tuple[str, str], Application] | None = None
        self._read_at = float("-inf")
        self.reads = 0
        """Queries so far."""

    async def read(self, max_age_s: float) -> Mapping[tuple[str, str], Application] | None:
        """Return the rows, at most so old; None: the tracker does not answer now."""
        async with self._lock:
            if time.monotonic() - self._read_at >= max_age_s:
                self._rows = await asyncio.to_thread(self._query)
                self._read_at = time.monotonic()
            return self._rows

    def _query(self) -> Mapping[tuple[str, str], Application] | None:
        from waybill.clusters import read_applications
        from waybill.errors import RetryError
        from waybill.storage import open_tracker
        from waybill_airflow.hooks.waybill import WaybillHook

        self.reads += 1
        if self._tracker is None:
            self._tracker = open_tracker(WaybillHook().get_conn().tracker)
        try:
            with self._tracker.transaction() as connection:
                return read_applications(connection)
        except RetryError as error:
            _LOG.warning("nobody is supervised while the tracker does not answer: %s", error)
            return None  # applications go on; who may go on is decided when it is back


ROWS = SharedRows()


class ApplicationTrigger(BaseTrigger):
    """Fire once when an application needs a look, or the shift is over.

    While the tracker is away it does not fire for a minute. The event is
    ``{"reason": "look" | "shift"}``.

    :param kind: of the application.
    :param cluster: which one it serves.
    :param until_s: end of the shift, in seconds since the epoch; None: there is none.
    :param quiet_s: not to fire before, in seconds: an application that is silent and lives.
    :param poll_s: seconds between two looks at the rows.
    """

    def __init__(
        self,
        kind: ApplicationKind,
        cluster: str,
        until_s: float | None,
        quiet_s: float,
        poll_s: float,
    ) -> None:
        super().__init__()
        self.kind: ApplicationKind = kind
        self.cluster = cluster
        self.until_s = until_s
        self.quiet_s = quiet_s
        self.poll_s = poll_s
        self._request: Request | None = None
        self._request_read_at = float("-inf")
        self._answered_at = float("inf")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return where this class is, and its arguments."""
        names = ("kind", "cluster", "until_s", "quiet_s", "poll_s")
        where = "waybill_airflow.triggers.applications.ApplicationTrigger"
        return where, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once."""
        await self._sleep(self.quiet_s)
        self._answered_at = time.monotonic()
        while not self._shift_is_over():
            if await self._is_due():
                yield TriggerEvent({"reason": "look"})
                return
            await self._sleep(self.poll_s)
        yield TriggerEvent({"reason": "shift"})

    def _shift_is_over(self) -> bool:
        return self.until_s is not None and time.time() >= self.until_s

    async def _sleep(self, seconds: float) -> None:
        left_s = seconds if self.until_s is None else self.until_s - time.time()
        await asyncio.sleep(max(0.0, min(seconds, left_s)))

    async def _is_due(self) -> bool:
        from waybill.clusters import needs_look

        rows = await ROWS.read(self.poll_s)
        if rows is None:
            return time.monotonic() - self._answered_at >= _UNANSWERED_S
        self._answered_at = time.monotonic()
        row = rows.get((self.cluster, self.kind))
        return row is None or needs_look(row) or is_news(await self._read_request(), row)

    async def _read_request(self) -> Request | None:
        now = time.monotonic()
        if now - self._request_read_at >= _REQUEST_MAX_AGE_S:
            self._request_read_at = now
            try:
                self._request = await asyncio.to_thread(read_request, self.cluster)
            except AirflowRuntimeError as error:
                _LOG.warning("the variable of %s was not read: %s", self.cluster, error)
        return self._request


__all__ = ["ROWS", "ApplicationTrigger", "SharedRows"]
