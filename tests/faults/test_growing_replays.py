"""Replays while their topic grows: live, and frozen until the generation they wrote to has ended."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from tests.faults.parking_campaign import COMMITS, EVENTS, park, prepare
from tests.support import children, orders
from tests.support.books import batch, nothing_parked
from tests.support.replays import run_replay

from waybill import clusters, services
from waybill.access import Decision
from waybill.errors import InputError
from waybill.events import Event, decode
from waybill.ledger import OffsetRange, acquire_lease, commit_batch
from waybill.pipelines import generation_name
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker
from waybill.topics import Draining, GrowRequest

pytestmark = pytest.mark.serves
ALL = COMMITS * EVENTS
NAMES = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "transformation",
    "error_type": "null_value",
}
BY = Decision("ann", "a test")
REPLAY = f"""
from waybill.replay import ReplayRequest
from waybill.services import replay as replays
request = ReplayRequest(**{NAMES!r}, governed=False, rate_per_s={2 * EVENTS})
replays.run_replay(settings, request, who="ann", run_id="r")
"""
STOPS_UNMARKED = """
import os, signal
from waybill.parking import Parking
real_mark, calls = Parking.mark_replayed, []

def mark(*given):
    calls.append(1)
    if len(calls) == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return real_mark(*given)

Parking.mark_replayed = mark
"""


@pytest.fixture
def settings(stack_settings: Settings) -> Settings:
    made = prepare(stack_settings)
    park(made, 0)
    return made


def topic_of(settings: Settings) -> str:
    return orders.topic_of(settings.pipelines_dir)


def grow(settings: Settings) -> tuple[str, ...]:
    """Grow the topic; return the logs that the plan named."""
    plan = services.plan_growth(settings, GrowRequest(topic=topic_of(settings), partitions=5))
    services.grow_topic(settings, plan, BY)
    return plan.writers


def events(settings: Settings, number: int) -> list[Event]:
    log = open_log(settings.kafka)
    topic = log.describe(generation_name(topic_of(settings), number))
    marks = log.watermarks(topic)
    return [decode(v) for n in marks for v in log.read(topic.name, {n: marks[n]})]


def replayed(settings: Settings) -> int:
    return sum(one.replayed for one in services.parked_partitions(settings))


def end_first(settings: Settings) -> list[str]:
    """Read all of the first generation, as processing does, and end it."""
    name, log = topic_of(settings), open_log(settings.kafka)
    topic = log.describe(name)
    ends = {n: high for n, (_, high) in log.watermarks(topic).items() if high}
    with open_tracker(settings.tracker) as tracker:
        done = batch(
            acquire_lease(tracker, f"processing/{name}", holder="test"),
            consumer=f"processing/{name}",
            topic=name,
            topic_id=topic.topic_id,
            cluster_id=topic.cluster_id,
            ranges=[OffsetRange(n, 0, high, high) for n, high in ends.items()],
        )
        commit_batch(tracker, done, nothing_parked)
        return Draining(tracker, log).end([name])


def coordinator_grows(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a round of the coordinator that decided to grow the topic."""
    decided = clusters.TopicGrowth(topic_of(settings), "shop", 2, 5, "it is behind")
    with monkeypatch.context() as patched:
        patched.setattr(clusters, "coordinate", lambda *args, **_: args[-1](decided))
        services.run_coordinator(settings)


def test_a_replay_goes_on_in_the_next_generation_with_each_event_once_and_keys_in_order(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = children.start(settings, STOPS_UNMARKED + REPLAY)
    try:
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        with pytest.raises(InputError, match="would wait for a slice of .*events/s"):
            coordinator_grows(settings, monkeypatch)
        [writer] = grow(settings)
        assert "(replay)" in writer
        assert writer.endswith(f", {2 * EVENTS:,} events/s")
        os.kill(child.pid, signal.SIGCONT)
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert child.returncode == 0, output.decode()
    first, second = events(settings, 1), events(settings, 2)
    both = [*first, *second]
    assert Counter(one.data["number"] for one in both) == Counter(range(ALL))
    assert len(first) < ALL
    for key in {one.key for one in both}:
        own = [one.data["number"] for one in both if one.key == key]
        assert own == sorted(own), key
    assert replayed(settings) == ALL
    [log] = services.write_ahead_logs(settings, every=True)
    assert (log.state, log.topic) == ("closed", generation_name(topic_of(settings), 2))


@pytest.mark.campaign
def test_a_replay_that_wakes_up_after_its_generation_has_ended_marks_nothing(
    settings: Settings,
) -> None:
    child = children.start(settings, STOPS_UNMARKED + REPLAY)
    try:
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        [log] = services.write_ahead_logs(settings)
        services.settle_log(settings, log.wal_id, BY)
        grow(settings)
        assert end_first(settings) == [topic_of(settings)]
        os.kill(child.pid, signal.SIGCONT)
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert b"has ended since" in output, output.decode()
    assert replayed(settings) == 0
    done = run_replay(settings, **NAMES, who="ann", run_id="r", governed=False)
    assert (done.state, done.events) == ("done", ALL)
    assert {one.data["number"] for one in events(settings, 2)} == set(range(ALL))
