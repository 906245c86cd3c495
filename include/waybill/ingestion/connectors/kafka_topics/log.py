"""Topics of others: what they are, where they end, their messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from waybill.errors import InputError, RetryError, WaybillError
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.kafka_topics.declaration import client_config
from waybill.ingestion.connectors.kafka_topics.position import Unread

_ANSWER_S = 15.0
_SILENT_S = 30.0
_POLL_S = 0.5
_AT_ONCE = 500
_REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)


class TopicLog:
    """Reads topics; no consumer group is joined, and no offset is committed at Kafka.

    Only what was committed by transactions is read (``read_committed``).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        config = client_config(connection)
        try:
            self._admin = AdminClient(config)
            self._consumer = Consumer(
                config
                | {
                    "group.id": "waybill",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                }
            )
        except KafkaException as error:
            raise InputError(self._words(error)) from None

    def close(self) -> None:
        """Give the connections back."""
        self._consumer.close()

    def topic_ids(self, names: list[str]) -> dict[str, tuple[str, int]]:
        """Return each topic's id, and how many partitions it has.

        Raises:
            InputError: one is not there, or may not be read.
            RetryError: Kafka does not answer.
        """
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=_ANSWER_S)
        found = {}
        for name, future in asked.items():
            answer = self._result(future, f"topic {name!r}")
            found[name] = (str(answer.topic_id), len(answer.partitions))
        return found

    def spans(self, topics: Mapping[str, int]) -> dict[str, dict[int, tuple[int, int]]]:
        """Return {topic: {partition: (first offset, offset behind the last)}}.

        Args:
            topics: how many partitions each has.
        """
        places = [TopicPartition(name, n) for name, count in topics.items() for n in range(count)]
        firsts = self._offsets(places, OffsetSpec.earliest())
        lasts = self._offsets(places, OffsetSpec.latest())
        found: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in topics}
        for place in places:
            at = place.topic, place.partition
            found[place.topic][place.partition] = firsts[at], lasts[at]
        return found

    def offsets_from(self, topics: Mapping[str, int], from_ms: int) -> dict[str, dict[int, int]]:
        """Return {topic: {partition: offset of the first message of a time or later}}.

        The offset behind the last one, where there is none so late.
        """
        places = [TopicPartition(name, n) for name, count in topics.items() for n in range(count)]
        later = self._offsets(places, OffsetSpec.for_timestamp(max(0, from_ms)))
        spans = self.spans(topics)
        found: dict[str, dict[int, int]] = {name: {} for name in topics}
        for place in places:
            at = later[place.topic, place.partition]
            end = spans[place.topic][place.partition][1]
            found[place.topic][place.partition] = end if at < 0 else min(at, end)
        return found

    def _offsets(
        self, places: list[TopicPartition], spec: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        asked = self._admin.list_offsets(
            dict.fromkeys(places, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_ANSWER_S,
        )
        return {
            (place.topic, place.partition): self._result(
                future, f"topic {place.topic!r}, partition {place.partition}"
            ).offset
            for place, future in asked.items()
        }

    def messages(self, unread: Unread) -> Iterator[Any]:
        """Yield a partition's messages between two offsets; None while nothing comes.

        Raises:
            RetryError: nothing came for half a minute, or Kafka does not answer.
            InputError: the messages are not there any more, or may not be read.
        """
        self._consumer.assign([TopicPartition(unread.topic, unread.partition, unread.offset)])
        heard = time.monotonic()
        while True:
            came = self._consumer.consume(_AT_ONCE, _POLL_S)
            if not came:
                if time.monotonic() - heard > _SILENT_S:
                    raise RetryError(
                        f"{self._where(unread)} gave nothing for {_SILENT_S:.0f} s from offset"
                        f" {unread.offset} on"
                    )
                yield None
                continue
            heard = time.monotonic()
            for message in came:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise self._sorted(error, self._where(unread))
                if error is None and message.offset() < unread.end:
                    yield message
                last = unread.end if error is not None else unread.end - 1
                if message.offset() >= last:
                    return

    def _where(self, unread: Unread) -> str:
        return f"topic {unread.topic!r}, partition {unread.partition}"

    def _result(self, future: Any, what: str) -> Any:
        try:
            return future.result(timeout=_ANSWER_S + 5)
        except KafkaException as error:
            raise self._sorted(error.args[0], what) from None
        except TimeoutError:
            raise RetryError(
                f"Kafka of connection {self._connection.name!r} does not answer"
            ) from None

    def _sorted(self, error: KafkaError, what: str) -> WaybillError:
        words = f"Kafka of connection {self._connection.name!r}, {what}: {self._words(error)}"
        code = error.code()
        if code in {
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError.TOPIC_EXCEPTION,
        }:
            return InputError(f"{words}; correct source.options.topics")
        if code in {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}:
            return InputError(f"{words}: messages were deleted before they were read")
        return InputError(f"{words}; grant the right") if code in _REFUSED else RetryError(words)

    def _words(self, error: object) -> str:
        return self._connection.hide(str(error))
