"""Sources, looked at before anything runs: what there is, and whether it can be read."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from waybill.access import MASK, masked_fields, personal_or_likely
from waybill.errors import InputError, NotFoundError, ParkError
from waybill.events import encode_data, loads, ordering_key, source_version
from waybill.nearest_name import hint
from waybill.settings import Settings
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.ingestion.connectors import Connector, Discovered, Page, Record
    from waybill.ledger import SourceLine
    from waybill.mapping_proposals import Draft, Proposal, Sample
    from waybill.pipelines import EventDeclaration, Source

_MOST_NAMED = 63
"""Bytes of a name that a declaration takes."""
_EXPECTED = re.compile(r"(?:column '[^'\n]{1,200}': )?expected [^'\"\n]{1,60}; found ")
"""How messages of connectors begin; behind it stands a value."""
Lookup = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class SourceDiscovery:
    """What a source has, and what a declaration of it would say."""

    found: list[Discovered]
    proposals: list[Proposal]
    """Of event names that are not declared, or lack their key, or columns for what they have."""
    unknown: dict[str, str]
    """Event name to why nothing is proposed for it."""
    notes: list[str] = field(default_factory=list)
    """What the source says beside that, such as which schemas its records had."""
    samples: dict[str, Sample] = field(default_factory=dict)
    """By event name: what was read for its proposal."""
    connector: str = ""


@dataclass(slots=True)
class SourceTrial:
    """The first page of a source."""

    connector: str
    page_rows: int
    """Rows that a page has at most."""
    seconds: float = 0.0
    """Until it came."""
    rows: Counter[str] = field(default_factory=Counter)
    """By event name."""
    parked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(event name, error type) of rows that an ingestion would park."""
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    """One message for each."""
    shown: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """(event name, row): the first ones of declared events, their personal fields masked."""
    absent: list[str] = field(default_factory=list)
    """Declared fields that no row has, which each row needs, each in a sentence."""
    guessed: dict[str, dict[str, None]] = field(default_factory=dict)
    """By event name that does not say what is personal: fields masked for their names."""
    unshown: set[str] = field(default_factory=set)
    """Event names whose rows are not shown: nobody declared yet what of them is personal."""
    notes: list[str] = field(default_factory=list)
    """What the source says beside that, such as which schemas its records had."""


def source_status(
    settings: Settings, name: str | None = None, *, state: Literal["", "running", "failed"] = ""
) -> list[SourceLine]:
    """Return how the last runs of pipelines' sources are, by name.

    Args:
        settings: all.
        name: of one pipeline, or its id; None: all.
        state: only those that run, or whose last run failed; empty: all.

    Raises:
        InputError: there is no pipeline of this name.
    """
    from waybill.ledger import SourceFilter, read_sources

    found: list[SourceLine] = []
    with open_tracker(settings.tracker) as tracker:
        after = None
        while True:
            page = read_sources(tracker, SourceFilter(name=name, state=state), after=after)
            found += page.sources
            if (after := page.next) is None:
                break
    if name is not None:  # the id of one may be the name of another
        found = [one for one in found if one.pipeline == name] or found
    if name is not None and not found:
        near = hint(name, _names(settings))
        raise NotFoundError(
            f"there is no pipeline {name!r}; `waybill pipelines list` names those that there are"
            f"{near}"
        )
    return found


def _names(settings: Settings) -> list[str]:
    from waybill.services.ingestion import deployed_names

    return deployed_names(settings)


def stop_source(settings: Settings, name: str, decision: Decision) -> str:
    """Have the run of a pipeline's source end at its next page; returns the run's node.

    Raises:
        InputError: there is no such pipeline, or no run of it can be stopped.
    """
    from waybill.ledger import ask_stop

    [line] = source_status(settings, name)
    with open_tracker(settings.tracker) as tracker:
        return ask_stop(tracker, line.pipeline_id, decision)


