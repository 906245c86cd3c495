"""The first records of a pipeline's source, and what becomes of them; nothing is written.

A source is read as ingestion reads it, from its beginning, by its own connector: no cursor moves,
nothing is kept, and nothing at the source changes. Where it sends by itself, or is a log, example
events stand for it, unless it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from waybill.access import MASK, field_paths, masked_fields, same_name
from waybill.errors import InputError, ParkError
from waybill.events import encode_data
from waybill.ingestion.connectors import (
    BadRow,
    Connections,
    NotingConnector,
    Page,
    Record,
    closing_connector,
    first_pages,
    open_connector,
)
from waybill.nearest_name import shown_name
from waybill.parking import masked_words
from waybill.pipelines import (
    EXAMPLES,
    PUSHED,
    Pipeline,
)
from waybill.settings import Settings
from waybill.testing.examples import MOST_BYTES, Example, parse_events, read_examples
from waybill.testing.runs import EventResult, Rows, run_pipeline

SOURCE, EXAMPLE_EVENTS, STANDARD_INPUT = "source", "examples", "-"
"""Where events of a sample may come from, beside a file."""
_BY_EXAMPLES = frozenset({PUSHED, "kafka", "postgres_cdc"})
"""Connectors of which example events are taken unless the source is asked for."""
Lookup = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """One record of a sample."""

    place: str
    """Where it stands, in words."""
    given: Record | BadRow


@dataclass(frozen=True, slots=True)
class Sample:
    """The first records of a source."""

    origin: str
    """What they were read from, in words."""
    events: tuple[SampleEvent, ...]
    notes: tuple[str, ...] = ()
    """What the source says beside them."""
    has_more: bool = False
    """There are more records where they come from."""


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What becomes of a sample; personal fields are masked."""

    sample: Sample
    tables: tuple[str, ...]
    """Of the pipeline, with those that get no row."""
    events: tuple[tuple[SampleEvent, EventResult], ...] = field(default=())

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, as mapping makes them, in the order of the events."""
        return [row for _, result in self.events for row in result.rows.get(table, ())]

    def deleted(self, table: str) -> list[dict[str, Any]]:
        """Return the keys of the rows that are deleted in a table."""
        return [row for _, result in self.events for row in result.deleted.get(table, ())]

    @property
    def parked(self) -> int:
        """Return how many records would be parked, themselves or a child of theirs."""
        return sum(bool(result.parked) for _, result in self.events)

    @property
    def filtered(self) -> int:
        """Return how many are filtered on purpose."""
        return sum(result.filtered for _, result in self.events)


def read_sample(
    settings: Settings,
    folder: Path,
    pipeline: Pipeline,
    rows: int,
    origin: str | None = None,
    *,
    lookup: Lookup | None = None,
) -> Sample:
    """Return the first records that a pipeline's source has.

    Args:
        settings: connections, limits of sources' processes, and where sources may lie.
        folder: the pipeline's.
        pipeline: as it is declared there.
        rows: records to read at most.
        origin: ``source``, ``examples``, ``-`` (standard input), or a file's path: a JSON object a
            line, a payload or an example event. None: the source, or the examples of one that sends
            by itself or is a log.
        lookup: finds connections beside settings and environment.

    Raises:
        InputError: the source, or the file, cannot be read.
        RetryError: the source did not answer.
    """
    if origin is None:
        origin = EXAMPLE_EVENTS if pipeline.source.connector in _BY_EXAMPLES else SOURCE
    if origin == SOURCE:
        return _of_source(settings, folder, pipeline, rows, lookup)
    if origin == EXAMPLE_EVENTS:
        if not (folder / EXAMPLES).exists():
            raise InputError(
                f"{folder} has no {EXAMPLES}, whose events stand for what connector"
                f" {shown_name(pipeline.source.connector)!r} gives: write some, a line"
                ' {"data": {…the payload…}} each, or name a file of payloads, or - for standard'
                " input"
            )
        return _of_examples(pipeline, EXAMPLES, read_examples(folder), rows)
    file = "standard input" if origin == STANDARD_INPUT else origin
    events = parse_events(shown_name(file), _text(origin))
    return _of_examples(pipeline, shown_name(file), events, rows)


def _text(origin: str) -> str:
    try:
        if origin == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            path = Path(origin)
            if path.exists() and not path.is_file():
                raise InputError(f"{shown_name(origin)}: expected a file; it is none")
            with path.open("rb") as opened:
                content = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or shown_name(str(error))
        raise InputError(f"{shown_name(origin)}: the events cannot be read: {reason}") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"{shown_name(origin)}: expected at most {MOST_BYTES:,} bytes of events")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{shown_name(origin)}: expected UTF-8; line {line} is not") from error


def _of_examples(pipeline: Pipeline, file: str, examples: Sequence[Example], rows: int) -> Sample:
    events = []
    for one in examples[:rows]:
        place = f"{file}, line {one.line}"
        events.append(SampleEvent(place, one.given.record(pipeline, place)))
    return Sample(file, tuple(events), has_more=len(examples) > rows)


def _of_source(
    settings: Settings, folder: Path, pipeline: Pipeline, rows: int, lookup: Lookup | None
) -> Sample:
    source = pipeline.source
    most = rows + 1  # one more tells whether there are more
    changed: dict[str, Any] = {"page_rows": max(1, min(most, source.page_rows))}
    if source.connector == "files":  # a file that was just written is meant to be read
        changed["options"] = {**source.options, "settle_s": 0}
    connector = open_connector(
        source.model_copy(update=changed),
        folder,
        settings.sources.roots_of(pipeline.team),
        events=pipeline.events,
        connections=Connections(settings.sources.connections_of(pipeline.team), lookup),
        settings=settings,
    )
    origin = f"its source ({source.connector}{f' {source.path}' if source.path else ''})"
    with closing_connector(connector):
        pages = first_pages(connector)
        events = tuple(islice(_events(pages), most))
        del pages
        notes = connector.notes() if isinstance(connector, NotingConnector) else ()
    return Sample(origin, events[:rows], tuple(notes), has_more=len(events) > rows)


def _events(pages: Iterator[Page]) -> Iterator[SampleEvent]:
    number = 0
    for page in pages:
        for index, row in enumerate(page.rows):
            number += 1
            place = f"record {number}" if page.place is None else page.place(index)
            yield SampleEvent(place, row if isinstance(row, Record) else Record(row))
        for bad in page.bad:
            number += 1
            yield SampleEvent(bad.place, bad)


def run_sample(settings: Settings, pipeline: Pipeline, sample: Sample) -> SampleResult:
    """Run the records of a sample through a pipeline, as processing would.

    The user's code runs in the sandbox. Personal fields are masked in rows by the columns that read
    them, and in messages by their values; what a transformation makes of them elsewhere is not.

    Raises:
        InputError: a record is none.
    """
    run = run_pipeline(pipeline, [event.given for event in sample.events], settings=settings)
    pairs = zip(sample.events, run.events, strict=True)
    masked = tuple((event, masked_result(pipeline, event, result)) for event, result in pairs)
    return SampleResult(sample, tuple(run.rows), masked)


def masked_result(pipeline: Pipeline, event: SampleEvent, result: EventResult) -> EventResult:
    """Return what becomes of an event, its personal fields masked as in ``run_sample``."""
    if not any(declared.personal for declared in pipeline.events.values()):
        return result
    own = pipeline.source.event
    name = own if isinstance(event.given, BadRow) else event.given.event or own
    declared = pipeline.events.get(name)
    personal = None if declared is None else declared.personal
    content = _content(event.given)
    parked = [
        replace(
            one,
            message=masked_words(content, one.message, personal),
            where=_masked_place(content, one.where, event.place, personal),
            others=tuple(masked_words(content, list(one.others), personal)),
        )
        for one in result.parked
    ]
    hidden = {
        table: {path for field in one.personal for path in field_paths(field)}
        for one in pipeline.events.values()
        for table in (one.table.name, *(child.name for child in one.table.children))
    }
    return replace(
        result,
        rows=_masked_rows(result.rows, result.sources, hidden),
        deleted=_masked_rows(result.deleted, result.sources, hidden),
        parked=parked,
    )


def _masked_place(content: bytes, where: str, place: str, personal: Sequence[str] | None) -> str:
    """Return where a record fails, which its code may say by a value; its own place stays."""
    return where if where in ("", place) else str(masked_words(content, where, personal))


def _content(given: Record | BadRow) -> bytes:
    if isinstance(given, BadRow):
        return given.raw
    try:
        return encode_data(given.data)
    except ParkError:
        return b""  # no JSON: all that is said of it is hidden


def _masked_rows(
    rows: Rows,
    sources: Mapping[str, Mapping[str, tuple[str, ...]]],
    hidden: Mapping[str, set[str]],
) -> Rows:
    return {
        table: [
            {
                name: _masked_value(value, sources[table].get(name, ()), hidden[table])
                for name, value in row.items()
            }
            for row in found
        ]
        for table, found in rows.items()
    }


def _masked_value(value: Any, source: Sequence[str], hidden: set[str]) -> Any:
    """Return a column's value, masked where what it reads is personal, or holds what is."""
    path = same_name(".".join(source))
    for personal in hidden if source else ():
        if value is not None and f"{path}.".startswith(f"{personal}."):
            return MASK
        if personal.startswith(f"{path}."):
            value = _masked_inside(value, personal.removeprefix(f"{path}."))
    return value


def _masked_inside(value: Any, path: str) -> Any:
    """Return a JSON column's value with what lies at a path in it masked."""
    if isinstance(value, list):
        return [_masked_inside(item, path) for item in value]
    return masked_fields(value, [path]) if isinstance(value, dict) else value
