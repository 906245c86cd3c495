"""A declaration proposed from events: key, version and columns, for somebody to look at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from waybill.errors import InputError
from waybill.mappings.evolution import learn, row_of, with_table
from waybill.mappings.flattening import decode_path, encode_path, whole_fields
from waybill.mappings.inference import proposed_type, type_of_all
from waybill.mappings.naming import NameRules, name_fields, plain_name
from waybill.pipelines import ChildTable, Column, EventDeclaration, TableSpec

_KEY_TYPES = ("timestamp", "date", "string", "int64", "bool")
"""Types that a key field may have; in a key of several, the likeliest first."""
_KEY_FIELDS = 3
_FIELDS_TRIED = 16
"""Of which combinations are tried for a key."""
_VERSIONS = (
    "updated_at",
    "modified_at",
    "last_modified",
    "last_updated",
    "last_modified_at",
    "last_updated_at",
    "updated_on",
    "modified_on",
    "update_time",
    "updated_time",
    "modified_time",
    "changed_at",
    "changed",
    "updated",
    "modified",
    "version",
    "row_version",
    "revision",
    "lsn",
    "sequence",
    "seq",
)
"""Plain names of fields that rise with each change of a record, the likeliest first."""


def propose_key(
    payloads: Sequence[Mapping[str, Any]], name: str, among: Collection[str] | None = None
) -> tuple[str, ...]:
    """Return the fields that tell all events apart and are never null; none: ().

    One field if that can be, ``id`` and the like before others; else two, else three. That they are
    unique in a sample does not say that they always are.

    Args:
        payloads: of one event name; a record that changed may be in it once only.
        name: the event's: ``order_id`` is likely the key of ``order``.
        among: fields that may be chosen; None: all.
    """
    fields = [one for one in _common_fields(payloads) if among is None or one in among]
    kinds = {one: type_of_all(payload[one] for payload in payloads) for one in fields}
    fields = [one for one in fields if kinds[one] in _KEY_TYPES]
    fields.sort(key=lambda one: (_unlikely(one, name), _KEY_TYPES.index(kinds[one] or "")))
    for number in range(1, _KEY_FIELDS + 1):
        tried = fields if number == 1 else fields[:_FIELDS_TRIED]
        for chosen in combinations(tried, number):
            if _tell_apart(payloads, chosen):
                return chosen
    return ()


def propose_version(
    payloads: Sequence[Mapping[str, Any]],
    among: Collection[str] | None = None,
    types: Mapping[str, str] | None = None,
) -> str | None:
    """Return the field that by its name rises with each change of a record; None: there is none.

    Args:
        payloads: of one event name.
        among: fields that may be chosen; None: all.
        types: of fields whose values do not say it, such as times that are text without a zone.
    """
    found: dict[str, str] = {}
    for one in _common_fields(payloads):
        if among is None or one in among:
            kind = (types or {}).get(one) or type_of_all(payload[one] for payload in payloads)
            if kind in {"int64", "timestamp"}:
                found.setdefault(plain_name(one), one)
    return next((found[name] for name in _VERSIONS if name in found), None)


def propose(
    base: EventDeclaration,
    payloads: Sequence[Mapping[str, Any]],
    key: Mapping[str, str],
    rules: NameRules,
) -> EventDeclaration:
    """Return a declaration with a column for each field that these payloads have.

    Args:
        base: of which all but key and columns is taken.
        payloads: as the mapping gets them.
        key: column names of the key, by payload field.
        rules: of the destination.

    Raises:
        InputError: a key field is missing or null somewhere, or of no type that a key can have.
    """
    columns = tuple(
        Column(
            name=name,
            type=_key_type(base.name, field, payloads),
            nullable=False,
            source=encode_path((field,)) if base.nested == "flatten" else field,
        )
        for field, name in key.items()
    )
    table = TableSpec.model_validate(
        {**dict(base.table), "columns": columns, "key": tuple(key.values())}
    )
    start = EventDeclaration.model_validate(
        {**dict(base), "table": table, "key": tuple(key), "policy": "evolve"}
    )
    learned = learn(start, payloads, rules) or start
    whole = _taken_whole(learned)
    named = [c for c in learned.table.columns if c.source and not _is_inside(c.source, whole)]
    children = [
        _declarable(child)
        for child in learned.table.children
        if child.source and not _is_inside(child.source, whole)
    ]
    learned = with_table(learned, as_wide_as_seen(learned, named, payloads), children)
    return learned.model_copy(update={"policy": base.policy})


def as_wide_as_seen(
    learned: EventDeclaration,
    columns: Sequence[Column],
    payloads: Sequence[Mapping[str, Any]],
) -> list[Column]:
    """Return columns whose decimals are as wide as their values are, with some room."""
    wide = {one.source: one for one in columns if one.nullable and one.type.startswith("decimal")}
    if not wide:
        return list(columns)
    values: dict[str, list[Any]] = {source: [] for source in wide}
    whole = whole_fields(learned.table.columns)
    for payload in payloads:
        row = row_of(learned, payload, whole)
        for source, some in values.items():
            some.append(row.get(source))
    kinds = {source: proposed_type(some) for source, some in values.items()}
    return [
        one.model_copy(update={"type": kinds[one.source] or one.type})
        if one.source in wide
        else one
        for one in columns
    ]


def key_names(
    fields: Iterable[str], payloads: Iterable[Mapping[str, Any]], rules: NameRules
) -> dict[str, str]:
    """Return column names for key fields, beside all fields of the payloads, by field."""
    chosen = list(fields)
    everything = {name for payload in payloads for name in payload if isinstance(name, str)}
    named = name_fields([*chosen, *sorted(everything.difference(chosen), key=repr)], {}, rules)
    return {field: named[field] for field in chosen}


def _taken_whole(declared: EventDeclaration) -> frozenset[str]:
    """Return the fields that a declared JSON column takes, with all that is inside them."""
    if declared.nested != "flatten":
        return frozenset()
    return frozenset(column.source for column in declared.table.columns if column.type == "json")


def _is_inside(source: str, fields: Collection[str]) -> bool:
    parts = decode_path(source) if fields else ()
    return any(encode_path(parts[:end]) in fields for end in range(1, len(parts)))


def _declarable(child: ChildTable) -> ChildTable:
    """Return a child table as a declaration takes it: the item itself has no column beside it."""
    named = tuple(column for column in child.columns if column.source)
    return child.model_copy(update={"columns": named}) if named else child


def _key_type(event: str, field: str, payloads: Sequence[Mapping[str, Any]]) -> str:
    values = [payload.get(field) for payload in payloads]
    if None in values:
        number = sum(value is None for value in values)
        raise InputError(
            f"event {event!r}: key field {field!r} is missing or null in {number} of "
            f"{len(values)} events; a key is never null"
        )
    kind = type_of_all(values)
    if kind is None or not kind.startswith((*_KEY_TYPES, "decimal")):
        raise InputError(f"event {event!r}: key field {field!r} holds {kind}; choose another")
    return kind


def _common_fields(payloads: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that all payloads have, and none with null, in the first one's order."""
    first = payloads[0] if payloads else {}
    return [
        name
        for name in first
        if isinstance(name, str) and all(one.get(name) is not None for one in payloads)
    ]


def _unlikely(field: str, event: str) -> int:
    """Return how unlikely a field is the key of an event, by its name."""
    plain = plain_name(field)
    named = plain_name(event)
    best = ["id", "_id", f"{named}_id", f"{named.rstrip('s')}_id", "uuid", "guid", "key", "number"]
    if plain in best:
        return best.index(plain)
    return len(best) + (not plain.endswith(("_id", "_key", "_number", "_no", "_uuid")))


def _tell_apart(payloads: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> bool:
    seen = {tuple(repr(payload[field]) for field in fields) for payload in payloads}
    return len(seen) == len(payloads)
