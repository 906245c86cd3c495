"""A log that somebody else has taken over is moved aside unsent, whenever its process dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import memory_logs
from tests.support.memory_kafka import Clock, MemoryKafka, MemoryWorld

from waybill.errors import StopError
from waybill.producer import FoundLog, LosslessProducer
from waybill.producer.wal.memory_disk import Killed, MemoryDisk

FOLDER = Path("/logs/p")
MOST_STEPS = 200


class Machine:
    """A producer on a memory disk and a memory Kafka; ``lost`` are logs that are not its any more."""

    def __init__(self) -> None:
        self.kafka = MemoryKafka(Clock())
        self.disk = MemoryDisk()
        self.world = MemoryWorld(self.disk, self.kafka, 1000)
        self.lost: set[str] = set()
        self.claimed: list[FoundLog] = []
        self.fails = False

    def claim(self, found: FoundLog) -> bool:
        assert not self.kafka.messages, "nothing is sent before the claim"
        self.claimed.append(found)
        if self.fails:
            raise StopError("it is held")
        return found.wal_id not in self.lost

    def open(self) -> Any:
        cls = type("Modelled", (LosslessProducer,), {"_environment": self.world.seam})
        given = memory_logs.settings(dir=FOLDER.parent, checkpoint_interval_ms=3_600_000)
        kafka = {"bootstrap.servers": "memory"}
        return cls(given, kafka, name="p", marks=True, claim=self.claim)

    def die(self) -> None:
        self.disk.kill()
        if hasattr(self.world, "client"):
            self.world.client.die(lambda _size: 0)
        self.world.release()

    def names(self) -> set[str]:
        return {path.name for path in map(Path, self.disk.names(FOLDER))}


def left_by_a_dead_process() -> tuple[Machine, str]:
    """Return a machine whose log holds a confirmed page, a marked one, and the beginning of one."""
    machine = Machine()
    producer = machine.open()
    producer.produce("a", b"committed")
    producer.confirm(producer.mark(b"1"))
    producer.components.maintenance.checkpoint()
    for number in range(8):
        producer.produce("a", b"%d" % number)
    producer.mark(b"2")
    producer.produce("a", b"begun")
    machine.die()
    return machine, producer.wal_id


def test_a_log_that_was_taken_over_is_not_sent_and_kept_aside() -> None:
    machine, old = left_by_a_dead_process()
    machine.lost.add(old)
    producer = machine.open()
    assert producer.wal_id != old
    assert [found.wal_id for found in machine.claimed[1:]] == [old, producer.wal_id]
    assert [found.empty for found in machine.claimed[1:]] == [False, True]
    assert (producer.recovered.superseded, producer.recovered.marks) == (9, [])
    assert not machine.kafka.messages
    aside = machine.disk.names(FOLDER / "quarantine" / old)
    assert "checkpoint" in aside
    assert any(name.startswith(f"seg-{old}") for name in aside)
    assert not any(name.startswith(f"seg-{old}") for name in machine.disk.names(FOLDER))


def test_a_log_that_is_still_ones_own_is_sent_and_its_marks_are_told() -> None:
    machine, old = left_by_a_dead_process()
    producer = machine.open()
    assert producer.wal_id == old
    assert [payload for _, payload in producer.recovered.marks] == [b"2"]
    assert producer.recovered.superseded == 0


def test_a_claim_that_raises_leaves_the_log_as_it_is_for_the_next_opening() -> None:
    machine, old = left_by_a_dead_process()
    machine.fails = True
    for _ in range(2):
        with pytest.raises(StopError, match="held"):
            machine.open()
    assert not machine.kafka.messages
    machine.fails = False
    producer = machine.open()
    assert producer.wal_id == old
    assert [payload for _, payload in producer.recovered.marks] == [b"2"]
    assert {(found.held, found.topic) for found in machine.claimed[1:]} == {(9, "a")}


def test_killed_anywhere_while_it_is_moved_the_next_opening_moves_the_rest() -> None:
    deaths = 0
    for step in range(1, MOST_STEPS):
        machine, old = left_by_a_dead_process()
        machine.lost.add(old)
        machine.disk.kill_at(step)
        try:
            machine.open()
        except Killed:
            deaths += 1
        else:
            break
        machine.die()
        producer = machine.open()
        assert producer.wal_id != old
        assert not machine.kafka.messages
        aside = machine.disk.names(FOLDER / "quarantine" / old)
        assert "checkpoint" in aside
        assert any(name.startswith(f"seg-{old}") for name in aside)
    assert deaths > 5


@pytest.mark.parametrize("step", range(1, 7))
def test_a_log_has_one_id_from_its_first_claim_on(step: int) -> None:
    machine = Machine()
    machine.disk.kill_at(step)
    try:
        machine.open()
    except Killed:
        machine.die()
        machine.open()
    assert len({found.wal_id for found in machine.claimed}) == 1
