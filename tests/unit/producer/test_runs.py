"""``produce_values`` and uniform batches: what ``produce`` does for each, without a call for each."""

import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.memory_producer import Machine, Page

from waybill.errors import InputError, StopError
from waybill.producer import WalFullError, lossless, retry_queue, sender
from waybill.producer.wal import log

SECTION = 4096
"""Bytes of a segment on the memory disk."""
CELLS = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"x" * 700, b"y" * 5000])


@pytest.fixture(autouse=True)
def short_steps(monkeypatch):
    monkeypatch.setattr(sender, "EPOCH_RECORDS", 10)
    monkeypatch.setattr(sender, "_POLL_EVERY", 4)


def stored(machine):
    return [(m.key(), m.value()) for m in machine.kafka.messages]


def headers(machine):
    return [m.headers for m in machine.kafka.messages]


def test_all_are_appended_in_order_and_handed_over_stamped():
    machine = Machine()
    producer = machine.open()
    page = Page()
    values = [b"0", "text", None, b"", *(b"%d" % n for n in range(4, 600))]
    keys = [b"" for _ in values]
    assert producer.produce("a", b"before", b"") == 1
    lsns = producer.produce_values(
        "a", values, keys, headers={"h": "1"}, on_delivery=page.delivered, timestamp=7
    )
    assert lsns == list(range(2, 602))
    records = list(producer._log.records(2))
    assert [record.lsn for record in records] == lsns
    assert {record.timestamp_ms for record in records} == {7}
    machine.arrive()
    expected = [b"0", b"text", None, *values[3:]]
    assert stored(machine) == [(b"", b"before"), *((b"", value) for value in expected)]
    assert page.values == expected
    stamps = [dict(pairs)["waybill-wal"] for pairs in headers(machine)]
    assert [int.from_bytes(stamp[-8:], "little") for stamp in stamps] == [1, *lsns]
    assert all(dict(pairs)["h"] == b"1" for pairs in headers(machine)[1:])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_none_and_one(count):
    machine = Machine()
    producer = machine.open()
    assert producer.produce_values("a", [b"v"] * count) == list(range(1, count + 1))
    assert producer.produce_batch("a", [{"value": b"v"}] * count) == list(
        range(count + 1, 2 * count + 1)
    )
    machine.arrive()
    assert stored(machine) == [(None, b"v")] * 2 * count


def segments_of(act, monkeypatch):
    """Return what the log's segments hold after ``act``, with the same ids for each."""
    with monkeypatch.context() as patch:
        patch.setattr(log.uuid, "uuid4", lambda: uuid.UUID(int=5))
        machine = Machine()
        producer = machine.open()
        act(producer)
        contents = [bytes(segment.data) for segment in producer._log._segments]
        ends = [(segment.base_lsn, segment.end_lsn) for segment in producer._log._segments]
        return contents, ends, producer._writer.next_lsn


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=30),
    head=st.sampled_from([None, {"a": "1"}, [("a", b"1"), ("é", None)]]),
    partition=st.sampled_from([-1, 0, 7]),
    topic=st.sampled_from(["a", "tøpic"]),
)
def test_every_way_writes_the_same_bytes(rows, head, partition, topic):
    values, keys = [value for value, _ in rows], [key for _, key in rows]

    def by_produce(producer):
        for value, key in rows:
            producer.produce(topic, value, key, head, None, partition, 9)

    def by_values(producer):
        producer.produce_values(topic, values, keys, headers=head, partition=partition, timestamp=9)

    def by_batch(producer):
        fields = {"headers": head, "timestamp": 9}
        producer.produce_batch(
            topic, [{"value": v, "key": k, **fields} for v, k in rows], partition=partition
        )

    def by_uniform_batch(producer):
        producer.produce_batch(
            topic, [{"value": v, "key": k} for v, k in rows], partition=partition
        )

    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(lossless, "_now_ns", lambda: 9_000_000)
        written = segments_of(by_produce, patch)
        assert segments_of(by_values, patch) == written
        assert segments_of(by_batch, patch) == written
        if head is None:
            assert segments_of(by_uniform_batch, patch) == written


def test_a_run_goes_on_in_the_next_segment():
    machine = Machine()
    producer = machine.open()
    values = [bytes([n]) * 1000 for n in range(20)]
    lsns = producer.produce_values("a", values, [b""] * 20)
    assert lsns == list(range(1, 21))
    assert len(producer._log._segments) > 3
    machine.arrive()
    assert [value for _, value in stored(machine)] == values


@pytest.mark.parametrize("way", ["values", "batch"])
def test_a_log_full_in_the_middle_says_how_many_were_appended(way):
    machine = Machine()
    producer = machine.open(disk_threshold_bytes=2 * SECTION)
    values = [b"x" * 1000] * 20
    with pytest.raises(WalFullError) as raised:
        if way == "values":
            producer.produce_values("a", values)
        else:
            producer.produce_batch("a", [{"value": value} for value in values])
    assert raised.value.appended == producer._log.next_lsn - 1 == 6
    machine.arrive()
    assert len(stored(machine)) == 6


