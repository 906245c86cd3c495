"""Capacity as people see it: nodes, waits, decisions and their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waybill.capacity.model import KINDS
from waybill.capacity.records import (
    Node,
    enhancer_of,
    kept_thresholds,
    newest_version,
    read_acknowledgements,
    read_decisions,
    read_nodes,
    read_waits,
)
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
    acknowledged: dict[str, int]
    """{application: the version that it follows}; 0: a node that reports never acknowledged one."""
    waits: dict[str, Any] | None
    """What the delay monitor saw last; None: nothing within a quarter of an hour."""
    thresholds: dict[str, dict[str, Any]]
    """By kind: those in force, and their source."""
    decisions: tuple[dict[str, Any], ...]
    """That changed the number of nodes, the newest first."""
    last: dict[str, dict[str, Any]]
    """The newest decision of each kind, also to leave nodes as they are."""

    @property
    def behind(self) -> dict[str, int]:
        """Return {application: its version} of those that have not acknowledged the newest one."""
        late = {name: own for name, own in self.acknowledged.items() if own < self.version}
        return dict(sorted(late.items()))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "nodes": [node.to_json() for node in self.nodes],
            "version": self.version,
            "acknowledged": self.acknowledged,
            "behind": self.behind,
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
        nodes = tuple(read_nodes(connection))
        return CapacityStatus(
            nodes=nodes,
            version=newest_version(connection),
            acknowledged=_followers(nodes, read_acknowledgements(connection)),
            waits=waits[-1] if waits else None,
            thresholds={
                kind: one[0].to_json() | {"source": one[1]} for kind, one in kept.items() if one
            },
            decisions=tuple(first_of_runs(changes)[:decisions]),
            last={one["kind"]: one for one in reversed(newest)},
        )


def _followers(nodes: Sequence[Node], acknowledged: dict[str, int]) -> dict[str, int]:
    """Return who is to acknowledge versions, and which each follows.

    That is the enhancer of each node that reports, whether it ever did, and who else did within a
    day; enhancers of nodes that report nothing follow nothing.
    """
    enhancers = {enhancer_of(node.name) for node in nodes if node.is_heard}
    others = {name for name in acknowledged if not name.startswith(enhancer_of(""))}
    return {name: acknowledged.get(name, 0) for name in sorted(enhancers | others)}


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
