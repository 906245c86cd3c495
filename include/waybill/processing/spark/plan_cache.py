"""Pipelines and mappings as tasks are sent them, and as a worker keeps them.

JSON, written down once a version by the driver, and read once a version by each worker. Of a topic
of many pipelines tasks are sent those in use: whose events came lately (`PipelinesInUse`). A task
that meets another says so, and the batch runs again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import orjson

from waybill.errors import RetryError
from waybill.mappings import InForce, LearnedFields
from waybill.pipelines import EventDeclaration, Pipeline
from waybill.processing import Plan

if TYPE_CHECKING:  # the driver's; workers need not load what reads the tracker
    from waybill.deployment import Mappings

FEW_PIPELINES = 50
"""A topic with no more has all in use when it is opened, and each new one when it is deployed."""
_TEXT_BYTES = 4 * 1024**2
"""Of the pipelines of one topic that tasks are sent; with more than this, what has not come for
long is left out. Sending 4 MiB costs a batch as much CPU as some 15,000 events; a run for what is
left out costs as much as its topic's share of the batch."""
_MOST_TEXT_BYTES = 64 * 1024**2
"""As far as that grows, twice as large each time something that was left out comes back: else a
topic whose pipelines all come now and then would run each of its batches again."""
_LONG = 100
"""Batches without an event of it."""


class PipelineText(NamedTuple):
    """What tasks are sent of a pipeline."""

    version: bytes
    """The active version as JSON."""
    mappings: tuple[bytes, ...] = ()
    """In force, where they are not what the version declares; as `read_mapping` reads them."""


class _Written(NamedTuple):
    """A mapping, the version of the pipeline that it is of, and its JSON: none where they agree."""

    mapping: InForce
    pipeline: Pipeline
    text: bytes


class TaskTexts:
    """Writes pipelines and mappings down, and keeps what it wrote."""

    def __init__(self) -> None:
        self._pipelines: dict[str, tuple[Pipeline, bytes]] = {}
        self._mappings: dict[tuple[str, str], _Written] = {}
        self._ids: tuple[Collection[str], bytes] = (), b""
        self._last: tuple[object, object, dict[str, PipelineText]] = None, None, {}
        """What was written last, and of which objects."""

    def ids(self, ids: Collection[str], sent: Collection[str]) -> bytes:
        """Return all ids of a topic as JSON; empty where those that are sent are all.

        The same bytes for what is the same object as before.
        """
        if len(ids) == len(sent):
            return b""
        if self._ids[0] is not ids:
            self._ids = ids, orjson.dumps(sorted(ids))
        return self._ids[1]

    def of(self, pipelines: Mapping[str, Pipeline], mappings: Mappings) -> dict[str, PipelineText]:
        """Return {pipeline id: text}; the same bytes for what is the same object as before."""
        if self._last[0] is pipelines and self._last[1] is mappings:
            return self._last[2]
        known_pipelines, self._pipelines = self._pipelines, {}
        for ident, pipeline in pipelines.items():
            known = known_pipelines.get(ident)
            if known is None or known[0] is not pipeline:
                known = pipeline, orjson.dumps(pipeline.to_json())
            self._pipelines[ident] = known
        known_mappings, self._mappings = self._mappings, {}
        learned: dict[str, tuple[bytes, ...]] = {}
        for name, mapping in mappings.items():
            pipeline, before = pipelines[name[0]], known_mappings.get(name)
            if before is None or before.mapping is not mapping or before.pipeline is not pipeline:
                before = _written(name, mapping, pipeline)
            self._mappings[name] = before
            if before.text:
                learned[name[0]] = (*learned.get(name[0], ()), before.text)
        texts = {
            ident: PipelineText(text, learned.get(ident, ()))
            for ident, (_, text) in self._pipelines.items()
        }
        self._last = pipelines, mappings, texts
        return texts


class PipelinesInUse:
    """Which pipelines of a topic its tasks are sent: those whose events came since it was opened.

    Some are left out again: see `_TEXT_BYTES`. Of a topic of few pipelines all are in use first.
    """

    def __init__(self) -> None:
        self._held_by: dict[str, int] = {}
        """Pipeline id to the number of the last batch that held it."""
        self._batches = 0
        self._ids: frozenset[str] = frozenset()
        self._left_out = set[str]()
        self._text_bytes = _TEXT_BYTES

    def of(self, ids: frozenset[str]) -> set[str]:
        """Return those in use of the ids that exist."""
        if ids is not self._ids:
            if len(ids) <= FEW_PIPELINES:
                self.add(ids - self._ids)
            self._ids = ids
        return self._held_by.keys() & ids

    def add(self, ids: Iterable[str]) -> bool:
        """Take pipelines whose events came; tell whether any was not in use."""
        before, came = len(self._held_by), list(ids)
        if back := self._left_out.intersection(came):
            self._left_out -= back
            self._text_bytes = min(2 * self._text_bytes, _MOST_TEXT_BYTES)
        self._held_by |= dict.fromkeys(came, self._batches)
        return len(self._held_by) > before

    def end_batch(self, held: Iterable[str], sent: Mapping[str, PipelineText]) -> None:
        """Note what a batch held that was committed, and leave out what has not come for long.

        Args:
            held: ids of the pipelines whose events it held.
            sent: what its tasks were sent.
        """
        self._batches += 1
        self._held_by |= dict.fromkeys(sent.keys() & held, self._batches)
        size_bytes = sum(map(_size_bytes, sent.values()))
        if size_bytes <= self._text_bytes:
            return
        for ident, number in sorted(self._held_by.items(), key=lambda item: item[1]):
            if size_bytes <= self._text_bytes or self._batches - number < _LONG:
                break
            size_bytes -= _size_bytes(sent[ident]) if ident in sent else 0
            del self._held_by[ident]
            self._left_out.add(ident)
        self._left_out &= self._ids


