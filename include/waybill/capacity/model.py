"""What is known of capacity, what is wanted of it, and what was decided; values, no I/O.

Capacity is counted in units: a worker of an ingestion node, a core of a Spark node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Literal, Self

from waybill.errors import InputError

NodeKind = Literal["ingestion", "spark"]
KINDS: tuple[NodeKind, ...] = ("ingestion", "spark")
UNITS: Mapping[NodeKind, str] = {"ingestion": "workers", "spark": "cores"}
Action = Literal["grow", "shrink", "hold"]
_HOURS_A_DAY = 24
_MOST_NODES = 10_000
_LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When nodes of a kind are added and removed, and how fast."""

    wait_objective_s: float = 60.0
    """Of 100 tasks that may run, 95 wait no longer; of Spark: the lag of the oldest event."""
    busy_target: float = 0.75
    """So much of the units may be busy: what comes in is divided by it."""
    busy_high: float = 0.9
    """From so much on nodes are added, even where nothing waits yet."""
    drain_s: float = 300.0
    """What waits is to be worked off within this time."""
    min_nodes: int = 1
    max_nodes: int = 4
    most_added: int = 4
    """Nodes in one step,"""
    most_removed: int = 1
    """and those that a step drains."""
    grow_every_s: float = 60.0
    """Cool-down: so long after a step up there is no other."""
    shrink_after_s: float = 900.0
    """Cool-down: so long fewer nodes must have been enough before one is drained."""
    budget_node_hours: float = 0.0
    """Of a UTC day; beyond it no node is added. 0: no limit."""
    drain_limit_s: float = 3600.0
    """A node that drains for longer is told of; it is never ended by force."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            InputError: which thresholds, and what they must be.
        """
        for one in fields(self):
            value = getattr(self, one.name)
            if not _is_number(value):
                raise InputError(f"threshold {one.name} must be a number, found {value!r:.60}")
        whole = [self.min_nodes, self.max_nodes, self.most_added, self.most_removed]
        seconds = (self.wait_objective_s, self.drain_s, self.drain_limit_s)
        pauses = (self.grow_every_s, self.shrink_after_s)
        rules = {
            "min_nodes, max_nodes, most_added and most_removed must be whole numbers": all(
                one == int(one) for one in whole
            ),
            f"min_nodes must be from 0 to max_nodes, that is {self.max_nodes:g}, and max_nodes "
            f"at most {_MOST_NODES}": 0 <= self.min_nodes <= self.max_nodes <= _MOST_NODES,
            "most_added and most_removed must be at least 1": min(whole[2:]) >= 1,
            "busy_target must be over 0, less than busy_high, and that at most 1": (
                0 < self.busy_target < self.busy_high <= 1
            ),
            f"wait_objective_s, drain_s and drain_limit_s must be from 1 to {_LONGEST_S:.0f}": (
                all(1 <= one <= _LONGEST_S for one in seconds)
            ),
            f"grow_every_s and shrink_after_s must be from 0 to {_LONGEST_S:.0f}": (
                all(0 <= one <= _LONGEST_S for one in pauses)
            ),
            f"budget_node_hours must be 0, or at least what min_nodes take in a day, that is "
            f"{self.min_nodes * _HOURS_A_DAY:g}": (
                self.budget_node_hours == 0
                or self.budget_node_hours >= max(self.min_nodes * _HOURS_A_DAY, 0.001)
            ),
        }
        if broken := [words for words, holds in rules.items() if not holds]:
            raise InputError(f"thresholds contradict: {'; '.join(broken)}")

    @classmethod
    def read(cls, value: object) -> Self:
        """Return thresholds of a mapping; what it does not name has its default.

        Raises:
            InputError: it is no mapping, has a name that is no threshold, or contradicts itself.
        """
        if not isinstance(value, Mapping):
            raise InputError(f"thresholds must be an object of numbers, found {value!r:.60}")
        known = {one.name: one.type for one in fields(cls)}
        if unknown := sorted(str(name)[:60] for name in value if name not in known):
            raise InputError(f"no thresholds: {', '.join(unknown)}; there are {', '.join(known)}")
        return cls(**{
            name: int(given) if known[name] == "int" and _is_whole(given) else given
            for name, given in value.items()
        })  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON."""
        return asdict(self)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


@dataclass(frozen=True, slots=True)
class Observation:
    """What nodes of one kind have to do, and how many there are."""

    at_s: float
    """Seconds since the epoch."""
    units_per_node: float
    """That a node has by its declaration: what a new one brings."""
    units: float
    """Of all nodes that take work: with what their enhancers added."""
    ready: int
    """Nodes that take work,"""
    starting: int = 0
    """those that were asked for and did not report yet,"""
    draining: int = 0
    """and those that take no new work."""
    busy: float = 0.0
    """Units at work."""
    demand: float = 0.0
    """Units that what comes in keeps busy."""
    backlog_unit_s: float = 0.0
    """Seconds of a unit that what waits will take."""
    waiting: int = 0
    """Tasks that may run and do not; of Spark: events."""
    p95_s: float = 0.0
    oldest_s: float = 0.0
    """How long the oldest of them has waited."""
    node_hours: float = 0.0
    """Of this day."""
    measured_s: float = 0.0
    """Age of the measurement."""
    utilisation: float | None = None
    """CPU of the nodes, 0 to 1; None: no enhancer reported."""
    consumer_nodes: int = 0
    """Nodes that the consumers of Spark want, whatever comes in; 0: consumers do not count."""

    @property
    def nodes(self) -> int:
        """Return the nodes that work, or will."""
        return self.ready + self.starting

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What the policy remembers from one look to the next."""

    at_s: float = 0.0
    """Of the last look."""
    grown_at_s: float = 0.0
    since_s: float = 0.0
    """From when on ``wanted`` is known without a gap."""
    wanted: tuple[tuple[float, int], ...] = ()
    """(time, nodes) that were wanted within ``shrink_after_s``: falling, the peak first."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def read(cls, value: object) -> Self:
        """Return what ``to_json`` gave; what another release wrote otherwise: nothing known."""
        if not isinstance(value, Mapping):
            return cls()
        try:
            times = {name: float(value[name]) for name in ("at_s", "grown_at_s", "since_s")}
            wanted = tuple((float(at), int(nodes)) for at, nodes in value["wanted"])
        except (TypeError, KeyError, ValueError):
            return cls()
        return cls(**times, wanted=wanted)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of the nodes of a kind."""

    action: Action
    before: int
    """Nodes that work or start,"""
    after: int
    """and those that are to."""
    wanted: int
    """Without limits and cool-downs."""
    reasons: tuple[str, ...]
    """In words: what was seen, and which limits held."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)
