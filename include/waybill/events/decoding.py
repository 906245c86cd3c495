"""From the wire to an event: at once where all is as `encode` writes it, else piece by piece.

The quick way reads straight into a typed structure and must never accept what the careful way would
refuse, nor read it otherwise; whatever it does not know, it leaves to the careful way, which also
finds the words for what is wrong.

Many messages at once are read into columns (`read_first_passes`), where all came for the first time
and hold nothing rare, as nearly all do. An event is made of one only where one is asked for.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence, Set
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, overload

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
_INT64 = 2**63
_INT32 = 2**31
_FITS_INT64 = 15
"""Hexadecimal digits that always do."""
_BACKSLASH = ord("\\")
"""As a number: bytes find one in a tenth of the time that they take to find it as bytes."""
_LARGEST_SLICE_BYTES = 16 * 1024**2
_SHORT = LARGEST_NAME_BYTES // 4
_SOURCES = 4096
"""Sources remembered, each split once."""

_PayloadT = TypeVar("_PayloadT")
_Short = Annotated[str, msgspec.Meta(max_length=_SHORT)]
_Natural32 = Annotated[int, msgspec.Meta(ge=0, lt=_INT32)]


class _Message(msgspec.Struct, Generic[_PayloadT], gc=False, forbid_unknown_fields=True):
    """A message as `encode` writes it; names are those on the wire."""

    specversion: str
    id: str
    source: _Short
    type: _Short
    subject: str
    version: str
    intakeminute: _Natural32
    time: str
    data: _PayloadT
    stage: str
    attempt: _Natural32
    replayid: str | None = None
    op: Literal["upsert", "delete"] = "upsert"


class _FirstPass(_Message[msgspec.Raw], gc=False, forbid_unknown_fields=True):
    """One that no replay sent; its payload is left as it stands there."""

    specversion: Literal["1.0"]
    stage: Literal["transformation"]
    attempt: Literal[0]
    replayid: None = None


class _Packed(msgspec.Struct, array_like=True):
    """Events of one pipeline and name, on their way to the process of user code."""

    pipeline_id: str
    team: str
    name: str
    ids: Sequence[str]
    keys: Sequence[str]
    source_versions: Sequence[int]
    intake_versions: Sequence[int]
    intake_minutes: Sequence[int]
    times: Sequence[str]
    payloads: list[Any]
    deletes: Sequence[int] = ()
    """Indices of those that delete their row."""


class _Payload(msgspec.Struct, gc=False):
    """A message's payload as it stands there."""

    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_read_payload = msgspec.json.Decoder(_Payload).decode
_read = msgspec.json.Decoder(_Message[Any], float_hook=exact_float).decode
_read_data = msgspec.json.Decoder(float_hook=exact_float).decode
_read_head = msgspec.json.Decoder(_Message[msgspec.Raw]).decode
_OPENING, _CLOSING = b"{}"
_first, _last = itemgetter(0), itemgetter(-1)
_read_first_passes = msgspec.json.Decoder(_FirstPass).decode_lines
_read_packed = msgspec.json.Decoder(_Packed, float_hook=exact_float).decode


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


def _decode(value: bytes, read: Callable[[bytes], _Message[Any]]) -> Event:
    if _BACKSLASH in value and b"\\u" in value:  # only an escape brings what text must not hold
        return _decode_carefully(value)
    try:
        wire = read(value)
        team, pipeline_id = _parties(wire.source)
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
        wire.intakeminute, wire.time, wire.data, wire.stage, wire.attempt, wire.replayid, wire.op,
    )  # fmt: skip


