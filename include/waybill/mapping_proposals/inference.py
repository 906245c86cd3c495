"""Mappings inferred from the first events of a source; nothing is written anywhere.

The rows are read as an ingestion would, and go through the pipeline's transformation in forked
children, as in a dry run. What comes out is what the mapping would get. A declaration need not be
finished for that: a ``Draft`` has stand-ins for what it does not say yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from waybill.access import field_paths, likely_personal, personal_or_likely
from waybill.errors import InputError, ParkError
from waybill.events import Event, decode, decode_head, encode, encode_data, loads
from waybill.ingestion.connectors import Connector, Discovered, Record, first_pages
from waybill.mapping_proposals.mixed_columns import MixedColumn, holds, settle_mixed
from waybill.mappings import (
    NameRules,
    as_wide_as_seen,
    decode_path,
    key_names,
    learn,
    plain_name,
    propose,
    propose_key,
    propose_version,
    row_of,
    type_of_all,
    whole_fields,
    with_table,
)
from waybill.parking import masked_words
from waybill.pipelines import Column, EventDeclaration, Pipeline, load_completed
from waybill.processing import CodeRunner, Fault, Plan, outcomes_of

SAMPLE = 1_000
_CHUNK = 512
_MOST_RECORDS = 20
"""Of an event name that are kept as the source gave them."""


@dataclass(slots=True)
class Sample:
    """The first events of a source, as the mapping would get them."""

    read: int = 0
    bad: int = 0
    """Records that cannot become events."""
    filtered: int = 0
    payloads: dict[str, list[Any]] = field(default_factory=dict)
    """By event name; those of deletes are not here."""
    records: dict[str, list[bytes]] = field(default_factory=dict)
    """By event name: the first 20 that came through, as messages before the transformation."""
    own: int = 0
    """Rows of the source's own event name."""
    fields: Counter[str] = field(default_factory=Counter)
    """Of the source's rows: field to rows in which it is not null."""
    faults: Counter[str] = field(default_factory=Counter)
    """Error type of the transformation to events."""
    examples: dict[str, str] = field(default_factory=dict)
    """One message for each, without personal values."""

    def never_null(self) -> set[str]:
        """Return the source's fields that each of its rows has."""
        return {name for name, rows in self.fields.items() if rows == self.own}


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one event name would map to."""

    event: str
    declaration: EventDeclaration
    events: int
    """Of this name, in the sample."""
    missing: frozenset[str]
    """Those of ``key``, ``version``, ``personal``, ``columns`` that it does not declare."""
    present: dict[str, int]
    """Source of a column to the number of events in which it is not null."""
    declared: EventDeclaration | None
    """What is declared, if that has columns."""
    by_source: frozenset[str] = frozenset()
    """Those of ``key`` and ``version`` that the source itself says."""
    mixed: tuple[MixedColumn, ...] = ()
    """Columns whose values are of several kinds."""
    personal: tuple[str, ...] = ()
    """Fields that are personal by their names, where the declaration does not say which are."""
    masked: frozenset[str] = frozenset()
    """Sources of ``mixed`` whose values are not to be shown."""
    added: tuple[str, ...] = ()
    """Names of columns that are put behind those that are declared; see `added_columns`."""

    def to_json(self) -> dict[str, Any]:
        """Return the proposal as JSON."""
        return {
            "event": self.event,
            "declaration": self.declaration.to_json(),
            "events": self.events,
            "proposed": sorted(self.missing),
            "added": list(self.added),
            "present": self.present,
            "mixed": [one.to_json() for one in self.mixed],
            "likely_personal": list(self.personal),
        }


def take_sample(
    pipeline: Pipeline,
    connector: Connector,
    number: int,
    *,
    code: CodeRunner,
    personal: Mapping[str, Sequence[str] | None],
) -> Sample:
    """Return the first events of a source, transformed.

    Args:
        pipeline: with its transformation.
        connector: of its source, opened.
        number: records to read at most.
        code: runs the transformation.
        personal: the personal fields of each event name that is declared, None: those that likely
            are; messages about other event names are without any value.

    Raises:
        InputError: the source, or the transformation, cannot be read.
    """
    sample = Sample()
    plan = Plan(pipeline)
    events = _events(pipeline, islice(_rows(connector), number), sample)
    while chunk := list(islice(events, _CHUNK)):
        if plan.takes_tables and plan.pipeline is pipeline:
            plan = Plan(_typed(plan, chunk))
        messages = [encode(event) for event in chunk]
        outcomes = outcomes_of(chunk, code.run(plan, chunk, messages, None))
        for message, outcome in zip(messages, outcomes, strict=True):
            if not isinstance(outcome, Fault):
                _note(outcome, sample)
                _keep(message, outcome, sample)
            elif outcome.code == "code_invalid":
                raise InputError(outcome.message)
            else:
                _note_fault(message, outcome, sample, personal)
    return sample


def _typed(plan: Plan, events: list[Event]) -> Pipeline:
    """Return a pipeline whose tables have columns for fields of which nothing is declared yet."""
    pipeline = plan.pipeline
    known = plan.types(pipeline.source.event)
    values: dict[str, list[Any]] = {}
    for event in events:
        for name, value in event.data.items():
            values.setdefault(name, []).append(value)
    found = {name: type_of_all(some) for name, some in values.items() if name not in known}
    given = {name: kind for name, kind in found.items() if kind is not None}
    columns = given | (pipeline.source.columns or {})
    source = pipeline.source.model_copy(update={"columns": columns})
    return pipeline.model_copy(update={"source": source})


def _rows(connector: Connector) -> Iterator[Record | None]:
    """Yield a source's rows; None for a record that is none."""
    for page in first_pages(connector):
        for row in page.rows:
            yield row if isinstance(row, Record) else Record(row)
        for _ in page.bad:
            yield None


