"""Failed deliveries, one case at a time: each was once lost, doubled, out of order or miscounted."""

from contextlib import contextmanager

import pytest
from tests.support.memory_producer import Machine

from waybill.errors import StopError
from waybill.producer import WalFullError, retry_queue


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(retry_queue, "time", machine.kafka.clock)
    return machine


def test_records_alike_that_failed_differently_are_looked_for_before_one_is_given_up(machine):
    producer = machine.open()
    producer.produce("a", b"same")
    producer.produce("a", b"same")
    machine.transmit("unknown", "timed out, there")
    machine.tick(3)
    machine.transmit("unknown")
    machine.tick(3)
    assert machine.values == [b"same"]
    assert [message.lsn for message in machine.taken] == [1]


def test_of_records_alike_the_acknowledged_one_is_found_before_the_other_is_given_up(machine):
    told = []
    producer = machine.open()

    def on_delivery(error, _message):
        told.append(error and error.name())

    producer.produce("a", b"same", b"", on_delivery=on_delivery)
    producer.produce("a", b"same", b"", on_delivery=on_delivery)
    machine.transmit("unknown", "ok")
    machine.tick(3)
    stats = producer.stats
    assert (stats.delivered, stats.undeliverable, stats.in_doubt) == (1, 1, 0)
    assert told == [None, "UNKNOWN_TOPIC_OR_PART"]


def test_a_record_tried_alone_that_times_out_is_looked_for_before_it_is_sent_again(machine):
    producer = machine.open()
    producer.produce("a", b"v")
    machine.transmit("too large")
    machine.kafka.fates.append("timed out, there")
    machine.tick(4)
    assert machine.values == [b"v"]
    assert len(producer) == 0


def test_a_record_refused_at_once_when_tried_again_holds_the_next_of_its_key(machine):
    producer = machine.open()
    machine.kafka.refusals.append(-192)
    for value in (b"1", b"2", b"3"):
        producer.produce("a", value, b"k")
    machine.tick()
    (place,) = machine.world.client.waiting
    machine.transmit("ok", place=place)
    producer.poll()
    machine.kafka.refusals.append(-192)  # of the second, at its first hand-over
    for _ in range(4):
        machine.tick()
        machine.transmit("ok", "ok", place=place)
    assert machine.values == [b"1", b"2", b"3"]


def test_a_record_set_aside_before_a_kill_is_looked_for_where_it_may_stand(machine):
    producer = machine.open()
    producer.produce("a", b"old")
    machine.transmit("timed out, there")
    producer.poll()
    machine.kafka.up = False  # it cannot be looked for
    machine.disk.refuse("write", 9)  # no checkpoint knows of it
    machine.tick()
    assert producer.components.retry.lsns == [1]
    machine.kill()
    producer = machine.open()
    machine.kafka.up = True
    producer.produce("a", b"new")
    machine.transmit("ok")
    producer.poll()
    machine.tick(2)
    for place in machine.world.client.waiting:
        machine.transmit("ok", place=place)
    assert machine.values == [b"old", b"new"]


def test_records_put_into_a_retry_log_that_cannot_be_synced_are_counted_once(machine):
    producer = machine.open()
    machine.kafka.refusals.append(-192)
    producer.produce("a", b"v")
    machine.disk.refuse("sync", 2)
    machine.tick()
    assert producer.stats.in_doubt == 1
    with pytest.raises(StopError, match="retry"):
        producer.produce("a", b"v")


def test_a_record_settled_while_the_retry_log_is_full_is_struck_out_later(machine):
    producer = machine.open()
    machine.kafka.refusals.append(-192)
    producer.produce("a", b"v")
    machine.tick()
    machine.transmit("ok")
    retry = producer.components.retry
    log, append = retry._log, retry._log.append

    def full(*_fields):
        raise WalFullError("full")

    log.append = full
    machine.tick()
    assert producer.stats.in_doubt == 0
    assert retry.lsns == [1]
    log.append = append
    machine.tick()
    assert retry.lsns == []


def test_a_retry_log_that_cannot_give_a_segment_free_stops_nothing(machine):
    producer = machine.open()
    machine.kafka.refusals.append(-192)
    producer.produce("a", b"v")
    machine.tick()
    machine.transmit("ok")
    machine.disk.refuse("rename")
    machine.tick()
    assert producer.produce("a", b"w") == 2


def test_a_first_record_that_was_not_handed_over_is_sent_by_the_next_opening(machine):
    producer = machine.open(durability="each")
    machine.disk.refuse("sync", 2)
    with pytest.raises(StopError):
        producer.produce("a", b"v")
    with pytest.raises(StopError, match="refused to keep"):
        producer.close(0)
    assert machine.open().recovered.replayed == 1
    assert machine.values == [b"v"]


def test_a_batch_that_the_disk_refuses_says_how_many_were_appended(machine):
    producer = machine.open()
    machine.disk.refuse("rename", 2)
    with pytest.raises(WalFullError, match="cannot be made") as raised:
        producer.produce_batch("a", [{"value": b"v"}])
    assert raised.value.appended == 0


def test_a_close_that_can_remove_nothing_closes_all_the_same(machine):
    producer = machine.open()
    producer.produce("a", b"v")
    machine.transmit("ok")
    machine.disk.refuse("remove", 100)
    assert producer.close() == 0
    assert not machine.world.locked


def test_two_batches_at_once_leave_the_durability_as_it_was(machine):
    """A batch syncs at its end; a message of another thread meanwhile syncs by itself."""
    producer = machine.open(durability="each")
    log = producer._log
    seen = []
    produce = producer.produce

    def meanwhile(*row):
        lsn = produce(*row)
        seen.append(log.synced_lsn)
        with other_thread(producer):
            other = produce("a", b"of another thread")
            seen.append(log.synced_lsn - other)
        return lsn

    producer.produce = meanwhile
    producer.produce_batch("a", [{"value": b"v"}])
    assert seen == [0, 0]
    assert produce("a", b"w") == log.synced_lsn


@contextmanager
def other_thread(producer):
    """Have the producer take this thread for another one."""
    mine, producer._batching = producer._batching, set()
    yield
    producer._batching = mine
