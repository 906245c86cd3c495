"""Wakes the consumers of an application when commits of their destinations are told."""

from __future__ import annotations

import logging
import threading
from typing import Self

from waybill.ledger import STAGED
from waybill.storage import NOTIFYING_ERRORS, Notifications, TrackerStore

_LOG = logging.getLogger(__name__)
_LISTEN_S = 1.0
"""How long its end may take."""
_RETRY_S = 5.0


class StagedListener:
    """A thread that listens, for all consumers of an application.

    What it tells is a hint: consumers look by themselves, too.

    Args:
        tracker: that notifies.

    Cost: one connection; 1 ms of CPU a second.
    """

    def __init__(self, tracker: TrackerStore) -> None:
        self._told = Notifications(tracker, STAGED)
        self._wakes: dict[str, threading.Event] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="staged-listener", daemon=True)

    def wake_of(self, destination: str) -> threading.Event:
        """Return what is set when there is something new to load; its consumer clears it."""
        return self._wakes.setdefault(destination, threading.Event())

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._listen()
            except (*NOTIFYING_ERRORS, UnicodeError) as error:  # anybody may notify anything
                _LOG.info("no notifications of commits, they are looked for instead: %s", error)
                self._told.close()
                self._ended.wait(_RETRY_S)
        self._told.close()

    def _listen(self) -> None:
        if self._told.open():
            for wake in list(self._wakes.values()):
                wake.set()
        for name in self._told.wait(_LISTEN_S):
            if name in self._wakes:
                self._wakes[name].set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * _LISTEN_S)
