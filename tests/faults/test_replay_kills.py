"""Short form of ``make faults-parking``: replays killed and resumed, interleavings, both exact."""

from __future__ import annotations

import os
import random

import pytest
from tests.faults.parking_campaign import COMMITS, EVENTS, kill_replays, play, prepare
from tests.support.recorded import counting

from waybill import services

pytestmark = pytest.mark.serves
SEED = int(os.environ.get("PARKING_SEED", "99"))
KILLS, PLAYS = 5, 100


def test_a_killed_replay_resumes_and_sends_each_event_once_in_order(stack_settings):
    print(f"seed {SEED}")
    settings = prepare(stack_settings)
    tally = kill_replays(settings, KILLS, random.Random(SEED))
    print(tally)
    assert tally.kills == KILLS
    assert (tally.lost, tally.duplicates, tally.disordered) == (0, 0, 0)
    (partition,) = services.parked_partitions(settings)
    assert (partition.parked, partition.replaying) == (0, 0)
    assert partition.replayed == tally.rounds * COMMITS * EVENTS
    assert services.refresh_tracker(settings, grace_s=0).aggregates_corrected == 0
    traces = [trace for trace in counting(settings) if trace.phase == "replay"]
    assert len({trace.event_id for trace in traces}) == len(traces) == partition.replayed
    assert {(trace.intake_minute, trace.outcome) for trace in traces} == {(29_000_000, "replayed")}


@pytest.mark.campaign
def test_whatever_is_interleaved_the_warehouse_ends_as_if_nothing_had_failed(postgres):
    print(f"seed {SEED}")
    tally = play(postgres.database("plays"), postgres.database("warehouse"), PLAYS, SEED)
    print(tally)
    assert tally.wrong_rows == 0
    assert tally.rows + tally.tombstones > PLAYS
    for what in ("deaths", "replays", "cancelled", "discarded", "undone", "refused"):
        assert tally.numbers[what] > 0, what
