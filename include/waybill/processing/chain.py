"""The stage chain: one pass over a task's messages, in slices of some thousand.

Decode, then group by (pipeline, event name, stage of entry), transform one by one, map by columns.
Names that user code makes up never get into the books, nor among the parked groups, of which there
is one for each name: an event of which something undeclared was made parks itself, as it came.
Results pile up in a ``ChainResult`` that the caller turns into objects, a descriptor and traces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from waybill.errors import ParkError
from waybill.events import (
    DELETE,
    HELD_ERROR,
    Event,
    Heads,
    decode,
    decode_head,
    encode,
    loads,
    read_heads,
    refuse_wrong_reference,
)
from waybill.pipelines import UNKNOWN_PIPELINE
from waybill.processing.code_runner import CodeRunner, InProcess, Results
from waybill.processing.failures import Fault, describe
from waybill.processing.mapping import MappingFault
from waybill.processing.payload_columns import KeptPayloads, PayloadColumns
from waybill.processing.plan import EventPlan, Plan
from waybill.processing.results import ChainResult, Chunk, Failure, Items, Mapped
from waybill.processing.staged import staged_batch, system_columns
from waybill.processing.transformation import Outcome, Retries
from waybill.storage import ObjectMissingError

_FIRST_STAGE = "transformation"
_BLOCK = 1024
"""Messages that are read at a time: their objects stay in the processor's cache and in malloc's
arenas."""
_SLICE, _SLICE_BYTES = 4096, 2 * 1024**2
"""Messages, and their bytes, that are worked on at a time: whole blocks, one at the least. What is
done once for them (a request to a process of user code, columns) costs as some hundred of them."""


_SHOWN_NAME = 100
"""Characters of an event name that a message quotes."""


class _Group(NamedTuple):
    """What a slice's events are grouped by: they take the same way."""

    pipeline_id: str
    name: str
    stage: str
    """Of entry."""
    replayed: bool

    @property
    def counter(self) -> str:
        return "in_replayed" if self.replayed else "in_first"


class _Stop(NamedTuple):
    """Where an event went no further, and what of it parks."""

    event_name: str
    stage: str
    fault: Fault
    value: bytes
    source: bytes = b""
    """What it was made from, where the pipeline keeps that."""


