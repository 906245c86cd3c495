"""The governor, against a consumer in simulated time."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.simulated_consumer import SimulatedConsumer, replayed

from waybill.errors import RetryError
from waybill.ledger import BatchProgress
from waybill.replay.throttle import ReplayThrottle, allowed_rate, batch_costs

BEGINS, ENDS, PLAYS = 60.0, 300.0, 4


def stream(per_s: float, *, since: float = 0.0, until: float = ENDS, seed: int = 7) -> np.ndarray:
    """Live events at random moments."""
    random = np.random.default_rng(seed)
    return np.sort(random.uniform(since, until, int(per_s * (until - since))))


def governed(consumer: SimulatedConsumer, rate_per_s: int | None = None) -> ReplayThrottle:
    return ReplayThrottle(consumer, rate_per_s, clock=consumer.clock, sleep=consumer.sleep)


def ungoverned(consumer: SimulatedConsumer, rate_per_s: int | None = None) -> ReplayThrottle:
    return ReplayThrottle(None, rate_per_s, clock=consumer.clock, sleep=consumer.sleep)


def p95s(fixed_s: float, event_s: float, used: float, noise: float) -> tuple[float, float, float]:
    """Return live p95 latency without a replay, with one, and the replay's rate as a share of what
    live traffic leaves free; over several plays, since one has few batches."""
    found: list[list[np.ndarray]] = [[], []]
    number = 0
    for seed in range(PLAYS):
        live = stream(used / event_s, seed=seed)
        alone, beside = (
            SimulatedConsumer(fixed_s, event_s, live, noise=noise, seed=seed) for _ in range(2)
        )
        alone.run(ENDS)
        beside.run(BEGINS)
        beside.now = BEGINS
        number += replayed(beside, governed(beside), until=ENDS)
        beside.run(ENDS)
        for latencies, consumer in zip(found, (alone, beside), strict=True):
            latencies.append(consumer.waited(BEGINS))
    without, with_it = (float(np.percentile(np.concatenate(one), 95)) for one in found)
    return without, with_it, number / PLAYS / (ENDS - BEGINS) / ((1 - used) / event_s)


@pytest.mark.parametrize("noise", [pytest.param(0.05, marks=pytest.mark.campaign), 0.2])
@pytest.mark.parametrize("used", [0.01, 0.1, 0.5, 0.8], ids=lambda used: f"{used:.0%}-used")
@pytest.mark.parametrize("event_us", [200, 2000])
@pytest.mark.parametrize("fixed_s", [0.1, pytest.param(0.3, marks=pytest.mark.campaign), 1.0])
def test_live_latency_grows_by_at_most_a_tenth(fixed_s, event_us, used, noise):
    alone, beside, _ = p95s(fixed_s, event_us / 1e6, used, noise)
    assert beside / alone <= 1.10


@pytest.mark.parametrize("used", [0.1, 0.5])
def test_the_replay_takes_a_share_worth_having(used):
    _, _, share = p95s(0.8, 200e-6, used, 0.1)
    assert 0.02 < share < 0.10


def test_an_ungoverned_replay_does_make_live_traffic_wait():
    """Or the simulation would show nothing."""
    live = stream(1000)
    alone, beside = (SimulatedConsumer(0.3, 100e-6, live) for _ in range(2))
    alone.run(ENDS)
    replayed(beside, ungoverned(beside, 5000), until=ENDS)
    beside.run(ENDS)
    assert beside.p95(BEGINS) > 1.5 * alone.p95(BEGINS)


@pytest.mark.parametrize("consumer", ["idle", "busy once", "stopped"])
def test_without_live_traffic_it_is_as_fast_as_ungoverned(consumer):
    events = 300_000

    def seconds(pace):
        live = [0.0] * 5000 if consumer == "busy once" else []
        topic = SimulatedConsumer(0.5, 10e-6, live, stops_s=0.0 if consumer == "stopped" else 1e9)
        topic.now = 100.0
        topic.run(topic.now)
        replayed(topic, pace(topic), events=events)
        return topic.now - 100.0

    assert seconds(ungoverned) / seconds(governed) >= 0.9


def test_live_traffic_that_begins_meets_two_batches_at_most_and_then_a_governed_replay():
    live = stream(1000, since=50.0)
    topic = SimulatedConsumer(0.3, 100e-6, live, cap=20_000)
    pace = governed(topic)
    replayed(topic, pace, until=50.0)
    waiting = len(topic.sent) - topic._sent_read
    assert waiting <= 2 * 20_000 + 5000
    before = len(topic.sent)
    replayed(topic, pace, until=150.0)
    replayed(topic, pace, until=ENDS)
    assert len(topic.sent) - before < 0.1 * (ENDS - 50.0) / 100e-6
    alone = SimulatedConsumer(0.3, 100e-6, live)
    alone.run(ENDS)
    topic.run(ENDS)
    assert topic.p95(100.0) / alone.p95(100.0) <= 1.10


def test_a_replay_goes_on_at_the_floor_when_processing_stops_for_good():
    topic = SimulatedConsumer(0.3, 100e-6, stream(500), cap=2000, stops_s=120.0)
    topic.now = BEGINS
    pace = governed(topic)
    replayed(topic, pace, until=250.0)
    before = len(topic.sent)
    assert before < 30_000, "bounded"
    replayed(topic, pace, until=350.0)
    assert 40 <= (len(topic.sent) - before) / 100 <= 51, "slow, and no stall"


def test_it_goes_on_at_the_floor_when_live_traffic_alone_is_too_much():
    topic = SimulatedConsumer(0.3, 1e-3, stream(2000))
    topic.now = BEGINS
    topic.run(BEGINS)
    number = replayed(topic, governed(topic), until=200.0)
    assert 1 <= number / 140 <= 10, "a small part of what the consumer does"


def test_two_replays_share_what_one_may_have():
    alone, beside = (SimulatedConsumer(0.8, 200e-6, stream(1000)) for _ in range(2))
    alone.run(ENDS)
    beside.now = BEGINS
    beside.run(BEGINS)
    told = []

    class Other:
        """What a second replay sees of the same topic: every batch too."""

        batch_events = beside.batch_events

        def look(self):
            seen = beside.look()
            told.append(seen)
            return seen

    first = ReplayThrottle(Other(), clock=beside.clock, sleep=beside.sleep)
    while beside.now < ENDS:
        first.wait()
        beside.send()
        beside.send()  # one of this replay, one of another
    beside.run(ENDS)
    assert told
    assert beside.p95(BEGINS) / alone.p95(BEGINS) <= 1.10


def test_processing_is_said_not_to_run_once_it_had_the_time_to_and_not_before(caplog):
    caplog.set_level("INFO", logger="waybill.replay.throttle")
    topic = SimulatedConsumer(0.3, 100e-6, stops_s=0.0)
    topic.now = BEGINS
    pace = governed(topic, 10)
    replayed(topic, pace, until=BEGINS + 25)
    assert "does not run" not in caplog.text
    assert "processing has committed nothing of it yet: 10 events/s" in caplog.text
    replayed(topic, pace, until=BEGINS + 40)
    assert "processing does not run: 10 events/s" in caplog.text


@pytest.mark.parametrize("pace", [governed, ungoverned])
def test_a_rate_caps_it_in_any_case(pace):
    topic = SimulatedConsumer(0.1, 10e-6)
    number = replayed(topic, pace(topic, 200), until=60.0)
    assert number == pytest.approx(200 * 60, rel=0.03)


def test_books_that_cannot_be_read_stop_it_for_a_retry():
    class Away:
        batch_events = 1000

        def look(self):
            raise RetryError("the tracker is away")

    with pytest.raises(RetryError):
        ReplayThrottle(Away()).wait()


# The model ---------------------------------------------------------------------------------------


def batches(*known: tuple[int, float | None]) -> list[BatchProgress]:
    return [
        BatchProgress(number, float(number), took, events, events)
        for number, (events, took) in enumerate(known, 1)
    ]


def test_costs_are_the_line_through_the_batches():
    found = batch_costs(batches(*[(n, 0.4 + n * 50e-6) for n in range(100, 2000, 100)]))
    assert found == pytest.approx((0.4, 50e-6), rel=1e-3)


def test_a_batch_that_took_strangely_long_is_left_out():
    usual = [(n, 0.4 + n * 50e-6) for n in range(100, 2000, 100)]
    assert batch_costs(batches((100, 30.0), *usual)) == pytest.approx((0.4, 50e-6), rel=1e-3)


def test_batches_all_alike_leave_the_cost_in_doubt_and_it_is_taken_for_high():
    assert batch_costs(batches(*[(100, 0.5)] * 50)) == pytest.approx((0.0, 0.005))


@pytest.mark.parametrize("known", [[], [(5, None)]])
def test_without_any_known_time_a_replay_may_have_a_part_of_what_is_live(known):
    assert batch_costs(batches(*known)) is None
    assert allowed_rate(batches(*known), 1000, 200_000) == pytest.approx(56.6, abs=0.1)


def test_small_batches_leave_less_room():
    line = batches(*[(n, 0.4 + n * 50e-6) for n in range(100, 2000, 100)])
    assert allowed_rate(line, 100, 2000) < 0.3 * allowed_rate(line, 100, 200_000)
