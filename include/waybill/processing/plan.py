"""One pipeline, ready to run: its code compiled once, its mappings made once.

Under ``policy: evolve`` rows that do not fit are shown to a `Learner`; where it returns a mapping
with room for them the event's plan is made anew, and they are mapped again. The plan remembers that
it goes on with what nobody keeps yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from waybill.errors import ParkError
from waybill.events import Event
from waybill.mappings import InForce, LearnedFields
from waybill.pipelines import EventDeclaration, Pipeline, takes_tables
from waybill.processing.failures import Fault
from waybill.processing.field_types import reads_only_columns, types_of
from waybill.processing.mapping import Mapper, MappingFault, Reading
from waybill.processing.staged import StagedHead, staged_schema
from waybill.processing.transformation import Code, code_digest, load_code


class Learner(Protocol):
    """Makes room for what events bring."""

    most_columns: int
    """Columns that a table of the destination may have."""

    def __call__(
        self, pipeline: Pipeline, known: InForce, payloads: Sequence[Any]
    ) -> InForce | None:
        """Return the mapping to go on with; None: none has more room for these payloads.

        Args:
            pipeline: whose events they are.
            known: what they were mapped with.
            payloads: that did not fit; some are none that any mapping takes.

        """
        ...


class EventPlan:
    """One event name of a pipeline, entering as source fields or as columns (``by_column``)."""

    __slots__ = ("_key_fields", "evolves", "head", "in_force", "mapper", "schema", "table")

    def __init__(
        self,
        pipeline: Pipeline,
        in_force: InForce,
        *,
        by_column: bool,
        most_columns: int | None = None,
    ) -> None:
        declaration = in_force.declaration
        reading = Reading.of(declaration, by_column=by_column, most_columns=most_columns)
        self.in_force = in_force
        self.evolves = declaration.policy == "evolve" and not by_column
        self.mapper = Mapper(declaration.table, reading)
        self._key_fields = declaration.key
        self.schema: pa.Schema = staged_schema(self.mapper.schema)
        self.table = declaration.table.name
        self.head = StagedHead(
            pipeline.id, pipeline.team, declaration.name, pipeline.version, declaration.table
        )

    def key_of(self, data: object) -> str | None:
        """Return the row's key as text; None where it has none, which the mapping will say."""
        if not isinstance(data, dict):
            return None
        values = [data.get(field) for field in self._key_fields]
        try:
            return None if None in values else repr(values)
        except (ValueError, RecursionError):  # a number of thousands of digits, a list in lists
            return None


class MappedRows(NamedTuple):
    """What mapping made of payloads."""

    plan: EventPlan
    """That the rows were mapped with in the end."""
    columns: pa.RecordBatch
    faults: dict[int, MappingFault]
    """Of the payloads that do not fit, by index."""


