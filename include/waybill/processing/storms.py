"""Storms: whether nearly all of a pipeline's events in a micro-batch would park for one cause.

A cause is a stage, an error type and the place (of the code, or the column): neither names nor
values in a message tell two of them apart. Only first-pass events count, on both sides: a replay
that fails again is its own business, and must not stop the live events beside it.

Each task tallies its own failures; the driver adds up. Pure: values in, values out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waybill.events import HELD_ERROR
from waybill.parking import summary
from waybill.processing import COUNT_NAMES, Counts, Failure

_MOST_CAUSES = 20
"""Causes of one pipeline that a task reports: the commonest."""
_IN_FIRST = COUNT_NAMES.index("in_first")
Cause = tuple[str, str, str, str]
"""(pipeline id, stage, error type, place)."""


@dataclass(frozen=True, slots=True)
class Storm:
    """A pipeline to be held, and why."""

    pipeline_id: str
    stage: str
    error_type: str
    place: str
    message: str
    """Of one of the events."""
    failed: int
    """First-pass events of the batch that would park for this cause."""
    events: int
    """First-pass events of the batch that came as far as this stage."""

    def to_cause(self, version: str) -> dict[str, Any]:
        """Return the cause of a hold as JSON."""
        named = {n: getattr(self, n) for n in self.__slots__ if n != "pipeline_id"}
        return {"version": version, **named}


class Tally:
    """Adds up a task's failures by cause.

    Args:
        known: ids of the pipelines that are deployed; only they can be held.
    """

    def __init__(self, known: Collection[str]) -> None:
        self._known = known
        self._numbers: Counter[Cause] = Counter()
        self._messages: dict[Cause, str] = {}

    def add(self, failures: Iterable[Failure]) -> None:
        """Add failures of any pipelines. Cost: about 1 µs each."""
        for failure in failures:
            fault = failure.fault
            if failure.attempt or fault.code == HELD_ERROR:
                continue
            if failure.pipeline_id not in self._known:
                continue
            cause = (failure.pipeline_id, failure.stage, fault.code, fault.where)
            self._numbers[cause] += 1
            self._messages.setdefault(cause, fault.message)

    def rows(self) -> list[list[Any]]:
        """Return [pipeline id, stage, error type, place, message, count], the commonest first."""
        kept: Counter[str] = Counter()
        rows: list[list[Any]] = []
        for cause, number in self._numbers.most_common():
            kept[cause[0]] += 1
            if kept[cause[0]] <= _MOST_CAUSES:
                words = summary(cause[3]), summary(self._messages[cause])
                rows.append([*cause[:3], *words, number])
        return rows


def find_storms(
    counts: Counts, tallies: Iterable[Sequence[Any]], *, share: float, min_events: int
) -> list[Storm]:
    """Return the storms of a micro-batch, one a pipeline at most.

    Args:
        counts: of all tasks.
        tallies: the rows of ``Tally`` of all tasks.
        share: of a pipeline's events; more than this for one cause is a storm. 0: nothing is.
        min_events: fewer first-pass events of the pipeline are no storm.
    """
    numbers: Counter[Cause] = Counter()
    messages: dict[Cause, str] = {}
    for pipeline_id, stage, code, place, message, number in tallies:
        cause = (pipeline_id, stage, code, place)
        numbers[cause] += number
        messages.setdefault(cause, message)
    if not share or not numbers:
        return []
    came = _first_pass(counts)
    found: dict[str, Storm] = {}
    for cause, failed in numbers.most_common():
        pipeline_id, stage = cause[:2]
        entered = came[pipeline_id, "transformation"]
        # A transformation may make many of one: a storm of the mapping is measured by what it made.
        events = max(entered, came[pipeline_id, stage])
        if entered >= min_events and failed > share * events:
            found.setdefault(pipeline_id, Storm(*cause, messages[cause], failed, events))
    return list(found.values())


def _first_pass(counts: Counts) -> Mapping[tuple[str, str], int]:
    """Return how many first-pass events came to each (pipeline id, stage)."""
    came: defaultdict[tuple[str, str], int] = defaultdict(int)
    for pipeline_id, rows in counts.by_pipeline():
        for _, stage, _, row in rows:
            came[pipeline_id, stage] += row[_IN_FIRST]
    return came
