"""Short form of ``make faults-tracker``: 40 events dropped and 40 doubled, all named, no others."""

from __future__ import annotations

import os

import pytest
from tests.faults.tracker_campaign import DOUBLED, QUICK_EVENTS, REMOVED, run, show

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
]
SEED = int(os.environ.get("TRACKER_SEED", "4711"))


def test_all_that_was_dropped_or_doubled_is_named_and_nothing_else(stack_settings):
    print(f"seed {SEED}")
    tally = run(stack_settings, events=QUICK_EVENTS, seed=SEED)
    show(tally)
    assert (len(tally.removed_ids), len(tally.doubled_ids)) == (REMOVED, DOUBLED)
    assert tally.clean == []
    assert tally.false_alarms == 0
    assert tally.named == REMOVED + DOUBLED