class Plan:
    """A pipeline's version.

    Args:
        pipeline: as deployed.
        mappings: what its event names map to, where that is not what it declares.
        learner: where none is given, nothing is learned: what does not fit parks.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        mappings: Mapping[str, InForce] | None = None,
        learner: Learner | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._learner = learner
        self._in_force = {name: InForce(0, event) for name, event in pipeline.events.items()}
        self._code: Code | None = None
        self._invalid = ""
        self._events: dict[tuple[str, bool], EventPlan] = {}
        self.before_learning: dict[str, EventDeclaration] = {}
        """By event name: what was in force when something was learned here; mostly empty."""
        self._types: dict[str, dict[str, str]] = {}
        for name, mapping in (mappings or {}).items():
            self.take(name, mapping)

    def take(self, name: str, mapping: InForce) -> None:
        """Go on with a later version of a mapping; an earlier one is passed over."""
        known = self._in_force.get(name)
        if known is not None and mapping.number > known.number:
            self._go_on(name, mapping)

    def _go_on(self, name: str, mapping: InForce) -> EventPlan:
        """Make the plans of an event name anew, both: rows of a table keep one order in a task."""
        self._in_force[name] = mapping
        self._types.pop(name, None)
        self._events.pop((name, True), None)
        plan = self._events[name, False] = self._made(name, by_column=False)
        return plan

    def _made(self, name: str, *, by_column: bool) -> EventPlan:
        most = None if self._learner is None else self._learner.most_columns
        return EventPlan(
            self.pipeline, self._in_force[name], by_column=by_column, most_columns=most
        )

    @property
    def learned(self) -> dict[str, LearnedFields]:
        """Return what was learned from this plan's events, by event name.

        Where that is something, its rows are mapped by what is not in force.
        """
        return {
            name: LearnedFields.between(before, self._in_force[name].declaration)
            for name, before in self.before_learning.items()
        }

    def prepare(self) -> None:
        """Make the plans of all event names that have none. Cost: 0.1 ms each.

        A worker does it before the pipeline's first event: what lives as long as the worker and is
        made while events are mapped would lie scattered among what they leave behind, and hold its
        pages.
        """
        for name in self.pipeline.events:
            self.event(name, by_column=False)

    def declares(self, name: str) -> bool:
        """Tell whether the pipeline declares an event of this name."""
        return name in self._in_force

    def event(self, name: str, *, by_column: bool) -> EventPlan | None:
        """Return the plan of an event name; None when the pipeline declares none of that name."""
        found = self._events.get((name, by_column))
        if found is None and name in self._in_force:
            found = self._events[name, by_column] = self._made(name, by_column=by_column)
        return found

    def map(
        self,
        name: str,
        payloads: Sequence[Any],
        *,
        by_column: bool,
        deletes: frozenset[int] = frozenset(),
    ) -> MappedRows | None:
        """Map payloads of an event name; None when the pipeline declares none of that name.

        ``deletes``: indexes of those that delete their row.
        """
        plan = self.event(name, by_column=by_column)
        if plan is None:
            return None
        columns, faults = plan.mapper.map(payloads, deletes)
        if faults and plan.evolves and self._learner is not None:
            odd = [payloads[index] for index in sorted(faults)]
            learned = self._learner(self.pipeline, plan.in_force, odd)
            if learned is not None:
                self.before_learning.setdefault(name, plan.in_force.declaration)
                plan = self._go_on(name, learned)
                columns, faults = plan.mapper.map(payloads, deletes)
        return MappedRows(plan, columns, faults)

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

    @cached_property
    def code_key(self) -> str:
        """Return what this pipeline's code is known by to a process that has loaded it."""
        pipeline = self.pipeline
        return code_digest(pipeline.name, pipeline.transformation_code, pipeline.shared_code)

    @cached_property
    def takes_tables(self) -> bool:
        """Tell whether the code has the batch form, as its text says."""
        return takes_tables(self.pipeline.transformation_code)

    def types(self, name: str) -> dict[str, str]:
        """Return the column types of an event name's fields; see ``field_types``."""
        types = self._types.get(name)
        if types is None:
            source = self.pipeline.source
            given = (source.columns or {}) if name == source.event else {}
            known = self._in_force.get(name)
            types = types_of(None if known is None else known.declaration, given)
            if known is not None:
                self._types[name] = types
        return types

    def ignores_rest(self, name: str) -> bool:
        """Tell whether all fields without a column are left out of an event name's rows."""
        known = self._in_force.get(name)
        if known is None or known.declaration.policy != "ignore":
            return False
        return reads_only_columns(known.declaration)

    def code(self) -> Code:
        """Return the loaded code; loads it, in this process, once.

        Raises:
            ParkError: ``code_invalid``, each time.
        """
        if self._code is None and not self._invalid:
            try:
                pipeline = self.pipeline
                self._code = load_code(
                    pipeline.transformation_code, pipeline.name, pipeline.shared_code
                )
            except ParkError as error:
                self._invalid = error.message
        if self._code is None:
            raise ParkError("code_invalid", self._invalid)
        return self._code
