r"""Objects in a payload become fields of their own: ``{"a": {"b": 1}}`` is ``{"a.b": 1}``.

A field's path is its parts joined by ``.``; ``\`` and ``.`` inside a part have a ``\`` before
them. So no two fields have one path, and each path is read back as its parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from waybill.pipelines import Column

_SPECIAL = re.compile(r"[\\.]")
_TOKEN = re.compile(r"\\(.)|(\.)|([^\\.]+)", re.DOTALL)


def encode_path(parts: Sequence[str]) -> str:
    """Return the path of a field: one part or more, the outermost first."""
    return ".".join(map(_escaped, parts))


@lru_cache(maxsize=4096)
def _escaped(part: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", part)


def decode_path(source: str) -> tuple[str, ...]:
    r"""Return the parts of a path.

    Any text is one; a ``\`` at its end stands for itself.
    """
    parts = [""]
    for escaped, dot, plain in _TOKEN.findall(source + "\\" * _open_end(source)):
        if dot:
            parts.append("")
        else:
            parts[-1] += escaped or plain
    return tuple(parts)


def _open_end(source: str) -> bool:
    r"""Tell whether the last character is a ``\`` with nothing to stand before."""
    return (len(source) - len(source.rstrip("\\"))) % 2 == 1


def whole_fields(columns: Iterable[Column]) -> frozenset[str]:
    """Return the paths that `flatten` leaves whole: of JSON columns, if no column is inside one."""
    columns = list(columns)
    around: set[str] = set()
    for column in columns:
        parts = decode_path(column.source)
        around.update(encode_path(parts[:end]) for end in range(1, len(parts)))
    return frozenset(c.source for c in columns if c.type == "json") - around


def fields_of(
    payload: Mapping[str, Any], depth: int, whole: Collection[str] = frozenset()
) -> dict[str, Any]:
    """Return what `flatten` does, without empty objects: they have no field. See there."""
    flat = flatten(payload, depth, whole)
    return {
        path: value
        for path, value in flat.items()
        if not isinstance(value, dict) or value or path in whole
    }


def flatten(
    payload: Mapping[str, Any], depth: int, whole: Collection[str] = frozenset()
) -> dict[str, Any]:
    """Return a payload's fields by path.

    Objects are followed ``depth`` levels down; one that lies deeper is a value, and so is an empty
    one, one with names that are no text, and one at a path of ``whole``. Arrays are values. Cost:
    about 0.2 µs a field.
    """
    flat: dict[str, Any] = {}
    for name, value in payload.items():
        if isinstance(value, dict) and isinstance(name, str):
            _put(flat, _escaped(name), value, depth, whole)
        else:
            flat[_escaped(name) if isinstance(name, str) else name] = value
    return flat


def _put(
    flat: dict[str, Any],
    path: str,
    value: Any,
    depth: int,
    whole: Collection[str],
) -> None:
    if not isinstance(value, dict) or depth < 1 or not _has_fields(value) or path in whole:
        flat[path] = value
        return
    prefix = path + "."
    for name, inner in value.items():
        if isinstance(inner, dict):
            _put(flat, prefix + _escaped(name), inner, depth - 1, whole)
        else:
            flat[prefix + _escaped(name)] = inner


def _has_fields(value: Mapping[Any, Any]) -> bool:
    kinds = set(map(type, value))
    return kinds == {str} or (bool(kinds) and all(isinstance(name, str) for name in value))
