"""The whole producer against a model: disk, Kafka, threads and deaths are the test's.

``PRODUCER_MODEL_EXAMPLES=20000 pytest tests/unit/producer/test_producer_model.py`` runs for longer,
on other examples each time; else they are the same ones.
"""

import logging
import os
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support import memory_logs
from tests.support.memory_kafka import FAILURES, OPERATIONS, Clock, MemoryKafka, MemoryWorld
from tests.support.producer_model import Model, headers_of, number_of

from waybill.errors import RetryError, StopError
from waybill.producer import (
    LosslessProducer,
    lossless,
    maintenance,
    recovery,
    retry_queue,
    sender,
)
from waybill.producer.checkpoint import CheckpointFile
from waybill.producer.wal.memory_disk import Killed, MemoryDisk

EXAMPLES = int(os.environ.get("PRODUCER_MODEL_EXAMPLES", "0"))
SEEDS = st.integers(0, 2**32)
FOLDER = Path("/logs/model")
PLENTY = 2**40
TOPICS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from([None, b"k", b"k", b"other", b""])
VALUES = st.sampled_from([b"same", b"same", b"", None, b"x" * 700, b"y" * 1500])
PLACES = st.sampled_from([-1, -1, -1, 0, 1])
TOLD = st.sampled_from(["nobody", "own", "shared"])
FATES = st.sampled_from(["ok", "ok", "ok", *FAILURES])


