"""Which process is a cluster's application of one kind: the newest; when it was seen last."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Self

from sqlalchemy import Connection, func, select, text

from waybill.errors import RetryError
from waybill.ledger import FencedError, acquire_lease, check_lease
from waybill.storage import TrackerStore
from waybill.storage.tracker import consumers

_LOG = logging.getLogger(__name__)
SEEN_WITHIN_S = 60.0
"""An application that renewed its lease so lately is at work."""
_EVERY_S = 10.0
_HANGS_S = 1_800.0
"""An application whose loop did not come round for so long is not at work any more."""
_PREFIX = "application/"


@dataclass(frozen=True, slots=True)
class ApplicationLease:
    """One application's right to serve a cluster. A newer application of the cluster ends it."""

    tracker: TrackerStore
    name: str
    epoch: int

    @classmethod
    def acquire(cls, tracker: TrackerStore, kind: str, cluster: str) -> Self:
        """Take the cluster over.

        Raises:
            RetryError: the tracker does not answer.
        """
        name, holder = _name(kind, cluster), f"{socket.gethostname()}:{os.getpid()}"
        return cls(tracker, name, acquire_lease(tracker, name, holder=holder))

    def renew(self) -> None:
        """Say that the application is at work.

        Raises:
            FencedError: a newer application serves the cluster.
            RetryError: the tracker does not answer.
        """
        with self.tracker.transaction() as connection:
            check_lease(connection, self.name, self.epoch)


class Heartbeat:
    """Says every ten seconds that an application is at work, while its loop waits for a server.

    A look at topics without a leader, or at a destination that does not answer, takes minutes; one
    of half an hour is taken for a loop that hangs, and nothing is said any more.

    Args:
        lease: of the application.
        every_s: time between two reports.
        hangs_s: longest time between two beats of the loop.
    """

    def __init__(
        self, lease: ApplicationLease, *, every_s: float = _EVERY_S, hangs_s: float = _HANGS_S
    ) -> None:
        self._lease = lease
        self._every_s = every_s
        self._hangs_s = hangs_s
        self._beaten_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="heartbeat", daemon=True)

    def beat(self) -> None:
        """Say that the loop goes on. For the loop.

        Raises:
            FencedError: a newer application serves the cluster.
            RetryError: the tracker does not answer.
        """
        self._beaten_at = time.monotonic()
        self._lease.renew()

    def _report(self) -> None:
        while not self._ended.wait(self._every_s):
            if time.monotonic() - self._beaten_at > self._hangs_s:
                continue
            try:
                self._lease.renew()
            except FencedError:  # the loop's next beat ends the application
                return
            except RetryError as error:
                _LOG.info("the tracker was not told that this application is at work: %s", error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def kinds_at_work(connection: Connection, cluster: str) -> list[str]:
    """Return which applications of a cluster were seen within a minute, by name."""
    since = func.clock_timestamp() - text(f"interval '{SEEN_WITHIN_S:.0f} seconds'")
    names = {_name(kind, cluster): kind for kind in ("loading", "processing")}
    query = select(consumers.c.name).where(consumers.c.name.in_(names), consumers.c.seen_at > since)
    return sorted(names[name] for name in connection.execute(query).scalars())


def served_clusters(connection: Connection) -> set[str]:
    """Return the clusters whose application of processing was seen at work within a minute.

    One that ends at its start again and again takes its lease and never renews it.
    """
    since = func.clock_timestamp() - text(f"interval '{SEEN_WITHIN_S:.0f} seconds'")
    prefix = _name("processing", "")
    query = select(consumers.c.name).where(
        consumers.c.name.startswith(prefix, autoescape=True),
        consumers.c.seen_at > since,
        consumers.c.seen_at > consumers.c.acquired_at + text("interval '0.5 seconds'"),
    )
    return {str(name).removeprefix(prefix) for name in connection.execute(query).scalars()}


def _name(kind: str, cluster: str) -> str:
    return f"{_PREFIX}{kind}/{cluster}"
