"""Who runs user code: a process of its own (``sandbox``), or this one, where nobody else is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from waybill.errors import ParkError
from waybill.events import Event, Heads, decode, read_payload, unpack_events
from waybill.processing.batch_form import BatchRun
from waybill.processing.event_tables import EventBatch, TableOrder
from waybill.processing.failures import Fault, cut, describe
from waybill.processing.payload_columns import KeptPayloads, PayloadColumns, payloads_of
from waybill.processing.plan import Plan
from waybill.processing.table_results import results_of
from waybill.processing.transformation import (
    Again,
    Code,
    NoWatch,
    Outcome,
    Retries,
    Watch,
    run,
)

Results: TypeAlias = Sequence[Outcome] | PayloadColumns | KeptPayloads
"""What became of each event; where they go on as themselves, or not at all, it may be payloads."""


class CodeRunner(Protocol):
    """Runs a pipeline's transformation over events."""

    def run(
        self, plan: Plan, events: Sequence[Event], values: Sequence[bytes], retries: Retries | None
    ) -> Results:
        """Return what became of each event, in order; see ``outcomes_of``.

        Args:
            plan: whose code it is.
            events: as they came, their payloads read or left (``decode_head``, ``read_heads``).
            values: the same as messages.
            retries: of transient errors; None: they fail at once.
        """
        ...


def outcomes_of(events: Sequence[Event], results: Results) -> Sequence[Outcome]:
    """Return results as what became of each event, changed in place where it goes on as itself."""
    if isinstance(results, KeptPayloads):
        outcomes: list[Outcome] = [results.faults.get(index) for index in range(results.count)]
        for index, payload in zip(results.indexes, results.payloads, strict=True):
            outcomes[index] = event = events[index]
            event.data = payload
        return outcomes
    if not isinstance(results, PayloadColumns):
        return results
    for event, payload in zip(events, results, strict=True):
        event.data = payload
    return events


def read_payloads(events: Sequence[Event], values: Sequence[bytes]) -> dict[int, Fault]:
    """Read the payloads that were left; return by index why one cannot be."""
    faults: dict[int, Fault] = {}
    for index, event in enumerate(events):
        try:
            read_payload(event, values[index])
        except ParkError as error:
            faults[index] = describe(error)
    return faults


class InProcess:
    """Runs user code in this process: for tests, and to measure what others cost.

    Args:
        watch: where user code's progress is noted.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = NoWatch() if watch is None else watch

    def run(
        self, plan: Plan, events: Sequence[Event], values: Sequence[bytes], retries: Retries | None
    ) -> Results:
        """Return what became of each event; see ``CodeRunner``."""
        self._watch.begin()
        self._watch.marker.value = 0  # loading the code runs it
        try:
            code = plan.code()
        except ParkError as error:
            return [Fault(error.code, cut(error.message), cut(error.where))] * len(events)
        finally:
            self._watch.marker.value = -1
        events, faults = _with_payloads(events, values)
        if faults:
            kept = [index for index in range(len(events)) if index not in faults]
            events, values = [events[i] for i in kept], [values[i] for i in kept]
        results = self._results(plan, code, events, values, retries)
        if not faults:
            return results
        outcomes = outcomes_of(events, results)
        others = iter(outcomes)
        total = len(faults) + len(events)
        return [faults[i] if i in faults else next(others) for i in range(total)]

    def _results(
        self,
        plan: Plan,
        code: Code,
        events: Sequence[Event],
        values: Sequence[bytes],
        retries: Retries | None,
    ) -> Results:
        """Return what code makes of events whose payloads are read."""
        if not events:
            return []
        if code.transform is not None:
            again = None if retries is None else Again(retries, lambda at: decode(values[at]))
            outcomes = list(run(code.transform, events, self._watch, again))
            return payloads_of(events, outcomes) or outcomes
        assert code.transform_batch is not None  # noqa: S101 - narrows a type
        batches, order = EventBatch.of_events(events), TableOrder.of(plan, events[0].name)
        made = BatchRun(code.transform_batch, batches, order, self._watch, retries).result()
        return results_of(plan, events, made)


def _with_payloads(
    events: Sequence[Event], values: Sequence[bytes]
) -> tuple[Sequence[Event], dict[int, Fault]]:
    """Return events with the payloads that were left, and why one cannot be read."""
    if isinstance(events, Heads):
        with suppress(ValueError, RecursionError):
            return unpack_events(events.packed()), {}
    return events, read_payloads(events, values)
