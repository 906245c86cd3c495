"""Pipelines and mappings as tasks are sent them: JSON, written down once a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import orjson

from waybill.deployment import Mappings
from waybill.mappings import InForce
from waybill.pipelines import EventDeclaration, Pipeline


class Texts(NamedTuple):
    """What tasks are sent with a batch."""

    pipelines: tuple[bytes, ...]
    mappings: tuple[bytes, ...]
    """In force, where they are not what the pipeline declares; as `read_mapping` reads them."""


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

    def of(self, pipelines: Mapping[str, Pipeline], mappings: Mappings) -> Texts:
        """Return the texts; the same objects for what is the same object as before."""
        for ident, pipeline in pipelines.items():
            if ident not in self._pipelines or self._pipelines[ident][0] is not pipeline:
                self._pipelines[ident] = pipeline, orjson.dumps(pipeline.to_json())
        known, self._mappings = self._mappings, {}
        for name, mapping in mappings.items():
            pipeline, before = pipelines[name[0]], known.get(name)
            if before is None or before.mapping is not mapping or before.pipeline is not pipeline:
                before = _written(name, mapping, pipeline)
            self._mappings[name] = before
        return Texts(
            tuple(self._pipelines[ident][1] for ident in pipelines),
            tuple(one.text for one in self._mappings.values() if one.text),
        )


def _written(name: tuple[str, str], mapping: InForce, pipeline: Pipeline) -> _Written:
    if mapping.declaration == pipeline.events.get(name[1]):
        return _Written(mapping, pipeline, b"")
    content = [*name, mapping.number, mapping.declaration.to_json()]
    return _Written(mapping, pipeline, orjson.dumps(content))


def read_mapping(text: bytes) -> tuple[str, str, InForce]:
    """Return the pipeline id, the event name and the mapping."""
    pipeline_id, event_name, number, declaration = orjson.loads(text)
    return pipeline_id, event_name, InForce(number, EventDeclaration.from_json(declaration))
