"""What a series will be: exponential smoothing, with a damped trend and, given two days, a season.

Holt's linear method with a damped trend (Gardner & McKenzie 1985), and additive Holt-Winters with
the same trend once there are two whole seasons: Hyndman & Athanasopoulos, Forecasting: Principles
and Practice, 3rd ed., sections 8.2 and 8.3 (https://otexts.com/fpp3/holt-winters.html). The
smoothing parameters are fixed: they are chosen for load by the minute, and a fit for each cluster
and minute would cost more than it gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

_LEVEL = 0.3
_TREND = 0.05
_SEASON = 0.2
_DAMPING = 0.95
_SEASONS = 2
"""Of which the first season is made."""
_LEARNING = 10
"""First values whose errors say nothing: the level is not found yet."""
_DEVIATIONS = 1.28
"""Standard deviations above the forecast that nine in ten values are below of, were they normal."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A series' next values."""

    values: tuple[float, ...]
    deviation: float
    """Root mean square of what was forecast one step ahead, against what came."""

    @property
    def peak(self) -> float:
        """Return what will be exceeded at one step in ten, at most, if it goes on as it did."""
        return max(self.values, default=0.0) + _DEVIATIONS * self.deviation


def forecast(series: Sequence[float], *, steps: int, season: int | None = None) -> Forecast:
    """Return the next values of a series; none is negative.

    Args:
        series: values at equal distances, the oldest first.
        steps: values that are returned.
        season: values of one season; it counts once there are two whole ones. None: there is none.

    Cost: O(len(series) + steps).
    """
    if not series:
        return Forecast((0.0,) * steps, 0.0)
    seasonal = _first_season(series, season)
    length = len(seasonal)
    level, trend = series[0] - seasonal[0], 0.0
    errors = []
    for number, value in enumerate(series):
        usual = seasonal[number % length]
        expected = level + _DAMPING * trend
        errors.append(value - max(0.0, expected + usual))
        before, level = level, _LEVEL * (value - usual) + (1 - _LEVEL) * expected
        trend = _TREND * (level - before) + (1 - _TREND) * _DAMPING * trend
        if length > 1:
            seasonal[number % length] = _SEASON * (value - expected) + (1 - _SEASON) * usual
    values, damped = [], 0.0
    for step in range(1, steps + 1):
        damped = _DAMPING * (1 + damped)
        usual = seasonal[(len(series) + step - 1) % length]
        values.append(max(0.0, level + damped * trend + usual))
    late = errors[_LEARNING:] or errors
    return Forecast(tuple(values), sqrt(fmean(error**2 for error in late)))


def _first_season(series: Sequence[float], season: int | None) -> list[float]:
    """Return how far each value of a season is from the mean of two; [0]: there is no season."""
    if season is None or season <= 1 or len(series) < _SEASONS * season:
        return [0.0]
    mean = fmean(series[: _SEASONS * season])
    return [(series[n] + series[n + season]) / 2 - mean for n in range(season)]
