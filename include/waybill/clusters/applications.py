"""Which process is a cluster's application of one kind: the newest; when it was seen last."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Self

from sqlalchemy import Connection, func, select, text

from waybill.ledger import acquire_lease, check_lease
from waybill.storage import TrackerStore
from waybill.storage.tracker import consumers

SEEN_WITHIN_S = 60.0
"""An application that renewed its lease so lately is at work."""
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
