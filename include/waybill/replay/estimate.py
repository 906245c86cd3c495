"""A rate from a stratified sample, with its interval.

The rate of all is the strata's rates, weighted by their sizes. Its interval is put together from
Wilson's of each stratum (Newcombe 2001; Zou and Donner 2008: the method of variance estimates
recovery), each narrowed by the share of the stratum that was looked at: a stratum looked at whole
adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

_Z = 1.96
"""Of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class EstimateTally:
    """What was seen of one stratum."""

    events: float
    """It stands for so many."""
    tried: int
    passed: int


@dataclass(frozen=True, slots=True)
class Rate:
    """A share from 0 to 1, and the interval that holds the true one in 95 of 100 samples."""

    value: float
    low: float
    high: float


def rate(tallies: Iterable[EstimateTally]) -> Rate:
    """Return the weighted rate; nothing tried says nothing: 0, somewhere from 0 to 1."""
    seen = [tally for tally in tallies if tally.tried]
    whole = sum(tally.events for tally in seen)
    if not whole:
        return Rate(0.0, 0.0, 1.0)
    value = below = above = 0.0
    for tally in seen:
        weight = tally.events / whole
        share = tally.passed / tally.tried
        low, high = _wilson(share, tally)
        value += weight * share
        below += (weight * (share - low)) ** 2
        above += (weight * (high - share)) ** 2
    value = min(1.0, value)
    return Rate(value, max(0.0, value - sqrt(below)), min(1.0, value + sqrt(above)))


def _wilson(share: float, tally: EstimateTally) -> tuple[float, float]:
    n = tally.tried
    if tally.events <= n:
        return share, share
    z2 = _Z**2 * (tally.events - n) / (tally.events - 1)
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = sqrt(z2 * share * (1 - share) / n + z2**2 / (4 * n**2)) / (1 + z2 / n)
    return min(share, middle - reach), max(share, middle + reach)
