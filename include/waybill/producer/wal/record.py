"""A record of the log as its writer knew it, and the bytes of its headers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from waybill.errors import InputError
from waybill.producer.wal.frame import HEAD, PREFIX, Buffer, Frame

HeadersIn: TypeAlias = (
    Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None
)
"""What a caller may give as headers; a name may come twice."""
HeaderList: TypeAlias = list[tuple[str, bytes | None]]

_NAME_MOST_BYTES = 0xFFFF
_SIZES = struct.Struct("<Hi")


@dataclass(frozen=True, slots=True)
class WalRecord:
    """One record; null and empty are told apart."""

    lsn: int
    segment_id: int
    kind: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    timestamp_ms: int
    partition: int = -1
    """As the caller gave it; -1: the partitioner's choice."""


def encode_headers(headers: HeadersIn) -> tuple[HeaderList, bytes]:
    """Return headers as a checked list and as bytes: u16 name size, i32 value size, name, value.

    Raises:
        InputError: a name that is not text, a value that is neither bytes, text nor None.
    """
    if headers is None:
        return [], b""
    if isinstance(headers, (str, bytes)) or not isinstance(headers, Iterable):
        raise InputError(
            f"headers are a mapping or pairs of name and value, not {type(headers).__name__}"
        )
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        checked = [_checked(name, value) for name, value in pairs]
        return checked, b"".join(_header_bytes(name, value) for name, value in checked)
    except (TypeError, ValueError) as error:
        raise InputError(f"headers are pairs of name and value: {error}") from error


def _checked(name: object, value: object) -> tuple[str, bytes | None]:
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
        raise InputError(
            f"header {name!r} has a value of type {type(value).__name__}; "
            "a header is a text name with bytes, text or None"
        )
    return name, value


def _header_bytes(name: str, value: bytes | None) -> bytes:
    text = name.encode()
    if len(text) > _NAME_MOST_BYTES or "\0" in name:
        raise InputError(f"header {name[:40]!r} has a name of {len(text)} bytes, or a NUL in it")
    size = -1 if value is None else len(value)
    return _SIZES.pack(len(text), size) + text + (value or b"")


def decode_headers(data: bytes) -> HeaderList:
    """Return the headers that ``encode_headers`` made bytes of."""
    headers: HeaderList = []
    at = 0
    while at < len(data):
        name_size, value_size = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        name = data[at : at + name_size].decode()
        at += name_size
        headers.append((name, None if value_size < 0 else data[at : at + value_size]))
        at += max(0, value_size)
    return headers


def read_record(data: Buffer, frame: Frame, segment_id: int) -> WalRecord:
    """Return the record of a frame that was found whole."""
    body = data[frame.position + PREFIX.size : frame.end]
    (
        _, kind, topic_size, partition, key_size, value_size, header_size, lsn, timestamp_ms,
    ) = HEAD.unpack_from(body)  # fmt: skip
    key_at = HEAD.size + topic_size
    value_at = key_at + max(0, key_size)
    headers_at = value_at + max(0, value_size)
    return WalRecord(
        lsn,
        segment_id,
        kind,
        body[HEAD.size : key_at].decode(),
        None if key_size < 0 else body[key_at:value_at],
        None if value_size < 0 else body[value_at:headers_at],
        decode_headers(body[headers_at : headers_at + header_size]),
        timestamp_ms,
        partition,
    )