def source_kinds(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (kind, who brings it, what it does) of each connector; of taps the names."""
    from waybill.pipelines import CONNECTORS, brought_connectors

    taps = ", ".join(sorted(settings.sources.taps)) or "none is installed"
    kinds = []
    for name, place in CONNECTORS.items():
        words = _summary(place)
        kinds.append((name, "waybill", f"{words} (taps: {taps})" if name == "singer" else words))
    return kinds + [(name, one.value, "") for name, one in sorted(brought_connectors().items())]


def _summary(place: str) -> str:
    """Return the beginning of what a connector says of itself."""
    module, _, name = place.partition(":")
    words = getdoc(getattr(import_module(module), name)) or ""
    return words.partition("\n")[0].partition(";")[0].rstrip(".")


def discover_source(
    settings: Settings, folder: Path, number: int, *, lookup: Lookup | None = None
) -> SourceDiscovery:
    """Return what a pipeline's source has, by what it says of itself and its first records.

    Args:
        settings: all.
        folder: the pipeline's; its declaration needs no events yet.
        number: records to read at most of each event name.
        lookup: finds connections beside settings and environment.

    Raises:
        InputError: the source is not there, or its event name is none that it has.
        RetryError: it did not answer.
    """
    from waybill.ingestion.connectors import Discovered, DiscoveringConnector
    from waybill.mapping_proposals import load_draft
    from waybill.pipelines import PUSHED

    draft = load_draft(folder, [])
    pipeline = draft.pipeline
    source = pipeline.source
    if source.connector == PUSHED:
        raise InputError(
            "the source of this pipeline sends to `waybill collector`: nothing can be read of it"
            " before it does; declare its events by hand"
        )
    with _opened(settings, draft, lookup) as connector:
        says = isinstance(connector, DiscoveringConnector)
        found = connector.discover() if says else [Discovered(source.event, source.event)]
        draft = load_draft(folder, found)
        names = {one.event for one in found}
        if source.event not in names and "event" in draft.missing.get(source.event, ()):
            raise InputError(
                f"source.event: {source.event!r} is none of the event names that the source has:"
                f" {', '.join(sorted(names)) or 'none'}"
            )
        discovery = SourceDiscovery(found, [], {}, connector=source.connector)
        for one in found:
            only = connector.only(one.name) if says else connector
            _propose(settings, draft, one.event, only, number, discovery)
        discovery.notes.extend(_notes(connector))
    discovery.notes.extend(_whole_tables(source.connector, found, discovery.proposals))
    discovery.notes.extend(_deletes(source))
    return discovery


def _propose(
    settings: Settings,
    draft: Draft,
    event: str,
    connector: Connector,
    number: int,
    discovery: SourceDiscovery,
) -> None:
    """Add what is to be declared of an event, by its first records; or why nothing is proposed.

    One whose policy is not strict, and that has its key and columns, is left out: a field without a
    column is left out of it, or gets one when it is met.
    """
    from waybill.mapping_proposals import added_columns, infer, take_sample
    from waybill.processing import rules_for, shared_sandbox

    lacks = draft.missing.get(event, frozenset()) & {"key", "columns"}
    if not lacks and draft.pipeline.events[event].policy != "strict":
        return
    rules = rules_for(draft.pipeline, settings.destinations)
    rules = replace(rules, longest=min(rules.longest, _MOST_NAMED))
    personal = declared_personal(draft.directory)
    sample = take_sample(
        draft.pipeline, connector, number, code=shared_sandbox(settings), personal=personal
    )
    discovery.samples[event] = sample
    try:
        proposal = infer(draft, sample, event, rules, personal.get(event))
    except InputError as error:
        discovery.unknown[event] = str(error)
        return
    wanted = proposal if lacks else added_columns(proposal)
    if wanted is not None:
        discovery.proposals.append(wanted)


def _deletes(source: Source) -> list[str]:
    """Return what is to be known of deletes in a table that is read by its rows."""
    from waybill.pipelines import UNSEEN_DELETES

    if source.connector != "sql":
        return []
    if not source.brings_deletes:
        return [UNSEEN_DELETES]
    every = source.options.get("compare_every", 86_400)
    return [
        f"deleted rows are seen by comparing all keys, each {every} s at the end of a run"
        " (compare_every); of a delete the transformation gets the key alone"
    ]


def _whole_tables(
    kind: str, found: Sequence[Discovered], proposals: Sequence[Proposal]
) -> list[str]:
    """Return what to declare for tables that are read whole, though they have a version."""
    versions = {one.event: one.declaration.version for one in proposals}
    return [
        f"each run reads table {one.name!r} whole; with `cursor: {version}` in source.options, what"
        " changed since the last one"
        for one in found
        if kind == "sql" and one.cursor is None and (version := versions.get(one.event))
    ]


def try_source(
    settings: Settings, folder: Path, number: int, *, lookup: Lookup | None = None
) -> SourceTrial:
    """Read the first page of a pipeline's source; nothing is taken in, nothing changes there.

    Args:
        settings: all.
        folder: the pipeline's.
        number: rows to show at most, of each event name.
        lookup: finds connections beside settings and environment.

    Raises:
        InputError: the source cannot be read as declared.
        RetryError: it did not answer.
    """
    from waybill.ingestion.connectors import first_pages
    from waybill.mapping_proposals import load_draft

    draft = load_draft(folder, [])
    declared = declared_personal(folder)
    source, began = draft.pipeline.source, time.monotonic()
    trial = SourceTrial(source.connector, source.page_rows)
    with _opened(settings, draft, lookup) as connector:
        pages = first_pages(connector)
        page = next((page for page in pages if page.rows or page.bad), None)
        trial.seconds = time.monotonic() - began
        if page is not None:
            _look(trial, draft, page, declared, number)
        trial.notes = _notes(connector) + _deletes(source)
    return trial


def _notes(connector: Connector) -> list[str]:
    from waybill.ingestion.connectors import NotingConnector

    return connector.notes() if isinstance(connector, NotingConnector) else []


@contextmanager
def _opened(settings: Settings, draft: Draft, lookup: Lookup | None) -> Iterator[Any]:
    """Open a source without the events, some of which may be stand-ins, but with a declared key."""
    from waybill.ingestion.connectors import (
        Connections,
        Opening,
        closing_connector,
        connector_of,
    )

    opening = Opening(
        draft.pipeline.source,
        draft.directory,
        settings.sources.roots_of(draft.pipeline.team),
        connections=Connections(settings.sources.connections_of(draft.pipeline.team), lookup),
        settings=settings,
        declared_key=draft.declared_key,
    )
    connector: Connector = connector_of(opening)
    with closing_connector(connector):
        yield connector


def declared_personal(folder: Path) -> dict[str, list[str] | None]:
    """Return the personal fields of each event name that is declared, its columns or not.

    Of one that is the name of a column, what that is read from, too. None: it does not say which
    are. An empty list says that none is.
    """
    from waybill.pipelines import read_document

    value = read_document((folder / "pipeline.yaml").read_text("utf-8-sig")).value
    events = value.get("events") if isinstance(value, dict) else None
    return {
        name: [*_personal_of(event)] if "personal" in event else None
        for name, event in (events or {}).items()
        if isinstance(event, dict)
    }


def _personal_of(event: dict[str, Any]) -> Iterator[str]:
    for name in map(str, event["personal"] or ()):
        yield name
        column = (event.get("columns") or {}).get(name)
        if isinstance(column, dict) and "from" in column:
            yield str(column["from"])


def _look(
    trial: SourceTrial,
    draft: Draft,
    page: Page,
    personal: Mapping[str, list[str] | None],
    number: int,
) -> None:
    from waybill.ingestion.connectors import Record

    pipeline = draft.pipeline
    absent: dict[str, dict[str, str]] = {}
    for row in page.rows:
        record = row if isinstance(row, Record) else Record(row)
        event = record.event or pipeline.source.event
        trial.rows[event] += 1
        if event not in personal:
            trial.unshown.add(event)
            if personal:  # else nothing is declared yet
                said = f"the pipeline declares no event {event!r}, only {', '.join(personal)}"
                _note(trial, event, "event_undeclared", said)
            continue
        fields = personal_or_likely(personal[event], record.data)
        if personal[event] is None:
            trial.guessed.setdefault(event, {}).update(dict.fromkeys(fields))
        needed = _needed(draft, event, record)
        unseen = absent.get(event, needed)
        absent[event] = {name: use for name, use in unseen.items() if name not in record.data}
        try:
            _check(record, pipeline.events[event], needed)
        except ParkError as error:
            masked = masked_fields({error.where: error.message}, fields)
            _note(trial, event, error.code, str(masked[error.where]))
        if sum(name == event for name, _ in trial.shown) < number:
            trial.shown.append((event, masked_fields(record.data, fields)))
    trial.absent = _absent_lines(absent)
    _look_at_bad(trial, pipeline.source.event, page, personal)


def _look_at_bad(
    trial: SourceTrial, own: str, page: Page, personal: Mapping[str, list[str] | None]
) -> None:
    from waybill.parking import masked_words, own_words

    for bad in page.bad:
        trial.rows[own] += 1
        fields: Sequence[str] | None = personal.get(own)
        if own in personal and isinstance(row := _json_of(bad.raw), dict):
            fields = personal_or_likely(fields, row)
        message = masked_words(bad.raw, bad.message, fields)
        if message == MASK:
            message = own_words("ingestion", bad.message)
        if message == MASK and (said := _EXPECTED.match(bad.message)):
            message = f"{said[0]}{MASK}"
        _note(trial, own, bad.code, f"{bad.place}: {message}")


def _json_of(raw: bytes) -> Any:
    """Return what a record is as JSON; None: it is none, as a line of CSV."""
    try:
        return loads(raw)
    except (ValueError, RecursionError):
        return None


def _absent_lines(absent: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"no row has field {name!r}, which is declared as {use} of {event}"
        for event, names in absent.items()
        for name, use in names.items()
    ]


def _needed(draft: Draft, event: str, record: Record) -> dict[str, str]:
    """Return {field: "key" or "version"} of what an ingestion needs of a row, as declared."""
    declared, missing = draft.pipeline.events[event], draft.missing[event]
    needed = {} if "key" in missing else dict.fromkeys(declared.key, "key")
    if declared.version is not None and record.version is None:
        needed.setdefault(declared.version, "version")
    return needed


def _check(record: Record, declared: EventDeclaration, needed: Mapping[str, str]) -> None:
    """Raise the ``ParkError`` that an ingestion would park a row of a declared event with."""
    if record.version is None:
        source_version(record.data, declared.version)
    if "key" in needed.values():
        ordering_key(record.data, declared.key)
    encode_data(record.data)


def _note(trial: SourceTrial, event: str, code: str, message: str) -> None:
    trial.parked[event, code] += 1
    trial.reasons.setdefault((event, code), message)
