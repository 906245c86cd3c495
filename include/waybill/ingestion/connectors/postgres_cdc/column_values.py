"""From a value's text, as PostgreSQL writes it, to its plain JSON value.

The session's settings decide how values are written: ``SESSION`` has to be in force in each that
gives text. Rows of a snapshot and changes of the log go this one way, so one value has one form.

What JSON cannot say stays text, and a transformation may make something of it: ``NaN`` and
``Infinity`` of a float, ``infinity`` and years before Christ of a time.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg import adapters
from psycopg.pq import Format

from waybill.events import loads

if TYPE_CHECKING:
    import psycopg

Convert: TypeAlias = Callable[[bytes], Any]
SESSION = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c bytea_output=hex"
    " -c extra_float_digits=1 -c client_encoding=UTF8"
)
_TEXT_ARRAY = 1009
_FIRST_OF_USERS = 16384
"""Object ids below are PostgreSQL's own types."""


def _bool(text: bytes) -> bool:
    return text == b"t"


def _float(text: bytes) -> float | str:
    if text in {b"NaN", b"Infinity", b"-Infinity"}:
        return text.decode()
    return float(text)


def _timestamp(text: bytes) -> str:
    said = text.decode()
    return f"{said[:10]}T{said[11:]}Z" if _is_plain(said) else said


def _timestamptz(text: bytes) -> str:
    said = text.decode()
    if said[-3:] == "+00" and said[10:11] == " " and said[4:5] == "-" and said[-5:-3] != "BC":
        return f"{said[:10]}T{said[11:-3]}Z"
    return said


def _is_plain(said: str) -> bool:
    """Tell whether a time is of a year with four digits."""
    return said[10:11] == " " and said[4:5] == "-" and not said.endswith("BC")


def _bytes(text: bytes) -> str:
    return base64.b64encode(bytes.fromhex(text[2:].decode())).decode()


_OWN: dict[int, Convert] = {
    16: _bool,
    17: _bytes,
    20: int,
    21: int,
    23: int,
    26: int,
    114: loads,
    700: _float,
    701: _float,
    1114: _timestamp,
    1184: _timestamptz,
    3802: loads,
}


class Converters:
    """Finds how the values of a type are read; types that users made are asked for once.

    Args:
        connection: to the database whose types they are.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._known: dict[int, Convert] = dict(_OWN)
        loader = adapters.get_loader(_TEXT_ARRAY, Format.TEXT)
        if loader is None:
            raise AssertionError("psycopg reads no arrays of text")
        self._elements = loader(_TEXT_ARRAY).load

    def of(self, type_oids: Iterable[int]) -> list[Convert]:
        """Return a converter for each type."""
        return [self._of(oid) for oid in type_oids]

    def _of(self, oid: int) -> Convert:
        found = self._known.get(oid)
        if found is None:
            found = self._known[oid] = self._looked_up(oid)
        return found

    def _looked_up(self, oid: int) -> Convert:
        if oid < _FIRST_OF_USERS:
            info = adapters.types.get(oid)
            if info is not None and info.array_oid == oid and info.oid != oid:
                return self._array(info.oid)
            return bytes.decode
        row = self._connection.execute(
            "SELECT typtype, typbasetype::int8, typelem::int8, typcategory FROM pg_type"
            " WHERE oid = %s::int8::oid",
            [oid],
        ).fetchone()
        if row is None:
            return bytes.decode  # it was dropped since
        if row[0] == "d":
            return self._of(row[1])
        if row[3] == "A" and row[2]:
            return self._array(row[2])
        return bytes.decode

    def _array(self, element_oid: int) -> Convert:
        convert, elements = self._of(element_oid), self._elements

        def converted(value: Any) -> Any:
            if isinstance(value, list):
                return [converted(inner) for inner in value]
            return None if value is None else convert(value.encode())

        return lambda text: converted(elements(text))
