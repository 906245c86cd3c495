"""Wait until an application's row asks for a look: stale reports, or another wanted state."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from waybill_airflow.triggers.shared_rows import SharedRows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sqlalchemy import Connection

    from waybill.clusters import Application, ApplicationKind

_UNANSWERED_S = 60.0
"""After so long without the tracker a task looks, which says what is wrong."""


def _read_rows(connection: Connection) -> Mapping[tuple[str, str], Application]:
    from waybill.clusters import read_applications

    return read_applications(connection)


ROWS = SharedRows(_read_rows)
"""While the tracker does not answer, applications go on: it decides when it is back."""


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
        return row is None or needs_look(row)


__all__ = ["ROWS", "ApplicationTrigger"]
