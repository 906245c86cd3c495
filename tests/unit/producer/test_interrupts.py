"""A KeyboardInterrupt at any line of a call that produces: nothing that was said is lost, no lsn is given twice."""

import itertools

import pytest
from tests.support.interrupts import interrupted_at
from tests.support.memory_producer import Machine, Page

from waybill.errors import StopError
from waybill.producer import sender

COUNT = 9
"""More than two steps of four."""


def produce(producer, page):
    return [producer.produce("a", b"interrupted", b"k", {"h": "1"}, page.delivered)]


def produce_values(producer, page):
    values, keys = [b"interrupted"] * COUNT, [b"k"] * COUNT
    return producer.produce_values(
        "a", values, keys, headers={"h": "1"}, on_delivery=page.delivered
    )


def produce_batch(producer, page):
    row = {"value": "interrupted", "key": "k"}
    return producer.produce_batch("a", [row] * COUNT, on_delivery=page.delivered)


def produce_rows(producer, page):
    row = {"value": "interrupted", "key": "k", "headers": {"h": "1"}}
    return producer.produce_batch("a", [row] * 3, on_delivery=page.delivered)


@pytest.mark.parametrize("act", [produce, produce_values, produce_batch, produce_rows])
def test_an_interrupt_at_any_line_loses_nothing_and_doubles_nothing(monkeypatch, act):
    monkeypatch.setattr(sender, "EPOCH_RECORDS", 10)
    monkeypatch.setattr(sender, "_POLL_EVERY", 4)
    for line in itertools.count():
        if not check_interrupt(act, line):
            assert line > 50
            return


def check_interrupt(act, line):
    machine = Machine()
    producer = machine.open()
    page, said = Page(), {}
    for n in range(3):
        said[producer.produce("a", b"before %d" % n, b"k", None, page.delivered)] = b"before %d" % n
    lsns = []
    raised = interrupted_at(line, lambda: lsns.extend(act(producer, page)))
    said |= dict.fromkeys(lsns, b"interrupted")
    try:
        for n in range(3):
            lsn = producer.produce("a", b"after %d" % n, b"k", None, page.delivered)
            assert lsn not in said, line
            said[lsn] = b"after %d" % n
        reported = True
    except StopError:
        reported = False  # close it and open it again, it says
    if reported:
        machine.arrive()
        assert set(said.values()) - {b"interrupted"} <= set(page.values), line
    machine.kill()
    machine.open()
    check_topic(machine, said, line)
    return raised


def check_topic(machine, said, line):
    there = {}
    for message in machine.kafka.messages:
        stamp = message.header("waybill-wal")
        assert stamp not in there, line
        there[stamp] = message.value()
    by_lsn = {int.from_bytes(stamp[-8:], "little"): value for stamp, value in there.items()}
    assert len(by_lsn) == len(there), line
    for lsn, value in said.items():
        assert by_lsn.get(lsn) == value, (line, lsn)
