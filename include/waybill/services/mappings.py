"""Mappings: inferred from a source, shown, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.access import anonymous, likely_personal
from waybill.errors import NotFoundError
from waybill.mappings import decode_path
from waybill.settings import Settings
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.mapping_proposals import MappingDifference, Proposal, Sample, ShownMapping
    from waybill.pipelines import EventDeclaration

_MOST_EXAMPLE_BYTES = 16 * 1024
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
    personal = declared_personal(folder)
    with closing_connector(connector):
        sample = take_sample(
            pipeline,
            connector,
            number,
            code=shared_sandbox(settings),
            personal={name: fields or [] for name, fields in personal.items()},
        )
    unfinished = [name for name, lacks in draft.missing.items() if lacks & {"key", "columns"}]
    names = [event] if event is not None else unfinished or list(pipeline.events)
    rules = rules_for(pipeline, settings.destinations)
    rules = replace(rules, longest=min(rules.longest, _MOST_NAMED))
    return [infer(draft, sample, name, rules, personal.get(name)) for name in names], sample


def write_mappings(folder: Path, proposals: list[Proposal]) -> Path:
    """Put proposals into a folder's declaration; every other byte of it stays."""
    from waybill.mapping_proposals import write

    return write(folder, proposals)


def write_examples(
    settings: Settings, folder: Path, proposals: Sequence[Proposal], samples: Mapping[str, Sample]
) -> list[str]:
    """Add a record of the source to a folder's example events, for each event that has none.

    The first is taken that passes transformation and mapping; letters and digits of its personal
    fields are replaced. A folder without `events.jsonl` gets none.

    Args:
        settings: limits of the user's code.
        folder: whose declaration has the proposals.
        proposals: which are written.
        samples: that they were made from, by event name.

    Returns:
        The names of the events that got one.
    """
    from waybill.events import dumps
    from waybill.mapping_proposals import append_line
    from waybill.pipelines import EXAMPLES, load_pipeline
    from waybill.testing import Event, read_examples, run_pipeline

    path = folder / EXAMPLES
    if path.is_symlink() or not path.is_file():
        return []
    pipeline = load_pipeline(folder)
    known = {one.event or pipeline.source.event for one in read_examples(folder)}
    added = []
    for one in proposals:
        records = samples[one.event].records.get(one.event, ())
        if one.event in known or not records:
            continue
        events = [Event(_shareable(record, one.declaration), one.event) for record in records]
        results = run_pipeline(pipeline, events, settings=settings).events
        for event, result in zip(events, results, strict=True):
            line = {"note": "a record of the source", "event": one.event, "data": event.data}
            content = dumps(line)
            if result.rows and not result.parked and len(content) <= _MOST_EXAMPLE_BYTES:
                append_line(path, content)
                added.append(one.event)
                break
    return added


def _shareable(record: dict[str, Any], declared: EventDeclaration) -> dict[str, Any]:
    """Return a record whose personal values, as declared or by their names, are replaced."""
    fields = [tuple(decode_path(one)) for one in declared.personal]
    fields += [(one,) for one in declared.personal]
    changed: dict[str, Any] = anonymous(record, [*fields, *likely_personal([record])])
    return changed


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
