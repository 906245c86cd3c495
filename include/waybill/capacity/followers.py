"""Who is to acknowledge the announced nodes, who did, and who is late.

Enhancers of nodes that report, and applications that report, are to; and who else acknowledged a
version within a day. An application that was started anew is to acknowledge again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from waybill.capacity.records import Node, enhancer_of, now_s
from waybill.clusters import (
    Acknowledgement,
    Application,
    application_name,
    read_acknowledgements,
    read_applications,
)
from waybill.events import rfc3339
from waybill.storage.tracker import capacity_versions

LATE_S = 60.0
"""Who has not acknowledged a version after so long is late."""
_OTHERS_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Follower:
    """Somebody who is to acknowledge the announced nodes."""

    name: str
    version: int
    """That it acknowledged last; 0: none."""
    at: datetime | None
    """When it did."""
    waits_s: float
    """For so long the newest version waits for it; 0: it acknowledged that."""

    @property
    def is_late(self) -> bool:
        """Tell whether it should have acknowledged the newest version by now."""
        return self.waits_s > LATE_S

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "name": self.name,
            "version": self.version,
            "at": None if self.at is None else rfc3339(self.at),
            "waits_s": self.waits_s,
            "is_late": self.is_late,
        }


def read_followers(
    connection: Connection, nodes: Sequence[Node], version: int
) -> tuple[Follower, ...]:
    """Return who is to acknowledge a version, by name.

    Args:
        connection: a transaction.
        nodes: that are not gone.
        version: that was announced last.

    Cost: three small statements.
    """
    query = select(capacity_versions.c.at).where(capacity_versions.c.version == version)
    announced = connection.execute(query).scalar()
    return followers_of(
        nodes,
        read_applications(connection),
        read_acknowledgements(connection),
        version=version,
        waited_s=0.0 if announced is None else now_s(connection) - announced.timestamp(),
        now_s=now_s(connection),
    )


def followers_of(
    nodes: Sequence[Node],
    applications: Mapping[tuple[str, str], Application],
    acknowledged: Mapping[str, Acknowledgement],
    *,
    version: int,
    waited_s: float,
    now_s: float,
) -> tuple[Follower, ...]:
    """Return who is to acknowledge a version, by name. Pure.

    Args:
        nodes: that are not gone.
        applications: all that there ever were, by (cluster, kind).
        acknowledged: what each said last, by name.
        version: that was announced last,
        waited_s: and how long ago.
        now_s: the tracker's clock.
    """
    known = {application_name(kind, name): one for (name, kind), one in applications.items()}
    due = {enhancer_of(node.name): (0, waited_s) for node in nodes if node.is_heard}
    for name, one in known.items():
        if one.is_running:
            lived_s = one.now_s - (one.started_s or 0.0)
            due[name] = (one.epoch, min(waited_s, lived_s))
    for name, said in acknowledged.items():
        is_other = name not in known and not name.startswith(enhancer_of(""))
        if is_other and now_s - said.at.timestamp() <= _OTHERS_S:
            due[name] = (said.epoch, waited_s)
    return tuple(
        _follower(name, acknowledged.get(name), epoch, version, max(0.0, waits_s))
        for name, (epoch, waits_s) in sorted(due.items())
    )


def _follower(
    name: str, said: Acknowledgement | None, epoch: int, version: int, waits_s: float
) -> Follower:
    if said is None or said.epoch != epoch:  # an earlier start of it said that
        return Follower(name, 0, None, waits_s if version else 0.0)
    return Follower(name, said.version, said.at, 0.0 if said.version >= version else waits_s)
