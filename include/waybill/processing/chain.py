"""The stage chain: one pass over a task's messages, in slices of some thousand.

Decode, then group by (pipeline, event name, stage of entry), transform one by one, map by columns.
Names that user code makes up never get into the books, nor among the parked groups, of which there
is one for each name: an event of which something undeclared was made parks itself, as it came.
Results pile up in a ``ChainResult`` that the caller turns into objects, a descriptor and traces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from waybill.errors import ParkError
from waybill.events import (
    DELETE,
    HELD_ERROR,
    Event,
    FirstPasses,
    Heads,
    decode,
    decode_head,
    encode,
    group_heads,
    loads,
    read_first_passes,
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
_BLOCK, _BLOCK_BYTES = 1024, 8 * 1024**2
"""Messages, and their bytes, that are read at a time, one at the least: their objects stay in the
processor's cache and in malloc's arenas."""
_SLICE, _SLICE_BYTES = 4096, 2 * 1024**2
"""Messages, and their bytes, that are worked on at a time: whole blocks, one at the least. What is
done once for those of one event name (a request to a process of user code, columns) costs as some
hundred of them. So there are more where there are many names, and so many of one name at most."""
_GROUP = 512
"""Messages, times the number of names, that are worked on at a time, if these are more; at most:"""
_MOST_EVENTS, MOST_SLICE_BYTES = 65_536, 24 * 1024**2


_SHOWN_NAME = 100
"""Characters of an event name that a message quotes."""


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """What belongs to a topic. Who may write to one may name any team and pipeline in an event."""

    team: str
    foreign: frozenset[str] = frozenset()
    """Ids of pipelines that send to another topic: those that are known here."""

    def refusal(self, team: str, pipeline_id: str) -> ParkError | None:
        """Return why an event is to be in no pipeline's books; None: it may belong here."""
        if team != self.team:
            words = f"an event of team {_shown(team)} in the topic of team {_shown(self.team)}"
        elif pipeline_id in self.foreign:
            words = f"pipeline {_shown(pipeline_id)} sends to another topic"
        else:
            return None
        return ParkError("foreign_event", words, where="source")


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
        owner: of the messages' topic; None: what belongs to it is not looked at.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        *,
        code: CodeRunner | None = None,
        fetch: Callable[[str], bytes] | None = None,
        retries: Retries | None = None,
        held: Collection[str] = (),
        owner: TopicOwner | None = None,
    ) -> None:
        self._owner = owner
        self._retries = retries
        self._plans = plans
        self._code: CodeRunner = InProcess() if code is None else code
        self._fetch = fetch
        self._held = frozenset(held)
        self.result = ChainResult()
        self._wanted = 0
        """Messages that were worth a slice in the chunk before."""
        self._chunk = Chunk((), (), (), ())
        self._fetched: set[int] = set()
        """Places of the events whose payload was not in the message."""

    def is_enough(self, count: int, size_bytes: int) -> bool:
        """Tell whether so many messages are worth a chunk: few are not where names are many."""
        wanted = self._wanted
        return wanted <= _SLICE or count >= wanted or size_bytes >= _most_bytes(wanted)

    def process(self, chunk: Chunk, taken: Callable[[ChainResult], None] | None = None) -> None:
        """Run one chunk. Order within a key is kept: chunks come in log order.

        Args:
            chunk: of one topic.
            taken: is called behind each slice; may take from the result what has piled up.

        Raises:
            TooMuchMadeError: what was made of all so far is more than the result is to have; it has
                a part of this chunk then.
        """
        self._wanted = 0
        try:
            self._process(chunk, taken)
        finally:
            self._chunk = Chunk((), (), (), ())  # a chain of each topic waits for the task's end
            self._fetched.clear()

    def _process(self, chunk: Chunk, taken: Callable[[ChainResult], None] | None) -> None:
        for start, end, slice_ in _slices(chunk.values):
            self._chunk = chunk.part(start, end)
            self._fetched.clear()
            if slice_ is None:
                self._slice_by_message(self._chunk)
            else:
                self._wanted = max(self._wanted, slice_.wanted)
                for heads, places in slice_.groups(self._chunk.values):
                    if (foreign := self._foreign(heads)) is not None:
                        for place in places:
                            self._park_unreadable(place, foreign)
                        continue
                    group = _Group(heads.pipeline_id, heads.name, _FIRST_STAGE, replayed=False)
                    self._enter(group, Items(heads, places))
            if taken is not None:
                taken(self.result)

    def _slice_by_message(self, chunk: Chunk) -> None:
        """Run a slice in which some messages are not plain first passes."""
        groups: dict[tuple[str, str, str, bool], tuple[list[Event], list[int]]] = {}
        for place, value in enumerate(chunk.values):
            try:
                event = self._read(value)
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

    def _foreign(self, event: Event | Heads) -> ParkError | None:
        return None if self._owner is None else self._owner.refusal(event.team, event.pipeline_id)

    def _read(self, value: bytes) -> Event:
        """Return an event that may enter.

        Raises:
            ParkError: it is none, or of another topic; or no books of the stage before have it.
        """
        event = decode_head(value)
        if (foreign := self._foreign(event)) is not None:
            raise foreign
        if event.attempt or event.stage != _FIRST_STAGE:
            event = decode(value)
            self._enter_late(event)
        return event

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
        """Park what is no event, or nobody's. Nobody counted it when it was taken in: this does."""
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
        if self._retries is not None:
            self._retries.most_bytes = self.result.most_bytes - self.result.made_bytes
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


