"""One trace, and many of them as an Arrow batch. No payload, ever.

In memory the text columns but the id are dictionaries: a constant costs four shared bytes a trace.
At rest and in every answer they are plain strings (``TRACE_SCHEMA``). "Nothing" is null in Arrow;
in ``Trace`` it is the empty text, or None for a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NotRequired, Required, TypeAlias, TypedDict, Unpack

import pyarrow as pa

from waybill.errors import InputError

PHASES = (
    "key",
    "ingestion",
    "transformation",
    "mapping",
    "destination",
    "replay",
)
"""In the order of an event's way; a trail is sorted by time, then by this. A line of phase ``key``
is found under ``waybill.events.key_id`` and names an event of that primary key in ``refers_to``.
Each of them is written; a discard leaves no trace, and a trail has it from the audit log."""

THROUGH = "through"
"""Phase of a line in a spool that stands for two: it passed transformation and mapping, in one task
and as one event. Whoever reads a spool file gets the two; nothing else knows of it."""

OUTCOMES = (
    "accepted",
    "passed",
    "parked",
    "filtered",
    "delivered",
    "deleted",
    "superseded",
    "duplicate",
    "replayed",
)
"""``deleted``: a delete that a destination took; ``delivered``: any other event."""

INTAKE_STEP_US = 100_000
"""Times of taking in are rounded down to it: few values, which cost little at rest."""

_AT = pa.timestamp("us", "UTC")
TRACE_SCHEMA = pa.schema(
    [
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("pipeline_id", pa.string()),
        pa.field("event_name", pa.string()),
        pa.field("phase", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("error_type", pa.string()),
        pa.field("host", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("kafka_partition", pa.int32()),
        pa.field("kafka_offset", pa.int64()),
        pa.field("object_key", pa.string()),
        pa.field("batch", pa.string()),
        pa.field("commit_number", pa.int64()),
        pa.field("attempt", pa.int32()),
        pa.field("replay_id", pa.string()),
        pa.field("intake_minute", pa.int32()),
        pa.field("refers_to", pa.string()),
        pa.field("at", _AT, nullable=False),
    ]
)
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_PLAIN_TEXTS = ("event_id", "refers_to")
TEXT_COLUMNS = tuple(
    field.name
    for field in TRACE_SCHEMA
    if field.type == pa.string() and field.name not in _PLAIN_TEXTS
)
"""Texts that many traces share: dictionaries in memory and at rest."""
MEMORY_SCHEMA = pa.schema(
    [
        field.with_type(_DICTIONARY) if field.name in TEXT_COLUMNS else field
        for field in TRACE_SCHEMA
    ]
)
_KNOWN = {"phase": frozenset((*PHASES, THROUGH)), "outcome": frozenset(OUTCOMES)}

Texts: TypeAlias = str | Sequence[str | None] | pa.Array | None
Numbers: TypeAlias = int | Sequence[int | None] | pa.Array | None


class TraceColumns(TypedDict, total=False):
    """What ``traces`` takes beside the ids: one value for all of them, or one each."""

    pipeline_id: Required[Texts]
    event_name: Required[Texts]
    phase: Required[Texts]
    outcome: Required[Texts]
    at_us: Required[Numbers]
    error_type: NotRequired[Texts]
    host: NotRequired[Texts]
    topic: NotRequired[Texts]
    kafka_partition: NotRequired[Numbers]
    kafka_offset: NotRequired[Numbers]
    object_key: NotRequired[Texts]
    batch: NotRequired[Texts]
    commit_number: NotRequired[Numbers]
    attempt: NotRequired[Numbers]
    replay_id: NotRequired[Texts]
    intake_minute: NotRequired[Numbers]
    refers_to: NotRequired[Texts]


@dataclass(frozen=True, slots=True)
class Trace:
    """One point that an event passed."""

    event_id: str
    pipeline_id: str
    event_name: str
    phase: str
    outcome: str
    error_type: str
    host: str
    topic: str
    kafka_partition: int | None
    kafka_offset: int | None
    object_key: str
    batch: str
    commit_number: int | None
    attempt: int | None
    replay_id: str
    intake_minute: int | None
    """Minutes since 1970; None: written by an older release."""
    refers_to: str
    """Of a line of phase ``key``: an event's id."""
    at: datetime
    """UTC."""

    @property
    def place(self) -> tuple[str, str, str, int | None, int | None]:
        """What two traces of one thing share: event, phase, batch, partition and offset.

        A run that died, or a task that Spark ran again, leaves traces of a batch that the next
        one writes again: of several with one place the latest counts. ``kafka_offset`` is there
        what tells two copies of one event apart: at ingestion, where no partition is known yet,
        the record's number in the write-ahead log; at a destination the row's in its commit.
        """
        return self.event_id, self.phase, self.batch, self.kafka_partition, self.kafka_offset

    @property
    def coarse(self) -> bool:
        """True: ``at`` is rounded down to ``INTAKE_STEP_US``, it says no more."""
        return self.phase in ("key", "ingestion") and self.at.microsecond % INTAKE_STEP_US == 0

    @property
    def order(self) -> tuple[datetime, int, int]:
        """What a trail is sorted by: time, phase, attempt."""
        place = PHASES.index(self.phase) if self.phase in PHASES else len(PHASES)
        return self.at, place, self.attempt or 0


