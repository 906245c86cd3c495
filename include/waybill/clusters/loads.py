"""From what was measured each minute to what a team asks of its cluster.

Each look at a team gives a ``LoadSample``: how far its topics' logs and the ledger reach, and what
its batches since the look before took. Rates come from two looks, so that a look that came late, or
was left out, changes nothing but the resolution.

A team's arrival is the larger of two numbers: the smallest of its last three rates, so that a step
is known after three minutes, and a burst of one or two is none; and the mean of a quarter of an
hour, so that it comes down slowly. With two rates instead of three a step is known a minute
earlier, and bursts move more than twice as many teams (measured with the simulator).

Core seconds an event are those of the minutes with the larger batches: each task costs something
however small it is, which says nothing about what more events would cost, and shrinks by itself
when there is more to do.

Where a topic did not answer, a look has its last known figures. They say what waits, and nothing of
how much came in since: rates are those of the looks in which all topics of the team answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from operator import itemgetter
from statistics import fmean

from waybill.clusters.model import Assignment, TeamLoad

RATE_WINDOW_S = 900.0
"""Time over which a rate is averaged on its way down."""
MOST_HOT = 100
"""Hot spots of a cluster that are kept of a look: of these each person sees those of some teams."""
_LASTING = 3
"""Rates that a step must be in."""
_LARGER_SHARE = 0.5
"""Samples with the largest batches, of which the cost of an event is taken."""


@dataclass(frozen=True, slots=True)
class HotPartition:
    """A partition of Kafka with most of what waits for a team."""

    topic: str
    partition: int
    waiting: int
    share: float
    """Of all that waits for the team."""


@dataclass(frozen=True, slots=True)
class HotSpot:
    """A team that takes much of its cluster, or a partition with most of what waits for a team."""

    team: str
    topic: str | None = None
    """None: the team itself."""
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterActivity:
    """What a cluster's teams did between the last two looks at them."""

    arrival_per_s: float | None = None
    """Events that came in, in a second; None: not known of any team."""
    processed_per_s: float | None = None
    hot: tuple[HotSpot, ...] = ()
    """The hottest ``MOST_HOT``: teams, then partitions by what waits in them."""


@dataclass(frozen=True, slots=True)
class TopicLook:
    """What is known of a topic."""

    topic: str
    at_s: float
    """Since when, in seconds since the epoch."""
    written: int
    """Sum of the end offsets of its partitions."""
    read: int
    """Sum of the ledger's offsets there."""
    lag_s: float
    """For how long the oldest unread event waited then; 0: none did."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One look at a team."""

    team: str
    at_s: float
    """Seconds since the epoch."""
    consumers: int
    """Its topics."""
    written: int
    """Sum of the end offsets of its topics' partitions."""
    read: int
    """Sum of the ledger's offsets there."""
    lag_s: float
    """For how long the oldest unread event waits; 0: none does."""
    batches: int = 0
    """Committed since the look before,"""
    batch_events: int = 0
    """the events in them,"""
    core_s: float = 0.0
    """and the core seconds that their tasks took."""
    hot_partitions: tuple[HotPartition, ...] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    """{topic that did not answer: why}; ``written``, ``read`` and ``lag_s`` have what was known of
    it last."""

    @property
    def waiting(self) -> int:
        """Return how many events are not processed yet."""
        return max(0, self.written - self.read)


def arrival_rates(samples: Sequence[LoadSample]) -> list[tuple[float, float]]:
    """Return (time, events that came in a second before it) of all samples but the first.

    A topic that was made anew has a smaller end: its rate is 0 there.
    """
    return [
        (after.at_s, max(0.0, (after.written - before.written) / (after.at_s - before.at_s)))
        for before, after in pairwise(samples)
        if after.at_s > before.at_s
    ]


def last_rates(samples: Sequence[LoadSample]) -> tuple[float, float] | None:
    """Return the events that came in, and that were processed, in a second before the last look.

    None: there were no two looks in which all topics answered.
    """
    if len(samples) <= 1 or samples[-1].unseen or samples[-2].unseen:
        return None
    before, after = samples[-2:]
    if (passed_s := after.at_s - before.at_s) <= 0:
        return None
    came, done = after.written - before.written, after.read - before.read
    return max(0.0, came / passed_s), max(0.0, done / passed_s)


def cluster_activity(
    assignment: Assignment, samples: Mapping[str, Sequence[LoadSample]]
) -> dict[str, ClusterActivity]:
    """Return what the teams of each cluster did, by cluster.

    Args:
        assignment: that was in force meanwhile.
        samples: of each team, the oldest first.
    """
    rates: dict[str, list[tuple[float, float]]] = {}
    hot: dict[str, list[tuple[float, HotSpot]]] = {}
    newest_s = max((looks[-1].at_s for looks in samples.values()), default=0.0)
    for team, looks in sorted(samples.items()):
        name = assignment.cluster_of(team)
        if name is None or looks[-1].at_s < newest_s:  # it has no pipeline any more
            continue
        at, own = assignment.placements.get(team), last_rates(looks)
        rates.setdefault(name, []).extend([] if own is None else [own])
        spots = hot.setdefault(name, [])
        spots += [(-inf, HotSpot(team))] if at is not None and at.hot else []
        spots += [
            (-one.waiting, HotSpot(team, one.topic, one.partition))
            for one in looks[-1].hot_partitions
        ]
    return {
        name: ClusterActivity(
            sum(came for came, _ in own) if own else None,
            sum(done for _, done in own) if own else None,
            tuple(spot for _, spot in sorted(hot[name], key=itemgetter(0))[:MOST_HOT]),
        )
        for name, own in rates.items()
    }


def core_s_per_event(samples: Sequence[LoadSample]) -> float:
    """Return the core seconds that an event takes; 0: no batch is known."""
    measured = [one for one in samples if one.batch_events > 0]
    measured.sort(key=lambda one: one.batch_events / one.batches, reverse=True)
    larger = measured[: max(1, round(len(measured) * _LARGER_SHARE))]
    events = sum(one.batch_events for one in larger)
    return sum(one.core_s for one in larger) / events if events else 0.0


def team_load(samples: Sequence[LoadSample]) -> TeamLoad:
    """Return what a team asks for, of its samples, the oldest first; at least one."""
    last = samples[-1]
    whole = [one for one in samples if not one.unseen] or samples
    rates = arrival_rates(whole)
    lately = [rate for at, rate in rates if whole[-1].at_s - at < RATE_WINDOW_S]
    lasting = min(rate for _, rate in rates[-_LASTING:]) if rates else 0.0
    return TeamLoad(
        last.team,
        last.consumers,
        arrival_per_s=max(lasting, fmean(lately)) if lately else lasting,
        core_s_per_event=core_s_per_event(samples),
        waiting=last.waiting,
        lag_s=last.lag_s,
        unseen=last.unseen,
    )
