from __future__ import annotations

import pytest

from waybill.back_off import BackOff


def test_waits_double_up_to_the_longest():
    back_off = BackOff(0.5, 3.0)
    assert [back_off.wait_s(n) for n in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert back_off.wait_s(100_000) == 3.0


@pytest.mark.parametrize(("lived_s", "failures"), [(0.0, 5), (119.0, 5), (120.0, 1)])
def test_what_ran_long_enough_begins_anew(lived_s, failures):
    assert BackOff(1.0, 60.0, healthy_s=120.0).failures(4, lived_s) == failures
