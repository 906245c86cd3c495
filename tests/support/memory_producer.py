"""A producer on a memory disk and a memory Kafka."""

from pathlib import Path

from tests.support import memory_logs
from tests.support.memory_kafka import Clock, MemoryKafka, MemoryWorld

from waybill.producer import LosslessProducer
from waybill.producer.wal.memory_disk import MemoryDisk

FOLDER = Path("/logs/p")


class Page:
    """Keeps the values of what was delivered."""

    def __init__(self):
        self.values = []

    def delivered(self, error, message):
        assert error is None
        self.values.append(message.value())


class Machine:
    """What the producer gave up is in ``taken``; librdkafka's queue has ``capacity`` places."""

    def __init__(self, capacity=1000):
        self.kafka = MemoryKafka(Clock())
        self.disk = MemoryDisk()
        self.world = MemoryWorld(self.disk, self.kafka, capacity)
        self.taken = []

    def open(self, **values):
        cls = type("Modelled", (LosslessProducer,), {"_environment": self.world.seam})
        given = memory_logs.settings(
            dir=FOLDER.parent, when_full="raise", checkpoint_interval_ms=3_600_000, **values
        )
        self.producer = cls(
            given, {"bootstrap.servers": "memory"}, name="p", on_undeliverable=self.taken.append
        )
        return self.producer

    def kill(self):
        self.disk.kill()
        self.world.client.die(lambda _size: 0)
        self.world.release()

    def transmit(self, *fates, place=("a", 0)):
        for fate in fates:
            self.world.client.transmit(place, 1, fate)

    def arrive(self):
        """Have Kafka take all that waits, and the producer know of it."""
        for place in self.world.client.waiting:
            self.world.client.transmit(place, 10_000, "ok")
        while self.producer.poll():
            pass
        assert self.producer.flush(0) == 0

    def tick(self, times=1):
        for _ in range(times):
            self.kafka.clock.now += 60
            self.world.steps.run()

    @property
    def values(self):
        return [message.value() for message in self.kafka.messages]
