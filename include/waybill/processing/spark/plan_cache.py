"""Pipelines and mappings as tasks are sent them, and as a worker keeps them.

JSON, written down once a version by the driver, and read once a version by each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import orjson

from waybill.mappings import InForce, LearnedFields
from waybill.pipelines import EventDeclaration, Pipeline
from waybill.processing import Plan

if TYPE_CHECKING:  # the driver's; workers need not load what reads the tracker
    from waybill.deployment import Mappings


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

    def of(self, pipelines: Mapping[str, Pipeline], mappings: Mappings) -> dict[str, PipelineText]:
        """Return {pipeline id: text}; the same bytes for what is the same object as before."""
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
        return {
            ident: PipelineText(text, learned.get(ident, ()))
            for ident, (_, text) in self._pipelines.items()
        }


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


class TopicPlans(Mapping[str, Plan]):
    """A topic's pipelines in one worker process: each is read when its first event comes.

    So a topic of thousands of pipelines costs a batch of one no more than the one.

    Args:
        make: makes a pipeline's plan, with the mappings that it declares.
        learns: whether these plans learn from events.
    """

    def __init__(self, make: Callable[[Pipeline], Plan], *, learns: bool = True) -> None:
        self._make = make
        self.learns = learns
        self._texts: Mapping[str, PipelineText] = {}
        self._plans: dict[str, tuple[PipelineText, Plan]] = {}

    def take(self, texts: Mapping[str, PipelineText]) -> None:
        """Go on with what is active now; plans of versions that still are stay.

        But for plans that learned something in the task before: only what the driver sends is kept.
        """
        self._texts = texts
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
        """Return a pipeline's plan; its code is not compiled yet."""
        if pipeline_id not in self._plans:
            text = self._texts[pipeline_id]
            plan = self._make(Pipeline.from_json(orjson.loads(text.version)))
            self._plans[pipeline_id] = text, self._taken(plan, text)
        return self._plans[pipeline_id][1]

    def __contains__(self, pipeline_id: object) -> bool:
        """Tell whether a pipeline is active, without reading it."""
        return pipeline_id in self._texts

    def __iter__(self) -> Iterator[str]:
        """Return the ids of all pipelines."""
        return iter(self._texts)

    def __len__(self) -> int:
        """Return how many pipelines there are."""
        return len(self._texts)

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
