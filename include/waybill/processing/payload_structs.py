"""Payloads read straight into columns, where they hold the fields that those before them held.

Of the events of one name nearly all have the same fields. A structure is made of those that were
met (msgspec), into which later payloads are read without a dict or a name for each; a number for
a float64 is read as one. What does not fit it is read as dicts, and makes it wider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from waybill.events import payloads_reader

_MOST_FIELDS = 256
"""Of a structure; payloads with more are read as dicts."""
_NUMBER = float | int | None
_read_any = payloads_reader(Any)
_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines


class StructPayloads:
    """Payloads, all objects, by column.

    Args:
        names: of their fields.
        payloads: structures of these fields.
        make_rest: makes a structure of the values of those that have no type; None: all have one.
        types: of fields.
    """

    def __init__(
        self,
        names: Sequence[str],
        payloads: Sequence[Any],
        make_rest: Callable[..., Any] | None,
        types: Mapping[str, str],
    ) -> None:
        values = list(chain.from_iterable(map(msgspec.structs.astuple, payloads)))
        self._columns = {name: values[n :: len(names)] for n, name in enumerate(names)}
        self._count = len(payloads)
        self._make_rest = make_rest
        self._types = types

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def has(self, name: str) -> bool:
        """Tell whether there is such a field."""
        return name in self._columns

    def column(self, name: str) -> Sequence[Any]:
        """Return a field's values; each None where there is no such field."""
        return self._columns.get(name) or [None] * self._count

    def rest(self) -> list[str | None]:
        """Return the fields that have no type as JSON; None where there are none.

        Raises:
            Exception: a value that msgspec does not write.
        """
        if self._make_rest is None:
            return [None] * self._count
        columns = [values for name, values in self._columns.items() if name not in self._types]
        texts = _encode_lines(map(self._make_rest, *columns)).decode().split("\n")
        return [None if text == "{}" else text for text in texts[:-1]]

    def rest_objects(self) -> list[dict[str, Any]]:
        """Return the same as objects."""
        columns = {name: c for name, c in self._columns.items() if name not in self._types}
        return [
            {
                name: values[place]
                for name, values in columns.items()
                if values[place] is not msgspec.UNSET
            }
            for place in range(self._count)
        ]


class PayloadReader:
    """Reads the payloads of one event name, slice by slice.

    Args:
        types: of the fields that have one, see ``field_types``.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        self._names: tuple[str, ...] = ()
        self._floats = frozenset(name for name, kind in types.items() if kind == "float64")
        self._decode: Callable[[bytes | bytearray | memoryview], list[Any]] | None = None
        self._make_rest: Callable[..., Any] | None = None

    def read(self, body: bytes | bytearray | memoryview) -> StructPayloads | list[Any]:
        """Return the payloads of a JSON array; at least one.

        Raises:
            ValueError: one cannot be read; msgspec's own errors among them.
            RecursionError: likewise.
        """
        if self._decode is not None:
            try:
                read = self._decode(body)
            except (ValueError, RecursionError):
                pass
            else:
                return StructPayloads(self._names, read, self._make_rest, self._types)
        payloads = _read_any(body)
        self._learn(payloads)
        return payloads

    def _learn(self, payloads: Sequence[Any]) -> None:
        """Make the structure wider for payloads that did not fit it."""
        if len(self._names) > _MOST_FIELDS or set(map(type, payloads)) != {dict}:
            return
        names = tuple(dict.fromkeys(chain(self._names, chain.from_iterable(payloads))))
        if names == self._names and self._decode is not None:
            self._floats = frozenset()  # a value of another type stands in such a field
        self._names = names
        self._decode = None
        if 0 < len(names) <= _MOST_FIELDS:
            try:
                self._make()
            except ValueError:  # a name that msgspec takes for no field's
                self._names = ("",) * (_MOST_FIELDS + 1)

    def _make(self) -> None:
        fields = [(f"f{number}", name) for number, name in enumerate(self._names)]
        payload = msgspec.defstruct(
            "Payload",
            [
                (
                    field,
                    _NUMBER if name in self._floats else Any,
                    None if name in self._types else msgspec.UNSET,
                )
                for field, name in fields
            ],
            rename=dict(fields),
            forbid_unknown_fields=True,
            gc=False,
        )
        others = [(field, name) for field, name in fields if name not in self._types]
        self._make_rest = None
        if others:
            self._make_rest = msgspec.defstruct(
                "Rest", [(field, Any) for field, _ in others], rename=dict(others), gc=False
            )
        self._decode = payloads_reader(payload)
