"""Rows that share the last cursor value: which of them were sent.

A run ends at a cursor value, and more rows of that very value may be committed later, with any key.
So the next run begins at the value itself, and leaves out what was sent: the rows of a known
digest. Of more than ``MOST_KNOWN`` rows only their number is kept: while the table has as many, all
were sent; else all of them are sent again, and known by id and version.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waybill.events import dumps
from waybill.ingestion.connectors.sql_values import json_value

MOST_KNOWN = 2_000
"""Rows of one cursor value that are known one by one; 16 bytes each in the cursor."""
_DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class Ties:
    """What was sent of the rows of one cursor value."""

    value: Any = None
    """Theirs; of text, one of those that the database has for equal."""
    met: int = 0
    """Rows that were read, up to the position, since the value was begun with."""
    sent: tuple[str, ...] | None = ()
    """Their digests, in the order in which they were met; None: they are too many."""
    skip: frozenset[str] = frozenset()
    """Digests of rows that an earlier run sent: to be left out."""

    @classmethod
    def of(cls, value: Any, cursor: Mapping[str, Any]) -> Ties:
        """Return what a cursor says of its value's rows; one of an older release, nothing.

        Raises:
            TypeError, ValueError: it is not of ``to_json``.
        """
        told, met = cursor.get("sent", ()), int(cursor.get("met", 0))
        sent = None if told is None else tuple(map(str, told))
        return cls(value, met, sent, frozenset(sent or ()))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a cursor."""
        return {"met": self.met, "sent": None if self.sent is None else list(self.sent)}

    def anew(self) -> Ties:
        """Return what is known when the value's rows are read from their first one again."""
        return Ties(self.value, 0, (), self.skip)

    def fresh(self, rows: Sequence[Sequence[Any]]) -> list[int]:
        """Return the indexes of the rows that were not sent."""
        return [index for index, row in enumerate(rows) if digest(row) not in self.skip]

    def after(
        self, rows: Sequence[Sequence[Any]], place: int, equal: Callable[[Any, Any], bool]
    ) -> Ties:
        """Return what is known behind some more rows, sent now or before.

        Args:
            rows: in the order of the cursor; at least one.
            place: where a row has its cursor.
            equal: tells whether the database has two values of the cursor for one.
        """
        value = rows[-1][place]
        first = len(rows)
        while first and equal(rows[first - 1][place], value):
            first -= 1
        before = self if equal(value, self.value) else Ties(value)
        met = before.met + len(rows) - first
        if before.sent is None or met > MOST_KNOWN:
            return Ties(value, met, None)
        known = dict.fromkeys([*before.sent, *map(digest, rows[first:])])
        known.update(dict.fromkeys(before.skip))
        if len(known) > MOST_KNOWN:
            return Ties(value, met, None)
        return Ties(value, met, tuple(known), before.skip)


def digest(row: Sequence[Any]) -> str:
    """Return what a row of a table is known by: 16 characters, of all its values."""
    values = [json_value(value) for value in row]
    try:
        text = dumps(values)
    except (ValueError, TypeError, RecursionError):  # as NaN: the row parks, and is known, too
        text = repr(values).encode("utf-8", "backslashreplace")
    found = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
    return base64.b64encode(found).decode()
