"""Parked jump: of the newest events a larger share parks than is usual for the pipeline.

The share of the last window (15 minutes by intake minute) is held against the shares of windows of
its own history. It is a jump when it is over a floor, a multiple of the usual share (that which
nine of ten windows stay below), and beyond what chance does to so few events. It is told once, and
over when the share has fallen half-way back; windows with too few events say nothing either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from waybill.reconciliation.checks.findings import Finding, OpenFindings
from waybill.reconciliation.checks.limits import JumpLimits, WatchLimits

WINDOW_MINUTES = 15
_FEWEST_WINDOWS = 5
_USUAL_QUANTILE = 0.9
_SIGMAS = 5.0
_FEWEST_IN_WINDOW = 20
"""A window of the history with fewer events says nothing of shares."""
_HISTORY_DAYS = 8
_DAY_MINUTES = 24 * 60
_AROUND_MINUTES = 60
_NEAR_MINUTES = 6 * 60
_RECENT = text("""
SELECT pipelines.id, recent.taken_in, recent.parked FROM pipelines
CROSS JOIN LATERAL (
  SELECT coalesce(sum(in_first) FILTER (WHERE stage = 'ingestion'), 0)::bigint AS taken_in,
    coalesce(sum(parked), 0)::bigint AS parked
  FROM ledger_minutes
  WHERE pipeline_id = pipelines.id AND minute > :since AND minute <= :until) AS recent
WHERE recent.taken_in > 0
""")
_WINDOWS = text("""
SELECT sum(in_first) FILTER (WHERE stage = 'ingestion')::bigint AS taken_in,
  sum(parked)::bigint AS parked
FROM unnest(CAST(:ends AS int[])) AS window_end
JOIN ledger_minutes ON pipeline_id = :pipeline
  AND minute > window_end - :size AND minute <= window_end
GROUP BY window_end
""")


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


def parked_jumps(
    connection: Connection,
    now_minute: int,
    limits: WatchLimits,
    known: OpenFindings,
    name: Callable[[str], str],
) -> list[Finding]:
    """Return the pipelines of whose newest events a larger share parks than usual."""
    windows = _recent_windows(connection, now_minute)
    found = [
        one
        for one in known.standing.values()
        if one.kind == "parked_jump"
        and not is_over(
            windows.get(one.pipeline_id, Window(0, 0)), one.detail["over_below"], limits.jump
        )
    ]
    for pipeline_id, window in windows.items():
        standing = ("parked_jump", pipeline_id, "", "") in known.standing
        if not standing and is_suspicious(window, limits.jump):
            history = _earlier_windows(connection, pipeline_id, now_minute)
            found += _jumped(name(pipeline_id), pipeline_id, window, history, limits)
    return found


def _jumped(
    name: str, pipeline_id: str, window: Window, history: Sequence[Window], limits: WatchLimits
) -> list[Finding]:
    jump = parked_jump(window, history, limits.jump)
    if jump is None:
        return []
    words = (
        f"{name}: {jump.share:.1%} of the events of the last 15 minutes parked "
        f"({window.parked:,} of {window.taken_in:,}); usually at most {jump.usual:.1%}"
    )
    detail = {
        "share": jump.share,
        "parked": window.parked,
        "taken_in": window.taken_in,
        "usual_share": jump.usual,
        "over_below": jump.over_below,
    }
    return [Finding("parked_jump", pipeline_id, words, detail=detail)]


def _recent_windows(connection: Connection, now_minute: int) -> dict[str, Window]:
    """Return {pipeline id: what came in during the last window of whole minutes}."""
    given = {"since": now_minute - 1 - WINDOW_MINUTES, "until": now_minute - 1}
    rows = connection.execute(_RECENT, given)
    return {str(row[0]): Window(int(row[1]), int(row[2])) for row in rows}


def _earlier_windows(connection: Connection, pipeline_id: str, now_minute: int) -> list[Window]:
    """Return a pipeline's windows of the last 6 hours, and of these hours of the last 8 days."""
    newest = now_minute - 1 - WINDOW_MINUTES
    ends = list(range(newest - _NEAR_MINUTES, newest + 1, WINDOW_MINUTES))
    for day in range(1, _HISTORY_DAYS + 1):
        then = newest - day * _DAY_MINUTES
        ends += range(then - _AROUND_MINUTES, then + _AROUND_MINUTES + 1, WINDOW_MINUTES)
    given = {"pipeline": pipeline_id, "ends": ends, "size": WINDOW_MINUTES}
    rows = connection.execute(_WINDOWS, given)
    return [Window(int(row[0] or 0), int(row[1] or 0)) for row in rows]
