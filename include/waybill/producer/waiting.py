"""The waiting room of records whose delivery failed: who is in it, and which keys it holds up."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from waybill.producer.client import Failure, sort_failure
from waybill.producer.delivery import Epoch, Teller


@dataclass(slots=True)
class Group:
    """Records of one epoch, alike, of which ``owed`` are not settled, without knowing which."""

    epoch: Epoch
    owed: int
    left: int

    @property
    def certain(self) -> bool:
        """Tell whether it is known which: all that are left."""
        return self.owed == self.left

    def take_one(self) -> int:
        """Take one record out; return how many are settled by that (0 or 1)."""
        self.left -= 1
        settled = max(0, self.owed - self.left)
        self.owed -= settled
        return settled


@dataclass(slots=True)
class Entry:
    """One record that waits."""

    lsn: int
    topic: str
    key: bytes | None
    group: Group | None
    """None once it is set aside: its epoch does not wait for it any more."""
    teller: Teller | None = None
    failure: Failure | None = None
    """None: held for an earlier record of its key, or not handed over yet."""
    error: Any = None
    code: str = ""
    message: str = ""
    segment_id: int = 0
    """In the main log; known of records set aside."""
    unsure: bool = False
    """It may be in the topic: look first."""
    alone: bool = False
    """It was tried alone."""
    tries: int = 0
    probing: bool = False
    """Its key is not known to work again: nothing of the key may follow before it is taken."""
    loose: bool = False
    """It was handed over and holds its key no more: what follows it may be handed over too."""
    gone: bool = False
    """It is settled."""
    failed_at: float = 0.0
    """When it failed last, and, below, when to try it again; both on the monotonic clock."""
    due: float = 0.0

    @property
    def set_aside(self) -> bool:
        """Tell whether it is in the retry log."""
        return self.group is None

    @property
    def movable(self) -> bool:
        """Tell whether it only waits, and it is known that it is this one: it may be set aside."""
        waits = self.failure is None or self.failure is Failure.UNCERTAIN
        return waits and self.group is not None and self.group.certain

    def note(self, error: Any) -> None:
        """Remember why it failed."""
        self.error = error
        self.failed_at = time.monotonic()
        self.failure = sort_failure(error)
        self.code, self.message = str(error.name()), str(error.str())
        self.unsure = self.failure is Failure.UNCERTAIN


class WaitingRoom:
    """Entries by lsn. An entry that is on its way again is out of the room.

    A record that failed blocks its key: only the first of a key is tried, and when it works the
    others of its key follow at once, in order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, Entry] = {}
        self.held: dict[tuple[str, bytes], int] = defaultdict(int)
        """Topics and keys of which a record waits, or is on its way as a probe."""
        self._trying: set[tuple[str, bytes]] = set()
        """Keys of which a record that failed is on its way again."""
        self._stopped: set[tuple[str, bytes]] = set()
        """Keys of which a record failed since ``due`` was asked."""
        self._proved: dict[tuple[str, bytes], float] = {}
        """When a record of a key was taken by Kafka after one had failed."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, lsn: int) -> bool:
        return lsn in self._entries

    @property
    def entries(self) -> list[Entry]:
        """Those that are in, in lsn order."""
        with self._lock:
            return [self._entries[lsn] for lsn in sorted(self._entries)]

    def due(self, now: float) -> list[Entry]:
        """Return those that may be tried now, in lsn order: a new round begins."""
        found: list[Entry] = []
        with self._lock:
            self._stopped.clear()
            stopped = set(self._trying)
            for lsn in sorted(self._entries):
                entry = self._entries[lsn]
                place = None if entry.key is None else (entry.topic, entry.key)
                if place in stopped:
                    continue
                entry.probing = entry.failure is not None and not self._is_proved(entry, place)
                if not entry.probing or entry.due <= now:
                    found.append(entry)
                if entry.probing and place is not None:
                    stopped.add(place)
        return found

    def _is_proved(self, entry: Entry, place: tuple[str, bytes] | None) -> bool:
        return place is not None and self._proved.get(place, -1.0) > entry.failed_at

    def enter(self, entry: Entry) -> None:
        """Let a record in for the first time: from now on it holds its key."""
        with self._lock:
            if entry.key is not None:
                self.held[entry.topic, entry.key] += 1
            self._entries[entry.lsn] = entry

    def send_off(self, entry: Entry) -> None:
        """Take a record out that is about to be handed over (again)."""
        with self._lock:
            self._entries.pop(entry.lsn)
            if entry.key is not None and entry.probing:
                self._trying.add((entry.topic, entry.key))

    def handed(self, entry: Entry) -> None:
        """Say that it was handed over: unless it is a probe, the next of its key may follow."""
        with self._lock:
            back = entry.lsn in self._entries
            if not (entry.key is None or entry.probing or entry.gone or back):
                entry.loose = True
                self._let_go((entry.topic, entry.key))

    def take_back(self, entry: Entry) -> None:
        """Let a record in again whose further try failed."""
        with self._lock:
            self._entries[entry.lsn] = entry
            if entry.key is None:
                return
            place = (entry.topic, entry.key)
            self._stopped.add(place)
            if entry.probing:
                self._trying.discard(place)
            if entry.loose:
                entry.loose = False
                self.held[place] += 1

    def stop(self, entry: Entry) -> None:
        """Let no other record of its key be tried in this round."""
        with self._lock:
            if entry.key is not None:
                self._stopped.add((entry.topic, entry.key))

    def was_stopped(self, entry: Entry) -> bool:
        """Tell whether a record of its key failed since the round began."""
        with self._lock:
            return entry.key is not None and (entry.topic, entry.key) in self._stopped

    def leave(self, entry: Entry, now: float) -> None:
        """Take a record out for good and let its key go."""
        with self._lock:
            self._entries.pop(entry.lsn, None)
            entry.gone = True
            if entry.key is None:
                return
            place = (entry.topic, entry.key)
            if entry.probing:
                self._trying.discard(place)
            if not entry.loose:
                self._proved[place] = now
                self._let_go(place)

    def _let_go(self, place: tuple[str, bytes]) -> None:
        self.held[place] -= 1
        if self.held[place] <= 0:
            del self.held[place]
            self._proved.pop(place, None)
