"""The caller's ``on_delivery`` callables: noted inside ``poll``, called outside every lock.

librdkafka aborts the process when a callback polls or flushes, and what a callback raises comes out
of some other call. So here nothing of the caller runs inside librdkafka's ``poll``: reports are
noted, and the callables run one at a time from ``poll``, ``flush`` and ``close`` or, when the
caller uses none of these, from the producer's own thread. They may produce, poll and flush.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

_LOG = logging.getLogger(__name__)

OnDelivery: TypeAlias = Callable[[Any, Any], object]
"""Called with (None, message) or (KafkaError, message), as librdkafka does."""


class Callbacks:
    """What is to be called, in the order the reports came."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[OnDelivery, Any, Any]] = deque()
        self._serving = threading.RLock()
        self._busy = False
        self._raised: BaseException | None = None

    def add(self, on_delivery: OnDelivery, error: Any, message: Any) -> None:
        """Note a call to be made."""
        self._waiting.append((on_delivery, error, message))

    def guarded(self, call: Callable[..., object]) -> Callable[..., None]:
        """Return a callable of the caller's for librdkafka's ``poll`` that never raises there."""

        def guard(*given: Any) -> None:
            try:
                call(*given)
            except Exception as error:  # noqa: BLE001 - the next serve raises it
                _LOG.exception("%r failed; the next poll or flush raises it", call)
                self._raised = self._raised or error

        return guard

    def serve(self) -> int:
        """Make the calls that are due and return how many; 0 from inside such a call.

        Raises:
            Exception: whatever a callable raised, now or before in the producer's own thread. The
                message it was called for is settled all the same; the calls behind it are made by
                the next ``serve``.
        """
        if not self._waiting and self._raised is None:
            return 0
        with self._serving:
            if self._busy:
                return 0
            self._busy = True
            try:
                raised, self._raised = self._raised, None
                if raised is not None:
                    raise raised
                return self._call_all()
            finally:
                self._busy = False

    def serve_aside(self) -> None:
        """Make all calls that are due; the first that raises is raised by the next ``serve``."""
        if not self._waiting:
            return
        if not self._serving.acquire(blocking=False):
            return  # another thread makes the calls, and those behind them
        try:
            if self._busy:
                return
            self._busy = True
            while self._waiting:
                self._call_aside()
            self._busy = False
        finally:
            self._serving.release()

    def _call_aside(self) -> None:
        try:
            self._call_all()
        except Exception as error:  # noqa: BLE001 - the next serve raises it
            _LOG.exception("on_delivery failed; the next poll or flush raises it")
            self._raised = self._raised or error

    def abandon(self) -> None:
        """In a forked child: the calls are the parent's."""
        self._waiting = deque()

    def _call_all(self) -> int:
        count = 0
        while self._waiting:
            on_delivery, error, message = self._waiting.popleft()
            count += 1
            on_delivery(error, message)
        return count
