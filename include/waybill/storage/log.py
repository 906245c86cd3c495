"""The log between ingestion and processing: topics, their identity, and how far they reach."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from waybill.errors import AwayError, InputError, RetryError, StopError, WaybillError
from waybill.settings import KafkaSettings
from waybill.storage.kafka_security import librdkafka_config
from waybill.waiting import answered

T = TypeVar("T")
_TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(2 * 1024**2),
}
_ANSWER_S = 15.0
_SOON_S = 5.0
"""Where many topics wait for the answer, and those that did not answer are asked again."""
_SPANS_S = 30.0
"""How far topics reach is told within so long: a round of the coordinator comes each minute."""
_LATE_S = 1.0
"""What the client should have told, and did not so long after its limit, is waited for no more."""
_LEAST_S = 0.2
"""Who was held up has this time left for a question: the client takes no limit of nothing."""
_AT_ONCE = 500
"""Topics that are described by one request, and partitions of which one record is read at once."""
_OFFSETS_AT_ONCE = 2_000
"""Partitions whose ends one request asks for."""
_STUCK_S = 5.0
"""Longest that partitions wait for the first records of others."""

_SAFE_ISR = 2
"""In-sync replicas that an acknowledged message is on, where a topic has three or more."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as the cluster knows it."""

    name: str
    cluster_id: str
    topic_id: str
    """Changes when a topic of the same name is deleted and created again."""
    partitions: int
    replicas: int = 1
    """Of the partition that has the fewest."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a partition ends, under which leader."""

    offset: int
    """After the last record."""
    leader_epoch: int
    """Grows with each election, also when the only broker restarts; -1: the broker is too old to
    tell. A log can lose its tail only where it changes."""


@dataclass(frozen=True, slots=True)
class LogState:
    """What the cluster says of a topic now."""

    topic_id: str
    ends: Mapping[int, LogEnd]
    """By partition."""


@dataclass(frozen=True, slots=True)
class TopicSpan:
    """One topic, and how far its partitions reach."""

    topic: TopicInfo
    marks: Mapping[int, tuple[int, int]]
    """{partition: (first offset that is there, offset after the last)}."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as it stands in the log."""

    offset: int
    at_ms: int
    """Its timestamp, in ms since the epoch."""
    leader_epoch: int
    """Of the leader that wrote it; -1: unknown."""
    value: bytes

    @property
    def digest(self) -> str:
        """Return what tells its value from others: ``digest_of``."""
        return digest_of(self.value)


def digest_of(value: bytes) -> str:
    """Return 32 hexadecimal digits of BLAKE2b over a record's value. Cost: about 1 µs per KiB."""
    return hashlib.blake2b(value, digest_size=16).hexdigest()


def safe_config(replicas: int) -> dict[str, str]:
    """Return the configuration that a topic of so many replicas must have, by Kafka's names.

    An acknowledged message (the producer asks for ``acks=all``) is on ``min.insync.replicas``
    brokers: 2 of three replicas or more. With fewer replicas than three, 1: asking for both of
    two would stop all writes when one of them is away.
    """
    in_sync = _SAFE_ISR if replicas > _SAFE_ISR else 1
    return {**_TOPIC_CONFIG, "min.insync.replicas": str(in_sync)}


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One entry of a topic's configuration with which events could be lost or refused."""

    name: str
    value: str
    wanted: str
    why: str

    def __str__(self) -> str:
        """Return it in one line."""
        return f"{self.name}={self.value} ({self.why}; {self.wanted} is needed)"


def config_faults(config: Mapping[str, str], replicas: int) -> list[ConfigFault]:
    """Return the entries of a topic's configuration that are dangerous.

    Args:
        config: by Kafka's names, defaults of the broker included.
        replicas: of the topic. ``min.insync.replicas`` may be larger than needed, but not larger
            than this. ``max.message.bytes`` is the owner's: what is larger parks.
    """
    found = []
    for name, wanted in safe_config(replicas).items():
        value = config.get(name, "")
        if name in _WHY and not _is_safe(name, value, wanted, replicas):
            found.append(ConfigFault(name, value or "(unknown)", wanted, _WHY[name]))
    return found


_WHY = {
    "cleanup.policy": "compaction deletes events",
    "retention.ms": "events are deleted by age, read or not",
    "retention.bytes": "events are deleted by size, read or not",
    "message.timestamp.type": "a log that was cut is known by the broker's timestamps",
    "unclean.leader.election.enable": "a replica that lacks events may become leader",
    "min.insync.replicas": "an acknowledged event must be on so many brokers",
}


