"""One pipeline, ready to run: its code compiled once, its mappings made once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from waybill.errors import ParkError
from waybill.pipelines import Pipeline
from waybill.stages.isolation import compile_isolated
from waybill.stages.mapping import Mapper
from waybill.stages.staged import staged_schema
from waybill.stages.transformation import NoWatch, Transform, Watch, compile_transformation


class EventPlan:
    """One event name of a pipeline, entering as source fields or as columns (``by_column``)."""

    def __init__(self, pipeline: Pipeline, name: str, *, by_column: bool) -> None:
        declaration = pipeline.events[name]
        self.mapper = Mapper(declaration.table, policy=declaration.policy, by_column=by_column)
        self.schema: pa.Schema = staged_schema(self.mapper.schema)
        self.head: dict[str, Any] = {
            "pipeline_id": pipeline.id,
            "team": pipeline.team,
            "event_name": name,
            "pipeline_version": pipeline.version,
            "table": declaration.table.to_json(),
        }


class Plan:
    """A pipeline's version."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._transform: Transform | None = None
        self._invalid = ""
        self._events: dict[tuple[str, bool], EventPlan] = {}

    def event(self, name: str, *, by_column: bool) -> EventPlan | None:
        """Return the plan of an event name; None when the pipeline declares none of that name."""
        found = self._events.get((name, by_column))
        if found is None and name in self.pipeline.events:
            found = EventPlan(self.pipeline, name, by_column=by_column)
            self._events[name, by_column] = found
        return found

    def transform(self, watch: Watch | None = None, *, isolated: bool = False) -> Transform:
        """Return the compiled transformation; loads it once, in a forked child first if isolated.

        Raises:
            ParkError: ``code_invalid``, each time.
        """
        if self._transform is None and not self._invalid:
            code, name = self.pipeline.transformation_code, self.pipeline.name
            try:
                if isolated:
                    self._transform = compile_isolated(code, name, watch or NoWatch())
                else:
                    self._transform = compile_transformation(code, name)
            except ParkError as error:
                self._invalid = error.message
        if self._transform is None:
            raise ParkError("code_invalid", self._invalid)
        return self._transform
