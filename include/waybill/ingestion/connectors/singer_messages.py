"""Singer's messages, one a line of JSON, and the pages that they make.

A page ends at a STATE message, and has that state: what the tap has said before it is in the page
or in one before. More rows than a page takes between two STATEs make pages of their own, with the
state before; read again, they are recognised by id and version.

Source: Singer's specification (SPEC.md), and the BATCH and ACTIVATE_VERSION messages of its SDKs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from waybill.errors import InputError
from waybill.events import loads
from waybill.ingestion.connectors.base import BadRow, Page, Record, Row

_LOG = logging.getLogger(__name__)
LARGEST_LINE_BYTES = 128 * 1024**2
_SMALL_PAGE = 1000
"""Rows of a page that a STATE ends; fewer wait for the next one."""
_PAGE_BYTES = 16 * 1024**2
_TURN_S = 1.0
"""So often whoever reads the pages hears of a tap that sends no rows, and may stop it."""
_MOST_WARNINGS = 20
"""Of messages that are left out."""
_DELETED = "_sdc_deleted_at"
"""When the row was deleted at its source, as the SDKs and most taps name it."""


def lines_of(chunks: Iterator[bytes | None], name: str) -> Iterator[bytes | None]:
    """Yield lines without their ends, and None for each chunk that is none.

    Raises:
        InputError: a line is longer than may be held.
    """
    held = bytearray()
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        first, *others = chunk.split(b"\n")
        held += first
        for rest in others:
            yield bytes(held)
            held = bytearray(rest)
        if len(held) > LARGEST_LINE_BYTES:
            raise InputError(
                f"{name}: a line has more than {LARGEST_LINE_BYTES // 1024**2} MiB; that is no"
                " message of Singer"
            )
    if held:
        yield bytes(held)


@dataclass(slots=True)
class SingerPages:
    """Makes pages of a tap's lines.

    Args:
        name: of the tap, for places and errors.
        page_rows: rows of a page at most.
        keys: the key's fields of each event name that is declared.
        event_of: the event name of a stream.
        start: the cursor that the tap was started with.
    """

    name: str
    page_rows: int
    keys: Mapping[str, tuple[str, ...]]
    event_of: Callable[[str], str]
    start: dict[str, Any] | None
    own: str = ""
    """The event name whose rows are plain."""
    schemas: dict[str, Any] = field(default_factory=dict)
    """Of each stream, as the tap sent the last one."""
    _rows: list[Row] = field(default_factory=list)
    _places: list[str] = field(default_factory=list)
    _bad: list[BadRow] = field(default_factory=list)
    _bytes: int = 0
    _line: int = 0
    _left_out: int = 0
    _state: Any = None

    def __post_init__(self) -> None:
        self._state = None if self.start is None else self.start.get("state")

    def read(self, lines: Iterator[bytes | None]) -> Iterator[Page | None]:
        """Yield pages, and None now and then; the last page holds what came behind the last STATE.

        Raises:
            InputError: a stream lacks a field of the declared key, or sends files.
        """
        told = time.monotonic()
        for line in lines:
            if line is None or time.monotonic() - told >= _TURN_S:
                yield None
                told = time.monotonic()
            if line is None:
                continue
            self._line += 1
            if not line.strip():
                continue
            message = _parsed(line)
            is_state = message is not None and message["type"] == "STATE"
            count = len(self._rows) + len(self._bad)
            if not is_state and (count >= self.page_rows or self._bytes >= _PAGE_BYTES):
                yield self._page()
            self._take(line, message)
            if is_state and count >= min(self.page_rows, _SMALL_PAGE):
                yield self._page()
        if self._rows or self._bad or self._cursor() != (self.start or {"state": None}):
            yield self._page()

    def _cursor(self) -> dict[str, Any]:
        return {"state": self._state}

    def _page(self) -> Page:
        after = self._cursor()
        places = self._places
        page = Page(
            self._rows,
            self._bad,
            cursor=after,
            start=self.start,
            place=places.__getitem__,
            origin="",
        )
        self._rows, self._places, self._bad, self._bytes = [], [], [], 0
        self.start = after
        return page

    def _take(self, line: bytes, message: dict[str, Any] | None) -> None:
        if message is None:
            self._refuse(line, "expected a message of Singer: JSON with a type")
        elif message["type"] == "RECORD":
            self._record(line, message)
        elif message["type"] == "SCHEMA":
            self._schema(message)
        elif message["type"] == "STATE":
            self._state = message.get("value")
        else:
            self._other(message["type"], message)

    def _record(self, line: bytes, message: Mapping[str, Any]) -> None:
        stream, row = message.get("stream"), message.get("record")
        if not isinstance(stream, str) or not isinstance(row, dict):
            self._refuse(line, "expected a RECORD with a stream and a record")
            return
        op: Any = "upsert" if row.get(_DELETED) is None else "delete"
        event = self.event_of(stream)
        is_plain = event == self.own and op == "upsert"
        self._rows.append(row if is_plain else Record(row, event=event, op=op))
        self._places.append(f"stream {stream[:80]}, line {self._line} of the tap")
        self._bytes += len(line)

    def _refuse(self, line: bytes, message: str) -> None:
        where = f"line {self._line} of the tap"
        self._bad.append(BadRow(line, self._line, "source_row_malformed", message, where=where))
        self._bytes += len(line)

    def _schema(self, message: Mapping[str, Any]) -> None:
        stream = str(message.get("stream"))
        known, self.schemas[stream] = self.schemas.get(stream), dict(message)
        fields = _fields(message)
        if known is not None and _fields(known) != fields:
            _LOG.warning("%s: the schema of stream %s changed while it was read", self.name, stream)
        event = self.event_of(stream)
        if lacking := [one for one in self.keys.get(event, ()) if one not in fields]:
            own = f"{message.get('key_properties')!s:.200}"
            has = ", ".join(sorted(fields)[:20]) or "none"
            raise InputError(
                f"{self.name}: stream {stream!r} has no field {lacking[0]!r}, which the key of"
                f" event {event!r} names; it has {has}, and its own key is {own}"
            )

    def _other(self, kind: Any, message: Mapping[str, Any]) -> None:
        if kind == "BATCH":
            raise InputError(
                f"{self.name} sends files (BATCH); leave batch_config out of its configuration"
            )
        if kind == "ACTIVATE_VERSION":
            _LOG.info(
                "%s: stream %s was read whole (version %s); rows that are gone from it stay",
                *(self.name, message.get("stream"), message.get("version")),
            )
        elif self._left_out < _MOST_WARNINGS:
            self._left_out += 1
            _LOG.warning("%s: a message of type %s is left out", self.name, ascii(kind)[:100])


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a message, or None: it is none."""
    try:
        message = loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and "type" in message else None


def _fields(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    whole = schema.get("schema")
    properties = whole.get("properties") if isinstance(whole, dict) else None
    return properties if isinstance(properties, dict) else {}