def traces(ids: Sequence[str] | pa.Array, **columns: Unpack[TraceColumns]) -> pa.RecordBatch:
    """Return one trace an id; each other column is one value for all, or a sequence as long as ids.

    Args:
        ids: event ids, none of them null.
        **columns: see ``TraceColumns``; ``at_us`` in microseconds since 1970, UTC. Empty text is
            stored as null. ``host`` may be left to the recorder.

    Raises:
        InputError: an unknown phase or outcome, a null id, a wrong type, or unequal lengths.

    Cost: about 0.05 µs an id for arrays, less for dictionary arrays, 0.1 µs for lists; about 60 µs
    a call.
    """
    given: dict[str, Any] = dict(columns)
    given["event_id"], given["at"] = ids, given.pop("at_us")
    count = len(ids)
    try:
        arrays = [_array(field, given.pop(field.name, None), count) for field in TRACE_SCHEMA]
        batch = pa.RecordBatch.from_arrays(arrays, schema=MEMORY_SCHEMA)
    except (ValueError, TypeError, OverflowError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"traces of {count} ids cannot be made: {error}") from error
    if given:
        raise InputError(f"a trace has no column {sorted(given)}; it has {TRACE_SCHEMA.names}")
    return batch


def to_traces(table: pa.Table) -> list[Trace]:
    """Return the rows of a table with the columns of ``TRACE_SCHEMA`` (in any order)."""
    return [to_trace(row) for row in table.select(TRACE_SCHEMA.names).to_pylist()]


def to_trace(values: Mapping[str, Any]) -> Trace:
    """Return one row, given by column; a time without a zone is UTC."""
    row: dict[str, Any] = dict(values)
    for name in (*TEXT_COLUMNS, "refers_to"):
        row[name] = row[name] or ""
    at: datetime = row["at"]
    row["at"] = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return Trace(**row)


def constant_text(value: str | None, count: int) -> pa.Array:
    """Return ``count`` times the same text as a dictionary array; null for None and for ""."""
    if not value:
        return pa.nulls(count, _DICTIONARY)
    indices = pa.Array.from_buffers(pa.int32(), count, [None, _Zeros.buffer(count)])
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))


class _Zeros:
    """Index buffers of constant columns: all zero, so that all of them share one."""

    _buffer = pa.py_buffer(bytes(4 * 4096))

    @classmethod
    def buffer(cls, count: int) -> pa.Buffer:
        if cls._buffer.size < 4 * count:
            cls._buffer = pa.py_buffer(bytes(8 * count))
        return cls._buffer


def _array(field: pa.Field, value: Any, count: int) -> pa.Array:
    if field.name in TEXT_COLUMNS:
        return _texts(field.name, value, count)
    if field.name == "event_id":
        return _ids(value)
    if not value and isinstance(value, str):
        value = None
    if value is None and field.nullable:
        return pa.nulls(count, field.type)
    if isinstance(value, int | str):
        return pa.repeat(pa.scalar(value, field.type), count)
    array = _plain(value, pa.int64() if field.type == _AT else field.type)
    if not field.nullable and array.null_count:
        raise InputError(f"column {field.name!r} has nulls")
    return array.cast(field.type)


def _ids(value: Any) -> pa.Array:
    array = _plain(value, pa.string())
    if array.null_count:
        raise InputError(f"{array.null_count} of {len(array)} event ids are null")
    return array


def _texts(name: str, value: Any, count: int) -> pa.Array:
    if value is None or isinstance(value, str):
        array = constant_text(value, count)
        _check_known(name, [value] if value else [])
        return array
    array = value if _is_encoded(value) else _encoded(value)
    _check_known(name, array.dictionary.to_pylist())
    return array


def _is_encoded(value: Any) -> bool:
    """Say whether a column is a dictionary array as traces have it, without empty texts."""
    if not isinstance(value, pa.DictionaryArray) or value.type != _DICTIONARY:
        return False
    return "" not in value.dictionary.to_pylist()


def _encoded(value: Any) -> pa.DictionaryArray:
    """Return texts as a dictionary array; empty ones are null."""
    import pyarrow.compute as pc

    plain = _plain(value, pa.string())
    return pc.if_else(pc.equal(plain, ""), None, plain).dictionary_encode()


def _check_known(name: str, values: Sequence[str]) -> None:
    known = _KNOWN.get(name)
    if known is None:
        return
    wrong = sorted(set(values) - known)
    if wrong:
        raise InputError(f"{wrong} is no {name} of a trace; there are {sorted(known)}")


def _plain(value: Any, kind: pa.DataType) -> pa.Array:
    """Return lists, arrays and chunked arrays as one array of a type."""
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.Array):
        return value if value.type == kind else value.cast(kind)
    return pa.array(value, kind)