def test_a_key_that_is_held_is_waited_for_and_others_go_on(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(retry_queue, "time", machine.kafka.clock)
    producer = machine.open()
    producer.produce("a", b"opens", b"other")
    machine.kafka.refusals.append(-192)  # of the second message: it waits
    producer.produce_values("a", [b"0", b"1", b"2", b"3"], [b"other", b"k", b"k", b"other"])
    sent = [m.value() for queue in machine.world.client._queues.values() for m in queue]
    assert b"opens" in sent
    assert len(producer) == 5
    machine.world.settle(producer)
    order = [value for key, value in stored(machine) if key == b"k"]
    assert order == [b"1", b"2"]


def test_a_full_queue_is_waited_out_and_nothing_is_appended_twice():
    machine = Machine(capacity=3)
    producer = machine.open()
    values = [b"%d" % n for n in range(30)]
    assert producer.produce_values("a", values, [b""] * 30) == list(range(1, 31))
    assert [record.value for record in producer._log.records(1)] == values
    machine.arrive()
    assert [value for _, value in stored(machine)] == values


def test_a_refusal_in_the_middle_is_taken_note_of_and_the_rest_goes_on(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(retry_queue, "time", machine.kafka.clock)
    producer = machine.open()
    producer.produce("a", b"opens")
    machine.kafka.refusals.append(-190)  # no such partition
    assert producer.produce_values("a", [b"nowhere", b"1", b"2"]) == [2, 3, 4]
    machine.world.settle(producer)
    assert [message.value for message in machine.taken] == [b"nowhere"]
    assert sorted(value for _, value in stored(machine)) == [b"1", b"2", b"opens"]


def test_a_producer_closed_meanwhile_stops_between_two_slices_and_keeps_what_was_appended():
    machine = Machine()
    producer = machine.open()
    produce, calls = producer.produce, []

    def long_way(*row):
        calls.append(row)
        if len(calls) == 3:
            producer.close(0)
        return produce(*row)

    producer.produce = long_way
    with pytest.raises(StopError, match="closed"):
        producer.produce_values("a", [b"%d" % n for n in range(40)])
    appended = producer._writer.next_lsn - 1
    assert appended == 8
    machine.world.release()
    assert machine.open().recovered.replayed + machine.producer.recovered.found == appended


@pytest.mark.parametrize("durability", ["process", "each"])
def test_the_disk_is_asked_once_for_all(durability, monkeypatch):
    machine = Machine()
    producer = machine.open(durability=durability)
    syncs = []
    sync = producer._log.sync
    monkeypatch.setattr(producer._log, "sync", lambda *given: syncs.append(1) or sync(*given))
    producer.produce_values("a", [b"v"] * 30)
    assert len(syncs) == (durability == "each")
    assert producer._log.synced_lsn == (30 if durability == "each" else 0)


def test_what_is_no_message_is_named_and_nothing_is_appended():
    producer = Machine().open()
    for values, keys, more, error, said in (
        ([b"a", 5], None, {}, TypeError, "value 1: value is bytes, text or None, not int"),
        ([b"a", "\ud800"], None, {}, InputError, "value 1: the value has no UTF-8 form"),
        ([b"a", b"b"], [b"k", 1.5], {}, TypeError, "key 1: key is bytes"),
        ([b"a", b"b"], [b"k"], {}, InputError, "2 values have 1 keys"),
        (b"one value", None, {}, TypeError, "not one bytes"),
        ("text", None, {}, TypeError, "not one str"),
        ([b"a"], None, {"on_delivery": 5}, TypeError, "on_delivery is a callable"),
        ([b"a"], None, {"partition": 2**31}, InputError, "is no partition"),
        ([b"a"], None, {"timestamp": "now"}, TypeError, "timestamp is an integer"),
        ([b"a"], None, {"headers": [("n", 1)]}, InputError, "header 'n'"),
    ):
        with pytest.raises(error, match=said):
            producer.produce_values("a", values, keys, **more)
    with pytest.raises(TypeError, match="topic's name is text"):
        producer.produce_values(5, [b"a"])
    assert producer.stats.appended == 0


def test_a_list_that_the_caller_changes_later_is_not_what_was_given():
    machine = Machine()
    producer = machine.open()
    values = [b"%d" % n for n in range(10)]
    produce = producer.produce

    def long_way(*row):
        values.clear()
        return produce(*row)

    producer.produce = long_way
    assert len(producer.produce_values("a", values)) == 10


def test_two_threads_keep_their_own_order(tmp_path, monkeypatch):
    machine = Machine(capacity=10_000)
    producer = machine.open()
    said = {}

    def work(name):
        said[name] = [
            lsn
            for part in range(20)
            for lsn in producer.produce_values(
                "a", [b"%s %d" % (name, part * 50 + n) for n in range(50)], [b""] * 50
            )
        ]

    threads = [threading.Thread(target=work, args=(name,)) for name in (b"x", b"y", b"z")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lsn for lsns in said.values() for lsn in lsns) == list(range(1, 3001))
    records = {record.lsn: record.value for record in producer._log.records(1)}
    for name, lsns in said.items():
        assert [records[lsn] for lsn in lsns] == [b"%s %d" % (name, n) for n in range(1000)]
    machine.arrive()
    for name in said:
        values = [value for _, value in stored(machine) if value.startswith(name)]
        assert values == [b"%s %d" % (name, n) for n in range(1000)]


def test_a_batch_goes_the_short_way_where_its_messages_have_values_and_keys_alone(monkeypatch):
    producer = Machine().open()
    rows = []
    produce = producer.produce
    producer.produce = lambda *row: rows.append(row) or produce(*row)
    producer.produce_batch("a", [{"value": "v", "key": None}, {"value": b"w"}] * 50)
    assert len(rows) < 40  # of 100: those that begin a step or a segment
    rows.clear()
    producer.produce_batch("a", [{"value": "v", "timestamp": 5}] * 100)
    assert len(rows) == 100