class Chain:
    """Runs messages through their pipelines' stages.

    Args:
        plans: pipeline id to plan.
        code: runs user code; None: this process does.
        fetch: returns the payload bytes of a ``dataref``; raises ObjectMissingError, or ParkError.
        retries: of events whose user code meets a transient error; None: they fail at once.
        held: ids of pipelines whose events are parked as they came, before any stage.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        *,
        code: CodeRunner | None = None,
        fetch: Callable[[str], bytes] | None = None,
        retries: Retries | None = None,
        held: Collection[str] = (),
    ) -> None:
        self._retries = retries
        self._plans = plans
        self._code: CodeRunner = InProcess() if code is None else code
        self._fetch = fetch
        self._held = frozenset(held)
        self.result = ChainResult()
        self._chunk = Chunk((), (), (), ())
        self._fetched: set[int] = set()
        """Places of the events whose payload was not in the message."""

    def process(self, chunk: Chunk) -> None:
        """Run one chunk. Order within a key is kept: chunks come in log order.

        Raises:
            TooMuchMadeError: what was made of all so far is more than the result is to have; it has
                a part of this chunk then.
        """
        for start, end, groups in _slices(chunk.values):
            self._chunk = chunk.part(start, end)
            self._fetched.clear()
            if groups is None:
                self._slice_by_message(self._chunk)
                continue
            for heads, places in groups:
                group = _Group(heads.pipeline_id, heads.name, _FIRST_STAGE, replayed=False)
                self._enter(group, Items(heads, places))

    def _slice_by_message(self, chunk: Chunk) -> None:
        """Run a slice in which some messages are not plain first passes."""
        groups: dict[tuple[str, str, str, bool], tuple[list[Event], list[int]]] = {}
        for place, value in enumerate(chunk.values):
            try:
                event = decode_head(value)
                if event.attempt or event.stage != _FIRST_STAGE:
                    event = decode(value)
                    self._enter_late(event)
            except ParkError as error:
                self._park_unreadable(place, error)
                continue
            key = (event.pipeline_id, event.name, event.stage, event.attempt > 0)
            if event.data_ref is not None and event.pipeline_id not in self._held:
                try:
                    self._resolve(event, event.data_ref)
                    self._fetched.add(place)
                except ParkError as error:
                    self._refuse(_Group(*key), Items([event], [place]), describe(error))
                    continue
            group = groups.get(key)
            if group is None:
                group = groups[key] = ([], [])
            group[0].append(event)
            group[1].append(place)
        for key, (events, places) in groups.items():
            self._enter(_Group(*key), Items(events, places))

    def _enter_late(self, event: Event) -> None:
        """Count what comes of a replay; refuse a first pass that says it enters later.

        Raises:
            ParkError: no books of the stage before have it.
        """
        if not event.attempt:
            words = f"only a replay enters at {event.stage!r}; attempt 0 enters at {_FIRST_STAGE!r}"
            raise ParkError("envelope_invalid", words, where="stage")
        if event.replay_id:
            self.result.replayed[event.replay_id, event.name, event.stage] += 1

    def _resolve(self, event: Event, reference: str) -> None:
        refuse_wrong_reference(event, reference)
        if self._fetch is None:
            raise ParkError("data_ref_missing", f"nothing can fetch {reference!r}")
        try:
            event.data = loads(self._fetch(reference))
        except ObjectMissingError as error:
            raise ParkError("data_ref_missing", str(error), where=reference) from error
        except (ValueError, RecursionError) as error:
            words = f"the payload in {reference!r} is not JSON: {error}"
            raise ParkError("envelope_invalid", words, where=reference) from error
        event.data_ref = None

    def _park_unreadable(self, place: int, error: ParkError) -> None:
        """Park what is no event. Nobody counted it when it was taken in: that is done here."""
        chunk = self._chunk
        minute = chunk.times_us[place] // 60_000_000
        for stage, names in (
            ("ingestion", ("in_first", "passed", "out")),
            ("transformation", ("in_first", "parked")),
        ):
            for name in names:
                self.result.counts.add((UNKNOWN_PIPELINE, "", stage, minute), name)
        self.result.failures.append(
            Failure(
                UNKNOWN_PIPELINE, "", "transformation", describe(error), chunk.values[place],
                chunk.partitions[place], chunk.offsets[place], "", chunk.time(place), 0, "",
            )
        )  # fmt: skip

    def _plan_of(self, group: _Group) -> Plan | None:
        ident = group.pipeline_id
        return self._plans[ident] if ident in self._plans else None

    def _enter(self, group: _Group, items: Items) -> None:
        plan = self._plan_of(group)
        if group.pipeline_id in self._held:
            self._refuse(group, items, Fault(HELD_ERROR, "the pipeline is held"))
        elif plan is None:
            words = f"no pipeline {group.pipeline_id!r} that sends to this topic is deployed"
            self._refuse(group, items, Fault("pipeline_unknown", words))
        elif group.stage == "transformation":
            self._count(group.pipeline_id, group.name, group.stage, group.counter, items)
            self._transform(plan, group.name, items)
        else:
            self._map_entered(plan, group, items)
        self.result.check_size()

    def _refuse(self, group: _Group, items: Items, fault: Fault) -> None:
        """Park events at the stage where they would have entered."""
        plan = self._plan_of(group)
        self._count(group.pipeline_id, group.name, group.stage, group.counter, items)
        self._count(group.pipeline_id, group.name, group.stage, "parked", items)
        for event, place in zip(items.events, items.places, strict=True):
            value = self._chunk.values[place]
            self._fail(event, place, _Stop(group.name, group.stage, fault, value), plan)

    def _transform(self, plan: Plan, name: str, items: Items) -> None:
        results = self._results(plan, items)
        if isinstance(results, PayloadColumns):  # the way of nearly all
            faults, filtered = self._map_children(plan, name, items, results), list[int]()
        elif isinstance(results, KeptPayloads):
            faults = {items.places[index]: fault for index, fault in results.faults.items()}
            filtered = results.filtered
            kept = items.pick(results.indexes)
            faults |= self._map_children(plan, name, kept, results.payloads)
        else:
            sorted_out = _sort_out(plan, results, items)
            faults, filtered = sorted_out.faults, sorted_out.filtered
            for child_name, children in sorted_out.children.items():
                if child_name != name and not plan.declares(child_name):
                    fault = _unknown_name(plan, child_name)
                    faults.update(dict.fromkeys(children.places, fault))
                    continue
                payloads = [event.data for event in children.events]
                faults.update(self._map_children(plan, child_name, children, payloads))
        self._settle(plan, name, items, faults, filtered)

    def _settle(
        self, plan: Plan, name: str, items: Items, faults: dict[int, Fault], filtered: list[int]
    ) -> None:
        """Park, count and note what was transformed.

        Args:
            plan: whose events they are.
            name: that they came with.
            items: the events.
            faults: by place, of those that park.
            filtered: indexes.
        """
        passed, gone = items, set(filtered)
        if faults or gone:
            places = items.places
            parked = items.pick([i for i, place in enumerate(places) if place in faults])
            kept = [i for i, p in enumerate(places) if p not in faults and i not in gone]
            passed = items.pick(kept)
            for event, place in zip(parked.events, parked.places, strict=True):
                value = self._chunk.values[place]
                stop = _Stop(name, "transformation", faults[place], value)
                self._fail(event, place, stop, plan)
            self._count(plan.pipeline.id, name, "transformation", "parked", parked)
        away = items.pick(filtered)
        self._count(plan.pipeline.id, name, "transformation", "passed", passed)
        self._count(plan.pipeline.id, name, "transformation", "filtered", away)
        if away:
            self._note(plan.pipeline.id, name, "filtered", away)
        if passed:
            noted = self.result.transformed.setdefault((plan.pipeline.id, name), Mapped())
            noted.parts.append(passed.columns(self._chunk))

    def _results(self, plan: Plan, items: Items) -> Results:
        events, places, known = items.events, items.places, self._chunk.values
        values = [known[place] for place in places] if len(places) < len(known) else known
        if self._fetched:
            pairs = zip(events, places, values, strict=True)
            values = [encode(e) if at in self._fetched else value for e, at, value in pairs]
        return self._code.run(plan, events, values, self._retries)

    def _map_children(
        self, plan: Plan, name: str, items: Items, payloads: Sequence[Any]
    ) -> dict[int, Fault]:
        """Map what a transformation made; return a fault for each parent that has to be parked.

        A child that fails is parked as it is; one that cannot be written down takes its parent.
        """
        event_plan, columns, faults = _mapped(plan, name, items, payloads, by_column=False)
        values: dict[int, bytes] = {}
        parents: dict[int, Fault] = {}
        for index in faults:
            event, place = items.events[index], items.places[index]
            event.stage, event.data = "mapping", payloads[index]
            try:
                values[index] = encode(event)
            except ParkError as error:
                words = f"the result cannot be written down: {error.message}"
                parents[place] = Fault("result_invalid", words)
        self.result.parked_bytes += sum(map(len, values.values()))
        for index, value in values.items():
            event, place = items.events[index], items.places[index]
            source = self._chunk.values[place] if plan.pipeline.keep_source else b""
            self._fail(event, place, _Stop(name, "mapping", faults[index], value, source), plan)
        pipeline_id = plan.pipeline.id
        good = items
        if faults:
            good = items.pick([i for i in range(len(items)) if i not in faults])
            bad = items.pick(list(values))
            self._count(pipeline_id, name, "transformation", "out", bad)
            self._count(pipeline_id, name, "mapping", "in_first", bad)
            self._count(pipeline_id, name, "mapping", "parked", bad)
        self._count(pipeline_id, name, "transformation", "out", good)
        self._count(pipeline_id, name, "mapping", "in_first", good)
        self._pass(event_plan, name, good, columns, by_column=False)
        return parents

    def _map_entered(self, plan: Plan, group: _Group, items: Items) -> None:
        """Map what entered here. What reaches the destination is counted where it is loaded."""
        by_column = group.stage == "destination"
        payloads = [event.data for event in items.events]
        event_plan, columns, faults = _mapped(
            plan, group.name, items, payloads, by_column=by_column
        )
        good = items
        if faults:
            for index, fault in faults.items():
                self._refuse(group, items.pick([index]), fault)
            good = items.pick([i for i in range(len(items)) if i not in faults])
        if not by_column:
            self._count(plan.pipeline.id, group.name, group.stage, group.counter, good)
        self._pass(event_plan, group.name, good, columns, by_column=by_column)

    def _pass(
        self,
        event_plan: EventPlan | None,
        name: str,
        items: Items,
        columns: pa.RecordBatch | None,
        *,
        by_column: bool,
    ) -> None:
        if not items or columns is None or event_plan is None:
            return
        pipeline_id = event_plan.head.pipeline_id
        known = items.columns(self._chunk)
        system = system_columns(items.events, known, replayed=by_column)
        self.result.staged.add(
            head=event_plan.head, batch=staged_batch(columns, system, event_plan.schema)
        )
        if not by_column:
            self._count(pipeline_id, name, "mapping", "passed", items)
            self._count(pipeline_id, name, "mapping", "out", items)
        self._count(pipeline_id, name, "staged", "in_replayed" if by_column else "in_first", items)
        self._note(pipeline_id, name, "passed", items)

    def _fail(self, event: Event, place: int, stop: _Stop, plan: Plan | None) -> None:
        chunk = self._chunk
        self.result.failures.append(
            Failure(
                event.pipeline_id, *stop[:4], chunk.partitions[place],
                chunk.offsets[place], event.id, event.time, event.attempt,
                plan.pipeline.version if plan is not None else "", event.source_version,
                event.intake_version, event.intake_minute, event.replay_id, stop.source,
            )
        )  # fmt: skip

    def _count(self, pipeline_id: str, name: str, stage: str, counter: str, items: Items) -> None:
        if items:
            self.result.counts.add_minutes(pipeline_id, name, stage, counter, items.minutes)

    def _note(self, pipeline_id: str, name: str, outcome: str, items: Items) -> None:
        """Keep what the traces of these events will say."""
        mapped = self.result.mapped.setdefault((pipeline_id, name, outcome), Mapped())
        mapped.parts.append(items.columns(self._chunk))


_Groups: TypeAlias = "Sequence[tuple[Heads, Sequence[int]]]"
"""Events of one pipeline and name each, with their places."""


def _slices(values: Sequence[bytes]) -> Iterator[tuple[int, int, _Groups | None]]:
    """Yield where each slice of messages begins and ends, and its events, their places within it.

    None: it is a block of which some are no plain first passes.
    """
    blocks: list[_Groups] = []
    start = size = 0
    teams: dict[str, str] = {}
    for at in range(0, len(values), _BLOCK):
        block = values[at : at + _BLOCK]
        groups = read_heads(block)
        more = sum(map(len, block))
        if blocks and (
            groups is None
            or at + len(block) - start > _SLICE
            or size + more > _SLICE_BYTES
            or any(teams.get(heads.pipeline_id, heads.team) != heads.team for heads, _ in groups)
        ):
            yield start, at, _joined(blocks)
            blocks, size = [], 0
            teams.clear()
        if not blocks:
            start = at
        if groups is None:
            yield at, at + len(block), None
            continue
        blocks.append(groups)
        size += more
        teams.update((heads.pipeline_id, heads.team) for heads, _ in groups)
    if blocks:
        yield start, len(values), _joined(blocks)


def _joined(blocks: Sequence[_Groups]) -> _Groups:
    """Return the events of blocks, one behind the other; no pipeline is of two teams."""
    if len(blocks) == 1:
        return blocks[0]
    found: dict[tuple[str, str], tuple[list[Heads], list[Sequence[int]]]] = {}
    for number, groups in enumerate(blocks):
        for heads, places in groups:
            parts, spans = found.setdefault((heads.pipeline_id, heads.name), ([], []))
            parts.append(heads)
            spans.append(_moved(places, number * _BLOCK))
    return [
        (reduce(Heads.followed_by, parts), _one_behind_the_other(spans))
        for parts, spans in found.values()
    ]


def _moved(places: Sequence[int], by: int) -> Sequence[int]:
    if isinstance(places, range):
        return range(places.start + by, places.stop + by)
    return [place + by for place in places]


def _one_behind_the_other(spans: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return places of blocks together, as a range where they are one."""
    if all(isinstance(span, range) for span in spans) and all(
        one[-1] + 1 == other[0] for one, other in pairwise(spans)
    ):
        return range(spans[0][0], spans[-1][-1] + 1)
    return [place for span in spans for place in span]