def _events(pipeline: Pipeline, rows: Iterator[Record | None], sample: Sample) -> Iterator[Event]:
    for number, row in enumerate(rows):
        sample.read += 1
        try:
            data = None if row is None else loads(encode_data(row.data))
        except ParkError:
            data = None
        if row is None or data is None:
            sample.bad += 1
            continue
        if row.op != "delete" and row.event in (None, pipeline.source.event):
            sample.own += 1
            sample.fields.update(name for name, value in data.items() if value is not None)
        yield Event(
            id=str(number),
            pipeline_id=pipeline.id,
            team=pipeline.team,
            name=row.event or pipeline.source.event,
            key="",
            source_version=0,
            intake_version=0,
            intake_minute=0,
            time="1970-01-01T00:00:00Z",
            data=data,
            op=row.op,
        )


def _note_fault(
    message: bytes, fault: Fault, sample: Sample, personal: Mapping[str, Sequence[str] | None]
) -> None:
    sample.faults[fault.code] += 1
    if fault.code not in sample.examples:
        event = decode(message)
        fields = None
        if event.name in personal:
            fields = personal_or_likely(personal[event.name], event.data)
        sample.examples[fault.code] = masked_words(message, fault.message, fields)


def _note(outcome: Event | list[Event] | None, sample: Sample) -> None:
    if outcome is None:
        sample.filtered += 1
    else:
        for event in outcome if isinstance(outcome, list) else [outcome]:
            if event.op != "delete" and isinstance(event.data, dict):
                sample.payloads.setdefault(event.name, []).append(event.data)


def _keep(message: bytes, outcome: Event | list[Event] | None, sample: Sample) -> None:
    """Keep a record as the source gave it: a transformation may have changed the event itself."""
    if not outcome:
        return
    event = decode_head(message)
    kept = sample.records.setdefault(event.name, [])
    if event.op != "delete" and len(kept) < _MOST_RECORDS:
        kept.append(message)


