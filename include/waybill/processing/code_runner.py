"""Who runs user code: a process of its own (``sandbox``), or this one, where nobody else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from waybill.errors import ParkError
from waybill.events import Event, decode, read_payload
from waybill.processing.failures import Fault, describe
from waybill.processing.plan import Plan
from waybill.processing.transformation import Again, NoWatch, Outcome, Retries, Watch, run


class CodeRunner(Protocol):
    """Runs a pipeline's transformation over events."""

    def run(
        self, plan: Plan, events: Sequence[Event], values: Sequence[bytes], retries: Retries | None
    ) -> Sequence[Outcome]:
        """Return what became of each event, in order.

        Args:
            plan: whose code it is.
            events: as they came, their payloads read or left (``decode_head``); changed in place
                where they go on as themselves.
            values: the same as messages.
            retries: of transient errors; None: they fail at once.
        """
        ...


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
    ) -> Sequence[Outcome]:
        """Return what became of each event; see ``CodeRunner``."""
        self._watch.marker.value = 0  # loading the code runs it
        try:
            transform = plan.transform()
        except ParkError as error:
            return [describe(error)] * len(events)
        finally:
            self._watch.marker.value = -1
        faults = read_payloads(events, values)
        if faults:
            kept = [index for index in range(len(events)) if index not in faults]
            events, values = [events[i] for i in kept], [values[i] for i in kept]
        again = None if retries is None else Again(retries, lambda index: decode(values[index]))
        outcomes = run(transform, events, self._watch, again)
        if not faults:
            return list(outcomes)
        total = len(faults) + len(events)
        return [faults[i] if i in faults else next(outcomes) for i in range(total)]