def _is_safe(name: str, value: str, wanted: str, replicas: int) -> bool:
    if name == "min.insync.replicas":
        return value.isdecimal() and int(wanted) <= int(value) <= replicas
    return value == wanted


_REFUSALS = ("_AUTHENTICATION", "_SSL")


class KafkaLog:
    """Administration and reading of topics. Makes its clients on first use: not across a fork."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin_client: Any = None
        self._problems: deque[Any] = deque(maxlen=8)
        """What the clients said last of their connections: also why a login fails."""
        self._has_answered = False
        """The client of now did: it is no slow start that one waits for."""

    def wait_until_up(self, *, limit_s: float) -> None:
        """Wait for a broker, however long a command waits for servers: ``limit_s`` counts.

        Raises:
            RetryError: none answered within ``limit_s``, or the 5 s that one question takes.
        """
        deadline = time.monotonic() + limit_s
        while True:
            try:
                self._ask_metadata(None, _SOON_S)
            except RetryError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def cluster_id(self) -> str:
        """Return the cluster's id.

        Not by ``describe_cluster``: librdkafka ends the process where a broker that has just
        started, or was cut off from the others, answers that without any broker.

        Raises:
            RetryError: no broker answers.
        """
        return str(self._metadata(limit_s=_SOON_S).cluster_id)

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._metadata().topics)

    def ensure_topic(self, name: str) -> TopicInfo:
        """Return a topic, created with Waybill's configuration when it is missing.

        Raises:
            InputError: it exists with a configuration under which events could be lost.
            RetryError: no broker answers.
        """
        if name not in self.topics():
            self.create_topic(name, self._settings.topic_partitions)
        return self.safe_topic(name)

    def safe_topic(self, name: str) -> TopicInfo:
        """Return a topic that exists.

        Raises:
            StopError: there is no such topic.
            InputError: it has a configuration under which events could be lost.
            RetryError: no broker answers.
        """
        topic = self.describe(name)
        if faults := config_faults(self.config(name), topic.replicas):
            raise InputError(
                f"topic {name!r} is not safe: {'; '.join(map(str, faults))}. "
                f"`waybill topics configure {name}` shows what it changes, and mends it"
            )
        return topic

    def config(self, name: str) -> dict[str, str]:
        """Return a topic's configuration by Kafka's names, defaults of the broker included.

        Raises:
            RetryError: no broker answers.
        """
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, name)
        found = self._wait(self._admin().describe_configs([resource])[resource])
        return {entry.name: str(entry.value) for entry in found.values()}

    def set_config(self, name: str, values: Mapping[str, str]) -> None:
        """Set entries of a topic's configuration; the others stay as they are.

        Raises:
            RetryError: Kafka did not take them.
        """
        from confluent_kafka.admin import (
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ConfigSource,
            ResourceType,
        )

        entries = [
            ConfigEntry(
                key,
                value,
                source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
                incremental_operation=AlterConfigOpType.SET,
            )
            for key, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self._wait(self._admin().incremental_alter_configs([resource])[resource])

    def describe(self, name: str) -> TopicInfo:
        """Return a topic's identity.

        Raises:
            StopError: there is no such topic.
            RetryError: no broker answers.
        """
        found = self._described([name])[name]
        if isinstance(found, WaybillError):
            raise found
        return _info(name, self.cluster_id(), found)

    def spans(self, names: Collection[str]) -> dict[str, TopicSpan | WaybillError]:
        """Return {name: the topic and how far it reaches, or why that is not known}.

        A topic that does not exist is a ``StopError``; one with a partition without a leader, or
        whose leader does not answer in time, a ``RetryError``, and costs the others that time only.

        Raises:
            RetryError: no broker answers.

        Cost: a request for what there is, one for each 500 topics, and two for each 2,000
        partitions and broker, all of a kind at once; 30 s at most, whatever is away.
        """
        deadline = time.monotonic() + _SPANS_S
        cluster_id = self._metadata(limit_s=_SOON_S).cluster_id
        if cluster_id is None:  # else all would be taken for topics that nobody ever read
            raise RetryError("Kafka does not tell yet which cluster it is")
        found: dict[str, TopicSpan | WaybillError] = {}
        infos: list[TopicInfo] = []
        for name, described in self._described(sorted(names), 2 * _SOON_S).items():
            problem = described if isinstance(described, WaybillError) else _leaderless(described)
            if problem is not None:
                found[name] = problem
            else:
                infos.append(_info(name, cluster_id, described))
        left_s = max(_LEAST_S, deadline - time.monotonic())
        lows = self._ask_offsets(infos, "earliest", left_s / 2)
        led = [topic for topic in infos if not isinstance(lows[topic.name], RetryError)]
        left_s = max(_LEAST_S, deadline - time.monotonic() - _LATE_S)
        highs = self._ask_offsets(led, "latest", left_s)
        for topic in infos:
            low, high = lows[topic.name], highs.get(topic.name, {})
            if isinstance(low, RetryError):
                found[topic.name] = low
            elif isinstance(high, RetryError):
                found[topic.name] = high
            else:
                marks = {n: (int(low[n].offset), int(high[n].offset)) for n in high}
                found[topic.name] = TopicSpan(topic, marks)
        return found

    def unreadable(self, names: Collection[str]) -> dict[str, RetryError]:
        """Return {name: why it cannot be read now}, of those of these topics that cannot be.

        They have a partition without a leader, or with one that does not answer within 5 s. A topic
        that does not exist is not among them. Any broker answers; a controller that is away, which
        ``spans`` waits for, is none of it.

        Cost: one request for what there is, and one for each 2,000 partitions and broker, all at
        once; 10 s at most.
        """
        try:
            there = self._metadata(limit_s=_SOON_S).topics
        except RetryError as error:
            return dict.fromkeys(names, error)
        found: dict[str, RetryError] = {}
        led: list[TopicInfo] = []
        for name in there.keys() & set(names):
            partitions = there[name].partitions
            without = [number for number, partition in partitions.items() if partition.leader < 0]
            if without:
                found[name] = RetryError(f"partition {without[0]} of {name!r} has no leader")
            else:
                led.append(TopicInfo(name, "", "", len(partitions)))
        for name, answer in self._ask_offsets(led, "latest", _SOON_S).items():
            if isinstance(answer, RetryError):
                found[name] = answer
        return found

    def states(self, topics: Sequence[TopicInfo]) -> dict[str, LogState | WaybillError]:
        """Return {topic's name: its state, or why it is not known}.

        A topic that does not exist is a ``StopError``, one with a partition without a leader that
        answers for 15 s a ``RetryError``. Cost: two requests, however many topics.
        """
        ids, ends = self._described([topic.name for topic in topics]), self._ends(topics)
        states: dict[str, LogState | WaybillError] = {}
        for topic in topics:
            described, reached = ids[topic.name], ends[topic.name]
            if isinstance(described, WaybillError):
                states[topic.name] = described
            elif isinstance(reached, WaybillError):
                states[topic.name] = reached
            else:
                states[topic.name] = LogState(str(described.topic_id), reached)
        return states

    def ends(self, topic: TopicInfo) -> dict[int, LogEnd]:
        """Return where each partition ends, and its leader's epoch. Cost: one request a broker.

        Raises:
            RetryError: a partition has no leader that answers for 15 s.
        """
        ends = self._ends([topic])[topic.name]
        if isinstance(ends, WaybillError):
            raise ends
        return ends

    def ends_now(self, topic: TopicInfo, *, limit_s: float) -> dict[int, int]:
        """Return {partition: its end}, asked once.

        Raises:
            RetryError: a partition has no leader that answers within ``limit_s``.
        """
        ends = self._ask_offsets([topic], "latest", limit_s)[topic.name]
        if isinstance(ends, RetryError):
            raise ends
        return {number: int(end.offset) for number, end in ends.items()}

    def _ends(self, topics: Sequence[TopicInfo]) -> dict[str, dict[int, LogEnd] | RetryError]:
        ends: dict[str, dict[int, LogEnd] | RetryError] = {}
        left = list(topics)
        deadline = time.monotonic() + _ANSWER_S
        while left:
            answers = self._ask_ends(left)
            left = [topic for topic in left if isinstance(answers[topic.name], RetryError)]
            ends.update(answers)
            if time.monotonic() > deadline:
                break
            if left:
                time.sleep(0.2)
                for topic in left:  # the client keeps the epoch of a leader that is over
                    self._metadata(topic.name)
        return ends

    def _ask_ends(self, topics: Sequence[TopicInfo]) -> dict[str, dict[int, LogEnd] | RetryError]:
        return {
            name: answer
            if isinstance(answer, RetryError)
            else {
                number: LogEnd(
                    int(end.offset), -1 if end.leader_epoch is None else end.leader_epoch
                )
                for number, end in answer.items()
            }
            for name, answer in self._ask_offsets(topics, "latest").items()
        }

    def _ask_offsets(
        self,
        topics: Sequence[TopicInfo],
        which: Literal["earliest", "latest"],
        limit_s: float = _ANSWER_S,
    ) -> dict[str, dict[int, Any] | RetryError]:
        """Return {topic: {partition: Kafka's answer}, or why one of them has none}."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.latest() if which == "latest" else OffsetSpec.earliest()
        wanted = [TopicPartition(one.name, n) for one in topics for n in range(one.partitions)]
        found: dict[str, dict[int, Any]] = {topic.name: {} for topic in topics}
        failed: dict[str, RetryError] = {}
        admin, futures = self._admin(), dict[Any, Any]()
        until = time.monotonic() + limit_s + _LATE_S
        for some in _batches(wanted, _OFFSETS_AT_ONCE):
            asked = dict.fromkeys(some, spec)
            try:
                futures |= admin.list_offsets(asked, request_timeout=limit_s)
            except KafkaException as error:
                away = _away(f"Kafka did not tell where topics end: {error}")
                failed |= dict.fromkeys((at.topic for at in some), away)
        for at, future in futures.items():
            where = f"Kafka did not tell where {at.topic}/{at.partition} ends"
            try:
                answer = future.result(max(0.0, until - time.monotonic()))
                found[at.topic][at.partition] = answer
            except (KafkaException, TimeoutError) as error:
                failed[at.topic] = _away(f"{where}: {str(error) or 'its broker is silent'}")
            else:
                if answer.offset < 0:  # its broker was silent: the client calls that no error
                    failed[at.topic] = _away(f"{where} within {limit_s:.0f} s")
        return {**found, **failed}

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

    def _watermark(self, consumer: Any, topic: str, number: int) -> tuple[int, int]:
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
                    message = f"Kafka did not tell how far {topic}/{number} reaches: {error}"
                    raise _away(message) from error
                time.sleep(0.2)
            else:
                return int(low), int(high)

    def read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[bytes]:
        """Yield the values between two offsets of each partition (first, after the last)."""
        for message in self.read_messages(topic, ranges):
            yield message.value() or b""

    def records(
        self, topic: str, ranges: Mapping[int, tuple[int, int]]
    ) -> Iterator[tuple[int, LogRecord]]:
        """Yield (partition, record) as ``read_messages`` gives them."""
        for message in self.read_messages(topic, ranges):
            yield message.partition(), _record(message)

    def read_messages(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Any]:
        """Yield confluent_kafka's messages between two offsets of each partition.

        Offsets without a record (transaction markers, compaction) are passed over.

        Args:
            topic: its name.
            ranges: {partition: (first offset, offset after the last)}.

        Raises:
            RetryError: a partition gives nothing for 15 s, or an offset is not in the log.
        """
        from confluent_kafka import KafkaError, TopicPartition

        left = {number: end for number, (start, end) in ranges.items() if end > start}
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, n, ranges[n][0]) for n in left])
            quiet_since = time.monotonic()
            while left:
                for message in _arrived(consumer, 10_000, wait_s=1.0):
                    quiet_since = time.monotonic()
                    number = message.partition()
                    if message.error():
                        if message.error().code() != KafkaError._PARTITION_EOF:
                            raise RetryError(f"reading {topic!r}: {message.error()}")
                        left.pop(number, None)  # the log's end: what is missing has no record
                        continue
                    if message.offset() < left.get(number, 0):
                        yield message
                    if message.offset() + 1 >= left.get(number, 0):
                        left.pop(number, None)
                if time.monotonic() - quiet_since > _ANSWER_S:
                    raise RetryError(f"{topic!r} gave nothing for {_ANSWER_S:.0f} s")
        finally:
            consumer.close()

    def missing(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the offsets from start, before end, that hold no record, as (first, after).

        Cost: reads them all.
        """
        found, at = list[tuple[int, int]](), start
        for _, record in self.records(topic, {partition: (start, end)}):
            if record.offset > at:
                found.append((at, record.offset))
            at = record.offset + 1
        return [*found, (at, end)] if at < end else found

    def reader(self, topic: str) -> RecordReader:
        """Open a reader of single records of a topic; close it."""
        return RecordReader(self._consumer(), topic)

    def first(self, topic: str, offsets: Mapping[int, int]) -> dict[int, tuple[int, bytes]]:
        """Return {partition: (time in ms since the epoch, value)} of one record of each.

        Args:
            topic: its name.
            offsets: {partition: the record's offset}; it must be there.

        Raises:
            RetryError: one was not given within 15 s.
        """
        found: dict[int, tuple[int, bytes]] = {}
        reader = self.reader(topic)
        try:
            for number, offset in offsets.items():
                record = reader.next(number, offset)
                if record is None:
                    raise RetryError(f"reading {topic}/{number} at {offset}: nothing came")
                found[number] = (record.at_ms, record.value)
        finally:
            reader.close()
        return found

    def first_times(
        self, offsets: Mapping[str, Mapping[int, int]]
    ) -> dict[str, dict[int, int | None]]:
        """Return {topic: {partition: time of its first record at or after an offset, in ms}}.

        None: there is none. A partition that did not give one within 15 s, or has other offsets, is
        left out, and so is none but it.

        Args:
            offsets: {topic: {partition: offset}}.

        Cost: reading one batch of records of each partition, 500 partitions at a time; 15 s.
        """
        from confluent_kafka import TopicPartition

        places = [
            TopicPartition(name, n, at) for name in offsets for n, at in offsets[name].items()
        ]
        found: dict[str, dict[int, int | None]] = {name: {} for name in offsets}
        deadline = time.monotonic() + _ANSWER_S
        consumer = self._consumer(**_ONE_RECORD)
        try:
            for some in _batches(places, _AT_ONCE):
                until = min(deadline, time.monotonic() + _STUCK_S)
                for topic, number, at_ms in _first_times(consumer, some, until):
                    found[topic][number] = at_ms
        finally:
            consumer.close()
        return found

    def delete_records(self, topic: str, below: Mapping[int, int]) -> dict[int, int]:
        """Delete the records below an offset of each partition; again changes nothing.

        Args:
            topic: its name.
            below: {partition: the first offset that stays}; not above the end of the partition.

        Returns:
            {partition: first offset that is there now}.

        Raises:
            RetryError: a broker does not answer, or refuses; some partitions may be trimmed.
        """
        from confluent_kafka import KafkaException, TopicPartition

        wanted = [TopicPartition(topic, number, offset) for number, offset in below.items()]
        found = {}
        for place, future in self._admin().delete_records(wanted).items():
            try:
                found[int(place.partition)] = int(future.result(timeout=_ANSWER_S).low_watermark)
            except (KafkaException, TimeoutError) as error:
                message = f"Kafka did not delete records of {topic}/{place.partition}: {error}"
                raise _away(message) from error
        return found

    def _described(self, names: Sequence[str], limit_s: float = _ANSWER_S) -> dict[str, Any]:
        """Return {name: Kafka's description, or the error that there is none}.

        A client asks the one broker that it takes for the controller. Where that is silent for 5 s,
        a new client is told by brokers that answer who the controller is now, and asks that one.
        """
        deadline = time.monotonic() + limit_s
        described = self._describe(names, _SOON_S if self._has_answered else limit_s)
        away = [name for name, one in described.items() if isinstance(one, AwayError)]
        if away and self._has_answered:
            self._forget_admin()
            described |= self._describe(away, max(_LEAST_S, deadline - time.monotonic()))
        return described

    def _describe(self, names: Sequence[str], limit_s: float) -> dict[str, Any]:
        from confluent_kafka import KafkaException, TopicCollection

        admin, futures = self._admin(), dict[str, Any]()
        for some in _batches(names, _AT_ONCE):
            topics = TopicCollection(list(some))
            futures |= admin.describe_topics(topics, request_timeout=limit_s)
        described: dict[str, Any] = {}
        deadline = time.monotonic() + limit_s
        for name, future in futures.items():
            try:
                described[name] = future.result(timeout=max(0.0, deadline - time.monotonic()))
            except (KafkaException, TimeoutError) as error:
                if _code(error) == "UNKNOWN_TOPIC_OR_PART":
                    described[name] = StopError(f"topic {name!r} does not exist")
                else:
                    described[name] = _away(f"Kafka did not describe {name!r}: {error}")
                described[name].__cause__ = error.with_traceback(None)
        return described

    def delete_topic(self, name: str) -> None:
        """Delete a topic; one that is not there is none to delete.

        Raises:
            RetryError: Kafka did not do it.
        """
        from confluent_kafka import KafkaException

        future = self._admin().delete_topics([name], operation_timeout=10.0)[name]
        try:
            future.result(timeout=_ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            if _code(error) not in {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_OR_PARTITION"}:
                raise RetryError(f"could not delete topic {name!r}: {error}") from error

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with Waybill's configuration; one that is there stays as it is.

        Raises:
            RetryError: Kafka did not create it, or it did not appear within 15 s.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self._settings.replication_factor,
            config=safe_config(self._settings.replication_factor),
        )
        future = self._admin().create_topics([topic], operation_timeout=10.0)[name]
        try:
            future.result(timeout=_ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            if _code(error) != "TOPIC_ALREADY_EXISTS":
                raise RetryError(f"could not create topic {name!r}: {error}") from error
        self._wait_until_known(name)

    def _wait_until_known(self, name: str) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while name not in self.topics():
            if time.monotonic() > deadline:
                raise RetryError(f"topic {name!r} did not appear")
            time.sleep(0.1)

    def _metadata(self, topic: str | None = None, limit_s: float = _ANSWER_S) -> Any:
        return answered(lambda: self._ask_metadata(topic, limit_s))

    def _ask_metadata(self, topic: str | None, limit_s: float) -> Any:
        """Ask any broker: a client asks the one that it asked last, a new one who answers.

        A new client is kept until it has answered, however long it takes to connect.
        """
        from confluent_kafka import KafkaException

        reason: BaseException | None = None
        for limit in (limit_s / 3, 2 * limit_s / 3) if self._has_answered else (limit_s,):
            try:
                found = self._admin().list_topics(topic, timeout=limit)
            except KafkaException as error:
                reason = error.with_traceback(None)  # its frames would keep the client
                self._admin().poll(0)  # fills `_problems`
                self._forget_admin()
            else:
                self._has_answered = True
                return found
        raise _away(
            f"no Kafka broker answers at {self._settings.bootstrap_servers}: {reason}"
            + "".join(f"; {problem.str()}" for problem in self._last_problem())
        ) from reason

    def _last_problem(self) -> list[Any]:
        """Return why the last connection failed, if that is known; a refused login first."""
        told = [one for one in list(self._problems) if one.name() != "_ALL_BROKERS_DOWN"]
        refusals = [one for one in told if one.name() in _REFUSALS]
        return (refusals or told)[-1:]

    def _forget_admin(self) -> None:
        """Ask with another client from now on, if this one had answered before."""
        if self._has_answered:
            self._admin_client, self._has_answered = None, False

    def _wait(self, future: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return future.result(timeout=_ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            raise _away(
                f"no Kafka broker answers at {self._settings.bootstrap_servers}: {error}"
            ) from error

    def _admin(self) -> Any:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = self._admin_client  # another thread may take it away
        if client is None:
            self._problems.clear()
            config = {**client_config(self._settings), "error_cb": self._problems.append}
            try:
                client = self._admin_client = AdminClient(config)
            except KafkaException as error:
                why = error.args[0].str()
                raise InputError(f"WAYBILL_KAFKA__… cannot be used: {why}") from error
        return client

    def _consumer(self, **config: Any) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                **client_config(self._settings),
                **config,
                "group.id": "waybill-look",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",  # as processing reads
            }
        )


def client_config(settings: KafkaSettings) -> dict[str, Any]:
    """Return what every client of librdkafka that looks, or reads, is made with."""
    return {
        **librdkafka_config(settings),
        "log_level": 2,
        "socket.timeout.ms": 10_000,
        "socket.connection.setup.timeout.ms": 10_000,
        "socket.keepalive.enable": True,
    }


class RecordReader:
    """Reads single records of one topic, by one consumer."""

    def __init__(self, consumer: Any, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def at(self, partition: int, offset: int) -> LogRecord | None:
        """Return the record at an offset; None: the log has none there, or ends below.

        Raises:
            RetryError: nothing was given within 15 s, or the offset is outside the log.
        """
        found = self.next(partition, offset)
        return found if found is not None and found.offset == offset else None

    def next(self, partition: int, offset: int) -> LogRecord | None:
        """Return the first record at or after an offset; None: the log ends before one."""
        from confluent_kafka import KafkaError

        message = self._poll(partition, offset)
        if _code_of(message) == KafkaError._PARTITION_EOF:
            return None
        if message.error():
            raise self._error(partition, offset, message.error())
        return _record(message)

    def reaches(self, partition: int, end: int, leader_epoch: int) -> bool:
        """Tell whether the log, as leaders up to an epoch wrote it, reaches an offset.

        The client asks the leader where that epoch ends (OffsetForLeaderEpoch, KIP-320), before it
        reads. Markers of transactions count, which no consumer is given.

        Args:
            partition: its number.
            end: offset after the last one that is asked about.
            leader_epoch: 0 or more.

        Cost: half a second where the log ends there, else 20 ms.

        Raises:
            RetryError: nothing was answered within 15 s.
        """
        from confluent_kafka import KafkaError

        message = self._poll(partition, end, leader_epoch=leader_epoch)
        code = _code_of(message)
        if code == KafkaError._AUTO_OFFSET_RESET:
            return False
        if code not in {None, KafkaError._PARTITION_EOF}:
            raise self._error(partition, end, message.error())
        return True

    def _poll(self, partition: int, offset: int, **position: int) -> Any:
        """Return the first message, or error, of a partition read from an offset on."""
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(self._topic, partition, offset, **position)])
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(1.0)
            if message is not None and message.partition() == partition:
                return message
        raise self._error(partition, offset, "nothing came")

    def _error(self, partition: int, offset: int, reason: object) -> RetryError:
        return RetryError(f"reading {self._topic}/{partition} at {offset}: {reason}")

    def close(self) -> None:
        """Close its consumer."""
        self._consumer.close()


_ONE_RECORD = {
    "fetch.message.max.bytes": 64 * 1024,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.wait.max.ms": 100,
}
"""Of a consumer that wants one record of many partitions: little is fetched beyond it."""


def _arrived(consumer: Any, most: int, *, wait_s: float) -> list[Any]:
    """Return the messages that have arrived, and wait for the first of them only.

    ``Consumer.consume`` alone waits its whole time, unless as many come as it may return.
    """
    first = consumer.poll(wait_s)
    return [] if first is None else [first, *consumer.consume(most - 1, timeout=0)]


def _first_times(
    consumer: Any, places: Sequence[Any], until: float
) -> Iterator[tuple[str, int, int | None]]:
    """Yield (topic, partition, time in ms) of one record of each place; None: there is none."""
    from confluent_kafka import KafkaError, TopicPartition

    left = {(place.topic, place.partition) for place in places}
    consumer.assign(list(places))
    while left and time.monotonic() < until:
        done = []
        for message in _arrived(consumer, 1_000, wait_s=0.1):
            place = message.topic(), message.partition()
            if place not in left:
                continue
            left.remove(place)
            done.append(TopicPartition(*place))
            if message.error() is None:
                yield *place, int(message.timestamp()[1])
            elif _code_of(message) == KafkaError._PARTITION_EOF:
                yield *place, None
        if done and left:
            consumer.pause(done)  # and what was fetched of them is dropped


def _batches(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _info(name: str, cluster_id: str, described: Any) -> TopicInfo:
    replicas = min(len(partition.replicas) for partition in described.partitions)
    partitions = len(described.partitions)
    return TopicInfo(name, cluster_id, str(described.topic_id), partitions, replicas)


def _leaderless(described: Any) -> RetryError | None:
    """Return the error that a topic's partition has no leader, if there is such a one."""
    for partition in described.partitions:
        if partition.leader is None or partition.leader.id < 0:
            return RetryError(f"partition {partition.id} of {described.name!r} has no leader")
    return None


def _record(message: Any) -> LogRecord:
    epoch = message.leader_epoch()
    return LogRecord(
        int(message.offset()),
        int(message.timestamp()[1]),
        -1 if epoch is None else int(epoch),
        message.value() or b"",
    )


def _code_of(message: Any) -> int | None:
    error = message.error()
    return None if error is None else int(error.code())


def _code(error: BaseException) -> str:
    """Return Kafka's name of an error; empty when it has none."""
    name = getattr(error.args[0] if error.args else None, "name", None)
    return str(name()) if callable(name) else ""


def _away(message: str) -> AwayError:
    return AwayError(message, setting="WAYBILL_KAFKA__BOOTSTRAP_SERVERS")


def open_log(settings: KafkaSettings) -> KafkaLog:
    """Open the log; connects on first use."""
    return KafkaLog(settings)
