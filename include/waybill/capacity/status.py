"""Capacity as people see it: nodes, waits, decisions and their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waybill.capacity.followers import Follower, read_followers
from waybill.capacity.model import KINDS
from waybill.capacity.records import (
    Node,
    kept_thresholds,
    read_decisions,
    read_nodes,
    read_waits,
)
from waybill.clusters import newest_announcement
from waybill.events import rfc3339
from waybill.storage import TrackerStore

_LATELY_S = 900.0
_MOST_READ = 5_000


@dataclass(frozen=True, slots=True)
class CapacityStatus:
    """How capacity is."""

    nodes: tuple[Node, ...]
    version: int
    """That was announced last; 0: none."""
    followers: tuple[Follower, ...]
    """Who is to acknowledge it, by name."""
    waits: dict[str, Any] | None
    """What the delay monitor saw last; None: nothing within a quarter of an hour."""
    thresholds: dict[str, dict[str, Any]]
    """By kind: those in force, and their source."""
    decisions: tuple[dict[str, Any], ...]
    """That changed the number of nodes, the newest first."""
    last: dict[str, dict[str, Any]]
    """The newest decision of each kind, also to leave nodes as they are."""

    @property
    def behind(self) -> tuple[Follower, ...]:
        """Return those that have not acknowledged the newest version."""
        return tuple(one for one in self.followers if one.version < self.version)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "nodes": [node.to_json() for node in self.nodes],
            "version": self.version,
            "acknowledged": {one.name: one.version for one in self.followers},
            "behind": {one.name: one.version for one in self.behind},
            "followers": [one.to_json() for one in self.followers],
            "waits": self.waits,
            "thresholds": self.thresholds,
            "decisions": [_decision(one) for one in self.decisions],
            "last": {kind: _decision(one) for kind, one in self.last.items()},
        }


def capacity_status(tracker: TrackerStore, *, decisions: int = 20) -> CapacityStatus:
    """Return how capacity is.

    Raises:
        RetryError: the tracker does not answer.

    Cost: some small statements; no more than the newest 5,000 decisions.
    """
    with tracker.transaction() as connection:
        waits = read_waits(connection, since_s=_LATELY_S)
        newest = read_decisions(connection, limit=2 * len(KINDS), since_s=_LATELY_S)
        changes = read_decisions(connection, limit=_MOST_READ, holds=False)
        kept = {kind: kept_thresholds(connection, kind) for kind in KINDS}
        nodes, version = tuple(read_nodes(connection)), newest_announcement(connection)
        return CapacityStatus(
            nodes=nodes,
            version=version,
            followers=read_followers(connection, nodes, version),
            waits=waits[-1] if waits else None,
            thresholds={
                kind: one[0].to_json() | {"source": one[1]} for kind, one in kept.items() if one
            },
            decisions=tuple(first_of_runs(changes)[:decisions]),
            last={one["kind"]: one for one in reversed(newest)},
        )


def first_of_runs(decisions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return decisions, the newest first, without those that only say the same again.

    A dry run decides the same each minute, as nobody acts on it.
    """
    before: dict[str, tuple[Any, ...]] = {}
    found = []
    for one in reversed(decisions):
        same = (one["action"], one["before"], one["after"])
        if before.get(one["kind"]) != same:
            found.append(one)
        before[one["kind"]] = same
    return found[::-1]


def _decision(one: dict[str, Any]) -> dict[str, Any]:
    return one | {"at": rfc3339(one["at"])}
