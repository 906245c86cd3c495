"""Recording packed objects in the transaction that commits what they came from."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    DateTime,
    Integer,
    LargeBinary,
    Text,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.types import TypeEngine

from waybill.errors import StopError
from waybill.events import HELD_ERROR
from waybill.notices import write_first
from waybill.parking.copies import Copies, CopyKey, find_copies
from waybill.parking.identities import unpack_ids
from waybill.parking.model import ObjectDescriptor
from waybill.parking.packed import NAMES, ParkedGroupKey, SegmentDescriptor
from waybill.parking.segment_stream import SegmentStream
from waybill.storage.tracker import (
    COPY,
    HELD_AGAIN,
    add_outcomes,
    parked_before,
    parked_objects,
    segments,
)
from waybill.storage.tracker import parked_partitions as partitions

_TIME = DateTime(timezone=True)
_TAKE_OFF = text("""
UPDATE parked_partitions
SET parked = parked_partitions.parked - given.events, bytes = parked_partitions.bytes - given.bytes
FROM unnest(CAST(:ids AS bigint[]), CAST(:events AS bigint[]), CAST(:bytes AS bigint[]))
  AS given (id, events, bytes) WHERE parked_partitions.id = given.id
""")
_PARTITION_TYPES: dict[str, TypeEngine[Any]] = {
    **dict.fromkeys(NAMES, Text()),
    "parked": BigInteger(),
    "bytes": BigInteger(),
    "first_event_at": _TIME,
    "last_event_at": _TIME,
    "last_message": Text(),
}
_SEGMENT_TYPES: dict[str, TypeEngine[Any]] = {
    "partition_id": BigInteger(),
    "object_key": Text(),
    "position": BigInteger(),
    "length": BigInteger(),
    "count": BigInteger(),
    "bytes": BigInteger(),
    "sha256": Text(),
    "first_event_at": _TIME,
    "last_event_at": _TIME,
    "kafka_partition": Integer(),
    "first_offset": BigInteger(),
    "fingerprint": Text(),
    "last_message": Text(),
    "ids": LargeBinary(),
    "copies": Text(),
}


_PORTION = 20_000
"""Segments in one statement: their memory is bounded, however much a micro-batch parks."""
OF_LOADS = "load/"
"""What the scope of a load begins with; all other scopes do not."""
_Row = tuple[str, SegmentDescriptor]


@dataclass(slots=True)
class _Sum:
    parked: int
    bytes: int
    first_event_at: datetime
    last_event_at: datetime
    last_message: str

    def add(self, segment: SegmentDescriptor) -> None:
        self.parked += segment.count
        self.bytes += segment.bytes
        self.first_event_at = min(self.first_event_at, _time(segment.first_event_at))
        self.last_event_at = max(self.last_event_at, _time(segment.last_event_at))
        self.last_message = segment.last_message


def record_objects(
    connection: Connection,
    objects: Sequence[ObjectDescriptor],
    *,
    scope: str,
    commit_number: int,
    once: bool = False,
) -> Counter[CopyKey]:
    """Write objects, partitions and segments, and a notice for each partition that was empty.

    Two statements for 20,000 segments and one in all; for 20,000 one more where there is somebody
    to tell, in all one where events came back with a replay: that they parked again is added to its
    outcomes. Partitions are locked in the order of their names.

    With ``once`` copies are left out, for two statements more, and counted in what is returned. An
    object of nothing but copies is recorded as deleted: the next refresh deletes it.
    """
    _write_objects(connection, objects)
    counts: Counter[CopyKey] = Counter()
    again: dict[str, Counter[str]] = defaultdict(Counter)
    named, kept = set[str](), set[str]()
    for portion in _portions(objects):
        rows, lines = portion, dict[int, tuple[int, ...]]()
        ids, known, empty = _upsert_groups(connection, [segment for _, segment in rows])
        if once:
            found = find_copies(connection, [segment for _, segment in rows], ids, known)
            counts += found.counts
            lines = found.lines
            if lines:
                rows = _without(connection, rows, found, ids)
        filled = {ids[segment.partition] for _, segment in rows}
        write_first(connection, [number for number in empty if number in filled])
        if rows:
            _write_segments(connection, rows, ids, scope, commit_number)
        if not scope.startswith(OF_LOADS):  # which tell themselves what they refused
            _add_parked_again(again, portion, lines)
        named.update(key for key, _ in portion)
        kept.update(key for key, _ in rows)
    _give_up(connection, named - kept)
    if again:
        add_outcomes(connection, again)
    return counts


def _portions(objects: Sequence[ObjectDescriptor]) -> Iterator[list[_Row]]:
    """Yield (object key, segment) in the order of partitions, 20,000 and whole partitions a time.

    Inside a partition they stand in the order of the objects, and in each as it has them.
    """
    rows: list[_Row] = []
    for row in heapq.merge(*map(_ordered, objects), key=_partition):
        if len(rows) >= _PORTION and _partition(row) != _partition(rows[-1]):
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _ordered(item: ObjectDescriptor) -> Iterator[_Row]:
    if isinstance(item.segments, SegmentStream):
        return ((item.key, segment) for segment in item.segments)
    return iter(sorted(((item.key, segment) for segment in item.segments), key=_partition))


def _partition(row: _Row) -> ParkedGroupKey:
    return row[1].partition


def _add_parked_again(
    again: dict[str, Counter[str]], rows: Sequence[_Row], copies: Mapping[int, tuple[int, ...]]
) -> None:
    """Add replay id to outcome to events; copies of what is parked already are duplicates."""
    for index, (_, segment) in enumerate(rows):
        held = segment.error_type == HELD_ERROR
        outcome = HELD_AGAIN if held else parked_before(segment.stage)
        lines, first = copies.get(index, ()), 0
        for _, replay_id, number in segment.origins:
            if replay_id:
                twice = bisect_left(lines, first + number) - bisect_left(lines, first)
                for name, some in ((outcome, number - twice), (COPY, twice)):
                    if some:
                        again[replay_id][name] += some
            first += number


def _without(
    connection: Connection,
    rows: Sequence[_Row],
    found: Copies,
    ids: dict[ParkedGroupKey, int],
) -> list[_Row]:
    """Take copies off the partitions' numbers; return the segments that are left, marked."""
    left = []
    less: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for index, (key, segment) in enumerate(rows):
        lines = found.lines.get(index, ())
        if lines:
            less[ids[segment.partition]][0] += len(lines)
        if len(lines) < segment.count:
            left.append((key, replace(segment, copies=lines, count=segment.count - len(lines))))
        else:
            less[ids[segment.partition]][1] += segment.bytes
    given = {
        "ids": list(less),
        "events": [events for events, _ in less.values()],
        "bytes": [size for _, size in less.values()],
    }
    connection.execute(_TAKE_OFF, given)
    return left


