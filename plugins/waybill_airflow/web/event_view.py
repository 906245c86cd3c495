"""A parked event as JSON for a screen: its payload next to its error."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from waybill.events import dumps, loads

if TYPE_CHECKING:
    from waybill.inspection import ShownEvent

_LARGEST_BYTES = 256 * 1024
"""Larger events are not sent to a screen: only their beginning, as text."""
_BEGINNING_BYTES = 16 * 1024
_ENVELOPE = "specversion"
_PLAIN = (
    "error_type",
    "message",
    "where",
    "fingerprint",
    "errors",
    "event_at",
    "parked_at",
    "pipeline_version",
    "attempt",
    "topic",
    "kafka_partition",
    "kafka_offset",
)


def shown_event(shown: ShownEvent) -> dict[str, Any]:
    """Return the fields of ``models.EventOut``."""
    event = shown.event
    fields = {name: getattr(event, name) for name in _PLAIN}
    fields |= {"bytes": len(event.value), "masked": list(shown.masked)}
    return fields | _content(event.value)


def _content(value: bytes) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(("event_id", "envelope", "payload", "text"))
    found["cut"] = len(value) > _LARGEST_BYTES
    if found["cut"]:
        return found | {"text": _text(value[:_BEGINNING_BYTES])}
    try:
        document = loads(value)
        dumps(document)  # what is nested too deeply for any reader is shown as text
    except (ValueError, RecursionError):
        return found | {"text": _text(value)}
    if not isinstance(document, dict) or _ENVELOPE not in document:
        return found | {"payload": document}
    payload, content = document.pop("data", None), document.pop("data_base64", None)
    event_id = document.get("id")
    return found | {
        "event_id": event_id if isinstance(event_id, str) else None,
        "envelope": document,
        "payload": payload,
        "text": None if content is None else _decoded(content),
    }


def _decoded(content: object) -> str:
    """Return a payload that is no JSON, as text; what is no base64, as it is."""
    try:
        return _text(base64.b64decode(str(content), validate=True))
    except (binascii.Error, ValueError):
        return str(content)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
