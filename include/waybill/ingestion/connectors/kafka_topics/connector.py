"""The connector ``kafka``: topics of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

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
from waybill.ingestion.connectors.kafka_topics.position import Position, TopicPosition
from waybill.ingestion.connectors.kafka_topics.schema_registry import SchemaRegistry
from waybill.ingestion.connectors.opening import Opening
from waybill.settings import Settings

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

    def cursor_at(self, value: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the cursor before the first message of each partition from a time on.

        Raises:
            InputError: it is no time, or a topic is not there.
            RetryError: Kafka does not answer.
        """
        moment = instant(value.strip())
        if moment is None:
            raise InputError(
                f"from: expected a message's time, such as 2024-01-31T12:00:00Z; found {value!r}"
            )
        log = TopicLog(self._opening.connection("kafka"))
        try:
            ids = log.topic_ids(sorted(self._readers))
            offsets = log.offsets_from(
                {name: count for name, (_, count) in ids.items()}, int(moment.timestamp() * 1000)
            )
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

    def standing(self, cursor: Cursor) -> Standing | None:
        """Return how far topics are read, and how many offsets are left to their ends now."""
        if self._log is None:
            return None
        ids = self._log.topic_ids(sorted(self._readers))
        spans = self._log.spans({name: partitions for name, (_, partitions) in ids.items()})
        known = Position.of(cursor).topics
        behind = read = 0
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
        gathered, start = _Gathered(), position.cursor()
        for unread in position.unread():
            reader = self._readers.get(unread.topic)
            if reader is None:
                continue
            for message in log.messages(unread):
                if message is None:
                    yield None
                    continue
                _add(gathered, reader, message, self._framed)
                if len(gathered) >= self._page_rows or gathered.size >= _PAGE_BYTES:
                    after = message.offset() + 1
                    position = position.moved(unread.topic, unread.partition, after)
                    yield gathered.page(start, position)
                    gathered, start = _Gathered(), position.cursor()
            position = position.moved(unread.topic, unread.partition, unread.end)
        if position.cursor() != start:
            yield gathered.page(start, position)
        return position

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
