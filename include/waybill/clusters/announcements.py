"""The nodes that the infra coordinator announces, and who acknowledged which version of them.

A version never changes; the newest is in force (``waybill.capacity`` makes it). Whoever works on
nodes acknowledges the newest that it knows: the enhancer of a node, by its node's name, and each
application of a cluster, under its epoch: what an application with an older one acknowledged says
nothing of the one that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from waybill.storage.tracker import capacity_acks, capacity_versions, text_value

ANNOUNCED = "waybill_capacity"
"""Channel on which PostgreSQL notifies of a new version."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The newest version that somebody acknowledged."""

    version: int
    at: datetime
    """When it did, by the tracker's clock."""
    epoch: int
    """Of the application that did; 0: it is none."""


def application_name(kind: str, cluster: str) -> str:
    """Return the name under which an application acknowledges."""
    return f"{kind} of {cluster}"


def newest_announcement(connection: Connection) -> int:
    """Return the version that was announced last; 0: none. Cost: a look at one end of an index."""
    return int(connection.execute(select(func.max(capacity_versions.c.version))).scalar() or 0)


def read_announced(connection: Connection, version: int) -> dict[str, dict[str, Any]]:
    """Return the nodes of a version, {name: {kind, state, units}}; {}: there is none."""
    query = select(capacity_versions.c.nodes).where(capacity_versions.c.version == version)
    found: dict[str, dict[str, Any]] = connection.execute(query).scalar() or {}
    return found


def acknowledge(connection: Connection, name: str, version: int, *, epoch: int = 0) -> None:
    """Write that somebody knows a version; what a newer epoch acknowledged stays."""
    values = {"version": version, "epoch": epoch, "at": func.clock_timestamp()}
    first = insert(capacity_acks).values(application=text_value(name), **values)
    connection.execute(
        first.on_conflict_do_update(
            index_elements=[capacity_acks.c.application],
            set_=values,
            where=capacity_acks.c.epoch <= first.excluded.epoch,
        )
    )


_READ = select(
    capacity_acks.c.application,
    capacity_acks.c.version,
    capacity_acks.c.at,
    capacity_acks.c.epoch,
)


def read_acknowledgements(connection: Connection) -> dict[str, Acknowledgement]:
    """Return the newest acknowledgement of each who ever gave one, by name."""
    return {row.application: _acknowledgement(row) for row in connection.execute(_READ)}


def read_acknowledgement(connection: Connection, name: str) -> Acknowledgement | None:
    """Return the newest acknowledgement of one; None: it gave none."""
    query = _READ.where(capacity_acks.c.application == text_value(name))
    row = connection.execute(query).one_or_none()
    return None if row is None else _acknowledgement(row)


def _acknowledgement(row: Any) -> Acknowledgement:
    return Acknowledgement(int(row.version), row.at, int(row.epoch))
