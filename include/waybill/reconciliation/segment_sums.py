"""Sums over all minutes: what was counted as parked is in segments, what was replayed came in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from waybill.ledger import BalanceRow, ParkedEvents, StageCounts
from waybill.reconciliation.minutes import numbered

STAGES = ("ingestion", "transformation", "mapping", "destination")
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
    number, more, is_one = abs(gap), gap > 0, abs(gap) == 1
    if kind == "parked":
        events = numbered(number, f"{'more' if more else 'fewer'} event")
        words = f"{events} {'was' if is_one else 'were'} counted as parked at {stage} "
        words += "than its segments hold"
    else:
        events = numbered(number, f"{'fewer' if more else 'more'} event")
        words = f"{events} came in again at {stage} than its segments are marked replayed"
    return (stage, kind), (gap, words)


def check_segments(
    totals: dict[tuple[str, str], dict[str, StageCounts]],
    breaches: dict[tuple[str, str], Counter[str]],
    parked: dict[tuple[str, str, str], ParkedEvents],
) -> int:
    """Hold the counts against the tracker's segments; returns the events unaccounted for.

    What was counted as parked is in a segment; what was marked replayed, or sent without a mark,
    came in again, is on its way, or is unrecoverable; or its parent did, at an earlier stage.
    """
    unaccounted = 0
    for pipeline_id, event_name in {*totals, *((p, e) for p, e, _ in parked)}:
        key = (pipeline_id, event_name)
        stages = totals.setdefault(key, {name: StageCounts() for name in STAGES})
        found = breaches.setdefault(key, Counter())
        missing: Counter[str] = Counter()
        for stage, counts in stages.items():
            segments = parked.get((*key, stage), ParkedEvents(0, 0))
            gaps = {
                "parked": counts.parked - segments.recorded,
                "replays": segments.replayed
                + segments.unmarked
                - counts.replayed_as_parents
                + counts.parents
                - counts.in_replayed
                - counts.in_flight_replayed
                - counts.unrecoverable_replayed,
            }
            for words, gap in gaps.items():
                missing[f"{stage} ({words})"] = gap
        _replayed_from_ingestion(missing)
        found.update(missing)
        unaccounted += sum(map(abs, missing.values()))
    return unaccounted


def _replayed_from_ingestion(missing: Counter[str]) -> None:
    """Look where it enters for what was replayed from ingestion and not refused by Kafka again."""
    sent = max(0, missing["ingestion (replays)"])
    missing["ingestion (replays)"] -= sent
    missing["transformation (replays)"] += sent
