"""Refresh: tracker and bucket compared both ways, and the numbers of groups with their segments.

Row without object    alarm, never repaired by deleting the row: see ``quarantine``
Object without row    garbage, once it is older than the grace and *decided*: no commit can name it
Loaded staged object  row loaded -> deleted by compare-and-set, then the object. A kill between
                      leaves an object whose row says deleted: the next run finds it in the listing.
                      Kept while its destination, put back to an older point, is to load it again
Aggregates            recomputed from segments, differences corrected and written to the audit log

When is an object that no row names decided? A writer stores it first and commits its row later, and
a frozen process may wake up after any grace; the ledger fences it, so the ledger is asked:
- parked, from Kafka (its directory says topic, partition, offset): once the ledger stands beyond
  the offset, the batch was committed, with this object or without it;
- staged: once each processing consumer, after the object was written, has committed a batch or was
  taken over: batches of one consumer follow each other. That of a generation of a topic that has
  ended is fenced for good, and names nothing;
- staged, made again of a lost one: not before that one is no longer lost, besides;
- parked, a message that Kafka refused: once its row names another object;
- parked, the parts of a segment that was cut, or segments moved by a rewriting: once no swap of
  that segment, or of the first that moves, can commit;
- parked, commits that were parked whole: once their destination stands at them or beyond;
- parked, otherwise not from Kafka: never. Ingestion's mark in the write-ahead log, and a load's
  outcome in the destination, name it for as long as they wait for the tracker. Kept, counted.
An empty or a wrong tracker decides nothing, so it deletes nothing.

The listing goes into a temporary table; both comparisons then go a thousand keys at a time.

Aggregates: a check that should find nothing. What each number is the sum of:
  parked, replaying   segments in that state
  replayed            segments replayed, and deleted ones that have a replay id
  discarded           segments discarded, by row or mark, and deleted ones that have none
  quarantined         segments in that state; replaced ones count nowhere: their successors do
  bytes               segments parked or replaying
  first, last event   all segments
Of segments whose rows retention has deleted the sums are in the partition's ``trimmed_...``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Integer,
    MetaData,
    Row,
    Select,
    Table,
    Text,
    and_,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
    union,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.schema import CreateTable

from waybill.access import write_audit
from waybill.parking.cleanup import tracker_now
from waybill.parking.model import RefreshReport
from waybill.parking.object_keys import (
    cut_segment,
    first_moved,
    lost_digest,
    refused_message,
    staged_digest,
    unloaded_commit,
)
from waybill.parking.packed import CorruptSegmentError, SegmentDescriptor, read_object_directory
from waybill.parking.quarantine import raise_alarm
from waybill.parking.states import HELD, IS_MARKED, IS_UNMARKED, lock_group
from waybill.progress import Progress
from waybill.storage import Deletion, ObjectInfo, ObjectMissingError, ObjectStore, TrackerStore
from waybill.storage.tracker import (
    consumers,
    load_positions,
    parked_objects,
    refused_messages,
    segments,
    staged_objects,
    topic_generations,
    topic_offsets,
)
from waybill.storage.tracker import parked_partitions as partitions

_LOG = logging.getLogger(__name__)
_BATCH = 1000
_PREFIXES = ("parked/", "staged/")
_PROCESSING = "processing/"
"""Of the names of consumers that process; the rest is the topic's name in Kafka."""
STAGED_KEPT_S = 7 * 86_400.0
"""How long a staged object is kept after it was loaded, unless settings say otherwise."""
_DAY = re.compile(r"parked/(\d{4})/(\d{2})/(\d{2})/")
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_LARGEST_PARTITION = 2**31 - 1
_MOST_NAMED = 1000
"""Missing objects that a report names."""
_FINAL = ("replayed", "replaced", "deleted")
_LARGEST_SKEW_S = 60.0
"""How far the store's clock and the tracker's may be apart; at most the grace."""
_ANY_PARKED = text("""
WITH start AS (SELECT floor(random() * last_value)::bigint + 1 AS id FROM segments_id_seq)
SELECT object_key FROM segments, start
WHERE segments.id >= start.id AND segments.id < start.id + 10000 AND state = 'parked'
ORDER BY segments.id LIMIT 1
""")
_TAKE_LOADED = text("""
WITH awaited AS MATERIALIZED (
  SELECT rewinds.destination, greatest(done_to + 1, (span->>0)::bigint) AS first,
    (span->>1)::bigint AS last
  FROM destination_rewinds AS rewinds CROSS JOIN LATERAL jsonb_array_elements(commits) AS span
  WHERE reloaded_at IS NULL AND EXISTS (
    SELECT FROM pipelines CROSS JOIN LATERAL (
      SELECT declaration->>'destination' AS destination FROM pipeline_versions
      WHERE pipeline_id = pipelines.id ORDER BY number DESC LIMIT 1) AS active
    WHERE active.destination = rewinds.destination AND NOT EXISTS (
      SELECT FROM undeployments WHERE pipeline_id = pipelines.id AND done_at IS NOT NULL))),
old AS (
  SELECT key FROM staged_objects AS staged
  WHERE state = 'loaded' AND loaded_at < :cutoff AND NOT EXISTS (
    SELECT FROM awaited WHERE awaited.destination = staged.destination
      AND staged.commit_number BETWEEN awaited.first AND awaited.last)
  ORDER BY key LIMIT :most FOR UPDATE OF staged SKIP LOCKED)
UPDATE staged_objects SET state = 'deleted'
WHERE key IN (SELECT key FROM old) AND state = 'loaded' RETURNING key
""")
"""Not what an open rewind is still to load again (``loading.rewinds``), while any pipeline of its
destination is deployed: once none is, nobody waits for its rows."""
_LISTED = Table(
    "waybill_listed_objects",
    MetaData(),
    Column("key", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("modified", DateTime(timezone=True), nullable=False),
    prefixes=["TEMPORARY"],
    postgresql_on_commit="DROP",
)
_NUMBERS = ("parked", "replaying", "replayed", "discarded", "quarantined", "bytes")
_EDGES = {"first_event_at": func.least, "last_event_at": func.greatest}
_TRIMMED = ("replayed", "discarded", *_EDGES)


@dataclass(frozen=True, slots=True)
class ObjectCheck:
    """What a look at parked objects found."""

    missing: list[str]
    suspect: list[str]
    """To be read whole: those of another size than was parked, and one by chance."""


@dataclass(frozen=True, slots=True)
class _Unnamed:
    """An object that no row names, or whose row says that it is deleted."""

    key: str
    bytes: int
    modified: datetime
    deleted: bool


def refresh(
    tracker: TrackerStore, objects: ObjectStore, *, grace_s: float, staged_kept_s: float
) -> RefreshReport:
    """Compare tracker and bucket; see ``Parking.refresh``."""
    now = tracker_now(tracker)
    cutoff = now - timedelta(seconds=grace_s)
    deletion = Deletion(objects)
    staged_deleted = _drop_loaded(tracker, deletion, now - timedelta(seconds=staged_kept_s))
    deleted = young = undecided = missing = 0
    first_missing: list[str] = []
    progress = Progress("refresh: objects that no row names, and the reverse", "objects")
    with tracker.transaction(long_statements=True, long_idle=True) as connection:
        _list(connection, objects)
        for unnamed in _unnamed(connection):
            old = [item for item in unnamed if item.deleted or item.modified < cutoff]
            decided = _decided(tracker, objects, old, skew_s=min(grace_s, _LARGEST_SKEW_S))
            deleted += len(deletion.delete(decided))
            young += len(unnamed) - len(old)
            undecided += len(old) - len(decided)
            progress.add(len(unnamed))
        for absent in _absent(connection):
            gone = [key for key in absent if _is_missing(tracker, objects, key)]
            raise_alarm(tracker, gone)
            missing += len(gone)
            progress.add(len(absent))
            first_missing += gone[: _MOST_NAMED - len(first_missing)]
    if missing:
        _LOG.error("%d objects are gone from the store, the first: %s", missing, first_missing[:10])
    report = RefreshReport(
        missing=tuple(first_missing),
        missing_more=missing - len(first_missing),
        garbage_deleted=deleted,
        garbage_kept_young=young,
        garbage_kept_undecided=undecided,
        aggregates_corrected=correct_aggregates(tracker),
        staged_deleted=staged_deleted,
    )
    deletion.end()
    return report


def check_objects(tracker: TrackerStore, objects: ObjectStore, now: datetime) -> ObjectCheck:
    """Hold parked objects against the store, some days of them; see ``Parking.check_objects``."""
    found: list[str] = []
    suspect = _sample(tracker)
    days = _days(tracker, now)
    progress = Progress("audit of parked objects", "days", len(days))
    for day in days:
        prefix = f"parked/{day:%Y/%m/%d}/"
        with tracker.transaction() as connection:
            live = _live_sizes(connection, prefix)
        sizes = {item.key: item.size for item in objects.list(prefix)} if live else {}
        absent = sorted(live.keys() - sizes.keys())
        gone = [key for key in absent if _is_missing(tracker, objects, key)]
        raise_alarm(tracker, gone)
        found += gone
        suspect += [key for key, size in live.items() if sizes.get(key, size) != size]
        progress.add()
    if found:
        _LOG.error("%d parked objects are gone, the first: %s", len(found), found[:10])
    return ObjectCheck(found, sorted(set(suspect)))


def _sample(tracker: TrackerStore) -> list[str]:
    """Return one object that holds parked events, by chance; often none where few are left."""
    with tracker.transaction() as connection:
        return list(connection.execute(_ANY_PARKED).scalars())


def _days(tracker: TrackerStore, now: datetime) -> list[date]:
    """Return today, yesterday, and one of the days before, since the first that has objects."""
    today = now.astimezone(UTC).date()
    query = select(func.min(parked_objects.c.key)).where(
        parked_objects.c.state == "live", parked_objects.c.key >= "parked/2"
    )
    with tracker.transaction() as connection:
        first = connection.execute(query).scalar()
    days = [today, today - timedelta(days=1)]
    found = None if first is None else _DAY.match(str(first))
    if found is not None:
        older = (days[1] - date(*map(int, found.groups()))).days
        if older > 0:
            days.append(days[1] - timedelta(days=1 + int(now.timestamp() // 60) % older))
    return days


def _live_sizes(connection: Connection, prefix: str) -> dict[str, int]:
    own = parked_objects.c
    query = select(own.key, own.bytes).where(
        own.state == "live", own.key >= prefix, own.key < f"{prefix[:-1]}0"
    )
    return {str(row[0]): int(row[1]) for row in connection.execute(query)}


def _drop_loaded(tracker: TrackerStore, deletion: Deletion, cutoff: datetime) -> int:
    """Delete staged objects that were loaded before ``cutoff``; returns their number.

    What is to be loaded again stays: see ``_TAKE_LOADED``.
    """
    asked = {"cutoff": cutoff, "most": _BATCH}
    number = 0
    while True:
        with tracker.transaction() as connection:
            keys = list(map(str, connection.execute(_TAKE_LOADED, asked).scalars()))
        if not keys:
            return number
        number += len(deletion.delete(keys))


def _list(connection: Connection, objects: ObjectStore) -> None:
    """Write the bucket's listing into a table of this transaction: it may be of any length."""
    connection.execute(CreateTable(_LISTED))
    progress = Progress("refresh: the bucket's listing", "objects")
    for prefix in _PREFIXES:
        for some in _chunks(objects.list(prefix)):
            rows = [{"key": o.key, "bytes": o.size, "modified": o.modified} for o in some]
            # some stores give a key twice when they are written to meanwhile
            connection.execute(insert(_LISTED).on_conflict_do_nothing(), rows)
            progress.add(len(rows))
    connection.execute(text(f"ANALYZE {_LISTED.name}"))


def _chunks(listing: Iterator[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    while some := list(islice(listing, _BATCH)):
        yield some


def _unnamed(connection: Connection) -> Iterator[list[_Unnamed]]:
    """Yield the objects that no row names, some at a time."""
    named, deleted = [], []
    for table in (parked_objects, staged_objects):
        same = table.c.key == _LISTED.c.key
        named.append(exists().where(same, table.c.state != "deleted"))
        deleted.append(exists().where(same, table.c.state == "deleted"))
    query = select(_LISTED, deleted[0] | deleted[1]).where(~named[0], ~named[1])
    for rows in _by_key(connection, query, _LISTED.c.key):
        yield [_Unnamed(*tuple(row)) for row in rows]


def _absent(connection: Connection) -> Iterator[list[str]]:
    """Yield the keys of rows that the listing lacks, some at a time."""
    for table, state in ((parked_objects, "live"), (staged_objects, "staged")):
        listed = exists().where(_LISTED.c.key == table.c.key)
        query = select(table.c.key).where(table.c.state == state, ~listed)
        for rows in _by_key(connection, query, table.c.key):
            yield [str(row[0]) for row in rows]


def _by_key(
    connection: Connection, query: Select[Any], key: ColumnElement[str]
) -> Iterator[list[Row[Any]]]:
    """Yield a query's rows in the order of a key, a page at a time."""
    after = ""
    while True:
        page = query.where(key > after).order_by(key).limit(_BATCH)
        rows = list(connection.execute(page))
        if not rows:
            return
        yield rows
        after = str(rows[-1][0])


def _is_missing(tracker: TrackerStore, objects: ObjectStore, key: str) -> bool:
    """Look again: it may have been stored after the listing, or cleaned up meanwhile."""
    if objects.exists(key):
        return False
    live = exists().where(parked_objects.c.key == key, parked_objects.c.state == "live")
    staged = exists().where(staged_objects.c.key == key, staged_objects.c.state == "staged")
    with tracker.transaction() as connection:
        return bool(connection.execute(select(live | staged)).scalar())


def _decided(
    tracker: TrackerStore, objects: ObjectStore, old: Sequence[_Unnamed], *, skew_s: float
) -> list[str]:
    """Return the keys of objects that no commit can name any more."""
    if not old:
        return []
    since = _processing_decided_before(tracker)
    before = None if since is None else since - timedelta(seconds=skew_s)
    lost = _lost_digests(tracker)
    keys = []
    for item in old:
        if item.deleted:
            keys.append(item.key)
        elif item.key.startswith("staged/"):
            if before is not None and item.modified < before and lost_digest(item.key) not in lost:
                keys.append(item.key)
        elif _is_decided(tracker, objects, item):
            keys.append(item.key)
    return _unnamed_now(tracker, keys)


def _unnamed_now(tracker: TrackerStore, keys: Sequence[str]) -> list[str]:
    """Return those that no row names, looked at once they are decided.

    A commit may have named an object after the listing was compared, and made it look decided.
    """
    query = union(
        *(
            select(table.c.key).where(table.c.key.in_(keys), table.c.state != "deleted")
            for table in (parked_objects, staged_objects)
        )
    )
    with tracker.transaction() as connection:
        named = {str(row[0]) for row in connection.execute(query)}
    return [key for key in keys if key not in named]


def _lost_digests(tracker: TrackerStore) -> set[str]:
    """Return by what objects that are made again name those that are lost.

    Only the transaction that moves a row from ``lost``, which nothing leads back to, can name one.
    """
    query = select(staged_objects.c.key).where(staged_objects.c.state == "lost")
    with tracker.transaction() as connection:
        return {staged_digest(str(key)) for key in connection.execute(query).scalars()}


def _is_decided(tracker: TrackerStore, objects: ObjectStore, item: _Unnamed) -> bool:
    """Tell whether no commit can name a parked object any more."""
    source = cut_segment(item.key)
    if source is not None:
        return _is_final(tracker, source)
    moved = first_moved(item.key)
    if moved is not None:
        return _is_final(tracker, moved)
    message = refused_message(item.key)
    if message is not None:
        return _is_parked_elsewhere(tracker, message, item.key)
    commit = unloaded_commit(item.key)
    if commit is not None:
        return _stands_at(tracker, *commit)
    return _ledger_is_beyond(tracker, _directory(objects, item))


def _is_final(tracker: TrackerStore, segment_id: int) -> bool:
    """Tell whether no cut or rewriting of a segment can commit: no state leads back to parked.

    A process that froze between storing an object and the swap may wake up after any time; asking
    for the offset that the ledger stands at would not stop it.
    """
    query = select(segments.c.state).where(segments.c.id == segment_id)
    with tracker.transaction() as connection:
        return connection.execute(query).scalar() in _FINAL


def _stands_at(tracker: TrackerStore, destination: str, commit_number: int) -> bool:
    table = load_positions.c
    query = select(table.last_commit).where(table.destination == destination)
    with tracker.transaction() as connection:
        stands = connection.execute(query).scalar()
    return stands is not None and int(stands) >= commit_number


def _processing_decided_before(tracker: TrackerStore) -> datetime | None:
    """Return a time: batches of processing that began to write before it are decided.

    A consumer's row says when it committed a batch last, or was taken over: each does both in one
    transaction (``ledger.commit.check_lease``). The row of a generation's consumer outlives the
    generation, whose end fences it (``ledger.generations``, I3).
    """
    generation = topic_generations.c
    has_ended = exists().where(
        generation.state == "ended",
        consumers.c.name == func.concat(_PROCESSING, generation.name),
    )
    query = select(func.min(consumers.c.seen_at)).where(
        consumers.c.name.startswith(_PROCESSING, autoescape=True), ~has_ended
    )
    with tracker.transaction() as connection:
        moment: datetime | None = connection.execute(query).scalar()
    return moment


def _is_parked_elsewhere(tracker: TrackerStore, message: tuple[str, int], key: str) -> bool:
    table = refused_messages
    query = select(table.c.object_key).where(
        table.c.wal_id == message[0], table.c.lsn == message[1]
    )
    with tracker.transaction() as connection:
        named = connection.execute(query).scalar()
    return named is not None and named != key


def _directory(objects: ObjectStore, item: _Unnamed) -> Sequence[SegmentDescriptor]:
    """Return an object's segments; none where it is no parked object or is gone."""
    try:
        return read_object_directory(objects, item.key, item.bytes)
    except (CorruptSegmentError, ObjectMissingError) as error:
        _LOG.warning("garbage is kept: %s", error)
        return ()


def _ledger_is_beyond(tracker: TrackerStore, described: Iterable[SegmentDescriptor]) -> bool:
    """Tell whether the ledger stands beyond all of these segments; False when it cannot know."""
    offsets: dict[tuple[str, int], int] = {}
    for segment in described:
        if not _is_of_kafka(segment):
            return False
        where = (segment.topic, segment.kafka_partition)
        offsets[where] = max(offsets.get(where, 0), segment.first_offset)
    if not offsets:
        return False
    at = tuple_(topic_offsets.c.topic, topic_offsets.c.partition)
    lowest = func.min(topic_offsets.c.next_offset)
    query = (
        select(topic_offsets.c.topic, topic_offsets.c.partition, lowest)
        .where(at.in_(list(offsets)))
        .group_by(topic_offsets.c.topic, topic_offsets.c.partition)
    )
    with tracker.transaction() as connection:
        stands = {(str(row[0]), int(row[1])): int(row[2]) for row in connection.execute(query)}
    return all(stands.get(where, 0) > offset for where, offset in offsets.items())


def _is_of_kafka(segment: SegmentDescriptor) -> bool:
    """Tell whether a directory, which may say anything, says where in Kafka a segment is."""
    numbers = (segment.kafka_partition, segment.first_offset)
    return (
        isinstance(segment.topic, str)
        and _TOPIC.fullmatch(segment.topic) is not None
        and all(isinstance(number, int) for number in numbers)
        and 0 <= segment.kafka_partition <= _LARGEST_PARTITION
    )


def correct_aggregates(tracker: TrackerStore) -> int:
    """Correct the partitions whose numbers are wrong; returns how many were.

    The look is one statement, so one snapshot: segments and sums change together, and work that
    goes on meanwhile is no difference. Cost: one pass over all segments.
    """
    with tracker.transaction(long_statements=True) as connection:
        wrong = [int(row[0]) for row in connection.execute(_differing())]
    return sum(_correct(tracker, partition_id) for partition_id in wrong)


def _sums() -> Select[Any]:
    deleted = segments.c.state == "deleted"
    was_replayed = segments.c.replay_id.is_not(None)
    parts: dict[str, ColumnElement[Any]] = {
        "parked": _sum(segments.c.count, and_(segments.c.state == "parked", IS_UNMARKED)),
        "replaying": _sum(segments.c.count, segments.c.state == "replaying"),
        "replayed": _sum(
            segments.c.count, or_(segments.c.state == "replayed", and_(deleted, was_replayed))
        ),
        "discarded": _sum(
            segments.c.count,
            or_(segments.c.state == "discarded", IS_MARKED, and_(deleted, ~was_replayed)),
        ),
        "quarantined": _sum(segments.c.count, segments.c.state == "quarantined"),
        "bytes": _sum(segments.c.bytes, and_(segments.c.state.in_(HELD), IS_UNMARKED)),
        "first_event_at": func.min(segments.c.first_event_at),
        "last_event_at": func.max(segments.c.last_event_at),
    }
    columns = [part.label(name) for name, part in parts.items()]
    return (
        select(segments.c.partition_id, *columns)
        .join_from(segments, partitions, partitions.c.id == segments.c.partition_id)
        .group_by(segments.c.partition_id)
    )


def _sum(column: ColumnElement[int], which: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column * cast(which, Integer)), 0)


def _differing() -> Select[Any]:
    sums = _sums().subquery()
    differs = or_(
        *[partitions.c[n] != func.coalesce(sums.c[n], 0) + _trimmed(n) for n in _NUMBERS],
        *[partitions.c[n].is_distinct_from(_EDGES[n](sums.c[n], _trimmed(n))) for n in _EDGES],
    )
    joined = partitions.outerjoin(sums, sums.c.partition_id == partitions.c.id)
    return select(partitions.c.id).select_from(joined).where(differs).order_by(partitions.c.id)


def _trimmed(name: str) -> ColumnElement[Any]:
    """Return what deleted segments had in a number or edge of their partition."""
    return partitions.c[f"trimmed_{name}"] if name in _TRIMMED else literal(0)


def _correct(tracker: TrackerStore, partition_id: int) -> bool:
    with tracker.transaction(long_statements=True) as connection:
        lock_group(connection, partition_id)
        before = _numbers(connection, partition_id)
        row = connection.execute(_sums().where(segments.c.partition_id == partition_id)).first()
        right = dict.fromkeys(_NUMBERS, 0) | dict.fromkeys(_EDGES)
        if row is not None:
            right = {name: row._mapping[name] for name in right}
        gone = _gone(connection, partition_id)
        numbers = {name: int(right[name] or 0) + (gone.get(name) or 0) for name in _NUMBERS}
        edges = {
            name: best((one for one in (right[name], gone[name]) if one is not None), default=None)
            for name, best in (("first_event_at", min), ("last_event_at", max))
        }
        if before == {**numbers, **edges}:
            return False
        connection.execute(
            update(partitions).where(partitions.c.id == partition_id).values(**numbers, **edges)
        )
        detail = {n: [before[n], numbers[n]] for n in _NUMBERS if before[n] != numbers[n]}
        write_audit(
            connection,
            who="refresh_tracker",
            action="correct_aggregates",
            target=f"partition {partition_id}",
            **detail,
        )
    _LOG.error(
        "partition %d: its numbers were not the sum of its segments: %s", partition_id, detail
    )
    return True


def _gone(connection: Connection, partition_id: int) -> dict[str, Any]:
    """Return what is left of deleted segments, by the names of numbers and edges."""
    query = select(*[partitions.c[f"trimmed_{n}"].label(n) for n in _TRIMMED])
    row = connection.execute(query.where(partitions.c.id == partition_id)).one()
    return dict(row._mapping)


def _numbers(connection: Connection, partition_id: int) -> dict[str, Any]:
    query = select(*[partitions.c[n] for n in (*_NUMBERS, *_EDGES)])
    row = connection.execute(query.where(partitions.c.id == partition_id)).one()
    return dict(row._mapping)
