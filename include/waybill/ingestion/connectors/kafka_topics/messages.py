"""From a message of a topic to a record: the value is a JSON object.

A value that is null (a tombstone) deletes the row of the message's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from waybill.errors import ParkError
from waybill.events import loads
from waybill.ingestion.connectors.base import Record

MALFORMED = "source_row_malformed"


class JsonMessages:
    """Reads the messages of one event name.

    Args:
        event: its name.
        key_fields: of its key; empty where they are not known.
        key: where these fields are: in the value, or in the message's key.
    """

    def __init__(
        self, event: str, key_fields: Sequence[str], key: Literal["value", "message"]
    ) -> None:
        self._event = event
        self._fields = tuple(key_fields)
        self._of_message = key == "message"

    def record(self, key: bytes | None, value: bytes | None) -> Record | None:
        """Return the record of a message; None: it says nothing of a row.

        Raises:
            ParkError: it cannot be read.
        """
        if value is None:
            return Record(self.key_of(key), self._event, "delete")
        data = parsed(value, "the value")
        if not isinstance(data, dict):
            raise ParkError(MALFORMED, f"the value is no JSON object, but {type(data).__name__}")
        if self._of_message:
            data = {**data, **self.key_of(key)}
        return Record(data, self._event)

    def key_of(self, key: bytes | None) -> dict[str, Any]:
        """Return the key's fields from a message's key: a JSON object, or the one field's value.

        Raises:
            ParkError: there is no key, or it cannot be told which field it is.
        """
        if key is None:
            raise ParkError("key_missing", "the message has no key")
        try:
            found = loads(key)
        except (ValueError, RecursionError):
            found = _text(key)
        if isinstance(found, dict):
            return found
        if len(self._fields) != 1:
            raise ParkError(
                "key_missing",
                f"the message's key is no JSON object, and the event's key has the fields"
                f" {', '.join(self._fields) or '(unknown)'}",
            )
        return {self._fields[0]: found}


def parsed(data: bytes, what: str) -> Any:
    """Return JSON.

    Raises:
        ParkError: it is none.
    """
    try:
        return loads(data)
    except (ValueError, RecursionError) as error:
        raise ParkError(MALFORMED, f"{what} is not JSON: {error}"[:500]) from error


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise ParkError("source_encoding_invalid", f"the message's key is no text: {error}") from (
            error
        )
