"""Wait between two turns of an ingest run."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waybill.storage import KafkaLog

_LOG = logging.getLogger(__name__)
_FIRST_S, _LONGEST_S = 2.0, 60.0
"""Between two looks at a Kafka that does not answer: they double."""
_FRESH_S = 1.0
_MOST_AWAY_S = 300.0
"""Whatever a clock says that was set back."""


class SharedKafka:
    """Whether Kafka answers, asked once for all triggers of this process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._log: KafkaLog | None = None
        self._answers = True
        self._asked_at = float("-inf")
        self._pause_s = 0.0
        self.looks = 0
        """So far."""

    async def answers(self) -> bool:
        """Return whether it answers; asked again at once where it did, else after a while."""
        async with self._lock:
            if time.monotonic() - self._asked_at >= (_FRESH_S if self._answers else self._pause_s):
                self._answers = await asyncio.to_thread(self._ask)
                longer = min(_LONGEST_S, max(_FIRST_S, self._pause_s * 2))
                self._pause_s = 0.0 if self._answers else longer
                self._asked_at = time.monotonic()
            return self._answers

    def _ask(self) -> bool:
        from waybill.errors import RetryError
        from waybill.storage import open_log
        from waybill_airflow.hooks.waybill import WaybillHook

        self.looks += 1
        if self._log is None:
            self._log = open_log(WaybillHook().get_conn().kafka)
        try:
            self._log.cluster_id()
        except RetryError as error:
            _LOG.info("ingest runs wait while Kafka does not answer: %s", error)
            return False
        return True


KAFKA = SharedKafka()


class IngestTurnTrigger(BaseTrigger):
    """Fire once when an ingest run is to go on. The event is ``{}``.

    :param run: of its source, as the tracker has it.
    :param not_before_s: no sooner than that, in seconds since the epoch.
    :param asks_kafka: no sooner than Kafka answers.
    :param poll_s: seconds between two looks.
    :param not_after_s: no later than that, whether Kafka answers or not; None: when it answers.
    """

    def __init__(
        self,
        run: str,
        not_before_s: float,
        *,
        asks_kafka: bool,
        poll_s: float = 2.0,
        not_after_s: float | None = None,
    ) -> None:
        super().__init__()
        self.source_run = run
        self.not_before_s = not_before_s
        self.asks_kafka = asks_kafka
        self.poll_s = poll_s
        self.not_after_s = not_after_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return where this class is, and its arguments."""
        where = "waybill_airflow.triggers.ingest.IngestTurnTrigger"
        return where, {
            "run": self.source_run,
            "not_before_s": self.not_before_s,
            "asks_kafka": self.asks_kafka,
            "poll_s": self.poll_s,
            "not_after_s": self.not_after_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once."""
        left_s = self.not_before_s - time.time()
        await asyncio.sleep(min(max(0.0, left_s), _MOST_AWAY_S))
        while self.asks_kafka and not self._is_late() and not await KAFKA.answers():
            await asyncio.sleep(self.poll_s)
        yield TriggerEvent({})

    def _is_late(self) -> bool:
        return self.not_after_s is not None and time.time() >= self.not_after_s

    async def on_kill(self) -> None:
        """Write that the run does not go on: somebody marked or cleared its task."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        from uuid import UUID

        from waybill.ledger import end_wait
        from waybill.storage import open_tracker
        from waybill_airflow.hooks.waybill import WaybillHook

        with (
            open_tracker(WaybillHook().get_conn().tracker) as tracker,
            tracker.transaction() as connection,
        ):
            end_wait(connection, UUID(self.source_run))


__all__ = ["KAFKA", "IngestTurnTrigger", "SharedKafka"]