_Groups: TypeAlias = "Iterator[tuple[Heads, Sequence[int]]]"
"""Events of one pipeline and name each, with their places."""


class _Slice:
    """Blocks of messages that are worked on together."""

    def __init__(self) -> None:
        self.count = self._bytes = 0
        self._blocks: list[FirstPasses] = []
        self._kinds = set[tuple[str, str]]()
        self._teams = dict[str, str]()

    @property
    def wanted(self) -> int:
        """Return how many messages are worth to be worked on together."""
        return max(_SLICE, min(_MOST_EVENTS, _GROUP * len(self._kinds)))

    def add(self, block: FirstPasses, size: int) -> bool:
        """Add a block of so many bytes, if there is room for it."""
        count, teams = len(block.messages), block.teams
        if self._blocks and (self._is_full(count, size) or self._is_foreign(teams)):
            return False
        self._blocks.append(block)
        self.count += count
        self._bytes += size
        self._kinds |= block.kinds
        self._teams |= teams
        return True

    def _is_full(self, count: int, size: int) -> bool:
        wanted = self.wanted
        return self.count + count > wanted or self._bytes + size > _most_bytes(wanted)

    def _is_foreign(self, teams: Mapping[str, str]) -> bool:
        """Tell whether a pipeline comes from another team than before."""
        return any(
            self._teams.get(pipeline_id, team) != team for pipeline_id, team in teams.items()
        )

    def groups(self, values: Sequence[bytes]) -> _Groups:
        """Yield the events by pipeline and name, some of a name where they are many; only once.

        Args:
            values: of the slice.
        """
        is_one_block = len(self._blocks) == 1
        groups = group_heads(self._blocks)[::-1]
        self._blocks.clear()
        while groups:  # one is let go before the next is worked on: it holds what was read of it
            heads, places = groups.pop()
            if is_one_block or (len(heads) <= _SLICE and self._bytes <= _SLICE_BYTES):
                yield heads, places
            else:
                yield from _pieces(heads, places, values)


def _most_bytes(count: int) -> int:
    """Return the most bytes of a slice of so many messages, if it has more than a block."""
    return min(MOST_SLICE_BYTES, _SLICE_BYTES * count // _SLICE)


def _pieces(heads: Heads, places: Sequence[int], values: Sequence[bytes]) -> _Groups:
    """Yield events of one name in pieces: as many as are worked on at a time of one name."""
    start = size = 0
    for index, place in enumerate(places):
        more = len(values[place])
        if index - start == _SLICE or (index > start and size + more > _SLICE_BYTES):
            yield heads.pick(range(start, index)), places[start:index]
            start, size = index, 0
        size += more
    yield (heads.pick(range(start, len(places))) if start else heads), places[start:]


def _slices(values: Sequence[bytes]) -> Iterator[tuple[int, int, _Slice | None]]:
    """Yield where each slice of messages begins and ends, and what was read of it.

    None: it is a block of which some are no plain first passes.
    """
    start, now = 0, _Slice()
    for at, end, size in _blocks(values):
        block = read_first_passes(values[at:end])
        if block is not None and now.add(block, size):
            continue
        if start < at:
            yield start, at, now
        start, now = at, _Slice()
        if block is None:
            yield at, end, None
            start = end
        else:
            now.add(block, size)
    if start < len(values):
        yield start, len(values), now


def _blocks(values: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield where each block of messages begins and ends, and its bytes."""
    start = 0
    while start < len(values):
        end = min(start + _BLOCK, len(values))
        while (size := sum(map(len, values[start:end]))) > _BLOCK_BYTES and end > start + 1:
            end = start + (end - start) // 2
        yield start, end, size
        start = end


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
    if isinstance(items.events, Heads):
        deletes = frozenset(items.events.deletes)
    else:
        deletes = frozenset(i for i, event in enumerate(items.events) if event.op == DELETE)
    mapped = plan.map(name, payloads, by_column=by_column, deletes=deletes)
    if mapped is None:
        return None, None, dict.fromkeys(range(len(payloads)), _unknown_name(plan, name))
    faults = {index: _fault(fault) for index, fault in sorted(mapped.faults.items())}
    return mapped.plan, mapped.columns, faults


def _unknown_name(plan: Plan, name: str) -> Fault:
    words = f"{plan.pipeline.name!r} declares no event {_shown(name)}"
    return Fault("event_name_unknown", words)


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…")


def _fault(fault: MappingFault) -> Fault:
    others = tuple(map(_fault, fault.others))
    return Fault(fault.code, fault.message, fault.where, others=others)
