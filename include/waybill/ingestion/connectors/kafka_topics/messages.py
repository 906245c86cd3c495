"""From a message of a topic to a record: the value is an object, of JSON if nothing else is said.

A value that is null (a tombstone) deletes the row of the message's key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from waybill.errors import ParkError
from waybill.events import loads
from waybill.ingestion.connectors.base import Record

MALFORMED = "source_row_malformed"
Read: TypeAlias = Callable[[bytes, str], Any]
"""From bytes, and what they are ("the value"), to what JSON has; raises ``ParkError``."""


def parsed(data: bytes, what: str) -> Any:
    """Return JSON.

    Raises:
        ParkError: it is none.
    """
    try:
        return loads(data)
    except (ValueError, RecursionError) as error:
        raise ParkError(MALFORMED, f"{what} is not JSON: {error}"[:500]) from error


def parsed_key(key: bytes, what: str) -> Any:
    """Return JSON, or text that is none.

    Raises:
        ParkError: it is no text.
    """
    try:
        return loads(key)
    except (ValueError, RecursionError):
        pass
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise ParkError("source_encoding_invalid", f"{what} is no text: {error}") from error


class JsonMessages:
    """Reads the messages of one event name.

    Args:
        event: its name.
        key_fields: of its key; empty where they are not known.
        key: where these fields are: in the value, or in the message's key.
        read_value, read_key: how bytes are read; as JSON, if not given.
    """

    def __init__(
        self,
        event: str,
        key_fields: Sequence[str],
        key: Literal["value", "message"],
        *,
        read_value: Read = parsed,
        read_key: Read = parsed_key,
    ) -> None:
        self._event, self._read_value, self._read_key = event, read_value, read_key
        self._fields = tuple(key_fields)
        self._of_message = key == "message"

    def record(self, key: bytes | None, value: bytes | None) -> Record | None:
        """Return the record of a message; None: it says nothing of a row.

        Raises:
            ParkError: it cannot be read.
        """
        if value is None:
            return Record(self.key_of(key), self._event, "delete")
        data = self._read_value(value, "the value")
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
        found = self._read_key(key, "the message's key")
        if isinstance(found, dict):
            return found
        if len(self._fields) != 1:
            raise ParkError(
                "key_missing",
                f"the message's key is no JSON object, and the event's key has the fields"
                f" {', '.join(self._fields) or '(unknown)'}",
            )
        return {self._fields[0]: found}
