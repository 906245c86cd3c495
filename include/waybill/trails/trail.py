"""The trail of one event: its traces in order and in legs, with what the tracker knows beside them.

Traces of batches that never committed are left out: such a batch ran again. A replay begins a new
leg. A producer's own id may be that of events of two pipelines: each has a trail of its own.

Clocks of machines differ, and a trace of sending back is written once the event is safe in the log,
when processing may have had it already. So the first of taking in or sending back comes first in
its leg, whatever its time; all others by time, and where their times are near by stage.

What is shown of a stop is the time by which it had happened: the earliest of its own and of all
that come after it. So times never run backwards, and a *late mark* is a stop whose trace was
written after that. An event that was taken in more than once has a way for each copy, one after the
other: what one copy did was not caused by another, so this holds for the stops of a copy. Stops of
which it is not known which copy's they are have the times that were written, in their order.

A discard names events by the million and leaves no traces. It is a stop nevertheless, behind the
one that parked, made of what the audit log says: so it is there as soon as the discard is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from waybill.storage import TrackerStore
from waybill.tracing import Trace
from waybill.trails.copies import Copies, has_untold_copy, ways_of_copies
from waybill.trails.tracker_facts import Known, WhereParked, place_of, read_known
from waybill.trails.verdict import Verdict, verdict_of, verdict_of_copies, verdict_of_mixed

MOST_CHILDREN = 100
MOST_STOPS = 200
"""Of one trail in an answer: the first and the last half of them."""
Committed = Callable[[set[str]], set[str]]
"""Returns which of these batches are committed."""


_WayStop = tuple[int, Trace, Copies]
"""Leg, trace, the copies that the trace stands for."""
_PIPELINE, _EVENT = attrgetter("pipeline_id"), attrgetter("event_id")
_FIRST = ("ingestion", "replay")
DECISION = "discard"
"""Phase of a stop that is a decision; no trace has it."""
_DECIDED = {"discard": "discarded", "undo_discard": "put back"}
_NEAR = timedelta(milliseconds=100)
"""What clocks may differ by, and what a time of taking in is exact to."""


@dataclass(frozen=True, slots=True)
class TrailBooks:
    """What trails are joined with."""

    tracker: TrackerStore
    committed: Committed
    parked: WhereParked


@dataclass(frozen=True, slots=True)
class Stop:
    """One point that the event passed."""

    trace: Trace
    leg: int
    """0: the first way; each replay begins another."""
    shown_at: datetime
    """By when it had happened: never before its copy's stop before it, never after the next one.
    Where ``coarse``, rounded down to a tenth of a second."""
    after_s: float | None
    """Since the copy's stop before, as shown; None: there is none."""
    beside: dict[str, Any]
    """What the tracker knows: parked, replay, staged, batch; each only where there is something.
    Of a decision: who made it, and why."""
    copy: int = 0
    """Which taking in of the event it belongs to: 1, 2, …; 0: it was taken in once, or it is not
    known."""
    copies: Copies = ()
    """All copies that the trace stands for: a replay's may be of several, and is a stop of each."""

    @property
    def coarse(self) -> bool:
        """True: ``shown_at`` says no more than a tenth of a second."""
        return self.trace.coarse and not self.late

    @property
    def late(self) -> bool:
        """True: the trace was written after what this stop caused, or by a clock that is ahead."""
        return self.trace.at > self.shown_at

    @property
    def place(self) -> str:
        """Where it was, in words: destination, topic/partition@offset, object."""
        one = self.trace
        if one.phase == "destination":
            return one.object_key
        topic = one.topic
        if topic and one.kafka_partition is not None and one.kafka_partition >= 0:
            topic = f"{topic}/{one.kafka_partition}@{one.kafka_offset}"
        return "  ".join(part for part in (topic, one.object_key) if part)

    def to_json(self) -> dict[str, Any]:
        """Return the trace's own fields, with what is beside it."""
        known = {"leg": self.leg, "after_s": self.after_s, "place": self.place, **self.beside}
        known |= {"copy_number": self.copy, "copies": list(self.copies)}
        times = {
            "at": self.trace.at.isoformat(),
            "shown_at": self.shown_at.isoformat(),
            "late": self.late,
            "coarse": self.coarse,
        }
        return {**asdict(self.trace), **times, **known}


