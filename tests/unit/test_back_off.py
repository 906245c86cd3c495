from __future__ import annotations

import pytest

from waybill.back_off import BackOff, RetryTimer


def test_waits_double_up_to_the_longest():
    back_off = BackOff(0.5, 3.0)
    assert [back_off.wait_s(n) for n in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert back_off.wait_s(100_000) == 3.0


@pytest.mark.parametrize(("lived_s", "failures"), [(0.0, 5), (119.0, 5), (120.0, 1)])
def test_what_ran_long_enough_begins_anew(lived_s, failures):
    assert BackOff(1.0, 60.0, healthy_s=120.0).failures(4, lived_s) == failures


def test_a_timer_waits_longer_after_each_failure_and_anew_after_a_healthy_run():
    retry = RetryTimer(BackOff(2.0, 60.0, healthy_s=120.0))
    retry.began = 100.0
    assert [retry.fail(now) for now in (101.0, 103.0, 107.0)] == [2.0, 4.0, 8.0]
    assert (retry.due, retry.failures) == (115.0, 3)
    retry.began = 115.0
    assert retry.fail(235.0) == 2.0
