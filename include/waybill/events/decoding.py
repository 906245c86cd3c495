"""From the wire to an event: at once where all is as `encode` writes it, else piece by piece.

The quick way reads straight into a typed structure and must never accept what the careful way would
refuse, nor read it otherwise; whatever it does not know, it leaves to the careful way, which also
finds the words for what is wrong.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from waybill.errors import ParkError
from waybill.events.catalogue import ENTRY_STAGES
from waybill.events.envelope import (
    DELETE,
    LARGEST_NAME_BYTES,
    UPSERT,
    Event,
    refuse_wrong_name,
)
from waybill.events.exact import exact_float, loads

_LARGEST_REFERENCE = 1024
"""Bytes of a ``dataref``: the longest key an object store takes."""
INT64 = 2**63
_INT32 = 2**31
_FITS_INT64 = 15
"""Hexadecimal digits that always do."""
BACKSLASH = ord("\\")
"""As a number: bytes find one in a tenth of the time that they take to find it as bytes."""
_SHORT = LARGEST_NAME_BYTES // 4
_SOURCES = 4096
"""Sources remembered, each split once."""

ShortText = Annotated[str, msgspec.Meta(max_length=_SHORT)]
Natural32 = Annotated[int, msgspec.Meta(ge=0, lt=_INT32)]


class _Wire(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message as `encode` writes it; names are those on the wire."""

    specversion: str
    id: str
    source: ShortText
    type: ShortText
    subject: str
    version: str
    intakeminute: Natural32
    time: str
    data: Any
    stage: str
    attempt: Natural32
    replayid: str | None = None