def _write_objects(connection: Connection, objects: Sequence[ObjectDescriptor]) -> None:
    if objects:
        values = [{"key": item.key, "bytes": item.size} for item in objects]
        connection.execute(parked_objects.insert(), values)


def _give_up(connection: Connection, keys: set[str]) -> None:
    """Say of objects of nothing but copies that they are to go."""
    if keys:
        chosen = parked_objects.c.key.in_(sorted(keys))
        connection.execute(parked_objects.update().where(chosen).values(state="deleted"))


def _write_segments(
    connection: Connection,
    rows: Sequence[_Row],
    ids: dict[ParkedGroupKey, int],
    scope: str,
    commit_number: int,
) -> None:
    columns: dict[str, list[Any]] = {
        "partition_id": [ids[segment.partition] for _, segment in rows],
        "object_key": [key for key, _ in rows],
        "first_event_at": [_time(segment.first_event_at) for _, segment in rows],
        "last_event_at": [_time(segment.last_event_at) for _, segment in rows],
        "copies": [_array(segment.copies) for _, segment in rows],
        "ids": [unpack_ids(segment.ids) or None for _, segment in rows],
    }
    for name in _SEGMENT_TYPES.keys() - columns.keys():
        columns[name] = [getattr(segment, name) for _, segment in rows]
    source = _rows(_SEGMENT_TYPES)
    names = list(_SEGMENT_TYPES)
    given = [
        cast(source.c[name], ARRAY(Integer)) if name == "copies" else source.c[name]
        for name in names
    ]
    query = select(*given, literal(scope), literal(commit_number))
    connection.execute(
        segments.insert().from_select(
            [*names, "scope", "commit_number"], query.order_by(source.c.ordinal)
        ),
        columns,
    )