def infer(
    draft: Draft, sample: Sample, name: str, rules: NameRules, personal: Sequence[str] | None = None
) -> Proposal:
    """Return what an event name would map to.

    What the declaration says stays; where it has columns, what `learn` adds to them is proposed.
    Key, version, types and nulls are those that the source's schema says, where the events that
    the transformation gave agree with it.

    Args:
        draft: the pipeline.
        sample: of its source.
        name: of the event.
        rules: of the destination.
        personal: the fields that the declaration says are personal; None: it says nothing of them,
            and what is so by its name is proposed.

    Raises:
        InputError: there are no such events in the sample, or none of their fields is a key.
    """
    declared = draft.pipeline.events[name]
    payloads = sample.payloads.get(name, [])
    if not payloads:
        raise InputError(_no_events(sample, name))
    missing = draft.missing.get(name, frozenset())
    if not missing & {"key", "columns"}:
        missing = frozenset()
    among = sample.never_null() if name == draft.pipeline.source.event else None
    schema = _Schema.of(draft.found.get(name), payloads)
    if "version" in missing:
        version = schema.version or propose_version(payloads, among, schema.types)
        declared = declared.model_copy(update={"version": version})
    by_source = schema.says & missing
    if "columns" in missing:
        fields = schema.key if "key" in by_source else ()
        key = _key(declared, payloads, missing, among, rules, fields)
        learned = schema.refined(propose(declared, schema.filled(payloads), key, rules))
        learned, known = _in_order(learned, payloads), None
    else:
        if "key" in missing:
            declared, by_source = _with_key(declared, payloads, among), by_source - {"key"}
        learned, known = _grown(declared, payloads, rules, schema), declared
    stay = () if known is None else {column.name for column in known.table.columns}
    learned, mixed = settle_mixed(learned, payloads, stay, schema.doubtful_sources(learned))
    likely = _likely_personal(learned, payloads)
    proposed = likely if personal is None else _not_declared(likely, learned, known)
    if missing and proposed:
        missing, learned = missing | {"personal"}, learned.model_copy(update={"personal": proposed})
    return Proposal(
        event=name,
        declaration=learned,
        events=len(payloads),
        missing=missing,
        present=_present(learned, payloads),
        declared=known,
        by_source=by_source,
        mixed=mixed,
        personal=proposed,
        masked=_masked(mixed, {*likely, *(personal or ())}),
    )


def added_columns(proposal: Proposal) -> Proposal | None:
    """Return of what is proposed for a declared event the columns that it lacks; None: it has all.

    What is declared stays as it is; a new column takes null, as rows that are there have none.
    """
    declared = proposal.declared
    if declared is None or proposal.missing:
        return None
    new = _new_columns(proposal.declaration, declared)
    if not new:
        return None
    columns = [*declared.table.columns, *new]
    return replace(
        proposal,
        declaration=with_table(declared, columns, declared.table.children),
        added=tuple(column.name for column in new),
    )


def _new_columns(learned: EventDeclaration, declared: EventDeclaration) -> list[Column]:
    known = {column.source for column in declared.table.columns}
    return [column for column in learned.table.columns if column.source not in known]


def _not_declared(
    fields: Sequence[str], learned: EventDeclaration, declared: EventDeclaration | None
) -> tuple[str, ...]:
    """Return those of some fields that only new columns have: nobody said if they are personal."""
    if declared is None:
        return ()
    paths = (".".join(_path(column, learned)) for column in _new_columns(learned, declared))
    sources = [*paths]
    return tuple(one for one in fields if any(_is_in(one, source) for source in sources))


def _grown(
    declared: EventDeclaration, payloads: list[Any], rules: NameRules, schema: _Schema
) -> EventDeclaration:
    """Return a declaration with what `learn` adds to it, whatever its policy is."""
    evolving = declared.model_copy(update={"policy": "evolve"})
    learned = learn(evolving, schema.filled(payloads), rules) or declared
    known = {column.source for column in declared.table.columns}
    columns = [column for column in learned.table.columns if column.source in known]
    for column in as_wide_as_seen(learned, _new_columns(learned, declared), payloads):
        columns.append(schema.typed(column, learned))
    learned = _in_order(with_table(learned, columns, learned.table.children), payloads, known)
    return learned.model_copy(update={"policy": declared.policy})


def _likely_personal(learned: EventDeclaration, payloads: list[Any]) -> tuple[str, ...]:
    """Return the fields that are personal by their names, as a declaration writes them."""
    paths = learned.nested == "flatten"
    fields = dict.fromkeys(".".join(path) for path in likely_personal(payloads))
    sources = [column.source for column in learned.table.columns]
    sources += [child.source for child in learned.table.children]
    sources = [".".join(decode_path(source)) for source in sources] if paths else sources
    return tuple(field for field in fields if _has_column(field, sources, paths=paths))


