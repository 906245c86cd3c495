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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from waybill.clusters.model import TeamLoad

RATE_WINDOW_S = 900.0
"""Time over which a rate is averaged on its way down."""
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
    rates = arrival_rates(samples)
    lately = [rate for at, rate in rates if last.at_s - at < RATE_WINDOW_S]
    lasting = min(rate for _, rate in rates[-_LASTING:]) if rates else 0.0
    return TeamLoad(
        last.team,
        last.consumers,
        arrival_per_s=max(lasting, fmean(lately)) if lately else lasting,
        core_s_per_event=core_s_per_event(samples),
        waiting=last.waiting,
        lag_s=last.lag_s,
    )
