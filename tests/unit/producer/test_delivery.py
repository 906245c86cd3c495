"""Epochs: the low watermark never passes a record that is not settled."""

import random

import pytest

from waybill.producer.delivery import Deliveries, Poller


class Report:
    def __init__(self, offset, topic="t", partition=0):
        self._offset, self._topic, self._partition = offset, topic, partition

    def topic(self):
        return self._topic

    def partition(self):
        return self._partition

    def offset(self):
        return self._offset

    def key(self):
        return b"k"

    def value(self):
        return b"v"


@pytest.mark.parametrize("seed", range(20))
def test_reports_in_any_order_move_the_watermark_only_over_settled_records(seed):
    order = random.Random(seed)
    deliveries = Deliveries({})
    epochs = []
    lsn = 1
    for size in (3, 1, 5, 2, 4):
        epochs.append((deliveries.open_next(lsn), lsn, size))
        lsn += size
    open_reports = [epoch for epoch, _, size in epochs for _ in range(size)]
    order.shuffle(open_reports)
    left = {id(epoch): size for epoch, _, size in epochs}
    for count, epoch in enumerate(open_reports, 1):
        epoch.report(None, Report(count))
        left[id(epoch)] -= 1
        unsettled = [first for one, first, _ in epochs if left[id(one)]]
        assert deliveries.low_lsn(lsn) == min(unsettled, default=lsn)
        assert deliveries.in_doubt(lsn) == len(open_reports) - count


def test_marks_and_gaps_are_not_waited_for():
    deliveries = Deliveries({})
    epoch = deliveries.open_next(1)
    deliveries.pass_over()
    assert deliveries.low_lsn(2) == 2
    epoch.report(None, Report(1))
    deliveries.pass_over(3)
    assert deliveries.in_doubt(6) == 0
    deliveries.open_next(6)
    assert deliveries.low_lsn(7) == 6


def test_a_failed_record_holds_the_watermark_until_it_is_settled_another_way():
    deliveries = Deliveries({})
    epoch = deliveries.open_next(1)
    epoch.report(None, Report(1))
    epoch.report(object(), Report(None))
    assert deliveries.failed(4) == []  # one report is still out
    epoch.report(None, Report(2))
    assert deliveries.failed(4) == [(epoch, 1)]
    assert deliveries.low_lsn(4) == 1
    deliveries.settle_aside(epoch)
    assert deliveries.low_lsn(4) == 4


def test_offsets_are_learnt_from_complete_epochs_only():
    deliveries = Deliveries({"t": {0: 5}})
    first, second = deliveries.open_next(1), deliveries.open_next(2)
    deliveries.open_next(3)
    second.report(None, Report(41))
    assert deliveries.low_lsn(3) == 1
    assert deliveries.offsets == {"t": {0: 5}}
    first.report(None, Report(40, partition=1))
    assert deliveries.low_lsn(3) == 3
    assert deliveries.offsets == {"t": {0: 42, 1: 41}}


def test_a_poll_while_another_thread_polls_is_skipped():
    calls = []

    def poll(timeout_s):
        calls.append(timeout_s)
        if len(calls) == 1:
            poller.poll()  # stands for the other thread
        return 0

    poller = Poller(poll)
    poller.poll()
    assert calls == [0.0]
    poller.poll(0.1)
    assert calls == [0.0, 0.1]


def test_the_watermark_does_not_go_back_when_an_epoch_that_was_complete_grows():
    deliveries = Deliveries({})
    epoch = deliveries.open_next(1)
    epoch.report(None, Report(7))
    assert deliveries.low_lsn(2) == 2
    assert deliveries.low_lsn(3) == 2  # offsets 8 and up are true for lsn 2 and up only
    assert deliveries.offsets == {"t": {0: 8}}
