"""Which topics need more partitions: a pure function of what a round measured.

A partition is read by one task, on one core, so a topic takes no more cores than it has partitions.
A partition is *full* when its oldest unread event has waited for ``late_s`` beyond the objective of
the cluster, and what came in meanwhile keeps ``full`` of a core busy. A topic grows where

1. more than half of its partitions are full. Where it is fewer, it is their keys, and a key stays
   in one partition however many there are: that is said if its tasks are at work, and nothing
   is grown;
2. more comes in than its batches get through by the second that they take, over the time that
   waits and since the look before: else it catches up; and its tasks were at work for ``busy`` of
   the last minutes: else something else holds it up;
3. its cluster has more cores than the topic has partitions, and one of them is free;
4. no older generation of it is to be read first, and the last one ended ``rest_s`` ago.

It grows to twice as many partitions, up to the limit; nothing shrinks. How much came in by the
second counts, not how much waits: the backlog of a pause is in the old partitions anyway, and grows
nothing. Nor does how much was committed since a look, which says more of where batches end than of
how fast they are. Where a measure is missing, nothing is grown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

LIMIT_SETTING = "WAYBILL_KAFKA__MAX_TOPIC_PARTITIONS"


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """What a partition is behind with."""

    waiting: int
    """Events that are not processed yet."""
    lag_s: float | None
    """For how long the oldest of them waits; None: not known."""

    @property
    def arrival_per_s(self) -> float:
        """Return how many events came in a second since the oldest unread one did.

        All that waits came in since then. 0: not known.
        """
        return self.waiting / self.lag_s if self.lag_s else 0.0


@dataclass(frozen=True, slots=True)
class GrowthPolicy:
    """When topics grow, and how far."""

    limit: int
    """Most partitions that a topic grows to; 0: none grows."""
    default_cores: int = 1
    """Of a cluster without a limit of its own."""
    late_s: float = 300.0
    """For so long beyond the objective the oldest event has waited: five rounds."""
    full: float = 0.75
    """Share of a core that makes a partition full; the rest of the time its task waits for the
    next batch."""
    busy: float = 0.5
    """Share of a core that the topic's tasks kept busy for each partition."""
    rest_s: float = 1800.0
    """From the end of an older generation to the next growth."""
    growths: int = 3
    """Most growths of a round,"""
    attempts: int = 10
    """and most topics that are tried: each costs Kafka and the tracker some questions."""


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """What is known of a topic that is behind, and of the cluster that serves it."""

    topic: str
    """events.<team>.<destination>."""
    team: str
    cluster: str
    lag_objective_s: float
    cores: int
    """Of the cluster,"""
    free_cores: float
    """and those of them that no task kept busy over the last minutes."""
    backlogs: Mapping[int, PartitionBacklog]
    """Of each partition that there is."""
    arrival_per_s: float | None
    """Events that came in a second since the look before; None: not known."""
    batch_events_per_s: float
    """Events by the second that batches took, over the last minutes; 0: not known."""
    core_s_per_event: float
    """Core seconds that an event took over the last minutes; 0: not known."""
    busy_cores: float
    """That its tasks kept busy over the last minutes."""
    is_draining: bool = False
    """An older generation of it is to be read first."""
    rested_s: float = inf
    """Since its last older generation ended."""

    @property
    def lag_s(self) -> float:
        """Return for how long its oldest unread event waits."""
        return max((one.lag_s or 0.0 for one in self.backlogs.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class TopicGrowth:
    """One decision: a topic gets more partitions."""

    topic: str
    team: str
    before: int
    partitions: int
    reason: str

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.topic}: {self.before} -> {self.partitions} partitions: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def decide_growth(load: TopicLoad, policy: GrowthPolicy) -> TopicGrowth | str | None:
    """Return what a topic grows to.

    Returns:
        In words: why more partitions would not help, or are not allowed. None: it needs none, or
        too little is known of it.
    """
    if load.is_draining or load.rested_s < policy.rest_s:
        return None
    there, full = len(load.backlogs), _full_partitions(load, policy)
    if full and 2 * len(full) <= there:
        return _hot_words(load, full) if load.busy_cores >= policy.busy * len(full) else None
    if not full or not _can_use_more(load, policy):
        return None
    wanted = min(2 * there, policy.limit)
    if wanted <= there:
        return (
            f"topic {load.topic} needs more partitions: {_reason(load, full)}. "
            f"{LIMIT_SETTING} allows {policy.limit}: raise it, or `waybill topics grow "
            f"{load.topic} --partitions {2 * there}`"
        )
    return TopicGrowth(load.topic, load.team, there, wanted, _reason(load, full))


def _full_partitions(load: TopicLoad, policy: GrowthPolicy) -> list[int]:
    late_s = load.lag_objective_s + policy.late_s
    return [
        number
        for number, one in sorted(load.backlogs.items())
        if one.lag_s is not None
        and one.lag_s >= late_s
        and one.arrival_per_s * load.core_s_per_event >= policy.full
    ]


def _can_use_more(load: TopicLoad, policy: GrowthPolicy) -> bool:
    """Tell whether the number of tasks holds a topic up, and there are cores for more."""
    there = len(load.backlogs)
    is_held_up = load.busy_cores >= policy.busy * there and not _catches_up(load)
    return is_held_up and there < load.cores and load.free_cores >= 1.0


def _catches_up(load: TopicLoad) -> bool:
    """Tell whether batches get through more than comes in; also where that is not known."""
    came = sum(one.arrival_per_s for one in load.backlogs.values())
    most = load.batch_events_per_s or inf
    return load.arrival_per_s is None or min(came, load.arrival_per_s) <= most


def _reason(load: TopicLoad, full: Sequence[int]) -> str:
    came = sum(one.arrival_per_s for one in load.backlogs.values())
    return (
        f"{len(full)} of its {len(load.backlogs)} partitions get more than one task each can "
        f"process (what comes in takes {came * load.core_s_per_event:.1f} cores), its oldest event "
        f"waits for {load.lag_s:.0f} s (objective {load.lag_objective_s:.0f} s), and "
        f"{load.free_cores:.1f} of {load.cores} cores of {load.cluster} are free"
    )


def _hot_words(load: TopicLoad, full: Sequence[int]) -> str:
    numbers = ", ".join(map(str, full))
    return (
        f"topic {load.topic} is hot in {len(full)} of {len(load.backlogs)} partitions ({numbers}): "
        "it is a few keys that get more than a task can process, and a key stays in one partition, "
        "so more of them would not help"
    )
