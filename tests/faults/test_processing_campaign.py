"""Short form of ``make faults-processing``: teams are moved, applications killed and frozen."""

from __future__ import annotations

import os

import pytest
from tests.faults.processing_campaign import QUICK, run, show

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.timeout(900),
]
SEED = int(os.environ.get("PROCESSING_SEED", "4711"))


def test_no_event_is_lost_or_doubled_by_moves_kills_and_late_awakenings(stack_settings):
    tally = run(stack_settings, QUICK, seed=SEED)
    show(tally, SEED, 0.0)
    assert (tally.moves >= QUICK.moves, tally.kills, tally.freezes) == (
        True, QUICK.kills, QUICK.freezes,
    )  # fmt: skip
    assert tally.lost == 0
    assert tally.doubled == 0