def _size_bytes(text: PipelineText) -> int:
    return len(text.version) + sum(map(len, text.mappings))


def _written(name: tuple[str, str], mapping: InForce, pipeline: Pipeline) -> _Written:
    if mapping.declaration == pipeline.events.get(name[1]):
        return _Written(mapping, pipeline, b"")
    content = [name[1], mapping.number, mapping.declaration.to_json()]
    return _Written(mapping, pipeline, orjson.dumps(content))


def read_mapping(text: bytes) -> tuple[str, InForce]:
    """Return the event name and the mapping."""
    event_name, number, declaration = orjson.loads(text)
    return event_name, InForce(number, EventDeclaration.from_json(declaration))


def _is_declared_again(now: PipelineText, before: PipelineText) -> bool:
    """Tell whether a mapping that was sent before is what the version declares now."""
    if now.mappings == before.mappings:
        return False
    names = [{orjson.loads(mapping)[0] for mapping in one.mappings} for one in (now, before)]
    return not names[0].issuperset(names[1])


class NotSentError(RetryError):
    """A pipeline is deployed whose text the task was not sent: the batch runs again with it.

    Args:
        pipeline_id: which.
    """

    def __init__(self, pipeline_id: str) -> None:
        super().__init__(f"the task was not sent pipeline {pipeline_id!r}")
        self.pipeline_id = pipeline_id


class TopicPlans(Mapping[str, Plan]):
    """A topic's pipelines in one worker process: each is read when its first event comes.

    So a topic of thousands of pipelines costs a batch of one no more than the one. All that are
    deployed are in it; it gives, and goes through, those that were sent.

    Args:
        make: makes a pipeline's plan, with the mappings that it declares.
        learns: whether these plans learn from events.
    """

    def __init__(self, make: Callable[[Pipeline], Plan], *, learns: bool = True) -> None:
        self._make = make
        self.learns = learns
        self._texts: Mapping[str, PipelineText] = {}
        self._ids_text = b""
        self._ids: frozenset[str] = frozenset()
        self._plans: dict[str, tuple[PipelineText, Plan]] = {}

    def take(self, texts: Mapping[str, PipelineText], ids: bytes = b"") -> None:
        """Go on with what is active now; plans of versions that still are stay.

        But for plans that learned something in the task before: only what the driver sends is kept.

        Args:
            texts: by pipeline id.
            ids: of all that are deployed, as `TaskTexts.ids` writes them.
        """
        self._texts = texts
        if ids != self._ids_text:
            self._ids_text, self._ids = ids, frozenset(orjson.loads(ids) if ids else ())
        for ident, (text, plan) in list(self._plans.items()):
            now = texts.get(ident)
            if (
                now is None
                or now.version != text.version
                or plan.before_learning
                or _is_declared_again(now, text)
            ):
                del self._plans[ident]
            elif now is not text:
                self._plans[ident] = now, self._taken(plan, now, known=text)

    def __getitem__(self, pipeline_id: str) -> Plan:
        """Return a pipeline's plan; its code is not compiled yet.

        Raises:
            NotSentError: it is deployed, and was not sent.
        """
        if pipeline_id not in self._plans:
            if pipeline_id not in self._texts and pipeline_id in self._ids:
                raise NotSentError(pipeline_id)
            text = self._texts[pipeline_id]
            plan = self._make(Pipeline.from_json(orjson.loads(text.version)))
            self._plans[pipeline_id] = text, self._taken(plan, text)
        return self._plans[pipeline_id][1]

    def __contains__(self, pipeline_id: object) -> bool:
        """Tell whether a pipeline is active, sent or not, without reading it."""
        return pipeline_id in self._texts or pipeline_id in self._ids

    def __iter__(self) -> Iterator[str]:
        """Return the ids of the pipelines that were sent."""
        return iter(self._texts)

    def __len__(self) -> int:
        """Return how many pipelines were sent."""
        return len(self._texts)

    def not_sent(self, pipeline_ids: Iterable[str]) -> set[str]:
        """Return those of these ids that are deployed, and were not sent."""
        return set(self._ids.intersection(pipeline_ids)) - self._texts.keys()

    def learned(self) -> Iterator[tuple[str, str, LearnedFields]]:
        """Yield (pipeline id, event name, what was learned) since `take`."""
        for ident, (_, plan) in self._plans.items():
            if plan.before_learning:
                for name, fields in plan.learned.items():
                    yield ident, name, fields

    @staticmethod
    def _taken(plan: Plan, text: PipelineText, known: PipelineText | None = None) -> Plan:
        for mapping in text.mappings:
            if known is None or mapping not in known.mappings:
                plan.take(*read_mapping(mapping))
        plan.prepare()
        return plan