@dataclass(slots=True)
class _SortedOut:
    """Outcomes of a group of events."""

    faults: dict[int, Fault] = field(default_factory=dict)
    """By place in the chunk."""
    filtered: list[int] = field(default_factory=list)
    """Indexes in the group."""
    children: dict[str, Items] = field(default_factory=dict)
    """What goes on, by event name, each with its parent's place; an event may go on itself."""


def _sort_out(plan: Plan, outcomes: Sequence[Outcome], items: Items) -> _SortedOut:
    """Sort the outcomes of ``items``; children of one parent that are one row are its fault."""
    found = _SortedOut()
    going_on: dict[str, tuple[list[Event], list[int]]] = {}
    for index, outcome in enumerate(outcomes):
        place = items.places[index]
        if isinstance(outcome, list) and len(outcome) > 1:
            fault = plan.same_key(outcome)
            outcome = outcome if fault is None else fault  # noqa: PLW2901 - it is one now
        if isinstance(outcome, Fault):
            found.faults[place] = outcome
        elif outcome is None:
            found.filtered.append(index)
        else:
            children = outcome if isinstance(outcome, list) else [outcome]
            for child in children:
                events, places = going_on.setdefault(child.name, ([], []))
                events.append(child)
                places.append(place)
    found.children = {name: Items(*columns) for name, columns in going_on.items()}
    return found


def _mapped(
    plan: Plan, name: str, items: Items, payloads: Sequence[Any], *, by_column: bool
) -> tuple[EventPlan | None, pa.RecordBatch | None, dict[int, Fault]]:
    """Return the rows that fit and, in order, the faults of those that do not, by index."""
    deletes: frozenset[int] = frozenset()
    if not isinstance(items.events, Heads):  # which are all upserts
        deletes = frozenset(i for i, event in enumerate(items.events) if event.op == DELETE)
    mapped = plan.map(name, payloads, by_column=by_column, deletes=deletes)
    if mapped is None:
        return None, None, dict.fromkeys(range(len(payloads)), _unknown_name(plan, name))
    faults = {index: _fault(fault) for index, fault in sorted(mapped.faults.items())}
    return mapped.plan, mapped.columns, faults


def _unknown_name(plan: Plan, name: str) -> Fault:
    shown = repr(name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…")
    return Fault("event_name_unknown", f"{plan.pipeline.name!r} declares no event {shown}")


def _fault(fault: MappingFault) -> Fault:
    others = tuple(map(_fault, fault.others))
    return Fault(fault.code, fault.message, fault.where, others=others)
