"""``on_delivery`` on the short way: each record's own callable, once, at the price of a look."""

import sys

import pytest
from tests.support.memory_producer import Machine, Page

from waybill.producer import retry_queue, sender


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(sender, "EPOCH_RECORDS", 10)
    monkeypatch.setattr(sender, "_POLL_EVERY", 4)
    return Machine()


class Unhashable(Page):
    __hash__ = None

    def __call__(self, error, message):
        self.delivered(error, message)


def test_each_record_is_reported_to_the_callable_it_was_given(machine):
    producer = machine.open()
    pages = [Page(), Page(), Page()]
    shared = pages[0].delivered
    unhashable = Unhashable()
    callables = [
        lambda _n: shared,
        lambda _n: pages[1].delivered,  # a bound method is another object each time
        lambda _n: None,
        lambda _n: unhashable,
        lambda n: lambda e, m, n=n: pages[2].values.append(m.value()),
    ]
    order = [0, 0, 1, 1, 0, 2, 0, 3, 3, 4, 4, 0, 1, 2, 2, 0]
    sent = {number: [] for number in range(len(callables))}
    for n, number in enumerate(order * 4):
        producer.produce("a", b"%d" % n, on_delivery=callables[number](n))
        sent[number].append(b"%d" % n)
    machine.arrive()
    assert pages[0].values == sent[0]
    assert pages[1].values == sent[1]
    assert unhashable.values == sent[3]
    assert pages[2].values == sent[4]


def calls_of(produce):
    calls = []

    def profile(frame, event, _given):
        if event == "call" and "memory_kafka" not in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        produce()
    finally:
        sys.setprofile(None)
    return calls


def test_a_callable_that_was_given_before_costs_no_further_call(machine):
    producer = machine.open()
    report = Page().delivered
    producer.produce("a", b"opens the epoch", b"", on_delivery=report)
    without = calls_of(lambda: producer.produce("a", b"x", b""))
    assert calls_of(lambda: producer.produce("a", b"x", b"", on_delivery=report)) == without
    machine.world.client.transmit(("a", 0), 3, "ok")
    calls = calls_of(producer.poll)
    assert calls.count("__call__") == 2
    assert not {"add", "notify"} & set(calls)


def test_a_failure_is_reported_to_its_callable_once_it_is_given_up(machine, monkeypatch):
    monkeypatch.setattr(retry_queue, "time", machine.kafka.clock)
    producer = machine.open()
    page, errors = Page(), []

    def failed(error, message):
        errors.append((message.value(), error.name()))

    for value, report in ((b"0", page.delivered), (b"1", failed), (b"2", page.delivered)):
        producer.produce("a", value, b"", on_delivery=report)
    machine.transmit("ok", "unknown", "ok")
    producer.poll()
    machine.tick(3)
    producer.poll()
    assert page.values == [b"0", b"2"]
    assert errors == [(b"1", "UNKNOWN_TOPIC_OR_PART")]
