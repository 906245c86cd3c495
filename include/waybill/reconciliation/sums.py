"""Sums over all minutes: what was counted as parked is in segments, what was replayed came in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from waybill.ledger import BalanceRow, ParkedEvents, StageCounts
from waybill.reconciliation.parked_sums import STAGES, check_segments

Place = tuple[str, str]
"""(stage, kind)."""


def sum_gaps(
    totals: Mapping[tuple[str, str], BalanceRow],
    parked: dict[tuple[str, str, str], ParkedEvents],
) -> dict[tuple[str, str], dict[Place, tuple[int, str]]]:
    """Return {(pipeline id, event name): {(stage, kind): (events missing, words)}}, zeros too.

    Args:
        totals: the ledger's totals, with what is in flight of replays.
        parked: what the segments say.
    """
    stages = {
        key: {name: row.stages.get(name, StageCounts()) for name in STAGES}
        for key, row in totals.items()
    }
    found: dict[tuple[str, str], Counter[str]] = {}
    check_segments(stages, found, parked)
    return {key: dict(map(_gap, gaps.items())) for key, gaps in found.items()}


def _gap(item: tuple[str, int]) -> tuple[Place, tuple[int, str]]:
    place, gap = item
    stage, _, kind = place.removesuffix(")").partition(" (")
    number, more = f"{abs(gap):,}", gap > 0
    if kind == "parked":
        words = f"{number} {'more' if more else 'fewer'} events were counted as parked at {stage} "
        words += "than its segments hold"
    else:
        words = f"{number} {'fewer' if more else 'more'} events came in again at {stage} than its "
        words += "segments are marked replayed"
    return (stage, kind), (gap, words)
