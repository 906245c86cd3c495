"""Wait until all that a replay has sent is processed and loaded."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from waybill_airflow.triggers.shared_rows import SharedRows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sqlalchemy import Connection

    from waybill.replay import AwaitedEnds

_AWAITED: dict[int, AwaitedEnds] = {}
"""What the triggers of this process wait for, each under a number that no other ever has."""
_NUMBERS = itertools.count()


def _read_rows(connection: Connection) -> Mapping[int, tuple[AwaitedEnds, bool]]:
    from waybill.replay import read_awaited

    return read_awaited(connection, _AWAITED.copy())


ROWS = SharedRows(_read_rows)


class ReplayTrigger(BaseTrigger):
    """Fire once when all of a replay is known, or its time is over.

    While the tracker does not answer it waits. The event is ``{"ends": …}``: what was waited for,
    with the last commit, if it was known.

    :param ends: an ``AwaitedEnds`` as JSON.
    :param until_s: when the time is over, in seconds since the epoch.
    :param poll_s: seconds between two looks.
    """

    def __init__(self, ends: dict[str, Any], until_s: float, poll_s: float = 3.0) -> None:
        super().__init__()
        self.ends = ends
        self.until_s = until_s
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return where this class is, and its arguments."""
        where = "waybill_airflow.triggers.replays.ReplayTrigger"
        return where, {"ends": self.ends, "until_s": self.until_s, "poll_s": self.poll_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once."""
        from waybill.replay import AwaitedEnds

        ends, is_reached = AwaitedEnds.from_json(self.ends), False
        number = next(_NUMBERS)
        try:
            while not is_reached and time.time() < self.until_s:
                _AWAITED[number] = ends
                # What was read before this one asked does not have it.
                ends, is_reached = (await ROWS.read(self.poll_s) or {}).get(number, (ends, False))
                await asyncio.sleep(0 if is_reached else self.poll_s)
        finally:
            _AWAITED.pop(number, None)
        yield TriggerEvent({"ends": ends.to_json()})


__all__ = ["ROWS", "ReplayTrigger"]
