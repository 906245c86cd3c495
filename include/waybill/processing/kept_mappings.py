"""What a pipeline's event names map to, as the tracker keeps it."""

from __future__ import annotations

from waybill.mappings import InForce, in_force, over
from waybill.pipelines import Pipeline
from waybill.storage import TrackerStore


def mappings_in_force(tracker: TrackerStore, pipeline_id: str) -> dict[str, InForce]:
    """Return what a pipeline's event names map to; without those that were never learned."""
    found = in_force(tracker, [pipeline_id]).values()
    return {one.event_name: InForce(one.number, one.declaration) for one in found}


def mappings_once_deployed(
    tracker: TrackerStore, active: Pipeline, proposed: Pipeline
) -> dict[str, InForce]:
    """Return what the event names of a version that is not deployed would map to.

    Raises:
        InputError: the version declares what cannot be laid over what was learned.
    """
    kept = mappings_in_force(tracker, active.id)
    if proposed.version == active.version:
        return kept
    laid = {
        name: over(event, kept[name].declaration, active.events.get(name))
        for name, event in proposed.events.items()
        if name in kept
    }
    return {name: InForce(kept[name].number + 1, event) for name, event in laid.items()}
