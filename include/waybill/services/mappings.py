"""Mappings: inferred from a source, shown, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.access import anonymous, masked_fields, personal_or_likely
from waybill.errors import InputError, NotFoundError
from waybill.settings import Settings
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.mapping_proposals import MappingDifference, Proposal, Sample, ShownMapping

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
        settings.sources.roots_of(pipeline.team),
        events={
            name: declared
            for name, declared in pipeline.events.items()
            if "key" not in draft.missing.get(name, ())
        },
        connections=Connections(settings.sources.connections_of(pipeline.team)),
        settings=settings,
    )
    personal = declared_personal(folder)
    with closing_connector(connector):
        sample = take_sample(
            pipeline,
            connector,
            number,
            code=shared_sandbox(settings),
            personal=personal,
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
) -> dict[str, str]:
    """Add a record of the source to a folder's example events, for each event that has none.

    The first is taken that passes transformation and mapping; letters and digits of its personal
    fields are replaced. A folder without `events.jsonl` gets none.

    Args:
        settings: limits of the user's code.
        folder: whose declaration has the proposals, written.
        proposals: which are written.
        samples: that they were made from, by event name.

    Returns:
        By event name without an example: why it got none; "": it has one now.
    """
    from waybill.pipelines import EXAMPLES

    path = folder / EXAMPLES
    if path.is_symlink() or not path.is_file():
        return {}
    added: dict[str, str] = {}
    try:
        for event in _without_example(folder, path, proposals):
            added[event] = "events.jsonl was not written"
            records = samples[event].records.get(event, ())
            added[event] = _add_example(settings, folder, event, records)
    except InputError as error:  # the declaration is written: that is to be said
        return {one.event: str(error) for one in proposals} | added
    return added


def _without_example(folder: Path, path: Path, proposals: Sequence[Proposal]) -> list[str]:
    from waybill.pipelines import load_pipeline
    from waybill.testing import read_examples

    own = load_pipeline(folder).source.event
    examples = read_examples(folder) if path.read_bytes().strip() else []
    known = {example.event or own for example in examples}
    return [proposal.event for proposal in proposals if proposal.event not in known]


def _add_example(settings: Settings, folder: Path, event: str, records: Sequence[bytes]) -> str:
    """Add one of the records to the example events; return why none can be."""
    from waybill.events import decode, dumps
    from waybill.mapping_proposals import append_line
    from waybill.pipelines import EXAMPLES, load_pipeline
    from waybill.services.sources import declared_personal
    from waybill.testing import Event, run_pipeline

    declared = declared_personal(folder).get(event)
    events = [Event(_shareable(decode(one).data, declared), event) for one in records]
    reasons = []
    results = run_pipeline(load_pipeline(folder), events, settings=settings).events
    for given, result in zip(events, results, strict=True):
        line = {"note": "a record of the source", "event": event, "data": given.data}
        content = dumps(line)
        if result.rows and not result.parked and len(content) <= _MOST_EXAMPLE_BYTES:
            append_line(folder / EXAMPLES, content)
            return ""
        reasons += [one.error_type for one in result.parked] or ["it makes no row, or is large"]
    return (
        f"with personal fields replaced no record passes: {reasons[0]}"
        if reasons
        else ("no record came through the transformation")
    )


def _shareable(record: dict[str, Any], declared: Sequence[str] | None) -> dict[str, Any]:
    """Return a record whose personal values, as declared and by their names, are replaced."""
    fields = [*(declared or ()), *personal_or_likely(None, record)]
    return masked_fields(record, fields, anonymous)


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
