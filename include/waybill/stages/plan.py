"""One pipeline, ready to run: its code compiled once, its mappings made once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from waybill.errors import ParkError
from waybill.events import Event
from waybill.pipelines import Pipeline
from waybill.stages.failures import Fault
from waybill.stages.isolation import compile_isolated
from waybill.stages.mapping import Mapper
from waybill.stages.staged import StagedHead, staged_schema
from waybill.stages.transformation import NoWatch, Transform, Watch, compile_transformation


class EventPlan:
    """One event name of a pipeline, entering as source fields or as columns (``by_column``)."""

    __slots__ = ("_key_fields", "head", "mapper", "schema", "table")

    def __init__(self, pipeline: Pipeline, name: str, *, by_column: bool) -> None:
        declaration = pipeline.events[name]
        keys = frozenset(declaration.table.key)
        self.mapper = Mapper(declaration.table, policy=declaration.policy, by_column=by_column)
        self._key_fields = [c.source for c in declaration.table.columns if c.name in keys]
        self.schema: pa.Schema = staged_schema(self.mapper.schema)
        self.table = declaration.table.name
        self.head = StagedHead(
            pipeline.id, pipeline.team, name, pipeline.version, declaration.table
        )

    def key_of(self, data: object) -> str | None:
        """Return the row's key as text; None where it has none, which the mapping will say."""
        if not isinstance(data, dict):
            return None
        values = [data.get(field) for field in self._key_fields]
        return None if None in values else repr(values)


class Plan:
    """A pipeline's version."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._transform: Transform | None = None
        self._invalid = ""
        self._events: dict[tuple[str, bool], EventPlan] = {}

    def prepare(self) -> None:
        """Make the plans of all event names. Cost: 0.1 ms each.

        A worker does it before its first event: what lives as long as the worker and is made amid a
        batch would lie scattered among what the batch leaves behind, and hold its pages.
        """
        for name in self.pipeline.events:
            self.event(name, by_column=False)

    def event(self, name: str, *, by_column: bool) -> EventPlan | None:
        """Return the plan of an event name; None when the pipeline declares none of that name."""
        found = self._events.get((name, by_column))
        if found is None and name in self.pipeline.events:
            found = EventPlan(self.pipeline, name, by_column=by_column)
            self._events[name, by_column] = found
        return found

    def same_key(self, children: Sequence[Event]) -> Fault | None:
        """Return what is wrong with children of one parent that would be one row; None: nothing.

        They have one version, so neither is newer: the destination could only keep either.
        """
        rows: dict[tuple[str, str], int] = {}
        for index, child in enumerate(children):
            plan = self.event(child.name, by_column=False)
            key = None if plan is None else plan.key_of(child.data)
            if plan is None or key is None:
                continue
            first = rows.setdefault((plan.table, key), index)
            if first != index:
                words = (
                    f"children {first} and {index} are the same row of {plan.table!r}: key {key}"
                )
                return Fault("result_invalid", words)
        return None

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
