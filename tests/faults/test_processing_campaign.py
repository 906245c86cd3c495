"""Short forms of ``make faults-processing``: applications killed, frozen and poisoned under load."""

from __future__ import annotations

import os

import pytest
from tests.faults.processing_campaign import QUICK, SHORTEST, Size, run, show

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.timeout(5400)]
SEED = int(os.environ.get("PROCESSING_SEED", "0"))


def test_no_event_is_lost_or_doubled_by_moves_kills_and_late_awakenings(stack_settings, kafka):
    """By TLS and a login, as the broker's Java, the driver's and librdkafka's clients have it."""
    files = {"ssl_ca_pem": "", "ssl_ca_file": kafka.doors.folder / "authority.pem"}
    by_login = {"kafka": kafka.doors.by_login("SCRAM-SHA-512", **files)}
    assert_nothing_is_wrong(stack_settings.model_copy(update=by_login), SHORTEST)


@pytest.mark.campaign
def test_no_event_is_lost_or_doubled_by_kills_at_each_step_of_the_commit_protocol(stack_settings):
    assert_nothing_is_wrong(stack_settings, QUICK)


def assert_nothing_is_wrong(settings, size: Size):
    tally = run(settings, size, seed=SEED)
    show(tally, SEED, 0.0)
    assert tally.moves >= size.moves  # a freeze moves teams too
    assert tally.destination_moves == (tally.moves if size.loader_kills else 0)
    assert tally.growths == size.growths
    assert (tally.kills, tally.loader_kills, tally.executor_kills, tally.code_kills) == (
        size.kills, size.loader_kills, size.executor_kills, size.code_kills,
    )  # fmt: skip
    assert (tally.freezes, tally.coordinator_kills) == (size.freezes, size.coordinator_kills)
    assert tally.fenced > 0
    assert (tally.lost, tally.doubled, tally.disordered) == (0, 0, 0)
    assert (len(tally.poison), tally.poison_parked) == (size.poison, size.poison)
    assert (tally.misparked, tally.misplaced) == (0, 0)
    assert (tally.unaccounted, tally.miscounted, tally.met_again) == (0, 0, 0)
