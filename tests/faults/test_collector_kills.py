"""SIGKILL of a collector at each step between the log's write, the sync, the answer and the commit."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support import collectors
from tests.support.recorded import counting

from waybill import services
from waybill.settings import Settings

pytestmark = pytest.mark.serves
DIES = """
import os, signal
from waybill.collector import intake
from waybill.producer import LosslessProducer

def die_at(owner, name, number, before):
    real, calls = getattr(owner, name), []
    def call(*given, **named):
        calls.append(1)
        if before and len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*given, **named)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, call)

die_at({point})
"""
POINTS = {
    "amid a request": 'LosslessProducer, "produce", 25, False',
    "appended, not synced": 'LosslessProducer, "sync", 3, True',
    "synced, not answered": 'LosslessProducer, "sync", 3, False',
    "traced, not marked": 'LosslessProducer, "mark", 1, True',
    "marked": 'LosslessProducer, "mark", 1, False',
    "about to commit": 'intake, "commit_collected", 2, True',
    "committed, not confirmed": 'intake, "commit_collected", 2, False',
}
EACH_TIME = ("synced, not answered", "traced, not marked")
"""Points of every run of the tests; the others belong to the campaigns."""


def assert_exact(settings: Settings, ids: set[str], *, copies: int = 0) -> None:
    """Each event is in Kafka, the books have as many as Kafka, and each has a trace."""
    events = collectors.in_kafka(settings)
    assert {event.id for event in events} == ids
    assert len(events) <= len(ids) + copies
    report = services.balance(settings)
    assert (report.ingested, report.in_flight) == (len(events), len(events))
    assert (report.unaccounted, report.settling) == (0, {})
    taken = Counter(trace.event_id for trace in counting(settings) if trace.phase == "ingestion")
    assert taken == Counter(event.id for event in events)
    assert services.audit_round(settings).number > 0
    assert services.breaches(settings, states=None) == []
    assert services.write_ahead_logs(settings) == []


def killed_at(settings: Settings, folder: Path, sender: collectors.Sender, point: str) -> None:
    """Send until the collector dies at a point; nothing that was answered may be lost."""
    patch = DIES.replace("{point}", POINTS[point])
    with collectors.collector(settings, folder, patch=patch, ready=False) as one:
        while one.process.poll() is None:  # it may die while it recovers what the last one left
            if not sender.send(one, 3):
                time.sleep(0.1)
        assert one.process.returncode == -signal.SIGKILL, one.words()


def test_a_collector_killed_between_two_steps_loses_and_doubles_nothing(
    stack_settings: Settings, tmp_path: Path
) -> None:
    die_and_go_on(stack_settings, tmp_path, EACH_TIME)


@pytest.mark.campaign
@pytest.mark.parametrize("point", POINTS)
def test_a_collector_killed_at_each_step_loses_and_doubles_nothing(
    stack_settings: Settings, tmp_path: Path, point: str
) -> None:
    die_and_go_on(stack_settings, tmp_path, (point,))


def die_and_go_on(stack_settings: Settings, tmp_path: Path, points: tuple[str, ...]) -> None:
    """Have collectors die one after the other; the last one lives."""
    settings = collectors.deployed_with_ids(stack_settings, tmp_path)
    sender = collectors.Sender()
    for point in points:
        killed_at(settings, tmp_path, sender, point)
    with collectors.collector(settings, tmp_path) as running:
        assert sender.send(running, 5), running.words()
        assert running.stop() == 0, running.words()
    assert sender.answered == sender.sent
    assert_exact(settings, sender.sent)
