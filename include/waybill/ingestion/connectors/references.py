"""References of options to the connection that the source names: ``${connection.password}``.

A declaration says where a secret goes, and never what it is. Filled in when the source is read.
"""

from __future__ import annotations

import re
from typing import Any

from waybill.errors import InputError
from waybill.ingestion.connectors.connections import Connection

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_FIELDS = ("host", "port", "login", "password", "schema")
_EXTRA = "connection.extra."


def has_references(value: Any) -> bool:
    """Tell whether an option refers to the connection, at any depth."""
    if isinstance(value, str):
        return _REFERENCE.search(value) is not None
    if isinstance(value, dict):
        return any(map(has_references, value.values()))
    return isinstance(value, list) and any(map(has_references, value))


def filled_in(value: Any, connection: Connection | None, place: str) -> Any:
    """Return an option with what its references stand for; a text that is one alone keeps its type.

    Raises:
        InputError: a reference to what there is not.
    """
    if isinstance(value, dict):
        return {k: filled_in(v, connection, f"{place}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [filled_in(one, connection, f"{place}.{n}") for n, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    alone = _REFERENCE.fullmatch(value)
    if alone is not None:
        return _value(alone[1], connection, place)
    return _REFERENCE.sub(lambda match: str(_value(match[1], connection, place)), value)


def _value(name: str, connection: Connection | None, place: str) -> Any:
    if connection is None:
        raise InputError(
            f"{place}: ${{{name}}} refers to the source's connection, and it has none; name one in"
            " source.connection"
        )
    field = name.removeprefix("connection.")
    if name.startswith(_EXTRA):
        extra = name.removeprefix(_EXTRA)
        if extra in connection.extra:
            return connection.extra[extra]
        known = [f"{_EXTRA}{one}" for one in connection.extra]
    elif field != name and field in _FIELDS:
        found = getattr(connection, field)
        found = found.get_secret_value() if field == "password" else found
        if found not in ("", None):
            return found
        known = []
        raise InputError(f"{place}: connection {connection.name!r} has no {field}")
    else:
        known = [f"connection.{one}" for one in _FIELDS] + [f"{_EXTRA}<name>"]
    raise InputError(
        f"{place}: ${{{name[:100]}}} refers to nothing; there are {', '.join(known) or 'none'}"
    )
