"""The connector ``kafka``: topics of others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from waybill.egress import EgressGuard
from waybill.errors import InputError, ParkError
from waybill.events import instant
from waybill.ingestion.connectors.base import (
    BadRow,
    Cursor,
    Page,
    Patience,
    Record,
    Row,
    Standing,
)
from waybill.ingestion.connectors.kafka_topics.debezium import DebeziumMessages, raw_of
from waybill.ingestion.connectors.kafka_topics.declaration import KafkaOptions, read_options
from waybill.ingestion.connectors.kafka_topics.framed_messages import FramedMessages
from waybill.ingestion.connectors.kafka_topics.log import TopicLog
from waybill.ingestion.connectors.kafka_topics.messages import JsonMessages, Read
from waybill.ingestion.connectors.kafka_topics.position import Position, Round, TopicPosition
from waybill.ingestion.connectors.kafka_topics.schema_registry import SchemaRegistry
from waybill.ingestion.connectors.opening import Opening
from waybill.settings import Settings

OfTopics = TypeVar("OfTopics", bound=Round)
_LOG = logging.getLogger(__name__)
_PAGE_BYTES = 16 * 1024 * 1024
_WAIT_S = 0.5
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON", "debezium": ""}
_READ_AGAIN = "read what is there again (`waybill pipelines reread`)"


@dataclass(slots=True)
class _Gathered:
    """What is gathered for a page."""

    records: list[Record] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.records) + len(self.bad)

    def page(self, start: dict[str, Any] | None, position: Position) -> Page:
        rows: list[Row] = [*self.records]
        places = self.places
        cursor = position.cursor()
        return Page(rows, self.bad, cursor=cursor, start=start, place=lambda i: places[i])


class KafkaConnector:
    """Reads topics, each from its first message on; round by round (``position``).

    A run ends when nothing came for ``idle_s``, or after ``run_s``. See ``docs/connectors-cdc.md``.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._options = options = read_options(opening)
        self._page_rows = opening.source.page_rows
        self._framed = _framed(options, self._open_registry)
        reads: dict[str, Read] = {}
        if self._framed is not None:
            reads = {"read_value": self._framed.value, "read_key": self._framed.key}
        self._readers: dict[str, JsonMessages | DebeziumMessages] = {}
        for event, topic in options.topics.items():
            declared = opening.events.get(event)
            fields = declared.key if declared else ()
            self._readers[topic] = (
                DebeziumMessages(event, fields, options.version, **reads)
                if options.format == "debezium"
                else JsonMessages(event, fields, options.key, **reads)
            )
        self._log: TopicLog | None = None

    def read(self, cursor: Cursor | None) -> Iterator[Page | None]:
        """Yield the pages behind a position until nothing comes, or the time is over.

        Raises:
            InputError: a topic is not there, was made again, or has lost messages that were not
                read; says what to do.
            RetryError: Kafka does not answer.
        """
        self.close()
        log = self._log = TopicLog(self._opening.connection("kafka"))
        patience = Patience(self._options.idle_s, self._options.run_s)
        start = None if cursor is None else dict(cursor)
        position = Position.of(cursor)
        self._require_same(position, log.topic_ids(sorted(self._readers)))
        while position.rereads:
            position = yield from self._read_again(log, position)
            start = position.cursor()
        while True:
            position = yield from self._round(log, position)
            start = position.cursor() if position.topics else start
            begun = self._next_round(log, position)
            came = next(begun.unread(), None) is not None
            if came:
                patience.met()
            if patience.over:
                return
            if not came:
                yield None
                time.sleep(_WAIT_S)
                continue
            yield Page([], [], cursor=begun.cursor(), start=start)
            position = begun
            start = begun.cursor()

    def count(self) -> int | None:
        """Return None: a source without an end."""
        return None

    @staticmethod
    def check_value(name: str, value: str) -> None:
        """See ``FormCheckingConnector``: it is a time."""
        _milliseconds(name, value)

    def cursor_at(self, value: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the cursor before the first message of each partition from a time on.

        Raises:
            InputError: it is no time, or a topic is not there.
            RetryError: Kafka does not answer.
        """
        from_ms = _milliseconds("from", value)
        log = TopicLog(self._opening.connection("kafka"))
        try:
            ids = log.topic_ids(sorted(self._readers))
            offsets = log.offsets_from({name: count for name, (_, count) in ids.items()}, from_ms)
        finally:
            log.close()
        known = Position.of(stands).topics
        topics = {}
        for name, (topic_id, _) in ids.items():
            at = offsets[name]
            if name in known and known[name].id == topic_id:
                read = known[name].offsets  # of a new partition none: it is read from its first
                at = {number: min(at[number], read[number]) for number in at if number in read}
            topics[name] = TopicPosition(id=topic_id, offsets=at)
        return Position(topics=topics).cursor()

    def reread_between(self, begin: str, end: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the offsets of the messages that were read, from a time up to another one.

        Raises:
            InputError: one is no time, ``begin`` is behind ``end``, nothing was read yet, or a
                topic is not there.
            RetryError: Kafka does not answer.
        """
        from_ms, to_ms = _milliseconds("from", begin), _milliseconds("to", end)
        if from_ms > to_ms:
            raise InputError(f"to: {end!r} is before from, {begin!r}")
        known = Position.of(stands).topics
        if not known:
            raise InputError(
                "to: no topic was read yet, so nothing can be read again: a run without from and to"
                " reads them all"
            )
        log = TopicLog(self._opening.connection("kafka"))
        try:
            ids = log.topic_ids(sorted(self._readers))
            self._require_same(Position(topics=known), ids)
            counts = {name: count for name, (_, count) in ids.items() if name in known}
            firsts = log.offsets_from(counts, from_ms)
            lasts = log.offsets_from(counts, to_ms + 1)
        finally:
            log.close()
        topics = {}
        for name in counts:
            read = known[name].offsets
            ends = {n: min(at, read[n]) for n, at in lasts[name].items() if n in read}
            topics[name] = TopicPosition(
                id=known[name].id,
                offsets={n: min(firsts[name][n], last) for n, last in ends.items()},
                ends=ends,
            )
        return Round(topics=topics).cursor()

    def standing(self, cursor: Cursor) -> Standing | None:
        """Return how far topics are read, and how many offsets are left to their ends now."""
        if self._log is None:
            return None
        ids = self._log.topic_ids(sorted(self._readers))
        spans = self._log.spans({name: partitions for name, (_, partitions) in ids.items()})
        position = Position.of(cursor)
        known = position.topics
        behind, read = sum(one.end - one.offset for r in position.rereads for one in r.unread()), 0
        for name, partitions in spans.items():
            offsets = known[name].offsets if name in known else {}
            for number, (first, end) in partitions.items():
                at = min(max(offsets.get(number, first), first), end)
                behind += end - at
                read += at
        topics = f"{len(spans)} topic{'s' if len(spans) > 1 else ''}"
        return Standing(f"offset {read:,} over {topics}", behind, "messages")

    def close(self) -> None:
        """End the connections; again changes nothing."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._framed is not None:
            self._framed.close()

    def notes(self) -> list[str]:
        """Return which schemas were read, for people; asks the registry for their subjects."""
        return [] if self._framed is None else self._framed.notes()

    def _open_registry(self) -> SchemaRegistry:
        name = self._options.registry or ""
        settings = self._opening.settings or Settings()
        return SchemaRegistry(
            self._opening.other_connection(name, "source.options.registry"),
            EgressGuard(settings.egress),
        )

    def _round(self, log: TopicLog, position: Position) -> Generator[Page | None, None, Position]:
        """Yield the pages of what is left of a round; returns the position behind it."""
        start = position.cursor()
        for found in self._gathered(log, position):
            if found is None:
                yield None
                continue
            gathered, position = found
            if position.cursor() != start:
                yield gathered.page(start, position)
                start = position.cursor()
        return position

    def _read_again(
        self, log: TopicLog, position: Position
    ) -> Generator[Page | None, None, Position]:
        """Yield the pages of the first round of what is read again; returns the position behind."""
        start = position.cursor()
        for found in self._gathered(log, self._still_there(log, position.rereads[0])):
            if found is None:
                yield None
                continue
            gathered, left = found
            position = position.rereading(left)
            if position.cursor() != start:
                yield gathered.page(start, position)
                start = position.cursor()
        position = position.rereading()
        yield Page([], [], cursor=position.cursor(), start=start)
        return position

    def _gathered(
        self, log: TopicLog, left: OfTopics
    ) -> Iterator[tuple[_Gathered, OfTopics] | None]:
        """Yield what is gathered for a page, and what is left behind it; the last may be empty."""
        gathered = _Gathered()
        for unread in left.unread():
            reader = self._readers.get(unread.topic)
            if reader is None:
                continue
            for message in log.messages(unread):
                if message is None:
                    yield None
                    continue
                _add(gathered, reader, message, self._framed)
                if len(gathered) >= self._page_rows or gathered.size >= _PAGE_BYTES:
                    left = left.moved(unread.topic, unread.partition, message.offset() + 1)
                    yield gathered, left
                    gathered = _Gathered()
            left = left.moved(unread.topic, unread.partition, unread.end)
        yield gathered, left

    def _still_there(self, log: TopicLog, asked: Round) -> Round:
        """Return a round without messages that were deleted since it was asked for."""
        counts = {name: count for name, (_, count) in log.topic_ids(sorted(self._readers)).items()}
        spans = log.spans({name: count for name, count in counts.items() if name in asked.topics})
        for unread in asked.unread():
            first = spans.get(unread.topic, {}).get(unread.partition, (0, 0))[0]
            if unread.offset < first:
                _LOG.warning(
                    "topic %r, partition %d: the messages %d to %d were deleted before they were"
                    " read again",
                    unread.topic,
                    unread.partition,
                    unread.offset,
                    min(first, unread.end) - 1,
                )
                asked = asked.moved(unread.topic, unread.partition, min(first, unread.end))
        return asked

    def _next_round(self, log: TopicLog, position: Position) -> Position:
        """Return the position with the ends of the topics now.

        Raises:
            InputError: a topic was made again, or messages are gone that were not read.
        """
        ids = log.topic_ids(sorted(self._readers))
        self._require_same(position, ids)
        spans = log.spans({name: partitions for name, (_, partitions) in ids.items()})
        topics = {}
        for name, (topic_id, _) in ids.items():
            known = position.topics.get(name)
            offsets: dict[int, int] = {}
            for partition, (first, end) in spans[name].items():
                at = None if known is None else known.offsets.get(partition)
                _require_messages(f"topic {name!r}, partition {partition}", at, first, end)
                offsets[partition] = first if at is None else at
            ends = {partition: end for partition, (_, end) in spans[name].items()}
            topics[name] = TopicPosition(id=topic_id, offsets=offsets, ends=ends)
        return position.model_copy(update={"topics": topics})

    def _require_same(self, position: Position, ids: dict[str, tuple[str, int]]) -> None:
        for name, (topic_id, _) in ids.items():
            known = position.topics.get(name)
            if known is not None and known.id != topic_id:
                raise InputError(
                    f"topic {name!r} was deleted and made again since it was read; {_READ_AGAIN}"
                )


def _milliseconds(name: str, value: str) -> int:
    """Return a time that a person gave, milliseconds since 1970."""
    moment = instant(value.strip())
    if moment is None:
        raise InputError(
            f"{name}: expected a message's time, such as 2024-01-31T12:00:00Z; found {value!r}"
        )
    return int(moment.timestamp() * 1000)


def _require_messages(where: str, at: int | None, first: int, end: int) -> None:
    if at is None:
        return
    if at < first:
        raise InputError(
            f"{where}: the messages {at} to {first - 1} were deleted before they were read (the"
            f" topic's retention is too short for this schedule); {_READ_AGAIN}"
        )
    if at > end:
        raise InputError(
            f"{where}: it ends at {end}, and was read up to {at}: it lost messages; {_READ_AGAIN}"
        )


def _framed(
    options: KafkaOptions, open_registry: Callable[[], SchemaRegistry]
) -> FramedMessages | None:
    kind = _KINDS.get(options.format)
    if kind is None or (options.format == "debezium" and options.registry is None):
        return None
    return FramedMessages(open_registry, kind, options.records)


def _add(
    gathered: _Gathered,
    reader: JsonMessages | DebeziumMessages,
    message: Any,
    schemas: FramedMessages | None,
) -> None:
    key, value = message.key(), message.value()
    place = f"{message.topic()}/{message.partition()}/{message.offset()}"
    gathered.size += len(key or b"") + len(value or b"")
    try:
        if schemas is None:
            record = reader.record(key, value)
        else:
            record = schemas.routed(reader.record(*schemas.bytes_of(message)))
    except ParkError as error:
        raw = raw_of(key, value)
        gathered.bad.append(BadRow(raw, 0, error.code, error.message, where=place))
        return
    if record is not None:
        gathered.records.append(record)
        gathered.places.append(place)