@dataclass(frozen=True, slots=True)
class Trail:
    """Where an event was, step by step."""

    event_id: str
    pipeline_id: str
    event_name: str
    pipeline: str
    """Its name; empty: nobody deployed it."""
    team: str
    verdict: Verdict
    stops: list[Stop]
    uncommitted: int
    """Traces left out: their batch ran but was never committed (it ran again)."""
    left_out: int = 0
    """Stops in the middle of a trail that is too long for an answer."""
    children: list[Trail] = field(default_factory=list)
    """What a transformation made of it; themselves without children."""
    more: int = 0
    """Children that are left out."""

    def with_children(self, children: list[Trail]) -> Trail:
        """Return the trail with what was made of the event, and what became of that, in words."""
        if not children:
            return self
        shown = children[:MOST_CHILDREN]
        states = Counter(child.verdict.state for child in children)
        parts = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
        said = f"split into {len(children):,}: {parts}"
        verdict = replace(self.verdict, state="split", said=said)
        return replace(self, children=shown, more=len(children) - len(shown), verdict=verdict)

    def to_json(self) -> dict[str, Any]:
        """Return the trail as JSON."""
        return {
            "event_id": self.event_id,
            "pipeline_id": self.pipeline_id,
            "pipeline": self.pipeline,
            "team": self.team,
            "event_name": self.event_name,
            **self.verdict.to_json(),
            "copies": self._copies(),
            "stops": [stop.to_json() for stop in self.stops],
            "uncommitted": self.uncommitted,
            "left_out": self.left_out,
            "children": [child.to_json() for child in self.children],
            "more": self.more,
        }

    def _copies(self) -> list[dict[str, Any]]:
        """Return the verdict of each copy that has stops here."""
        shown = {stop.copy for stop in self.stops}
        return [
            {"copy_number": number, **one.to_json()}
            for number, one in enumerate(self.verdict.copies, 1)
            if number in shown
        ]


def made_trails(
    books: TrailBooks,
    found: dict[str, list[Trace]],
    *,
    may_tell: Callable[[str], bool],
) -> dict[str, list[Trail]]:
    """Return the trails of events: usually one an id, none where nothing may be told.

    Args:
        books: tell which batches count, and where segments, replays and loads stand.
        found: the traces of each id, in order.
        may_tell: whether events of a pipeline id may be told.

    Cost: see ``read_known``.
    """
    own = {
        asked: [stop for stop in stops if stop.phase != "key" and may_tell(stop.pipeline_id)]
        for asked, stops in found.items()
    }
    every = [stop for stops in own.values() for stop in stops]
    counted = books.committed({stop.batch for stop in every if stop.batch}) if every else set()
    kept = [stop for stop in every if not stop.batch or stop.batch in counted]
    known = read_known(books.tracker, kept, books.parked) if every else Known()
    return {
        asked: [_family(asked, group, counted, known) for group in _by(_PIPELINE, stops)]
        for asked, stops in own.items()
    }


def _by(what: Callable[[Trace], str], stops: Iterable[Trace]) -> list[list[Trace]]:
    groups: dict[str, list[Trace]] = defaultdict(list)
    for stop in stops:
        groups[what(stop)].append(stop)
    return list(groups.values())


def _family(asked: str, found: list[Trace], counted: set[str], known: Known) -> Trail:
    """Return the trail of an event with those of its children, in their order."""
    members = {group[0].event_id: group for group in _by(_EVENT, found)}
    own = members.pop(asked, [])
    children = sorted(members.items(), key=lambda one: _path(one[0]))
    trails = [_trail(child, stops, counted, known) for child, stops in children]
    if not own:
        return _without_parent(asked, trails)
    return _trail(asked, own, counted, known).with_children(trails)


def _path(event_id: str) -> list[tuple[int, str]]:
    """Return what children are sorted by: `e/10` comes after `e/9`."""
    return [(int(part) if part.isdecimal() else -1, part) for part in event_id.split("/")]


def _without_parent(asked: str, children: list[Trail]) -> Trail:
    """Return the trail of an event of which only what was made of it has traces."""
    first, nothing = children[0], verdict_of([], Known())
    parent = replace(first, event_id=asked, stops=[], verdict=nothing, uncommitted=0, left_out=0)
    return parent.with_children(children)


