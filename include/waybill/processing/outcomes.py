"""A transformation's outcomes, sorted: what failed, what was filtered, what goes on as what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from waybill.events import Event
from waybill.processing.failures import Fault
from waybill.processing.plan import Plan
from waybill.processing.results import Items
from waybill.processing.transformation import Outcome


@dataclass(slots=True)
class SortedOut:
    """Outcomes of a group of events."""

    faults: dict[int, Fault] = field(default_factory=dict)
    """By place in the chunk."""
    filtered: list[int] = field(default_factory=list)
    """Indexes in the group."""
    children: dict[str, Items] = field(default_factory=dict)
    """What goes on, by event name, each with its parent's place; an event may go on itself."""


def sort_out(plan: Plan, outcomes: Sequence[Outcome], items: Items) -> SortedOut:
    """Sort the outcomes of ``items``; children of one parent that are one row are its fault."""
    found = SortedOut()
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
