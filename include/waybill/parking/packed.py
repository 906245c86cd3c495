"""The packed object: one task's parked events of all partitions, in one immutable object.

Layout
  frame*     zstd, with content size and checksum: the lines of one segment, in the order they came
  directory  zstd skippable frame: magic u32 0x184D2A50, size u32; then
               listing  zstd of JSON {"version":1,"segments":[...descriptors...]}
               length   u32, bytes of listing
               magic    b"WBP1"
All little-endian. Skippable frames are passed over by every zstd reader, so the whole object, and
each segment's byte range, is a valid ``.jsonl.zst``.

A frame's events are of one partition and one fingerprint: of a partition's fingerprints the first
16 that come have frames of their own, all others share one, whose fingerprint is empty. Inside a
frame events stand in the order they came; frames of one partition do not follow each other in that
order, each line's partition and offset say it. Frames stand in the order in which their first
events came; one with more than 8 MiB of lines has several, in order. The directory leaves out who
the events are (``ids``, ``origins``): the lines say it.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from sys import intern
from typing import Any, NamedTuple

import orjson
import zstandard

from waybill.errors import StopError
from waybill.events import instant, rfc3339
from waybill.parking.event import ParkedEvent
from waybill.parking.fingerprints import fingerprint_of
from waybill.parking.identities import Identity, Origins, pack_ids
from waybill.parking.names import storable, summary
from waybill.storage import ObjectStore

LARGEST_SEGMENT_BYTES = 8 * 1024**2
"""Lines of one segment before the next begins; one larger event still is one segment."""
MOST_FINGERPRINTS = 16
"""Of a partition in one object, with segments of their own."""
MAGIC = b"WBP1"
_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A50
_LENGTH = struct.Struct("<I")
TRAILER_BYTES = _LENGTH.size + len(MAGIC)
_VERSION = 1
_UNSEEN = object()
ParkedGroupKey = tuple[str, str, str, str]
"""(pipeline id, event name, stage, error type)."""
NAMES = ("pipeline_id", "event_name", "stage", "error_type")
"""Its columns."""


class CorruptSegmentError(StopError):
    """A parked object, or a segment of it, is damaged or gone; nothing of it was used."""

    def __init__(self, key: str, position: int, reason: str, *, missing: bool = False) -> None:
        super().__init__(f"{key or 'parked object'}, byte {position}: {reason}")
        self.key = key
        self.position = position
        self.reason = reason
        self.missing = missing
        """The object is not in the store at all."""


@dataclass(frozen=True, slots=True)
class SegmentDescriptor:
    """One segment of a packed object, as the tracker is told of it."""

    pipeline_id: str
    event_name: str
    stage: str
    error_type: str
    position: int
    """First byte of the frame in the object."""
    length: int
    """Bytes of the frame."""
    count: int
    """Events."""
    bytes: int
    """Bytes of the lines, uncompressed."""
    sha256: str
    """Of the frame."""
    first_event_at: str
    """Earliest event time, RFC 3339, UTC."""
    last_event_at: str
    kafka_partition: int
    first_offset: int
    last_message: str
    """Beginning of the last event's message."""
    topic: str = ""
    fingerprint: str = ""
    """Of all its events; empty: they are mixed, or the object is of an older release."""
    ids: str = ""
    """Who its events are, in line order, see ``identities``; empty: none has an id."""
    origins: Origins = ()
    """Intake minute and replay of its events; empty where ``ids`` is."""
    copies: tuple[int, ...] = ()
    """Lines, from 0, that are copies of parked events: not counted, found when it is recorded."""

    @property
    def partition(self) -> ParkedGroupKey:
        """Return the partition's four names, as the tracker holds them."""
        return (self.pipeline_id, self.event_name, self.stage, self.error_type)

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor as JSON."""
        return {name: getattr(self, name) for name in _DESCRIPTOR_NAMES}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SegmentDescriptor:
        """Return what ``to_json`` gave."""
        origins = tuple((minute, replay, run) for minute, replay, run in value.get("origins", ()))
        copies = tuple(value.get("copies", ()))
        return cls(**{**value, "origins": origins, "copies": copies})


_DESCRIPTOR_NAMES = tuple(field.name for field in fields(SegmentDescriptor))


class PackedObject(NamedTuple):
    """An object to store, and what the tracker is told of it."""

    body: bytes
    segments: tuple[SegmentDescriptor, ...]


class Packer:
    """Collects one task's parked events and packs them into one object.

    Memory: the lines, uncompressed, up to 8 MiB a partition; what is beyond is held compressed.
    """

    def __init__(self, level: int = 3) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self._builders: dict[tuple[ParkedGroupKey, str], _Builder] = {}
        self._fingerprints: Counter[ParkedGroupKey] = Counter()
        self.count = 0

    def add(self, event: ParkedEvent, identity: Identity | None = None) -> None:
        """Add an event behind those of its partition and fingerprint.

        Args:
            event: its line gets a fingerprint when it has none.
            identity: by which copies are found; None: the event has no id.

        Cost: 5-8 µs for 400 bytes, and a fingerprint.
        """
        cause = fingerprint_of(event)
        key = (event.pipeline_id, event.event_name, event.stage, event.error_type)
        builder = self._builders.get((key, cause)) or self._builder(key, cause)
        builder.add(event, event.to_line(fingerprint=cause), identity, self._compressor)
        self.count += 1

    def _builder(self, key: ParkedGroupKey, cause: str) -> _Builder:
        """Return the builder of a fingerprint that has none yet: a new one, or the mixed one."""
        if self._fingerprints[key] == MOST_FINGERPRINTS:
            cause = ""
            if (mixed := self._builders.get((key, cause))) is not None:
                return mixed
        builder = _Builder(key, cause)
        self._builders[builder.key, cause] = builder
        self._fingerprints[builder.key] += bool(cause)
        return builder

    def finish(self) -> PackedObject:
        """Return the object; the packer is empty then. Cost: one zstd pass over the lines."""
        body = io.BytesIO()
        segments: list[SegmentDescriptor] = []
        for name in list(self._builders):
            for frame, descriptor in self._builders.pop(name).finish(self._compressor):
                segments.append(SegmentDescriptor(position=body.tell(), **descriptor))
                body.write(frame)
        body.write(directory(segments))
        return PackedObject(body.getvalue(), tuple(segments))


def _shared(name: str) -> str:
    """Return the one text that is equal: each message brings names of its own.

    User code may have made it a text of another class, which has no place in that table.
    """
    return intern(str.__str__(name))


class _Builder:
    """The segments of one partition and fingerprint."""

    __slots__ = (
        "_at_text", "_closed", "_count", "_fingerprint", "_first_at", "_identities",
        "_last_at", "_lines", "_message", "_start", "key",
    )  # fmt: skip

    def __init__(self, key: ParkedGroupKey, cause: str) -> None:
        a, b, c, d = map(_shared, key)
        self.key: ParkedGroupKey = (a, b, c, d)
        self._fingerprint = cause
        self._identities: list[Identity | None] = []
        self._closed: list[tuple[bytes, dict[str, Any]]] | None = None
        self._lines = bytearray()
        self._count = 0
        self._start = ("", -1, -1)
        """Topic, Kafka partition and offset of the first event."""
        self._message = ""
        self._at_text: object = _UNSEEN
        self._first_at = self._last_at = datetime.max.replace(tzinfo=UTC)

    def add(
        self,
        event: ParkedEvent,
        line: bytes,
        identity: Identity | None,
        compressor: zstandard.ZstdCompressor,
    ) -> None:
        if self._count and len(self._lines) + len(line) >= LARGEST_SEGMENT_BYTES:
            self._close(compressor)
        self._lines += line
        self._lines += b"\n"
        if not self._count:
            self._start = (event.topic, event.kafka_partition, event.kafka_offset)
            self._at_text = _UNSEEN
        self._count += 1
        self._identities.append(identity)
        self._message = event.message
        if event.event_at != self._at_text:
            self._see_time(event)

    def finish(self, compressor: zstandard.ZstdCompressor) -> list[tuple[bytes, dict[str, Any]]]:
        if self._count:
            self._close(compressor)
        return self._closed or []

    def _see_time(self, event: ParkedEvent) -> None:
        """Widen the span of event times; a time that is none counts as the time of parking."""
        at = instant(event.event_at) or instant(event.parked_at) or datetime.now(UTC)
        if self._count == 1:
            self._first_at = self._last_at = at
        elif at < self._first_at:
            self._first_at = at
        elif at > self._last_at:
            self._last_at = at
        self._at_text = event.event_at

    def _close(self, compressor: zstandard.ZstdCompressor) -> None:
        topic, kafka_partition, first_offset = self._start
        frame = compressor.compress(self._lines)
        ids, origins = pack_ids(self._identities)
        descriptor = {
            **dict(zip(NAMES, map(storable, self.key), strict=True)),
            "length": len(frame),
            "count": self._count,
            "bytes": len(self._lines),
            "sha256": hashlib.sha256(frame).hexdigest(),
            "first_event_at": rfc3339(self._first_at),
            "last_event_at": rfc3339(self._last_at),
            "kafka_partition": kafka_partition,
            "first_offset": first_offset,
            "last_message": summary(self._message),
            "topic": storable(topic),
            "fingerprint": self._fingerprint,
            "ids": ids,
            "origins": origins,
        }
        if self._closed is None:
            self._closed = []
        self._closed.append((frame, descriptor))
        self._lines = bytearray()
        self._count = 0
        self._identities = []


def directory(segments: Sequence[SegmentDescriptor]) -> bytes:
    """Return the frame that ends an object with these segments."""
    listing = bytearray(b'{"version":%d,"segments":[' % _VERSION)
    for number, segment in enumerate(segments):  # all at once would be larger than what they name
        listing += b"," if number else b""
        listing += orjson.dumps({**segment.to_json(), "ids": "", "origins": ()})
    listing += b"]}"
    packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(listing)
    size = len(packed) + TRAILER_BYTES
    return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, size) + packed + _LENGTH.pack(len(packed)) + MAGIC


def directory_length(tail: bytes) -> int | None:
    """Return the bytes, from the object's end, that hold its directory; None: it has none.

    Args:
        tail: the object's last ``TRAILER_BYTES`` or more.
    """
    if len(tail) < TRAILER_BYTES or tail[-len(MAGIC) :] != MAGIC:
        return None
    (length,) = _LENGTH.unpack_from(tail, len(tail) - TRAILER_BYTES)
    return int(length) + TRAILER_BYTES


def read_directory(body: bytes, *, key: str = "") -> tuple[SegmentDescriptor, ...]:
    """Return the segments that an object's directory names.

    Args:
        body: the object, or as much of its end as ``directory_length`` says.
        key: names the object in errors.

    Raises:
        CorruptSegmentError: there is no directory, or it is damaged.
    """
    needed = directory_length(body)
    if needed is None or needed > len(body):
        raise CorruptSegmentError(key, len(body), "does not end like a parked object")
    start = len(body) - needed
    try:
        listing = zstandard.ZstdDecompressor().decompress(body[start:-TRAILER_BYTES])
        return tuple(SegmentDescriptor.from_json(row) for row in json.loads(listing)["segments"])
    except (zstandard.ZstdError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptSegmentError(key, start, f"its directory is damaged: {error}") from error


_TAIL_BYTES = 64 * 1024


def read_object_directory(
    objects: ObjectStore, key: str, size: int
) -> tuple[SegmentDescriptor, ...]:
    """Return the segments that an object's directory names.

    Args:
        objects: where it is.
        key: which.
        size: its bytes.

    Cost: one request, two for a directory of more than 64 KiB.

    Raises:
        CorruptSegmentError: it has no directory, or a damaged one.
        ObjectMissingError: it is gone.
    """
    tail = _tail(objects, key, size, _TAIL_BYTES)
    needed = directory_length(tail) or 0
    if needed > size:
        raise CorruptSegmentError(key, size, "is shorter than its directory says")
    if needed > len(tail):
        tail = _tail(objects, key, size, needed)
    return read_directory(tail, key=key)


def _tail(objects: ObjectStore, key: str, size: int, most: int) -> bytes:
    length = min(most, size)
    if length == 0:
        return b""
    return objects.get(key, position=size - length, length=length)


_CHUNK_BYTES = 1024**2
_UNKNOWN_SIZE = zstandard.CONTENTSIZE_UNKNOWN
_BLOCK_HEADER_BYTES = 3
_RLE = 1
_CHECKSUM_BYTES = 4


def read_segment(
    frame: bytes,
    *,
    sha256: str | None = None,
    key: str = "",
    position: int = 0,
    copies: Sequence[int] = (),
) -> Iterator[ParkedEvent]:
    """Yield the events of one segment in the order they came.

    Args:
        frame: the segment's bytes.
        sha256: what the tracker says of them; checked before the first event is given.
        key: names the object in errors.
        position: names the segment in errors.
        copies: lines, from 0, that are left out.

    Memory: the frame and about 1 MiB, or its largest line.

    Raises:
        CorruptSegmentError: the frame is damaged or cut. With ``sha256`` before the first event,
            without it perhaps after some.
    """
    if sha256 is not None and hashlib.sha256(frame).hexdigest() != sha256:
        raise CorruptSegmentError(key, position, "these are not the bytes that were parked")
    return _events(frame, key, position, frozenset(copies))


def check_segment(frame: bytes, sha256: str, lines: int, key: str, position: int) -> None:
    """Check a frame whole: its bytes, that zstd can read them, and how many lines they are.

    Cost: a hash and a decompression; the lines are not parsed.

    Raises:
        CorruptSegmentError: something is not as it was parked.
    """
    read_segment(frame, sha256=sha256, key=key, position=position)
    try:
        found = sum(chunk.count(b"\n") for chunk in _chunks(frame))
    except (zstandard.ZstdError, ValueError) as error:
        raise CorruptSegmentError(key, position, f"the frame is damaged: {error}") from error
    if found != lines:
        raise CorruptSegmentError(key, position, f"it holds {found} lines, not {lines}")


def _events(frame: bytes, key: str, position: int, copies: frozenset[int]) -> Iterator[ParkedEvent]:
    try:
        for ordinal, line in enumerate(_lines(frame)):
            if ordinal not in copies:
                yield ParkedEvent.from_line(line)
    except (zstandard.ZstdError, ValueError) as error:
        raise CorruptSegmentError(key, position, f"the frame is damaged: {error}") from error


def _lines(frame: bytes) -> Iterator[bytes]:
    rest: list[bytes] = []
    for chunk in _chunks(frame):
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        if lines:
            yield b"".join(rest)
            rest = [lines.pop()]
            yield from lines


def _chunks(frame: bytes) -> Iterator[bytes]:
    """Yield the bytes of all lines, each with its newline.

    A zstd reader ends silently where a frame is cut, so sizes are compared.
    """
    parameters = zstandard.get_frame_parameters(frame)
    size = parameters.content_size
    if len(frame) < _length(frame, checksum=parameters.has_checksum):
        raise ValueError("it is cut")
    total = 0
    last = b"\n"
    reader = zstandard.ZstdDecompressor().stream_reader(frame)
    while chunk := reader.read(_CHUNK_BYTES):
        total += len(chunk)
        last = chunk[-1:]
        yield chunk
    if last != b"\n" or size not in (_UNKNOWN_SIZE, total):
        raise ValueError(f"it ends after {total} of {size} bytes")


def _length(frame: bytes, *, checksum: bool) -> int:
    """Return the bytes that a frame's blocks and checksum take. Source: RFC 8878, 3.1.1."""
    end = zstandard.frame_header_size(frame)
    last = False
    while not last and end < len(frame):
        header = int.from_bytes(frame[end : end + _BLOCK_HEADER_BYTES], "little")
        last = bool(header & 1)
        size = 1 if header >> 1 & 3 == _RLE else header >> 3
        end += _BLOCK_HEADER_BYTES + size
    return end + (_CHECKSUM_BYTES if checksum else 0)
