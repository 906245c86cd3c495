"""The log between ingestion and processing: topics, their identity, and how far they reach."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from waybill.errors import AwayError, RetryError, StopError
from waybill.settings import KafkaSettings

_TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(2 * 1024**2),
}
_ANSWER_S = 15.0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as the cluster knows it."""

    name: str
    cluster_id: str
    topic_id: str
    """Changes when a topic of the same name is deleted and created again."""
    partitions: int


class KafkaLog:
    """Administration and reading of topics. Makes its clients on first use: not across a fork."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin_client: Any = None

    def wait_until_up(self, *, limit_s: float) -> None:
        """Wait for a broker.

        Raises:
            RetryError: none answered within ``limit_s``.
        """
        deadline = time.monotonic() + limit_s
        while True:
            try:
                self.cluster_id()
            except RetryError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def cluster_id(self) -> str:
        """Return the cluster's id.

        Raises:
            RetryError: no broker answers.
        """
        answer = self._wait(self._admin().describe_cluster(request_timeout=5.0))
        return str(answer.cluster_id)

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._metadata().topics)

    def ensure_topic(self, name: str) -> TopicInfo:
        """Return a topic, created with Waybill's configuration when it is missing."""
        if name not in self.topics():
            self._create(name)
        return self.describe(name)

    def describe(self, name: str) -> TopicInfo:
        """Return a topic's identity.

        Raises:
            StopError: there is no such topic.
            RetryError: no broker answers.
        """
        from confluent_kafka import KafkaException, TopicCollection

        futures = self._admin().describe_topics(TopicCollection([name]))
        try:
            found = futures[name].result(timeout=_ANSWER_S)
        except KafkaException as error:
            if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                raise StopError(f"topic {name!r} does not exist") from error
            raise _away(f"Kafka did not describe {name!r}: {error}") from error
        return TopicInfo(name, self.cluster_id(), str(found.topic_id), len(found.partitions))

    def watermarks(self, topic: TopicInfo) -> dict[int, tuple[int, int]]:
        """Return {partition: (first offset that is there, offset after the last)}.

        Raises:
            RetryError: a partition has no leader that answers for 15 s.
        """
        consumer = self._consumer()
        try:
            return {
                number: self._watermark(consumer, topic.name, number)
                for number in range(topic.partitions)
            }
        finally:
            consumer.close()

    def _watermark(self, consumer: Any, topic: str, number: int) -> tuple[int, int]:  # noqa: ANN401
        """Ask again while a leader is being elected, as it is just after a topic was made."""
        from confluent_kafka import KafkaException, TopicPartition

        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                low, high = consumer.get_watermark_offsets(
                    TopicPartition(topic, number), timeout=_ANSWER_S
                )
            except KafkaException as error:
                if time.monotonic() > deadline:
                    words = f"Kafka did not tell how far {topic}/{number} reaches: {error}"
                    raise _away(words) from error
                time.sleep(0.2)
            else:
                return int(low), int(high)

    def read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[bytes]:
        """Yield the values between two offsets of each partition (first, after the last)."""
        from confluent_kafka import TopicPartition

        left = {number: end for number, (start, end) in ranges.items() if end > start}
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, n, ranges[n][0]) for n in left])
            quiet_since = time.monotonic()
            while left:
                for message in consumer.consume(10_000, timeout=1.0):
                    if message.error():
                        raise RetryError(f"reading {topic!r}: {message.error()}")
                    quiet_since = time.monotonic()
                    number = message.partition()
                    if message.offset() < left.get(number, 0):
                        yield message.value() or b""
                    if message.offset() + 1 >= left.get(number, 0):
                        left.pop(number, None)
                if time.monotonic() - quiet_since > _ANSWER_S:
                    raise RetryError(f"{topic!r} gave nothing for {_ANSWER_S:.0f} s")
        finally:
            consumer.close()

    def first(self, topic: str, offsets: Mapping[int, int]) -> dict[int, tuple[int, bytes]]:
        """Return {partition: (time in ms since the epoch, value)} of one record of each.

        Args:
            topic: its name.
            offsets: {partition: the record's offset}; it must be there.

        Raises:
            RetryError: one was not given within 15 s.
        """
        from confluent_kafka import TopicPartition

        found: dict[int, tuple[int, bytes]] = {}
        deadline = time.monotonic() + _ANSWER_S
        consumer = self._consumer()
        try:
            for number, offset in offsets.items():
                consumer.assign([TopicPartition(topic, number, offset)])
                while number not in found:
                    message = consumer.poll(1.0)
                    if time.monotonic() > deadline or (message is not None and message.error()):
                        words = "nothing came" if message is None else message.error()
                        raise RetryError(f"reading {topic}/{number} at {offset}: {words}")
                    if message is not None and message.partition() == number:
                        found[number] = (int(message.timestamp()[1]), message.value() or b"")
        finally:
            consumer.close()
        return found

    def _create(self, name: str) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(
            name,
            num_partitions=self._settings.topic_partitions,
            replication_factor=self._settings.replication_factor,
            config=_TOPIC_CONFIG,
        )
        future = self._admin().create_topics([topic], operation_timeout=10.0)[name]
        try:
            future.result(timeout=_ANSWER_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise RetryError(f"could not create topic {name!r}: {error}") from error
        self._wait_until_known(name)

    def _wait_until_known(self, name: str) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while name not in self.topics():
            if time.monotonic() > deadline:
                raise RetryError(f"topic {name!r} did not appear")
            time.sleep(0.1)

    def _metadata(self) -> Any:  # noqa: ANN401 - confluent_kafka has no types
        from confluent_kafka import KafkaException

        try:
            return self._admin().list_topics(timeout=_ANSWER_S)
        except KafkaException as error:
            raise _away(
                f"no Kafka broker answers at {self._settings.bootstrap_servers}: {error}"
            ) from error

    def _wait(self, future: Any) -> Any:  # noqa: ANN401
        from confluent_kafka import KafkaException

        try:
            return future.result(timeout=_ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            raise _away(
                f"no Kafka broker answers at {self._settings.bootstrap_servers}: {error}"
            ) from error

    def _admin(self) -> Any:  # noqa: ANN401
        from confluent_kafka.admin import AdminClient

        if self._admin_client is None:
            self._admin_client = AdminClient(self._client_config())
        return self._admin_client

    def _consumer(self) -> Any:  # noqa: ANN401
        from confluent_kafka import Consumer

        return Consumer(
            {
                **self._client_config(),
                "group.id": "waybill-look",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )

    def _client_config(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._settings.bootstrap_servers,
            "log_level": 2,
            "socket.timeout.ms": 10_000,
        }


def _away(message: str) -> AwayError:
    return AwayError(message, setting="WAYBILL_KAFKA__BOOTSTRAP_SERVERS")


def open_log(settings: KafkaSettings) -> KafkaLog:
    """Open the log; connects on first use."""
    return KafkaLog(settings)
