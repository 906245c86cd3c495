"""Parked events into a file: ``.jsonl.zst``, ``.jsonl`` or ``.csv``, whole or not there at all.

The file is written beside its name, synced, then renamed: a kill leaves the old file, or none, and
a ``.part`` file. A spreadsheet takes a cell that begins with = + - @ (or a control character before
one) as a formula: such cells get an apostrophe in front, and so do those that begin with one, in
every column alike. The way back: take one apostrophe from the front of each cell that has it. Where
an apostrophe, or a NUL, changed the event's own bytes, or where they are no text, ``event_base64``
holds them. The lines of the JSON forms are the parked lines themselves.

What could not be read stands at the end: ``{"damaged": [...]}`` as the last line of the JSON forms,
a row for each object in a table, its message in the first cell. A file without them has everything.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import zstandard

from waybill.errors import InputError
from waybill.parking.event import ParkedEvent
from waybill.parking.reading import Damage, Unreadable

KINDS = (".jsonl.zst", ".jsonl", ".csv")
_UNSEEN = r"[\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
_FORMULA = re.compile(rf"['\t\r\n]|{_UNSEEN}*[=+\-@\uff1d\uff0b\uff0d\uff20]")
"""Also full-width signs, and behind characters that nobody sees: some spreadsheets skip those; and
the apostrophe itself, so that one at the front always is ours."""
_CHUNK_BYTES = 1024**2
_BYTES = ("value", "source")
_COLUMNS = tuple(field.name for field in fields(ParkedEvent) if field.name not in _BYTES)
_PLACES = ("kafka_partition", "kafka_offset")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """A file that was written."""

    path: str
    events: int
    bytes: int
    damaged: tuple[Unreadable, ...] = ()
    """What could not be read and is not in it."""


def export(
    path: Path,
    events: Iterable[ParkedEvent],
    *,
    overwrite: bool = False,
    damage: Damage | None = None,
) -> ExportReport:
    """Write events to a file whose name says the kind. Memory: 1 MiB, or the largest event.

    ``damage``: what reading the events notes; it is written at the end.

    Raises:
        InputError: the name ends in none of ``KINDS``, the file exists, or cannot be written.
    """
    kind = next((kind for kind in KINDS if path.name.endswith(kind)), None)
    if kind is None:
        raise InputError(f"{path}: the name must end in one of {', '.join(KINDS)}")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; choose another name, or overwrite it with --force")
    counted = _Counted(events)
    damage = damage or Damage()
    try:
        size = _write_whole(path, _CONTENTS[kind](counted, damage))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    return ExportReport(str(path), counted.number, size, damage.listed)


def contents(
    kind: str, events: Iterable[ParkedEvent], damage: Damage | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a file of one of ``KINDS``. Memory: 1 MiB, or the largest event.

    ``damage``: as of ``export``.

    Raises:
        InputError: there is no such kind.
    """
    if kind not in _CONTENTS:
        raise InputError(f"{kind!r} is not a file type; choose one of {', '.join(KINDS)}")
    return _CONTENTS[kind](events, damage or Damage())


class _Counted:
    def __init__(self, events: Iterable[ParkedEvent]) -> None:
        self._events = events
        self.number = 0

    def __iter__(self) -> Iterator[ParkedEvent]:
        for event in self._events:
            self.number += 1
            yield event


def _write_whole(path: Path, chunks: Iterable[bytes]) -> int:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            for chunk in chunks:
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
            size = stream.tell()
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return size


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _json_lines(events: Iterable[ParkedEvent], damage: Damage) -> Iterator[bytes]:
    chunk = bytearray()
    for event in events:
        chunk += event.to_line()
        chunk += b"\n"
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if left_out := [one.to_json() for one in damage.listed]:
        chunk += json.dumps({"damaged": left_out}).encode() + b"\n"
    if chunk:
        yield bytes(chunk)


def _compressed(events: Iterable[ParkedEvent], damage: Damage) -> Iterator[bytes]:
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()
    for chunk in _json_lines(events, damage):
        yield compressor.compress(chunk)
    yield compressor.flush()


def _csv(events: Iterable[ParkedEvent], damage: Damage) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([*_COLUMNS, "event", "event_base64"])
    for event in events:
        writer.writerow(_cells(event))
        if text.tell() >= _CHUNK_BYTES:
            yield _taken(text)
    for left_out in damage.listed:
        writer.writerow([_safe(left_out.words), *[""] * (len(_COLUMNS) + 1)])
    yield _taken(text)


def _taken(text: io.StringIO) -> bytes:
    written = text.getvalue()
    text.seek(0)
    text.truncate()
    return written.encode("utf-8", "backslashreplace")


def _cells(event: ParkedEvent) -> list[str]:
    cells = [_cell(name, getattr(event, name)) for name in _COLUMNS]
    encoded = _safe(base64.b64encode(event.value).decode())
    try:
        text = event.value.decode()
    except UnicodeDecodeError:
        return [*cells, "", encoded]
    shown = _safe(text)
    return [*cells, shown, "" if shown == text else encoded]


def _cell(name: str, value: object) -> str:
    """Return a cell; empty for a place in Kafka that is -1, and for no list of errors."""
    if name in _PLACES and value == -1:
        return ""
    if name == "errors":
        return _safe(json.dumps(value)) if value else ""
    return _safe(str(value))


def _safe(text: str) -> str:
    clean = text.replace("\x00", "\\0")
    return f"'{clean}" if _FORMULA.match(clean) else clean


_CONTENTS: dict[str, Callable[[Iterable[ParkedEvent], Damage], Iterator[bytes]]] = {
    ".jsonl.zst": _compressed,
    ".jsonl": _json_lines,
    ".csv": _csv,
}
