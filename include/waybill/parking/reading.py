"""Reading a segment: its frame, checked, line by line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import zstandard

from waybill.parking.event import ParkedEvent
from waybill.parking.packed import CorruptSegmentError

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
