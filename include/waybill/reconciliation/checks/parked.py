"""Parked jump: of the newest events a larger share parks than is usual for the pipeline.

The share of the last window (15 minutes by intake minute) is held against the shares of windows of
its own history. It is a jump when it is over a floor, a multiple of the usual share (that which
nine of ten windows stay below), and beyond what chance does to so few events. It is told once, and
over when the share has fallen half-way back; windows with too few events say nothing either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_MINUTES = 15
_FEWEST_WINDOWS = 5
_USUAL_QUANTILE = 0.9
_SIGMAS = 5.0
_FEWEST_IN_WINDOW = 20
"""A window of the history with fewer events says nothing of shares."""


@dataclass(frozen=True, slots=True)
class Window:
    """What came in during some minutes, and how much of it is or was parked."""

    taken_in: int
    parked: int

    @property
    def share(self) -> float:
        """Return the share that parked."""
        return min(1.0, self.parked / self.taken_in) if self.taken_in else 0.0


@dataclass(frozen=True, slots=True)
class JumpLimits:
    """When a share is a jump."""

    share: float = 0.05
    """No jump below this share, whatever was usual."""
    times: float = 3.0
    """No jump below this multiple of the usual share."""
    events: int = 50
    """A window with fewer events says nothing."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A share that jumped."""

    share: float
    usual: float
    over_below: float
    """It is over when a window's share is below this."""


def is_suspicious(window: Window, limits: JumpLimits) -> bool:
    """Tell whether the history is worth reading."""
    return window.taken_in >= limits.events and window.share >= limits.share


def parked_jump(window: Window, history: Sequence[Window], limits: JumpLimits) -> Jump | None:
    """Return the jump of a window against its history; None where there is none.

    Args:
        window: the newest minutes.
        history: earlier windows, in any order; those of few events are left out.
        limits: of the settings.
    """
    known = [one for one in history if one.taken_in >= _FEWEST_IN_WINDOW]
    if not is_suspicious(window, limits) or len(known) < _FEWEST_WINDOWS:
        return None
    usual = _usual(known)
    chance = math.sqrt(max(usual, 1 / window.taken_in) * (1 - usual) / window.taken_in)
    least = max(limits.share, limits.times * usual, usual + _SIGMAS * chance)
    if window.share < min(least, (1 + usual) / 2):
        return None
    return Jump(window.share, usual, (usual + window.share) / 2)


def is_over(window: Window, over_below: float, limits: JumpLimits) -> bool:
    """Tell whether a jump that was told is over."""
    return window.taken_in >= limits.events and window.share < over_below


def _usual(known: Sequence[Window]) -> float:
    """Return the share that nine of ten windows stay below, and not below that of all together."""
    shares = sorted(one.share for one in known)
    high = shares[min(len(shares) - 1, math.ceil(_USUAL_QUANTILE * len(shares)) - 1)]
    whole = Window(sum(one.taken_in for one in known), sum(one.parked for one in known))
    return max(high, whole.share)
