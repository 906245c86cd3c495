"""Declarations that are not finished: their mapping is inferred from the source's first events."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waybill.mappings import plain_name
from waybill.pipelines import Pipeline, load_completed

_STAND_IN = "key"


@dataclass(slots=True)
class Draft:
    """A pipeline's folder, loaded with stand-ins for what its declaration does not say yet."""

    directory: Path
    pipeline: Pipeline
    missing: dict[str, frozenset[str]] = field(default_factory=dict)
    """Event name to those of ``key``, ``version``, ``columns`` that it does not say."""


def load_draft(directory: Path) -> Draft:
    """Return a pipeline's folder; events may lack columns and key.

    Raises:
        DeclarationError: something else is wrong; lists all.
    """
    missing: dict[str, frozenset[str]] = {}

    def complete(value: Any) -> Any:
        value = deepcopy(value)
        events = value.get("events") if isinstance(value, dict) else None
        for name, event in events.items() if isinstance(events, dict) else ():
            if isinstance(event, dict):
                missing[str(name)] = _complete(event, _source_columns(value, name))
        return value

    return Draft(directory, load_completed(directory, complete), missing)


def _source_columns(value: dict[str, Any], name: str) -> list[str]:
    source = value.get("source")
    if not isinstance(source, dict) or source.get("event") != name:
        return []
    columns = source.get("columns")
    return [one for one in columns if isinstance(one, str)] if isinstance(columns, dict) else []


def _complete(event: dict[str, Any], fields: list[str]) -> frozenset[str]:
    """Put stand-ins into an event for what it does not say; return what that is."""
    missing = {name for name in ("key", "columns") if not event.get(name)}
    if "version" not in event:
        missing.add("version")
    if "columns" in missing:
        # what is masked is checked when there are columns
        event.pop("personal", None)
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
