"""Recent good events: what a proposed version would do to what passes today.

They are read from the end of the pipeline's topic. Good is what the active version does not fail:
each event runs through it first. It runs twice: a column that differs between the two (a time, a
random number) says nothing, and is not compared.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from waybill.access import KEY, MASK, same_name
from waybill.errors import ParkError
from waybill.events import decode
from waybill.parking import masked_words
from waybill.pipelines import team_of
from waybill.processing import DryRunner, Fate
from waybill.storage import TopicInfo

_FIRST_LOOK = 500
_WIDER = 4
_MOST_READ = 200_000
_MOST_EXAMPLES = 5
_LONGEST_TEXT = 200
_ROW_KEY = "_waybill_key"


class ReadableLog(Protocol):
    """What is asked of the log."""

    def describe(self, name: str) -> TopicInfo:
        """Return a topic's identity."""

    def watermarks(self, topic: TopicInfo) -> dict[int, tuple[int, int]]:
        """Return {partition: (first offset that is there, offset after the last)}."""

    def read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[bytes]:
        """Yield the values between two offsets of each partition."""


@dataclass(slots=True)
class GoodReport:
    """What a proposed version would do to recent events that the active one passes or filters."""

    tried: int = 0
    same: int = 0
    changed: int = 0
    """They pass, with other rows; or they are filtered today and would pass."""
    newly_broken: int = 0
    """They would fail; or pass today and would be filtered."""
    ways: dict[str, int] = field(default_factory=dict)
    """How the newly broken ones would end: "mapping/type_mismatch", or "filtered"."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """A few: ``event_id``, ``kind`` (changed, newly_broken), and ``columns``
    {table.column: [before, after]}, or ``way`` and ``message``."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


def recent_events(
    log: ReadableLog, topic: str, *, pipeline_id: str, event_name: str, n: int, seed: int | None
) -> list[bytes]:
    """Return up to ``n`` recent messages of one event name that enter at transformation.

    Cost: reads backwards from the end of each partition until it has enough, at most 200,000
    messages of all pipelines of the topic. Memory: ``n`` messages.

    Raises:
        RetryError: Kafka is away.
        StopError: there is no such topic.
    """
    info, team = log.describe(topic), team_of(topic)
    marks = log.watermarks(info)
    edges = {number: high for number, (_, high) in marks.items()}
    kept: list[bytes] = []
    seen = read = 0
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    wide = max(1, len(marks))
    reach = max(1, max(_FIRST_LOOK, 2 * n) // wide)
    while n and seen < n and read < _MOST_READ:
        reach = min(reach, max(1, (_MOST_READ - read) // wide))
        starts = {number: max(marks[number][0], end - reach) for number, end in edges.items()}
        ranges = {number: (starts[number], end) for number, end in edges.items()}
        size = sum(end - start for start, end in ranges.values())
        if not size:
            break
        for value in log.read(topic, ranges):
            if not _is_wanted(value, team, pipeline_id, event_name):
                continue
            seen += 1
            if len(kept) < n:
                kept.append(value)
            elif (place := rng.randrange(seen)) < n:
                kept[place] = value
        edges, read = starts, read + size
        reach *= _WIDER
    return kept


def _is_wanted(value: bytes, team: str, pipeline_id: str, event_name: str) -> bool:
    try:
        event = decode(value)
    except ParkError:
        return False
    wanted = (team, pipeline_id, event_name, "transformation")
    return (event.team, event.pipeline_id, event.name, event.stage) == wanted


def compare(
    active: DryRunner, proposed: DryRunner, values: Sequence[bytes], *, personal: Sequence[str] = ()
) -> GoodReport:
    """Run good events through both versions; what fails in the active one is left out.

    Args:
        active: keeps rows.
        proposed: keeps rows.
        values: messages, as ``recent_events`` gives them.
        personal: fields and columns whose values are masked in examples.

    Cost: three times the stages.
    """
    report = GoodReport()
    ways: Counter[str] = Counter()
    fates = zip(
        values,
        active.fates(values),
        active.fates(values),
        proposed.fates(values),
        strict=True,
    )
    for value, now, again, then in fates:
        if now.faults or again.faults:
            continue
        report.tried += 1
        found = _difference(now, again, then)
        kind = found.pop("kind")
        setattr(report, kind, getattr(report, kind) + 1)
        if kind == "newly_broken":
            ways.update(list(then.faults) or ["filtered"])
        if kind != "same" and _is_new(report.examples, kind):
            shown = _masked(value, found, personal)
            report.examples.append({"event_id": decode(value).id, "kind": kind, **shown})
    report.ways = dict(ways)
    return report


def _masked(value: bytes, found: dict[str, Any], personal: Sequence[str]) -> dict[str, Any]:
    """Hide what an example says of an event's personal fields: their columns, and their values."""
    said = {name: found[name] for name in ("message", "columns") if name in found}
    shown: dict[str, Any] = found | masked_words(value, said, personal)
    hidden = {same_name(name) for name in personal} | ({_ROW_KEY} if KEY in personal else set())
    for name, edges in shown.get("columns", {}).items():
        if same_name(name.partition(".")[2]) in hidden:
            edges[:] = [None if edge is None else MASK for edge in edges]
    return shown


def _is_new(examples: Sequence[Mapping[str, Any]], kind: str) -> bool:
    return [example["kind"] for example in examples].count(kind) < _MOST_EXAMPLES


def _difference(now: Fate, again: Fate, then: Fate) -> dict[str, Any]:
    if then.faults:
        way, fault = next(iter(then.faults.items()))
        return {"kind": "newly_broken", "way": way, "message": fault.message}
    if then.filtered and not now.filtered:
        return {"kind": "newly_broken", "way": "filtered", "message": "it passes today"}
    unstable = _columns(now, again)
    columns = {k: v for k, v in _columns(now, then).items() if k not in unstable}
    return {"kind": "changed", "columns": columns} if columns else {"kind": "same"}


def _columns(before: Fate, after: Fate) -> dict[str, list[Any]]:
    """Return {table.column: [before, after]} of what differs; a row that is not there has None.

    A column that only one of the two has is like a null in the other.
    """
    found: dict[str, list[Any]] = {}
    if len(before.rows) != len(after.rows):
        found["rows"] = [len(before.rows), len(after.rows)]
    old = {(row.table, row.id): row.values for row in before.rows}
    new = {(row.table, row.id): row.values for row in after.rows}
    for key in [*old, *(key for key in new if key not in old)]:
        left, right = old.get(key, {}), new.get(key, {})
        in_both = key in old and key in new
        for name in [*left, *(name for name in right if name not in left)]:
            a, b = left.get(name), right.get(name)
            if not (in_both and _same(a, b)):
                found.setdefault(f"{key[0]}.{name}", [_plain(a), _plain(b)])
    return found


def _same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    return bool(a == b) or repr(a) == repr(b)  # a NaN is like any other


def _plain(value: object) -> object:
    """Return a value as JSON has it, long texts cut."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
