"""Waits for Kafka that a caller ends: amid a produce, for room in the log, and while opening."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import memory_kafka, memory_logs
from tests.support.memory_kafka import Clock, MemoryKafka, MemoryWorld

from waybill.errors import RetryError
from waybill.producer import LosslessProducer
from waybill.producer.wal.memory_disk import MemoryDisk

FOLDER = Path("/logs/p")


class LongEnoughError(RetryError):
    """It was waited for long enough."""


class Machine:
    """A producer on a memory disk; Kafka takes what is handed over when a test says so."""

    def __init__(self, capacity: int) -> None:
        self.kafka = MemoryKafka(Clock())
        self.disk = MemoryDisk()
        self.world = MemoryWorld(self.disk, self.kafka, capacity)
        self.waits: list[int] = []
        self.is_patient = False

    def wait(self, mark: int) -> None:
        self.waits.append(mark)
        if len(self.waits) >= 3 and not self.is_patient:
            raise LongEnoughError("Kafka took nothing")

    def open(self, **changes: Any) -> Any:
        self.waits.clear()
        machine, seam = self, self.world.seam

        class Bounded(LosslessProducer):
            _environment = seam

            def _while_waiting(self, mark: int) -> None:
                machine.wait(mark)

        given = memory_logs.settings(dir=FOLDER.parent, checkpoint_interval_ms=3_600_000, **changes)
        kafka = {"bootstrap.servers": "memory"}
        return Bounded(given, kafka, name="p", marks=True)

    def values(self) -> list[bytes]:
        return sorted(message.value_bytes for message in self.kafka.messages)


@pytest.fixture(autouse=True)
def _kafka_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_kafka, "_PATIENCE", 10**9)


def take(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Kafka take all from now on; what a client had when it was closed, it has not."""
    machine.kafka.topics.clear()
    machine.is_patient = True
    monkeypatch.setattr(memory_kafka, "_PATIENCE", 1)


def produced_in_vain(machine: Machine, **changes: Any) -> int:
    """Produce until a wait is ended; return how many records the log holds."""
    producer = machine.open(**changes)
    held = 0
    with pytest.raises(LongEnoughError):
        for number in range(100_000):
            held = number
            producer.produce("a", b"%06d" % number + bytes(200))
    producer.close(0)
    return held


def test_a_produce_that_waits_for_librdkafkas_queue_ends_and_the_next_opening_sends_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(capacity=5)
    held = produced_in_vain(machine)
    assert machine.waits == [held + 1] * 3, "the record that waits"
    take(machine, monkeypatch)
    producer = machine.open()
    machine.world.settle(producer)
    assert [value[:6] for value in machine.values()] == [b"%06d" % n for n in range(held + 1)]
    producer.close()


def test_opening_ends_its_wait_for_kafka_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(capacity=1000)
    producer = machine.open()
    for number in range(4):
        producer.produce("a", b"%d" % number)
    producer.mark(b"1")
    machine.disk.kill()
    machine.world.client.die(lambda _size: 0)
    machine.world.release()
    with pytest.raises(LongEnoughError):
        machine.open()
    assert machine.waits == [4, 4, 4], "as many records as are in doubt"
    assert not machine.world.locked, "the log is left to the next opening"
    take(machine, monkeypatch)
    producer = machine.open()
    assert machine.values() == [b"0", b"1", b"2", b"3"]
    assert [payload for _, payload in producer.recovered.marks] == [b"1"]
    producer.close()


def test_a_produce_that_waits_for_room_in_the_log_ends_and_nothing_of_it_is_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(capacity=10**6)
    small = {"segment_bytes": 64 * 1024, "disk_threshold_bytes": 1024**2}
    held = produced_in_vain(machine, **small)
    assert held > 100
    take(machine, monkeypatch)
    producer = machine.open(**small)
    assert [value[:6] for value in machine.values()] == [b"%06d" % n for n in range(held)]
    producer.close()
