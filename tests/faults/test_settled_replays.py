"""A replay whose write-ahead log is settled by name: slow or dead, it sends nothing more from it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.parking_campaign import COMMITS, EVENTS, park, prepare
from tests.support import children, orders
from tests.support.replays import run_replay

from waybill import services
from waybill.access import Decision
from waybill.events import decode
from waybill.settings import Settings
from waybill.storage import open_log

pytestmark = pytest.mark.serves
ALL = COMMITS * EVENTS
NAMES = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "transformation",
    "error_type": "null_value",
}
BY = Decision("ann", "its node is gone")
REPLAY = f"""
from waybill.replay import ReplayRequest
from waybill.services import replay as replays
request = ReplayRequest(**{NAMES!r}, governed=False, rate_per_s=RATE)
replays.run_replay(settings, request, who="ann", run_id="r")
"""
DIES_UNSENT = """
import os, signal
from waybill.producer import LosslessProducer
from waybill.services import environment
real_config, real_produce, calls = environment.librdkafka_config, LosslessProducer.produce, []
environment.librdkafka_config = lambda s: {**real_config(s), "linger.ms": 60_000}

def produce(*given):
    real_produce(*given)
    calls.append(1)
    if len(calls) == 50:
        os.kill(os.getpid(), signal.SIGKILL)

LosslessProducer.produce = produce
"""
STOPS_UNCONFIRMED = """
import os, signal
from waybill.producer import LosslessProducer
LosslessProducer.confirm = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def settings(stack_settings: Settings) -> Settings:
    made = prepare(stack_settings)
    park(made, 0)
    return made


def sent(settings: Settings) -> Counter[int]:
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    values = log.read(topic.name, log.watermarks(topic))
    return Counter(decode(value).data["number"] for value in values)


def logs(settings: Settings) -> list[Any]:
    found = services.write_ahead_logs(settings, every=True)
    return sorted(found, key=lambda one: one.opened_at)


def replayed(settings: Settings) -> int:
    return sum(one.replayed for one in services.parked_partitions(settings))


def assert_the_next_run_sends_the_rest(settings: Settings, gone: str) -> None:
    """Each event once, by the same run of the replay, with a log of its own."""
    done = run_replay(settings, **NAMES, who="ann", run_id="r", governed=False)
    assert (done.state, done.events) == ("done", ALL)
    assert sent(settings) == Counter(range(ALL))
    assert [(one.wal_id == gone, one.state) for one in logs(settings)] == [
        (True, "ended"),
        (False, "closed"),
    ]
    assert (Path(logs(settings)[0].path) / "quarantine" / gone).is_dir()


@pytest.mark.campaign
def test_a_slow_replay_ends_at_its_next_mark_with_all_marked_that_it_sent(
    settings: Settings,
) -> None:
    child = children.start(settings, REPLAY.replace("RATE", str(EVENTS)))
    try:
        children.wait_until(
            lambda: replayed(settings) > 0, limit_s=600, what="some of the events are marked"
        )
        [log] = logs(settings)
        assert (log.purpose, log.state) == ("replay", "open")
        services.settle_log(settings, log.wal_id, BY)
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert b"FencedError" in output, output.decode()
    assert b"settled by name" in output
    assert 0 < replayed(settings) < ALL
    assert sent(settings) == Counter(range(replayed(settings)))
    assert_the_next_run_sends_the_rest(settings, log.wal_id)


def test_what_a_dead_replay_left_is_not_sent_from_a_settled_log(settings: Settings) -> None:
    child = children.start(settings, DIES_UNSENT + REPLAY.replace("RATE", "None"))
    try:
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert child.returncode == -signal.SIGKILL, output.decode()
    assert not sent(settings)
    [log] = logs(settings)
    services.settle_log(settings, log.wal_id, BY)
    assert_the_next_run_sends_the_rest(settings, log.wal_id)


def test_a_mark_of_a_settled_log_that_the_tracker_knows_stays(settings: Settings) -> None:
    """The tracker knows the mark, the log does not: what it names is not sent again."""
    child = children.start(settings, STOPS_UNCONFIRMED + REPLAY.replace("RATE", str(EVENTS)))
    try:
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        marked = replayed(settings)
        assert marked > 0
        [log] = logs(settings)
        services.settle_log(settings, log.wal_id, BY)
    finally:
        children.kill(child)
    done = run_replay(settings, **NAMES, who="ann", run_id="r", governed=False)
    assert (done.state, done.events) == ("done", ALL)
    copies = sent(settings)
    assert set(copies) == set(range(ALL))
    assert all(copies[number] == 1 for number in range(marked)), "what is marked goes no more"
    assert [one.state for one in logs(settings)] == ["ended", "closed"]
