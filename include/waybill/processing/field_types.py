"""The fields of an event name as columns of a table, for transformations that take tables.

A field's type is the one that the source declares (``source.columns``), else the one of the column
that reads it. A field that several columns read has the narrowest type that holds what all of them
take, exactly. What is flattened, or becomes rows of a child table, is ``json``, and so is a field
whose columns no type holds: its JSON text. Fields without a type share the column ``_rest``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from waybill.mappings import decode_path
from waybill.pipelines import EventDeclaration, widened

ROW = "_row"
EVENT_ID, EVENT_NAME, KEY, OP = "_event_id", "_event_name", "_key", "_op"
SOURCE_VERSION, INTAKE_VERSION, TIME = "_source_version", "_intake_version", "_time"
REST = "_rest"
MOST_ROWS = 1024
"""Of a table that code is given."""
ERROR, ERROR_TYPE = "_error", "_error_type"
RESERVED = frozenset(
    {
        ROW, EVENT_ID, EVENT_NAME, KEY, OP, SOURCE_VERSION, INTAKE_VERSION, TIME,
        REST, ERROR, ERROR_TYPE,
    }
)  # fmt: skip
"""Names of columns that are no fields; a field of such a name is part of ``_rest``."""


def types_of(declared: EventDeclaration | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the column type of each field that has a column in the table.

    Args:
        declared: the mapping in force of the event name; None: there is none.
        given: types of fields that its source declares.
    """
    types: dict[str, str] = {}
    for name, kind in [] if declared is None else _reads(declared):
        known = types.setdefault(name, kind)
        if known != kind:
            types[name] = widened(known, kind) or "json"
    types.update(given)
    return {name: kind for name, kind in types.items() if name not in RESERVED}


def reads_only_columns(declared: EventDeclaration) -> bool:
    """Tell whether a mapping reads nothing of ``_rest``: no field has a reserved name."""
    return RESERVED.isdisjoint(name for name, _ in _reads(declared))


def _reads(declared: EventDeclaration) -> Iterator[tuple[str, str]]:
    """Yield the fields of a payload that a mapping reads, with the type that it reads."""
    table, flat = declared.table, declared.nested == "flatten"
    for source, kind in [
        *((column.source, column.type) for column in table.columns),
        *((child.source, "json") for child in table.children),
    ]:
        name, *inner = decode_path(source) if flat else (source,)
        yield name, "json" if inner else kind
