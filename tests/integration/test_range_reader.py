"""Ranges are read whole by a consumer that is kept, whatever the log has at their ends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests.servers import wait_for

from waybill.errors import RetryError, StopError
from waybill.settings import KafkaSettings
from waybill.storage import KafkaLog, PartitionRange, RangeReader, Records, Unread, range_reader


@pytest.fixture
def log(kafka) -> KafkaLog:
    return KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))


@pytest.fixture
def reader(kafka) -> Iterator[RangeReader]:
    made = RangeReader(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    yield made
    made.close()


def filled(kafka, log: KafkaLog, count: int, **config: object) -> str:
    """Make a topic whose partition 0 has so many messages, its number each."""
    name = log.ensure_topic(f"events.ranges-{uuid.uuid4().hex[:8]}.warehouse").name
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **config})
    if "transactional.id" in config:
        producer.init_transactions(120)  # its broker makes a topic for the first one
        producer.begin_transaction()
    for number in range(count):
        producer.produce(name, b"%d" % number, partition=0)
    if "transactional.id" in config:
        producer.commit_transaction(120)
    assert producer.flush(120) == 0
    return name


def offsets(reader: RangeReader, *ranges: PartitionRange) -> dict[tuple[str, int], list[int]]:
    """Read ranges; return {(topic, partition): offsets as they came}."""
    seen: dict[tuple[str, int], list[int]] = {}
    for records in reader.read(ranges):
        assert isinstance(records, Records), records
        assert len(records.values) == len(records.offsets) == len(records.times_ms)
        assert records.values == [b"%d" % offset for offset in records.offsets]
        for number, offset in zip(records.partitions, records.offsets, strict=True):
            seen.setdefault((records.topic, number), []).append(offset)
    return seen


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_range_is_read_whole_and_no_more(kafka, log, reader, codec: str) -> None:
    topic = filled(kafka, log, 20_000, **{"compression.type": codec})
    for start, end in [(0, 20_000), (0, 1), (7, 12_345), (19_999, 20_000), (7, 12_345)]:
        found = offsets(reader, PartitionRange(topic, 0, start, end))
        assert found == {(topic, 0): list(range(start, end))}


def test_topics_are_read_together_each_to_its_own_end(kafka, log, reader) -> None:
    topics = [filled(kafka, log, 3_000) for _ in range(3)]
    ranges = [PartitionRange(topic, 0, at, 1_000 * (at + 1)) for at, topic in enumerate(topics)]
    for wanted in (ranges, ranges[1:], ranges):
        found = offsets(reader, *wanted)
        assert found == {(one.topic, 0): list(range(one.start, one.end)) for one in wanted}


def test_a_marker_of_a_transaction_ends_a_range(kafka, log, reader) -> None:
    """It has an offset, and no consumer is given it."""
    topic = filled(kafka, log, 10, **{"transactional.id": uuid.uuid4().hex})
    wait_for(lambda: log.ends(log.describe(topic))[0].offset == 11)
    found = offsets(reader, PartitionRange(topic, 0, 0, 11))
    assert found == {(topic, 0): list(range(10))}
    assert offsets(reader, PartitionRange(topic, 0, 10, 11)) == {}


def test_a_reading_that_is_broken_off_leaves_nothing_to_the_next(kafka, log, reader) -> None:
    topics = [filled(kafka, log, 20_000) for _ in range(2)]
    broken = reader.read([PartitionRange(topic, 0, 0, 20_000) for topic in topics])
    next(broken)
    broken.close()
    found = offsets(reader, PartitionRange(topics[1], 0, 5, 15_000))
    assert found == {(topics[1], 0): list(range(5, 15_000))}


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_messages_are_given_in_runs_of_bounded_bytes(kafka, log, reader, codec: str) -> None:
    """Also where an answer of the broker is a hundred times as large once it is unpacked."""
    name = log.ensure_topic(f"events.ranges-{uuid.uuid4().hex[:8]}.warehouse").name
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": codec,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )
    bodies = [bytes([number]) * 900_000 for number in range(80)]
    for body in bodies:
        producer.produce(name, body, partition=0)
    assert producer.flush(120) == 0
    found = list(reader.read([PartitionRange(name, 0, 0, len(bodies))]))
    runs = [one for one in found if isinstance(one, Records)]
    assert [value for run in runs for value in run.values] == bodies
    assert max(run.size_bytes for run in runs) <= 24 * 1024**2, "8 MiB and a call's"
    assert len(runs) > 1


def test_what_nobody_can_unpack_stops_its_topic_and_not_its_neighbour(kafka, log, reader) -> None:
    """A message of 150 MB, which is 5 KB in the log: the client refuses it at every reading."""
    topic, other = (filled(kafka, log, 10) for _ in range(2))
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    limits = {"message.max.bytes": 200_000_000, "queue.buffering.max.kbytes": 400 * 1024}
    producer = Producer({**servers, **limits, "compression.type": "zstd"})
    producer.produce(topic, bytes(150_000_000), partition=0)
    assert producer.flush(240) == 0
    ranges = [PartitionRange(topic, 0, 0, 11), PartitionRange(other, 0, 0, 10)]
    found = list(reader.read(ranges))
    [unread] = [one for one in found if isinstance(one, Unread)]
    assert isinstance(unread.error, StopError)
    assert f"{topic}/0: nobody can read what is at offset 10" in str(unread.error)
    assert sum(len(one.offsets) for one in found if isinstance(one, Records)) == 20


def test_of_a_topic_that_is_not_wanted_any_more_nothing_more_is_read(kafka, log, reader) -> None:
    topics = [filled(kafka, log, 100_000), filled(kafka, log, 20_000)]
    unwanted, counts = set[str](), dict.fromkeys(topics, 0)
    ranges = [
        PartitionRange(topics[0], 0, 0, 100_000),
        PartitionRange(topics[1], 0, 0, 20_000),
    ]
    for records in reader.read(ranges, unwanted):
        assert isinstance(records, Records), records
        counts[records.topic] += len(records.offsets)
        unwanted.add(topics[0])
    assert counts[topics[0]] < 50_000
    assert counts[topics[1]] == 20_000
    for records in reader.read(ranges[:1], unwanted):
        assert isinstance(records, Records), records
        assert records.offsets[-1] < 50_000
    assert offsets(reader, *ranges[:1]) == {(topics[0], 0): list(range(100_000))}


@pytest.mark.parametrize("span", [(0, 100), (500, 600)])
def test_what_the_log_does_not_have_is_told_and_its_neighbour_is_read(
    kafka, log, reader, span: tuple[int, int]
) -> None:
    """Its beginning was deleted; or it was cut, and ends below the range."""
    topic, other = filled(kafka, log, 400), filled(kafka, log, 9_000)
    log.delete_records(topic, {0: 50})
    found = list(reader.read([PartitionRange(topic, 0, *span), PartitionRange(other, 0, 0, 9_000)]))
    [unread] = [one for one in found if isinstance(one, Unread)]
    assert unread[:2] == (topic, 0)
    assert isinstance(unread.error, StopError)
    assert topic in str(unread.error)
    assert sum(len(one.offsets) for one in found if isinstance(one, Records)) == 9_000
    assert offsets(reader, PartitionRange(topic, 0, 50, 400)) == {(topic, 0): list(range(50, 400))}


def test_silence_and_a_topic_that_is_gone_are_told_and_their_neighbour_is_read(
    kafka, log, reader, monkeypatch
) -> None:
    there, behind = filled(kafka, log, 1_000), filled(kafka, log, 10)
    written = PartitionRange(there, 0, 0, 1_000), PartitionRange(behind, 0, 0, 10)
    assert len(offsets(reader, *written)) == 2, "it knows where they are"
    monkeypatch.setattr(range_reader, "_SILENCE_S", 10.0)
    gone = PartitionRange(f"events.gone-{uuid.uuid4().hex[:8]}.warehouse", 0, 0, 10)
    ranges = [gone, PartitionRange(there, 0, 0, 1_000), PartitionRange(behind, 0, 0, 20)]
    found = list(reader.read(ranges))
    unread = {one.topic: one.error for one in found if isinstance(one, Unread)}
    assert unread.keys() == {gone.topic, behind}
    assert all(isinstance(error, RetryError) for error in unread.values())
    counts = [len(one.offsets) for one in found if isinstance(one, Records)]
    assert sorted(counts) == [10, 1_000]