def _upsert_groups(
    connection: Connection, found: Sequence[SegmentDescriptor]
) -> tuple[dict[ParkedGroupKey, int], set[ParkedGroupKey], list[int]]:
    """Add up per partition, lock in the order of names.

    Returns {partition: id}, the partitions that were there before, and the ids of those that held
    nothing.
    """
    if not found:
        return {}, set(), []
    sums: dict[ParkedGroupKey, _Sum] = {}
    for segment in found:
        if segment.count < 1:
            raise StopError(f"a segment of {segment.partition} has {segment.count} events")
        total = sums.get(segment.partition)
        if total is None:
            first, last = _time(segment.first_event_at), _time(segment.last_event_at)
            sums[segment.partition] = _Sum(
                segment.count, segment.bytes, first, last, segment.last_message
            )
        else:
            total.add(segment)
    keys = sorted(sums)
    columns: dict[str, list[Any]] = {
        name: [key[index] for key in keys] for index, name in enumerate(NAMES)
    }
    for name in _PARTITION_TYPES.keys() - columns.keys():
        columns[name] = [getattr(sums[key], name) for key in keys]
    rows = connection.execute(_upsert(), columns).all()
    ids = {(row[1], row[2], row[3], row[4]): int(row[0]) for row in rows}
    known = {(row[1], row[2], row[3], row[4]) for row in rows if row.was_there}
    return ids, known, [int(row[0]) for row in rows if _was_empty(row, sums)]


def _was_empty(row: Any, sums: dict[ParkedGroupKey, _Sum]) -> bool:
    """Tell whether nothing was parked or replaying in a partition before this commit."""
    return bool(row.parked == sums[row[1], row[2], row[3], row[4]].parked and not row.replaying)


def _upsert() -> Any:
    source = _rows(_PARTITION_TYPES)
    names = list(_PARTITION_TYPES)
    query = select(*[source.c[name] for name in names]).order_by(source.c.ordinal)
    statement = insert(partitions).from_select(names, query)
    new, old = statement.excluded, partitions.c
    return statement.on_conflict_do_update(
        index_elements=[old[name] for name in NAMES],
        set_={
            "parked": old.parked + new.parked,
            "bytes": old.bytes + new.bytes,
            "first_event_at": func.least(old.first_event_at, new.first_event_at),
            "last_event_at": func.greatest(old.last_event_at, new.last_event_at),
            "last_parked_at": func.clock_timestamp(),
            "last_message": new.last_message,
        },
    ).returning(
        old.id,
        *[old[name] for name in NAMES],
        old.parked,
        old.replaying,
        literal_column("(xmax <> 0)").label("was_there"),
    )


def _rows(types: dict[str, TypeEngine[Any]]) -> Any:
    """Return one table expression of columns, numbered from 1 as ``ordinal``.

    The columns are parameters of the statement by their names: SQLAlchemy keeps statements, and
    with them whatever values they were made with.
    """
    arrays = [cast(bindparam(name), ARRAY(kind)) for name, kind in types.items()]
    return (
        func.unnest(*arrays)
        .table_valued(*types, with_ordinality="ordinal", name="given")
        .render_derived()
    )


def _array(numbers: Sequence[int]) -> str | None:
    """Return an array as text: ``unnest`` would take an array of arrays for one long array."""
    return "{" + ",".join(map(str, numbers)) + "}" if numbers else None


def _time(moment: str) -> datetime:
    return datetime.fromisoformat(moment)
