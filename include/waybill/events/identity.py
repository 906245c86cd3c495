"""Who an event is: its id, key, versions and topic; all deterministic but for the intake stamp."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from waybill.errors import InputError, ParkError
from waybill.events.exact import dumps, dumps_read

_INT64 = 2**63
_MICROS = 1_000_000
MAX_TOPIC_CHARACTERS = 249


def ordering_key(data: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return the primary key of a payload as a JSON array, the same text for the same key.

    Raises:
        ParkError: a key field is missing or null, or has no JSON form.
    """
    if len(fields) == 1:
        value = data.get(fields[0])
        if type(value) is int and -_INT64 <= value < _INT64:
            return f"[{value}]"  # what dumps writes
    values = []
    for field in fields:
        value = data.get(field)
        if value is None:
            raise ParkError("key_missing", f"key field {field!r} is missing or null", where=field)
        values.append(value)
    try:
        return dumps(values).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ParkError("payload_not_json", f"the key has no JSON form: {error}") from error


def event_id(
    pipeline_id: str,
    name: str,
    key: str,
    *,
    version: int | None,
    content: bytes,
    delete: bool = False,
) -> str:
    """Return the id of an event: 32 hex digits.

    Args:
        pipeline_id: the pipeline's immutable id.
        name: the event name.
        key: the ordering key as ``ordering_key`` gives it.
        version: source version; None when the source has none.
        content: the payload's bytes, which stand in for a missing source version.
        delete: whether the event deletes its row: it is another one than an upsert of that version.

    Source: BLAKE2b with 128 bits over an unambiguous JSON array. Cost: about 1 µs.
    """
    text = dumps_read([pipeline_id, name, key, version])
    if version is None:
        text += content
    if delete:
        text += b"delete"
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def key_id(pipeline_id: str, name: str, key: str) -> str:
    """Return what the traces of a primary key's events are found under: "key-" and 24 hex digits.

    Args:
        pipeline_id: the pipeline's immutable id.
        name: the event name.
        key: the ordering key as ``ordering_key`` gives it.

    Source: BLAKE2b with 96 bits over an unambiguous JSON array. Cost: about 1 µs.
    """
    digest = hashlib.blake2b(dumps_read([pipeline_id, name, key]), digest_size=12)
    return f"key-{digest.hexdigest()}"


class EventIds:
    """Ids of the events of one name: those of ``event_id`` and ``key_id``, at half their cost.

    Args:
        pipeline_id: the pipeline's immutable id.
        name: the event name.
    """

    def __init__(self, pipeline_id: str, name: str) -> None:
        self._begin = dumps_read([pipeline_id, name])[:-1] + b","

    def event(self, key: bytes, version: int | None, content: bytes, *, delete: bool) -> str:
        """Return an event's id; ``key``: the ordering key as JSON has a text."""
        if version is None:
            text = b"%b%b,null]%b" % (self._begin, key, content)
        else:
            text = b"%b%b,%d]" % (self._begin, key, version)
        if delete:
            text += b"delete"
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    def keys(self, keys: Iterable[str]) -> list[str]:
        """Return what the traces of primary keys are found under, of ordering keys."""
        begin, blake2b = self._begin, hashlib.blake2b
        return [
            "key-" + blake2b(b"%b%b]" % (begin, dumps_read(key)), digest_size=12).hexdigest()
            for key in keys
        ]


def source_version(data: Mapping[str, Any], field: str | None) -> int | None:
    """Return the record's own version as a 64-bit integer; times become microseconds since 1970.

    Raises:
        ParkError: the field is missing, null, or neither an integer nor an RFC 3339 time.
    """
    if field is None:
        return None
    value = data.get(field)
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    if isinstance(value, str):
        value = _micros(value, field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParkError(
            "source_version_invalid", f"version field {field!r} holds {value!r}", where=field
        )
    if not -_INT64 <= value < _INT64:
        raise ParkError("source_version_invalid", f"{value} does not fit 64 bits", where=field)
    return value


def _micros(text: str, field: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ParkError("source_version_invalid", f"{text!r} is no time", where=field) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * _MICROS + delta.microseconds


class Stamp(NamedTuple):
    """What an event gets when it is taken in."""

    version: int
    """Intake version: strictly rising, in microseconds since 1970 or, after the clock went back or
    another run died, ahead of that."""
    minute: int
    """Intake minute since 1970, by the machine's clock."""
    taken_us: int
    """When, in microseconds since 1970, by the machine's clock."""


_made: Callable[[type[Stamp], tuple[int, int, int]], Stamp] = tuple.__new__
"""Half the cost of ``Stamp(…)``."""


def wall_us() -> int:
    """Return microseconds since 1970, by the machine's clock."""
    return time.time_ns() // 1000


class IntakeClock:
    """Gives each event its intake version, which rises strictly, and its intake minute.

    The minute is the machine's, held where it is while that clock goes back within a run. The
    version never goes back at all: it begins above ``last``, whatever the machine's clock says.

    Args:
        last: the highest version that may have been given before.
        reserve: called with a version above all that were reserved, before it is given; returns up
            to where versions may be given from now on. None: no version needs to be reserved.
        now_us: the machine's clock.
    """

    def __init__(
        self,
        *,
        last: int = 0,
        reserve: Callable[[int], int] | None = None,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self._last = last
        self._taken = 0
        self._reserve = reserve
        self._now_us = now_us
        self.reserved = last
        """Up to here versions may be given; who reserves otherwise, moves it."""

    @property
    def last(self) -> int:
        """The highest version given, or the one to begin above."""
        return self._last

    def go_above(self, version: int) -> None:
        """Give only versions above this one from now on: others gave it meanwhile."""
        self._last = max(self._last, version)

    def minute(self) -> int:
        """Return the minute of an event that were taken in now."""
        self._taken = max(self._taken, self._now_us())
        return self._taken // (60 * _MICROS)

    def stamp(self, count: int = 1) -> Stamp:
        """Return the next version, and the time; and give the ``count - 1`` versions behind it.

        Raises:
            Exception: what ``reserve`` raises; no version was given.
        """
        taken = self._now_us()
        if taken > self._taken:
            self._taken = taken
        else:
            taken = self._taken
        version = taken if taken > self._last else self._last + 1
        last = version + count - 1
        if last > self.reserved and self._reserve is not None:
            self.reserved = self._reserve(last)
        self._last = last
        return _made(Stamp, (version, taken // (60 * _MICROS), taken))


def topic_name(team: str, destination: str) -> str:
    """Return the Kafka topic of a team's events for a destination.

    Raises:
        InputError: the name would be longer than Kafka takes.
    """
    name = f"events.{team}.{destination}"
    if len(name) > MAX_TOPIC_CHARACTERS:
        raise InputError(f"topic {name!r} has more than {MAX_TOPIC_CHARACTERS} characters")
    return name