def _has_column(field: str, sources: Sequence[str], *, paths: bool) -> bool:
    return any(
        _is_in(field, source) or (paths and source.startswith(f"{field}.")) for source in sources
    )


def _is_in(field: str, other: str) -> bool:
    return field == other or field.startswith(f"{other}.")


def _masked(mixed: Sequence[MixedColumn], personal: set[str]) -> frozenset[str]:
    """Return the sources of columns that are personal, or in or around what is."""
    fields = {path for field in personal for path in field_paths(field)}
    return frozenset(
        column.source
        for column in mixed
        for source in field_paths(column.source)
        if any(_is_in(source, field) or _is_in(field, source) for field in fields)
    )


@dataclass(frozen=True, slots=True)
class _Schema:
    """What a source's schema says of the fields that its events still have."""

    key: tuple[str, ...] = ()
    version: str | None = None
    types: dict[str, str] = field(default_factory=dict)
    """Field to a column type that holds each of its values; of a field without any, too."""
    empty: frozenset[str] = frozenset()
    """Fields of ``types`` that are null in each event."""
    never_null: frozenset[str] = frozenset()
    doubtful: Mapping[str, str] = field(default_factory=dict)
    """Field to a column type that does not hold each of its values."""

    @classmethod
    def of(cls, found: Discovered | None, payloads: list[Any]) -> _Schema:
        """Return what of a schema the events agree with."""
        if found is None:
            return cls()
        values = {
            name: [payload[name] for payload in payloads if payload.get(name) is not None]
            for name in {*found.columns, *found.key, *([found.version] if found.version else [])}
            if any(name in payload for payload in payloads)
        }
        full = {name for name, some in values.items() if len(some) == len(payloads)}
        is_version = {
            name
            for name in values.keys() & {found.version}
            if holds("int64", values[name]) or holds("timestamp", values[name])
        }
        known = {name: kind for name, kind in found.columns.items() if name in values}
        types = {name: kind for name, kind in known.items() if holds(kind, values[name])}
        return cls(
            key=found.key if full.issuperset(found.key) else (),
            version=found.version if full & is_version else None,
            types=types,
            doubtful={name: kind for name, kind in known.items() if name not in types},
            empty=frozenset(name for name in found.columns if values.get(name) == []),
            never_null=found.never_null & full,
        )

    @property
    def says(self) -> frozenset[str]:
        """Return which of ``key`` and ``version`` it has."""
        given = {"key": self.key, "version": self.version}
        return frozenset(name for name, value in given.items() if value)

    def filled(self, payloads: list[Any]) -> list[Any]:
        """Return events of which one has a value for each field that all have null in."""
        examples = {name: _EXAMPLES[self.types[name].partition("(")[0]] for name in self.empty}
        return [payloads[0] | examples, *payloads[1:]] if examples else payloads

    def refined(self, learned: EventDeclaration) -> EventDeclaration:
        """Return a declaration whose columns have the types and nulls that the schema says."""
        columns = [self._refined(one, learned) for one in learned.table.columns]
        return with_table(learned, columns, learned.table.children)

    def doubtful_sources(self, learned: EventDeclaration) -> dict[str, str]:
        """Return ``doubtful``, by the sources of a declaration's columns."""
        paths = ((one.source, _path(one, learned)) for one in learned.table.columns)
        return {
            source: self.doubtful[parts[0]]
            for source, parts in paths
            if len(parts) == 1 and parts[0] in self.doubtful
        }

    def _refined(self, column: Column, learned: EventDeclaration) -> Column:
        parts = _path(column, learned)
        if column.name in learned.table.key or len(parts) != 1:
            return column
        nullable = parts[0] not in self.never_null
        return self.typed(column, learned).model_copy(update={"nullable": nullable})

    def typed(self, column: Column, learned: EventDeclaration) -> Column:
        """Return a column with the type that the schema says, where that is the better one."""
        parts = _path(column, learned)
        kind = self.types.get(parts[0], "") if len(parts) == 1 else ""
        is_exact = kind.partition("(")[0] in _SCHEMA_TYPES or parts[0] in self.empty
        return column.model_copy(update={"type": kind}) if kind and is_exact else column