class Heads(Sequence[Event]):
    """Events of one pipeline and event name, at least one; their payloads are left as they stood.

    As a sequence it makes an event when it is asked for one, and gives the same one each time.
    """

    def __init__(
        self,
        messages: Sequence[_FirstPass],
        source_versions: Sequence[int],
        intake_versions: Sequence[int],
        *,
        has_deletes: bool = False,
    ) -> None:
        self._messages = messages
        self._has_deletes = has_deletes
        self.source_versions = source_versions
        self.intake_versions = intake_versions
        self.team, self.pipeline_id = _parties(messages[0].source)
        self.name = messages[0].type
        self._made: dict[int, Event] = {}
        self.arrays: dict[str, Any] = {}
        """What others made of a column of these, by its name, for whoever needs it next."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        """Return one event, or some."""
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            return self if chosen == range(len(self)) else [self[place] for place in chosen]
        event = self._made.get(index)
        if event is None:
            message = self._messages[index]
            event = self._made[index] = Event(
                message.id, self.pipeline_id, self.team, self.name, message.subject,
                self.source_versions[index], self.intake_versions[index], message.intakeminute,
                message.time, message.data, op=message.op,
            )  # fmt: skip
        return event

    def pick(self, indices: Sequence[int]) -> Heads:
        """Return some of them, at least one, that are of one pipeline and event name."""
        messages, sources, intakes = self._messages, self.source_versions, self.intake_versions
        return Heads(
            [messages[index] for index in indices],
            [sources[index] for index in indices],
            [intakes[index] for index in indices],
            has_deletes=self._has_deletes,
        )

    @property
    def deletes(self) -> list[int]:
        """Return the indices of those that delete their row."""
        if not self._has_deletes:
            return []
        return [index for index, message in enumerate(self._messages) if message.op == DELETE]

    @property
    def ids(self) -> list[str]:
        """Return the event ids."""
        return [message.id for message in self._messages]

    @property
    def keys(self) -> list[str]:
        """Return the ordering keys."""
        return [message.subject for message in self._messages]

    @property
    def intake_minutes(self) -> list[int]:
        """Return the intake minutes."""
        return [message.intakeminute for message in self._messages]

    @property
    def times(self) -> list[str]:
        """Return when each was taken in."""
        return [message.time for message in self._messages]

    def payloads(self, most: int) -> list[bytes]:
        """Return the payloads as they stand, in JSON arrays of so many; the last may have fewer."""
        data = [message.data for message in self._messages]
        return [
            b"[" + b",".join(data[start : start + most]) + b"]"
            for start in range(0, len(data), most)
        ]

    def packed(self) -> bytes:
        """Return all as JSON, payloads as they stand; `unpack_events` reads it."""
        messages = self._messages
        return msgspec.json.encode(
            _Packed(
                self.pipeline_id, self.team, self.name, self.ids, self.keys,
                self.source_versions, self.intake_versions, self.intake_minutes,
                [message.time for message in messages], [message.data for message in messages],
                self.deletes,
            )
        )  # fmt: skip


class FirstPasses(NamedTuple):
    """Messages that came for the first time, read but for their payloads; see `group_heads`."""

    messages: Sequence[_FirstPass]
    source_versions: Sequence[int]
    intake_versions: Sequence[int]
    kinds: Set[tuple[str, str]]
    """Source and type of each."""
    has_deletes: bool

    @property
    def teams(self) -> dict[str, str]:
        """Return the team of each pipeline."""
        parties = (_parties(source) for source, _ in self.kinds)
        return {pipeline_id: team for team, pipeline_id in parties}


def read_first_passes(values: Sequence[bytes]) -> FirstPasses | None:
    """Read messages at once.

    None: they are not all plain first passes, or have more than 16 MiB together, which are held
    twice here, or one pipeline comes from two teams; `decode_head` finds out which is what.
    Whatever is read here, `decode` would read the same. Cost: about 0.8 µs for 400 bytes.
    """
    if sum(map(len, values)) > _LARGEST_SLICE_BYTES:
        return None
    # Neither an array, nor a text, nor an object goes on over "}, line feed, {": where each message
    # begins and ends so and there are as many objects as messages, each message is one object.
    try:
        if {*map(_first, values)} != {_OPENING} or {*map(_last, values)} != {_CLOSING}:
            return None
        body = b"\n".join(values)
        if _BACKSLASH in body and b"\\u" in body:
            return None
        if not body.isascii():
            body.decode()
        messages = _read_first_passes(body)
        versions = [message.version.partition("/") for message in messages]
        sources = [0 if text == "0" else int(text, 16) for text, _, _ in versions]
        intakes = [int(text, 16) for _, _, text in versions]
    except (msgspec.MsgspecError, ValueError, RecursionError, IndexError):
        return None
    if (
        not 0 < len(messages) == len(values)
        or not 0 <= min(intakes) <= max(intakes) < _INT64
        or not -_INT64 <= min(sources) <= max(sources) < _INT64
    ):
        return None
    kinds = {(message.source, message.type) for message in messages}
    found = FirstPasses(messages, sources, intakes, kinds, DELETE in {m.op for m in messages})
    return found if len(found.teams) == len({source for source, _ in kinds}) else None


def group_heads(parts: Sequence[FirstPasses]) -> list[tuple[Heads, Sequence[int]]]:
    """Return messages of one pipeline and event name together, with their indices over all parts.

    No pipeline of them is of two teams. Cost: 0.5 µs a message; nothing where all are alike.
    """
    messages = [*chain.from_iterable(part.messages for part in parts)]
    heads = Heads(
        messages,
        [*chain.from_iterable(part.source_versions for part in parts)],
        [*chain.from_iterable(part.intake_versions for part in parts)],
        has_deletes=any(part.has_deletes for part in parts),
    )
    if len(set().union(*(part.kinds for part in parts))) == 1:
        return [(heads, range(len(messages)))]
    groups: dict[tuple[str, str], list[int]] = {}
    for index, message in enumerate(messages):
        groups.setdefault((message.source, message.type), []).append(index)
    return [(heads.pick(indices), indices) for indices in groups.values()]


def read_heads(values: Sequence[bytes]) -> list[tuple[Heads, Sequence[int]]] | None:
    """Return messages of one pipeline and name together, with their indices; None: not at once.

    See `read_first_passes`.
    """
    found = read_first_passes(values)
    return None if found is None else group_heads([found])


def unpack_events(body: bytes | bytearray) -> list[Event]:
    """Return what `Heads.packed` wrote, payloads read. Cost: 1 µs for 400 bytes.

    Raises:
        ValueError: a payload cannot be read.
        RecursionError: likewise.
    """
    try:
        packed = _read_packed(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    events = list(
        map(
            Event, packed.ids, repeat(packed.pipeline_id), repeat(packed.team),
            repeat(packed.name), packed.keys, packed.source_versions, packed.intake_versions,
            packed.intake_minutes, packed.times, packed.payloads,
        )
    )  # fmt: skip
    for index in packed.deletes:
        events[index].op = DELETE
    return events


def payloads_reader(kind: Any) -> Callable[[bytes | bytearray | memoryview], list[Any]]:
    """Return what reads a JSON array of payloads of a type, numbers exactly where it is ``Any``.

    It raises MsgspecError, ValueError or RecursionError where one cannot be read as that.
    """
    return msgspec.json.Decoder(list[kind], float_hook=exact_float).decode


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
def _parties(source: str) -> tuple[str, str]:
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
