"""Mappings: inferred from a source, shown, compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from waybill.errors import NotFoundError
from waybill.settings import Settings
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.mapping_proposals import MappingDifference, Proposal, Sample, ShownMapping

_MOST_NAMED = 63
"""Bytes of a name that a declaration takes."""


def infer_mappings(
    settings: Settings, folder: Path, event: str | None, number: int
) -> tuple[list[Proposal], Sample]:
    """Return what a pipeline's event names would map to, by its source's first records.

    Without an event name: those whose columns or key are missing, if there are any; else all.

    Raises:
        InputError: no such event name, nothing to infer from, or the source cannot be read.
    """
    from waybill.ingestion.connectors import Connections, closing_connector, open_connector
    from waybill.mapping_proposals import infer, load_draft, take_sample
    from waybill.nearest_name import hint
    from waybill.processing import rules_for, shared_sandbox
    from waybill.services.sources import declared_personal

    draft = load_draft(folder)
    pipeline = draft.pipeline
    if event is not None and event not in pipeline.events:
        words = f"{folder} has no event {event!r} (it has {', '.join(pipeline.events)})"
        raise NotFoundError(words + hint(event, pipeline.events))
    connector = open_connector(
        pipeline.source,
        folder,
        settings.sources.roots,
        events={
            name: declared
            for name, declared in pipeline.events.items()
            if "key" not in draft.missing.get(name, ())
        },
        connections=Connections(settings.sources.connections),
        settings=settings,
    )
    with closing_connector(connector):
        sample = take_sample(
            pipeline,
            connector,
            number,
            code=shared_sandbox(settings),
            personal=declared_personal(folder),
        )
    unfinished = [name for name, lacks in draft.missing.items() if lacks & {"key", "columns"}]
    names = [event] if event is not None else unfinished or list(pipeline.events)
    rules = rules_for(pipeline, settings.destinations)
    rules = replace(rules, longest=min(rules.longest, _MOST_NAMED))
    return [infer(draft, sample, name, rules) for name in names], sample


def write_mappings(folder: Path, proposals: list[Proposal]) -> Path:
    """Put proposals into a folder's declaration; every other byte of it stays."""
    from waybill.mapping_proposals import write

    return write(folder, proposals)


def shown_mappings(
    settings: Settings, name: str, event: str | None = None, number: int | None = None
) -> list[ShownMapping]:
    """Return what a deployed pipeline's event names map to, or mapped to at a version."""
    from waybill.mapping_proposals import show

    with open_tracker(settings.tracker) as tracker:
        return show(tracker, name, event, number)


def mapping_differences(
    settings: Settings,
    name: str | Path,
    event: str | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
) -> list[MappingDifference]:
    """Return what differs between versions; of a folder, what its deploy would change."""
    from waybill.mapping_proposals import diff, diff_folder

    with open_tracker(settings.tracker) as tracker:
        if isinstance(name, Path):
            return diff_folder(tracker, name, event)
        return diff(tracker, name, event, first=first, last=last)