def _trail(event_id: str, found: list[Trace], counted: set[str], known: Known) -> Trail:
    kept = [stop for stop in found if not stop.batch or stop.batch in counted]
    first = found[0]
    pipeline = known.pipelines.get(first.pipeline_id)
    way = in_legs(kept)
    commits = {batch: row.commit_number for batch, row in known.batches.items()}
    ways = ways_of_copies(way, commits)
    is_mixed = 0 in ways and (len(ways) > 1 or has_untold_copy(way))
    if is_mixed:
        ways[0].sort(key=lambda one: one[1].at)
    stops = [
        stop
        for copy, part in ways.items()
        for stop in _stops(copy, part, known, is_mixed=is_mixed and not copy)
    ]
    shown = stops
    if len(stops) > MOST_STOPS:
        shown = stops[: MOST_STOPS // 2] + stops[-MOST_STOPS // 2 :]
    return Trail(
        event_id,
        first.pipeline_id,
        way[-1][1].event_name if way else first.event_name,
        "" if pipeline is None else pipeline.name,
        "" if pipeline is None else pipeline.team,
        _verdict(way, ways, known, is_mixed=is_mixed),
        shown,
        len(found) - len(kept),
        len(stops) - len(shown),
    )


def _verdict(
    way: Sequence[tuple[int, Trace]],
    ways: Mapping[int, Sequence[_WayStop]],
    known: Known,
    *,
    is_mixed: bool,
) -> Verdict:
    """Return the verdict: of each copy where all stops are known to be of one, else of the way."""
    if is_mixed:
        return verdict_of_mixed(sorted((trace for _, trace in way), key=lambda one: one.at), known)
    if 0 in ways or not ways:
        return verdict_of([trace for _, trace in way], known)
    return verdict_of_copies([[trace for _, trace, _ in part] for part in ways.values()], known)


def _stops(copy: int, way: Sequence[_WayStop], known: Known, *, is_mixed: bool) -> list[Stop]:
    """Return the stops of a copy's way, with the decisions on what parked among them.

    ``is_mixed``: they are of several copies, so that none was caused by the next.
    """
    decided = {
        id(trace): list(_decisions(trace, known))
        for trace in {place_of(one): one for _, one, _ in way if one.outcome == "parked"}.values()
    }
    whole = [
        (leg, passed, beside, copies)
        for leg, trace, copies in way
        for passed, beside in ((trace, _beside(trace, known)), *decided.pop(id(trace), ()))
    ]
    if is_mixed:
        whole.sort(key=lambda one: one[1].at)
    written = [trace.at for _, trace, _, _ in whole]
    times = written if is_mixed else shown_times(written)
    found: list[Stop] = []
    for (leg, trace, beside, copies), at in zip(whole, times, strict=True):
        after_s = (at - found[-1].shown_at).total_seconds() if found else None
        found.append(Stop(trace, leg, at, after_s, beside, copy, copies))
    return found


def shown_times(written: Sequence[datetime]) -> list[datetime]:
    """Return, for stops in the order of the way, by when each had happened: times that only rise.

    What comes after a stop was caused by it, so it had happened by the earliest time of these.
    """
    found: list[datetime] = []
    for at in reversed(written):
        found.append(min(at, found[-1]) if found else at)
    return found[::-1]


def _decisions(parked: Trace, known: Known) -> Iterator[tuple[Trace, dict[str, Any]]]:
    """Yield the discards, and their undoing, of what parked at a stop."""
    now = known.parked_now(parked)
    for one in () if now is None else now.decisions:
        trace = replace(
            parked,
            phase=DECISION,
            outcome=_DECIDED[one.action],
            at=one.at,
            error_type="",
            host="",
            topic="",
            kafka_partition=None,
            kafka_offset=None,
            batch="",
            commit_number=None,
        )
        yield trace, {"decision": {"who": one.who, "why": one.why}}


def _beside(trace: Trace, known: Known) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if trace.outcome == "parked" and (now := known.parked_now(trace)) is not None:
        found["parked"] = now.to_json()
        trace_replay = known.replays.get(now.replay_id)
    else:
        trace_replay = known.replays.get(trace.replay_id)
    if trace_replay is not None:
        found["replay"] = asdict(trace_replay)
    if (staged := known.staged.get(trace.object_key)) is not None:
        found["staged"] = _dated(asdict(staged))
    if (batch := known.batches.get(trace.batch)) is not None:
        found["batch_row"] = _dated(asdict(batch))
    return found


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    return {name: v.isoformat() if isinstance(v, datetime) else v for name, v in row.items()}


def in_legs(stops: Iterable[Trace]) -> list[tuple[int, Trace]]:
    """Return (leg, stop) in the order of the event's way; leg 0 is the first, a replay each other.

    Of traces of one point that was passed again, because a run died before it could say so, the
    last one counts: they name the same batch and the same place in the log or in its commit.
    """
    kept = sorted(_once(stops), key=lambda stop: stop.order)
    replays = _replays(kept)
    found: list[tuple[int, Trace]] = []
    is_mapped = False
    for stop in kept:
        before = found[-1][0] if found else 0
        if is_mapped and stop.phase == "destination" and not stop.replay_id:
            leg = 0  # its row is of no replay, though one may be on its way with another copy
        else:
            leg = _leg(stop, replays, before)
        is_mapped |= not leg and (stop.phase, stop.outcome) == ("mapping", "passed")
        found.append((leg, stop))
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


def _stage(stop: Trace) -> tuple[int, int, int]:
    """Return the stage; of copies of one event at one stage, who was first in the log or commit."""
    is_first = stop.phase in _FIRST and stop.outcome != "parked"
    stage = -1 if is_first else stop.order[1]
    return stage, stop.commit_number or 0, stop.kafka_offset or 0


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