def _path(column: Column, declared: EventDeclaration) -> tuple[str, ...]:
    """Return the fields, one inside the other, that a column is read from."""
    return decode_path(column.source) if declared.nested == "flatten" else (column.source,)


def _in_order(
    learned: EventDeclaration, payloads: list[Any], first: Collection[str] = ()
) -> EventDeclaration:
    """Return a declaration whose columns are in the order that the events have their fields in.

    Those whose sources are among ``first`` stay before all others, as they are.
    """
    fields = dict.fromkeys(name for payload in payloads for name in payload)
    places = {name: place for place, name in enumerate(fields)}

    def place(column: Column) -> int:
        own = places.get(_path(column, learned)[0], len(places))
        return -1 if column.source in first else own

    columns = sorted(learned.table.columns, key=place)
    return with_table(learned, columns, learned.table.children)


_SCHEMA_TYPES = frozenset({"bool", "timestamp", "date", "float64", "decimal", "bytes"})
"""Types that a schema says better than values do; of text and integers the values may say more."""
_EXAMPLES: Mapping[str, Any] = {
    "bool": True,
    "timestamp": "2000-01-01T00:00:00Z",
    "date": "2000-01-01",
    "float64": 0.5,
    "decimal": 1,
    "bytes": "AA==",
    "int64": 1,
    "string": "text",
}


def _key(
    declared: EventDeclaration,
    payloads: list[Any],
    missing: frozenset[str],
    among: set[str] | None,
    rules: NameRules,
    known: tuple[str, ...],
) -> dict[str, str]:
    """Return the names of the key's columns, by field: as declared, as known, or as proposed."""
    if "key" not in missing:
        return dict(zip(declared.key, declared.table.key, strict=True))
    return key_names(known or _proposed_key(declared.name, payloads, among), payloads, rules)


def _proposed_key(name: str, payloads: list[Any], among: set[str] | None) -> tuple[str, ...]:
    fields = propose_key(payloads, name, among)
    if not fields:
        raise InputError(
            f"event {name!r}: no field, and no combination of up to three, is never null and "
            f"different in each of {len(payloads):,} events; declare the key with `key:`"
        )
    return fields


def _with_key(
    declared: EventDeclaration, payloads: list[Any], among: set[str] | None
) -> EventDeclaration:
    """Return a declaration that has columns with a key among them."""
    named: dict[str, str] = {}
    for column in declared.table.columns:
        parts = _path(column, declared)
        if len(parts) == 1 and (among is None or parts[0] in among):
            named[parts[0]] = column.name
    fields = _proposed_key(declared.name, payloads, set(named))
    key = tuple(named[one] for one in fields)
    columns = [
        column.model_copy(update={"nullable": False}) if column.name in key else column
        for column in declared.table.columns
    ]
    table = declared.table.model_copy(update={"key": key})
    keyed = declared.model_copy(update={"key": fields, "table": table})
    return with_table(keyed, columns, table.children)


def _present(found: EventDeclaration, payloads: list[Any]) -> dict[str, int]:
    counts: Counter[str] = Counter({column.source: 0 for column in found.table.columns})
    whole = whole_fields(found.table.columns)
    for payload in payloads:
        fields = row_of(found, payload, whole)
        counts.update(one for one, value in fields.items() if value is not None and one in counts)
    return dict(counts)


def _no_events(sample: Sample, name: str) -> str:
    reasons = [f"{sample.read:,} records were read"]
    reasons += [f"{sample.bad:,} of them are not events"] if sample.bad else []
    reasons += [f"{sample.filtered:,} were filtered"] if sample.filtered else []
    for code, number in sample.faults.most_common(3):
        reasons.append(f"{number:,} failed in the transformation: {code}: {sample.examples[code]}")
    others = sorted(set(sample.payloads) - {name})
    reasons += [f"there are events {', '.join(map(repr, others))}"] if others else []
    return f"there is no event {name!r} to infer from: {'; '.join(reasons)}"


_STAND_IN = "key"