class ProducerMachine(RuleBasedStateMachine):
    """Every message whose ``produce`` returned ends up in the topic, or with the taker, once."""

    @initialize(
        durability=st.sampled_from(["process", "group", "each"]),
        readable=st.sampled_from([True, True, False]),
        parks=st.booleans(),
        marks=st.sampled_from([False, False, True]),
        capacity=st.sampled_from([3, 1000]),
    )
    def begin(self, durability, readable, parks, marks, capacity):
        self.stack = ExitStack()
        self.stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        clock = Clock()
        for module in (lossless, maintenance, recovery, retry_queue, sender):
            self.stack.enter_context(mock.patch.object(module, "time", clock))
        self.stack.enter_context(mock.patch.object(sender, "EPOCH_RECORDS", 5))
        self.stack.enter_context(mock.patch.object(sender, "_POLL_EVERY", 3))
        self.clock, self.kafka, self.disk = clock, MemoryKafka(clock), MemoryDisk()
        self.kafka.readable = readable
        self.world = MemoryWorld(self.disk, self.kafka, capacity)
        self.model = Model(self.kafka)
        self.durability, self.parks, self.marks = durability, parks, marks
        self.marked = []
        self.cut = False
        self.synced = 0
        self.confirmed = 0
        self.opened = None
        self.open()

    @property
    def producer(self):
        return self.opened

    def open(self):
        self.opened = None
        self.stopped = False
        self.model.begin_life()
        given = memory_logs.settings(
            dir=FOLDER.parent,
            durability=self.durability,
            when_full="raise",
            checkpoint_interval_ms=3_600_000,
        )
        taker = (
            {} if self.parks
            else {"on_undeliverable": self.model.take, "was_taken": self.model.was_taken}
        )  # fmt: skip
        cls = type("Modelled", (LosslessProducer,), {"_environment": self.world.seam})
        self.opened = cls(
            given, {"bootstrap.servers": "memory"}, name="model", marks=self.marks, **taker
        )
        self.model.is_parked = self.producer.components.parking.__contains__
        self.clean = not any(
            (
                self.producer.recovered.replayed,
                self.producer.recovered.found,
                self.producer.recovered.retrying,
                self.producer.stats.undeliverable,
                self.producer.stats.delivered,
            )
        )

    # The caller

    @rule(topic=TOPICS, key=KEYS, value=VALUES, partition=PLACES, told=TOLD)
    def produce(self, topic, key, value, partition, told):
        sent = self.model.new(self.producer, topic, key, value, partition, told)
        headers = {"n": str(sent.number)}
        before = self.producer._log.next_lsn
        try:
            lsn = self.producer.produce(
                topic, value, key, headers, self.model.on_delivery(sent), partition
            )
        except StopError:
            event("produce was stopped")
        except RetryError:
            event("produce was refused")
            assert self.producer._log.next_lsn == before
        else:
            assert lsn == before
            self.model.accepted(sent, lsn)

    @rule(topic=TOPICS, key=KEYS, value=VALUES, told=TOLD, count=st.integers(1, 8))
    def produce_batch(self, topic, key, value, told, count):
        sents = [self.model.new(self.producer, topic, key, value, -1, told) for _ in range(count)]
        rows = [
            {
                "key": key,
                "value": value,
                "headers": {"n": str(sent.number)},
                "on_delivery": self.model.on_delivery(sent),
            }
            for sent in sents
        ]
        before = self.producer._log.next_lsn
        try:
            lsns = self.producer.produce_batch(topic, rows)
        except StopError:
            event("a batch was stopped")
            self.stopped = True
            return
        except RetryError as error:
            event("a batch was refused")
            lsns = list(range(before, before + error.appended))
            assert self.producer._log.next_lsn == before + error.appended
        for sent, lsn in zip(sents, lsns, strict=False):
            self.model.accepted(sent, lsn)

    @rule(
        topic=TOPICS,
        key=KEYS,
        value=VALUES,
        told=st.sampled_from(["nobody", "shared"]),
        count=st.integers(1, 8),
    )
    def produce_values(self, topic, key, value, told, count):
        sents = [self.model.new(self.producer, topic, key, value, -1, told) for _ in range(count)]
        before = self.producer._log.next_lsn
        try:
            lsns = self.producer.produce_values(
                topic,
                [value] * count,
                [key] * count,
                headers=headers_of(sents[0], before),
                on_delivery=self.model.on_delivery(sents[0]),
            )
        except StopError:
            event("values were stopped")
            self.stopped = True
            return
        except RetryError as error:
            event("values were refused")
            lsns = list(range(before, before + error.appended))
            assert self.producer._log.next_lsn == before + error.appended
        for sent, lsn in zip(sents, lsns, strict=False):
            self.model.accepted(sent, lsn)

    @precondition(lambda self: self.marks)
    @rule()
    def mark(self):
        try:
            self.marked.append(self.producer.mark(b"%d" % len(self.marked)))
        except (StopError, RetryError):
            event("a mark was refused")

    @precondition(lambda self: self.marked)
    @rule(data=st.data())
    def confirm(self, data):
        lsn = data.draw(st.sampled_from(self.marked))
        try:
            self.producer.confirm(lsn)
            self.confirmed = max(self.confirmed, lsn)
        except StopError:
            event("a confirm was stopped")

    @rule()
    def poll(self):
        try:
            self.producer.poll()
        except StopError:
            event("poll was stopped")

    # The producer's threads

    @rule(seconds=st.sampled_from([0, 0.5, 2, 60]))
    def tick(self, seconds):
        self.clock.now += seconds
        self.world.steps.run()

    @rule()
    def checkpoint(self):
        try:
            self.producer._maintenance.try_checkpoint()
        except StopError:
            event("a checkpoint was stopped")

    # Kafka

    @precondition(lambda self: self.world.client.waiting)
    @rule(data=st.data(), count=st.integers(1, 6), fate=FATES)
    def transmit(self, data, count, fate):
        if not self.kafka.up and not fate.startswith("timed"):
            fate = "timed out, lost"
        place = data.draw(st.sampled_from(self.world.client.waiting))
        self.world.client.transmit(place, count, fate)

    @rule(up=st.booleans())
    def broker(self, up):
        self.kafka.up = up

    @rule(fates=st.lists(FATES, max_size=4))
    def fate(self, fates):
        self.kafka.fates.extend(fates)

    @rule(code=st.sampled_from([10, -190, -186]))
    def refuse_at_once(self, code):
        self.kafka.refusals.append(code)

    @rule(times=st.integers(1, 3))
    def keep_taker_busy(self, times):
        self.model.busy = times

    # The disk

    @rule(
        what=st.sampled_from(OPERATIONS),
        times=st.sampled_from([1, 1, 2, 6]),
    )
    def refuse(self, what, times):
        self.disk.refuse(what, times)

    @rule(room=st.sampled_from([0, 5000, 40_000, PLENTY]))
    def fill(self, room):
        self.disk.capacity_bytes = PLENTY
        self.disk.capacity_bytes -= self.disk.free_bytes(FOLDER) - room if room < PLENTY else 0

    @rule(seed=SEEDS)
    def write_back(self, seed):
        self.disk.write_back(random.Random(seed))

    # The ends

    @rule(seed=SEEDS)
    def kill(self, seed):
        self.die(seed, power=False)

    @rule(seed=SEEDS)
    def power_cut(self, seed):
        self.die(seed, power=True)

    @rule(
        step=st.integers(1, 12),
        after=st.booleans(),
        seed=SEEDS,
        power=st.booleans(),
        what=st.sampled_from(
            ["tick", "checkpoint", "produce", "batch", "values", "close", "open", "mark"]
        ),
    )
    def kill_inside(self, step, after, seed, power, what):
        self.cut = True
        self.disk.kill_at(step, after=after)
        try:
            {
                "tick": lambda: self.tick(2),
                "checkpoint": self.checkpoint,
                "produce": lambda: self.produce("a", b"k", b"z" * 3000, -1, "own"),
                "batch": lambda: self.produce_batch("a", b"k", b"z" * 900, "own", 6),
                "values": lambda: self.produce_values("a", b"k", b"z" * 900, "shared", 6),
                "close": self.close_anyhow,
                "open": lambda: self.open_and_die(seed, step, after=after),
                "mark": lambda: self.mark() if self.marks else self.checkpoint(),
            }[what]()
        except Killed:
            event(f"killed in {what}")
        self.die(seed, power=power)

    def open_and_die(self, seed, step, *, after):
        self.end(seed, power=False)
        self.disk.kill_at(step, after=after)
        self.open()

    def close_anyhow(self):
        try:
            self.producer.close(1)
        except StopError:
            event("close was stopped")

    @rule()
    def close_and_open(self):
        self.close_anyhow()
        self.disk.refuse("sync", 0)
        self.die(0, power=False)

    def end(self, seed, *, power):
        dice = random.Random(seed)
        if self.opened is not None:
            self.synced = max(self.synced, self.opened._log.synced_lsn)
            self.model.excuse(self.opened._components.retry.lsns)
        if power:
            event("power cut")
            self.lose_power(dice)
        else:
            self.disk.kill()
        self.disk.capacity_bytes = PLENTY
        self.world.client.die(lambda size: dice.randint(0, size))
        self.world.release()
        found, _ = CheckpointFile(FOLDER, self.disk).load()
        self.model.died(found.low_lsn)

    def lose_power(self, dice):
        self.cut = True
        if self.durability == "process":
            self.model.lost_power(0)
        elif self.durability == "group":
            self.model.lost_power(self.synced)
        self.disk.power_cut(dice)

    def die(self, seed, *, power):
        self.end(seed, power=power)
        while True:
            try:
                self.open()
            except StopError:
                event("opening was stopped")
                self.end(seed, power=False)
            else:
                return

    # What is true

    @invariant()
    def books_balance(self):
        if self.opened is None:
            return
        stats = self.producer.stats
        assert stats.in_doubt >= 0
        assert 0 <= stats.retrying <= stats.in_doubt
        if self.clean:
            assert stats.appended == stats.delivered + stats.in_doubt + stats.undeliverable
        self.model.check_told_once()
        parts = self.producer.components
        self.model.check_watermark(parts.deliveries.low, parts.retry, set(parts.parking.lsns))
        self.model.check_settled(parts.settled, set(parts.parking.lsns))

    def teardown(self):
        if not hasattr(self, "opened"):
            return
        try:
            self.check_the_end()
        finally:
            self.stack.close()

    def check_the_end(self):
        self.world.bring_peace()
        self.model.busy = 0
        self.checkpoint()  # five that failed are trouble until one succeeds
        if self.stopped or self.producer._maintenance.stopped:
            self.die(0, power=False)
        self.world.settle(self.producer)
        if self.cut:  # a segment without a record is kept until the floor has passed it
            self.produce("a", None, b"last", -1, "own")
            self.world.settle(self.producer)
        self.books_balance()
        self.model.check_told()
        if self.marks:
            self.producer.confirm(self.producer.mark(b"the end"))
        parked = Counter(number_of(m.headers, m.lsn) for m in self.producer.parked)
        self.model.check_end(parked)
        self.check_a_peaceful_life(parked)

    def check_a_peaceful_life(self, parked):
        assert self.producer.close() == 0
        self.world.release()
        self.open()
        found = self.producer.recovered
        assert (found.replayed, found.found, found.retrying) == (0, 0, 0)
        assert self.producer.close() == 0
        left = set(self.disk.names(FOLDER)) - {"checkpoint", "quarantine"}
        if self.cut or self.disk.names(FOLDER / "retry") == ["quarantine"]:
            left.discard("retry")
        if self.cut and not parked:
            left.discard("parked")
        assert left == ({"parked"} if parked else set())


@pytest.mark.hypothesis  # make campaign-search
def test_whatever_dies_or_refuses_each_message_is_delivered_or_taken_once():
    run_state_machine_as_test(
        ProducerMachine,
        settings=settings(
            max_examples=EXAMPLES or 200,
            stateful_step_count=40,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
