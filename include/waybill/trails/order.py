"""The order of a trail: in legs, each from where the event came in, or was sent back by a replay.

Clocks of machines differ, and a trace of sending back is written once the event is safe in the log,
when processing may have had it already. So the first of taking in or sending back comes first in
its leg, whatever its time; all others by time, and where their times are near by stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from waybill.tracing import Trace

_FIRST = ("ingestion", "replay")
_NEAR = timedelta(milliseconds=100)
"""What clocks may differ by, and what a time of taking in is exact to."""


def in_legs(stops: Iterable[Trace]) -> list[tuple[int, Trace]]:
    """Return (leg, stop) in the order of the event's way; leg 0 is the first, a replay each other.

    Of traces of one point that was passed again, because a run died before it could say so, the
    last one counts: they name the same batch and the same place in the log or in its commit.
    """
    kept = sorted(_once(stops), key=lambda stop: stop.order)
    replays = _replays(kept)
    found: list[tuple[int, Trace]] = []
    for stop in kept:
        found.append((_leg(stop, replays, found[-1][0] if found else 0), stop))
    begins = {leg: stop for leg, stop in reversed(found) if stop.phase in _FIRST}
    way: list[tuple[int, Trace]] = []
    for leg in sorted({leg for leg, _ in found}):
        rest = [stop for its, stop in found if its == leg and stop is not begins.get(leg)]
        first = [begins[leg]] if leg in begins else []
        way += [(leg, stop) for stop in (*first, *_by_cause(rest))]
    return way


def _by_cause(stops: Sequence[Trace]) -> Iterator[Trace]:
    """Yield stops that are in order of time; those of near times in order of their stages."""
    near: list[Trace] = []
    for stop in stops:
        if near and stop.at - near[0].at > _NEAR:
            yield from sorted(near, key=_stage)
            near = []
        near.append(stop)
    yield from sorted(near, key=_stage)


def _stage(stop: Trace) -> int:
    return -1 if stop.phase in _FIRST else stop.order[1]


def _once(stops: Iterable[Trace]) -> list[Trace]:
    points: dict[Any, Trace] = {}
    for index, stop in enumerate(sorted(stops, key=lambda stop: stop.order)):
        same = (stop.phase, stop.batch, stop.kafka_partition, stop.kafka_offset)
        points[same if stop.batch and stop.kafka_offset is not None else index] = stop
    return list(points.values())


def _replays(stops: Sequence[Trace]) -> dict[str, int]:
    """Return {replay id: leg}, in the order in which they sent the event."""
    sent = [stop.replay_id for stop in stops if stop.phase == "replay" and stop.replay_id]
    return {replay_id: leg for leg, replay_id in enumerate(dict.fromkeys(sent), start=1)}


def _leg(stop: Trace, replays: dict[str, int], before: int) -> int:
    if stop.replay_id in replays:
        return replays[stop.replay_id]
    if stop.phase == "replay":
        return before + 1
    if stop.phase == "ingestion" and not stop.attempt:
        return 0
    return before if stop.attempt is None else min(stop.attempt, max(before, len(replays), 1))