@dataclass(slots=True)
class Draft:
    """A pipeline's folder, loaded with stand-ins for what its declaration does not say yet."""

    directory: Path
    pipeline: Pipeline
    missing: dict[str, frozenset[str]] = field(default_factory=dict)
    """Event name to those of ``key``, ``version``, ``columns`` that it does not say."""
    found: dict[str, Discovered] = field(default_factory=dict)
    """Event name to what its source says."""

    @property
    def declared_key(self) -> tuple[str, ...]:
        """The key that the declaration has for the source's own event; empty: it has none."""
        own = self.pipeline.source.event
        if own not in self.pipeline.events or self.missing.get(own, frozenset()) & _NO_KEY:
            return ()
        return self.pipeline.events[own].key


_NO_KEY = frozenset({"event", "key"})


def load_draft(directory: Path, found: Iterable[Discovered] | None = None) -> Draft:
    """Return a pipeline's folder; events may lack columns and key.

    Args:
        directory: the folder.
        found: what its source has; what of it is not declared is put in, and the source's own
            event name. None: nothing is.

    Raises:
        DeclarationError: something else is wrong; lists all.
    """
    missing: dict[str, frozenset[str]] = {}
    found = None if found is None else list(found)
    versioned = {one.event for one in found or () if one.versions_itself}

    def complete(value: Any) -> Any:
        value = deepcopy(value)
        if found is not None and isinstance(value, dict):
            _put_in(value, found, missing)
        events = value.get("events") if isinstance(value, dict) else None
        for name, event in events.items() if isinstance(events, dict) else ():
            if isinstance(event, dict) and name not in missing:
                missing[str(name)] = _complete(event, _source_columns(value, name))
        for name in versioned & missing.keys():
            missing[name] -= {"version"}
        return value

    known = {one.event: one for one in found or ()}
    return Draft(directory, load_completed(directory, complete), missing, known)


def _put_in(
    value: dict[str, Any], found: Iterable[Discovered], missing: dict[str, frozenset[str]]
) -> None:
    """Put events into a declaration that it does not have."""
    source = value.get("source")
    own = source.get("event") if isinstance(source, dict) else None
    events = value.get("events") or {}
    if not isinstance(events, dict) or not isinstance(own, str):
        return
    value["events"] = events
    for one in (*found, Discovered(own, own)):
        if one.event in events:
            continue
        key = list(one.key) or [_STAND_IN]
        columns = {name: _stand_in(name, []) for name in key}
        table = plain_name(one.table or one.event) or "events"
        event = {"key": key, "table": table, "columns": columns}
        events[one.event] = event if one.version is None else {**event, "version": one.version}
        known = {"key": bool(one.key), "version": one.version is not None}
        missing[one.event] = NOT_DECLARED | {
            name for name, is_known in known.items() if not is_known
        }


NOT_DECLARED = frozenset({"event", "columns"})
"""Of an event that the declaration does not have; ``key`` or ``version``: nor does its source."""


def _source_columns(value: dict[str, Any], name: str) -> list[str]:
    source = value.get("source")
    if not isinstance(source, dict) or source.get("event") != name:
        return []
    columns = source.get("columns")
    return [one for one in columns if isinstance(one, str)] if isinstance(columns, dict) else []


def _complete(event: dict[str, Any], fields: list[str]) -> frozenset[str]:
    """Put stand-ins into an event for what it does not say; return what that is."""
    missing = {name for name in ("key", "columns") if not event.get(name)}
    missing |= {name for name in ("version", "personal") if name not in event}
    if "columns" in missing:
        if isinstance(event.get("personal"), list):
            event["personal"] = []  # names are checked when there are columns
        keys = event.get("key") or [_STAND_IN]
        names = [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
        event["columns"] = {key: _stand_in(key, fields) for key in names or [_STAND_IN]}
    if "key" in missing and isinstance(event["columns"], dict):
        event["key"] = list(event["columns"])[:1]
    return frozenset(missing)


def _stand_in(key: str, fields: list[str]) -> dict[str, Any]:
    """Return a column that reads the source's column which is most likely meant."""
    if not fields or key in fields:
        return {"type": "string"}
    like = [one for one in fields if plain_name(one) == key]
    if like or key == _STAND_IN:
        return {"type": "string", "from": (like or fields)[0]}
    return {"type": "string"}
