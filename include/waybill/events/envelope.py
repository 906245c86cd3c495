"""The event on the wire: CloudEvents 1.0, structured JSON, with Waybill's extension attributes.

``version`` is "source/intake" (64 bits each, in hexadecimal: 16 decimal digits in a row would send
every message down the slow, exact path of ``loads``), ``intakeminute`` minutes since 1970,
``stage`` where the event enters, ``op`` "delete" (left out: upsert), ``attempt`` 0 for the first
pass. A payload that is not JSON travels as ``data_base64``; one too large for a Kafka message is in
the object store and ``dataref`` names it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from typing import Any

from waybill.errors import ParkError
from waybill.events.catalogue import ENTRY_STAGES
from waybill.events.exact import dumps, loads

DELETE = "delete"
UPSERT = "upsert"
LARGEST_NAME_BYTES = 512
"""Of an event name or a pipeline id, in UTF-8: what the indexes of the books can hold."""
_LARGEST_REFERENCE = 1024
"""Bytes of a ``dataref``: the longest key an object store takes."""
_INT64 = 2**63
_INT32 = 2**31
_SHORT = LARGEST_NAME_BYTES // 4


@dataclass(slots=True)
class Event:
    """One record in flight. ``data`` is the payload, free to be changed by a transformation."""

    id: str
    pipeline_id: str
    team: str
    name: str
    """The event name: the kind of event in its pipeline."""
    key: str
    """The ordering key: events of one key keep their order."""
    source_version: int
    intake_version: int
    intake_minute: int
    time: str
    """When it was taken in, RFC 3339."""
    data: Any
    stage: str = "transformation"
    attempt: int = 0
    replay_id: str | None = None
    op: str = UPSERT
    data_ref: str | None = None

    def child(self, index: int, data: Any, *, name: str | None = None) -> Event:  # noqa: ANN401
        """Return an event made from this one: id ``parent/index``, the same versions."""
        return replace(
            self, id=f"{self.id}/{index}", data=data, name=self.name if name is None else name
        )


def encode(event: Event, *, content: bytes | None = None) -> bytes:
    """Return the event as CloudEvents JSON.

    Args:
        event: the event.
        content: its payload's bytes when ``encode_data`` gave them already.

    Raises:
        ParkError: the payload has no JSON form.
    """
    if content is None:
        content = encode_data(event.data)
    return _with_data(event, content, binary=isinstance(event.data, bytes))


def encode_data(data: Any) -> bytes:  # noqa: ANN401 - a payload is any value
    """Return a payload's own bytes: JSON, or the bytes themselves.

    Raises:
        ParkError: it has no JSON form.
    """
    if isinstance(data, bytes):
        return data
    try:
        return dumps(data)
    except RecursionError as error:
        raise ParkError("payload_too_deep", f"payload: {error}") from error
    except (TypeError, ValueError) as error:
        raise ParkError("payload_not_json", f"payload has no JSON form: {error}") from error


def _with_data(event: Event, data: bytes, *, binary: bool) -> bytes:
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": f"{event.team}/{event.pipeline_id}",
        "type": event.name,
        "time": event.time,
        "subject": event.key,
        "version": f"{event.source_version:x}/{event.intake_version:x}",
        "intakeminute": event.intake_minute,
        "stage": event.stage,
        "attempt": event.attempt,
    }
    if event.replay_id is not None:
        attributes["replayid"] = event.replay_id
    if event.op != UPSERT:
        attributes["op"] = event.op
    if event.data_ref is not None:
        attributes["dataref"] = event.data_ref
        return dumps(attributes)
    if binary:
        attributes["data_base64"] = base64.b64encode(data).decode()
        return dumps(attributes)
    return dumps(attributes)[:-1] + b',"data":' + data + b"}"


def decode(value: bytes) -> Event:
    """Parse one message.

    Raises:
        ParkError: ``envelope_not_json`` or ``envelope_invalid``, with the attribute at fault.
    """
    try:
        attributes = loads(value)
    except (ValueError, RecursionError) as error:
        raise ParkError("envelope_not_json", f"message is not JSON: {error}") from error
    try:
        event = _event(attributes)
        if b"\\u" in value:  # only an escape can bring what text must not hold
            _refuse_wrong_characters(event)
    except KeyError as error:
        where = str(error.args[0])
        words = f"attribute {where!r} is missing"
        raise ParkError("envelope_invalid", words, where=where) from error
    except (TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise ParkError("envelope_invalid", f"not a Waybill event: {error}") from error
    return event


def refuse_wrong_name(name: object) -> None:
    """Refuse what can be no event name; the books and their indexes could not hold it.

    Raises:
        ValueError: no text, over 512 bytes, or with NUL or lone surrogates.
    """
    if not isinstance(name, str):
        raise ValueError(f"an event name must be text, not {type(name).__name__}")  # noqa: TRY004
    if len(name.encode()) > LARGEST_NAME_BYTES or "\0" in name:  # lone surrogates: ValueError
        raise ValueError("an event name has at most 512 bytes, and no NUL")


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
        -_INT64 <= event.source_version < _INT64
        and 0 <= event.intake_version < _INT64
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
    if event.data_ref is not None and not 0 < len(event.data_ref.encode()) <= _LARGEST_REFERENCE:
        raise ValueError(f"dataref has 1 to {_LARGEST_REFERENCE} bytes")


def _refuse_wrong_characters(event: Event) -> None:
    """CloudEvents allows neither NUL nor lone surrogates; PostgreSQL cannot hold them."""
    texts = (event.id, event.pipeline_id, event.team, event.name, event.key, event.time)
    for text in (*texts, event.replay_id or "", event.data_ref or ""):
        text.encode()
        if "\0" in text:
            raise ValueError("an attribute holds NUL")