class _Head(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The same; the payload is left as it stands there."""

    specversion: str
    id: str
    source: ShortText
    type: ShortText
    subject: str
    version: str
    intakeminute: Natural32
    time: str
    data: msgspec.Raw
    stage: str
    attempt: Natural32
    replayid: str | None = None


class _Payload(msgspec.Struct, gc=False):
    """A message's payload as it stands there."""

    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_read_payload = msgspec.json.Decoder(_Payload).decode
_read = msgspec.json.Decoder(_Wire, float_hook=exact_float).decode
_read_data = msgspec.json.Decoder(float_hook=exact_float).decode
_read_head = msgspec.json.Decoder(_Head).decode


def decode(value: bytes) -> Event:
    """Parse one message. Cost: about 2 µs for 400 bytes.

    Raises:
        ParkError: ``envelope_not_json`` or ``envelope_invalid``, with the attribute at fault.
    """
    return _decode(value, _read)


def decode_head(value: bytes) -> Event:
    """Parse one message but for its payload: that is a ``msgspec.Raw`` where this is quicker.

    Cost: about 1.5 µs for 400 bytes. A payload that is left may still be none that ``decode``
    takes: a number in it that is out of range.

    Raises:
        ParkError: as ``decode``.
    """
    if value.isascii():
        return _decode(value, _read_head)
    try:
        value.decode()
    except UnicodeDecodeError:
        return _decode_carefully(value)
    return _decode(value, _read_head)


def read_payload(event: Event, value: bytes) -> None:
    """Read the payload that ``decode_head`` left.

    Raises:
        ParkError: as ``decode``.
    """
    if type(event.data) is msgspec.Raw:
        try:
            event.data = _read_data(event.data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            event.data = _decode_carefully(value).data


def _decode(value: bytes, read: Callable[[bytes], _Wire | _Head]) -> Event:
    if BACKSLASH in value and b"\\u" in value:  # only an escape brings what text must not hold
        return _decode_carefully(value)
    try:
        wire = read(value)
        team, pipeline_id = parties_of(wire.source)
        source, _, intake = wire.version.partition("/")
        source_version = 0 if source == "0" else int(source, 16)
        intake_version = int(intake, 16)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _decode_carefully(value)
    if (
        wire.stage not in ENTRY_STAGES
        or len(source) > _FITS_INT64
        or len(intake) > _FITS_INT64
        or intake_version < 0
    ):
        return _decode_carefully(value)
    return Event(
        wire.id, pipeline_id, team, wire.type, wire.subject, source_version, intake_version,
        wire.intakeminute, wire.time, wire.data, wire.stage, wire.attempt, wire.replayid,
    )  # fmt: skip


def payload_bytes(value: bytes) -> bytes | None:
    """Return the bytes of a message's ``data`` as they stand there. Cost: 1 µs for 400 bytes.

    None: it has none, or holds lone surrogates; then what ``decode`` gives has to be written anew.
    """
    try:
        data = _read_payload(value).data
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return bytes(data) if isinstance(data, msgspec.Raw) else None


@lru_cache(_SOURCES)
def parties_of(source: str) -> tuple[str, str]:
    """Return the team and the pipeline id that a message's source names."""
    team, _, pipeline_id = source.partition("/")
    return team, pipeline_id


def _decode_carefully(value: bytes) -> Event:
    try:
        attributes = loads(value)
    except (ValueError, RecursionError) as error:
        raise ParkError("envelope_not_json", f"message is not JSON: {error}") from error
    try:
        event = _event(attributes)
        if b"\\u" in value:
            _refuse_wrong_characters(event)
    except KeyError as error:
        where = str(error.args[0])
        words = f"attribute {where!r} is missing"
        raise ParkError("envelope_invalid", words, where=where) from error
    except (TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise ParkError("envelope_invalid", f"not a Waybill event: {error}") from error
    return event


def _event(attributes: dict[str, Any]) -> Event:
    get = attributes.get
    team, _, pipeline_id = attributes["source"].partition("/")
    source, _, intake = attributes["version"].partition("/")
    event = Event(
        attributes["id"],
        pipeline_id,
        team,
        attributes["type"],
        attributes["subject"],
        int(source, 16),
        int(intake, 16),
        attributes["intakeminute"],
        attributes["time"],
        get("data"),
        get("stage", "transformation"),
        get("attempt", 0),
    )
    _refuse_wrong(event)
    if (
        "data" not in attributes
        or "op" in attributes
        or "replayid" in attributes
        or "dataref" in attributes
    ):
        _add_rare(event, attributes)
    return event


def _refuse_wrong(event: Event) -> None:
    name, pipeline_id = event.name, event.pipeline_id
    minute, attempt = event.intake_minute, event.attempt
    if not (
        type(event.id) is type(name) is type(event.key) is type(event.time) is str
        and type(minute) is type(attempt) is int
        and event.stage in ENTRY_STAGES
    ):
        raise ValueError("an attribute has the wrong type, or the stage is unknown")
    if not (
        -INT64 <= event.source_version < INT64
        and 0 <= event.intake_version < INT64
        and 0 <= minute < _INT32
        and 0 <= attempt < _INT32
    ):
        raise ValueError("a version, the intake minute or the attempt is out of range")
    if len(name) > _SHORT or len(pipeline_id) > _SHORT:
        refuse_wrong_name(name)
        refuse_wrong_name(pipeline_id)


def _add_rare(event: Event, attributes: dict[str, Any]) -> None:
    """Add what most messages leave out."""
    get = attributes.get
    if event.data is None and "data_base64" in attributes:
        event.data = base64.b64decode(attributes["data_base64"], validate=True)
    event.replay_id, event.data_ref = get("replayid"), get("dataref")
    event.op = get("op", UPSERT)
    if event.op not in (UPSERT, DELETE):
        raise ValueError(f"unknown op {event.op!r}")
    for text in (event.replay_id, event.data_ref):
        if text is not None and type(text) is not str:
            raise ValueError("replayid or dataref is no text")
    if event.data_ref is None:
        return
    if not 0 < len(event.data_ref.encode()) <= _LARGEST_REFERENCE:
        raise ValueError(f"dataref has 1 to {_LARGEST_REFERENCE} bytes")
    event.data = None  # where a message has both, the reference is what counts


def _refuse_wrong_characters(event: Event) -> None:
    """CloudEvents allows neither NUL nor lone surrogates; PostgreSQL cannot hold them."""
    texts = (event.id, event.pipeline_id, event.team, event.name, event.key, event.time)
    for text in (*texts, event.replay_id or "", event.data_ref or ""):
        text.encode()
        if "\0" in text:
            raise ValueError("an attribute holds NUL")
