"""SIGKILL during ingestion: each row is in Kafka exactly once, and counted exactly once."""

from __future__ import annotations

import random
import signal
from collections import Counter

import pytest
from tests.support import children, orders
from tests.support.recorded import counting, recorded

from waybill import services
from waybill.events import decode
from waybill.storage import open_log

pytestmark = pytest.mark.serves
SEED = 20261121
ROWS = 6_000
KILLS = 6
INGEST = """
from waybill.services import run_ingest
print(run_ingest(settings, "orders"))
"""
DIES_AROUND_THE_MARK = """
import os, signal
from waybill.producer import LosslessProducer

real, calls = LosslessProducer.mark, []

def mark(producer, payload):
    calls.append(payload)
    if len(calls) == {nth}:
        if {after}:
            real(producer, payload)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(producer, payload)

LosslessProducer.mark = mark
"""


@pytest.fixture(params=[400, ROWS], ids=["many pages", "one page"])
def settings(request, stack_settings, tmp_path):
    orders.write_orders(tmp_path / "pipelines", rows=ROWS, page_rows=request.param)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    return settings


def values_in_kafka(settings):
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    return list(log.read(topic.name, log.watermarks(topic)))


@pytest.mark.campaign
def test_a_killed_ingest_loses_and_doubles_nothing(settings):
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    killed = sum(
        children.run_and_kill(settings, INGEST, after_s=chance.uniform(0.2, 1.7))
        for _ in range(KILLS)
    )
    children.run(settings, INGEST)
    ids = [decode(value).id for value in values_in_kafka(settings)]
    report = services.balance(settings)
    assert killed > 0, "no run was killed: the machine is too fast for this test's times"
    assert len(ids) == ROWS
    assert len(set(ids)) == ROWS
    assert report.ingested == ROWS
    assert report.unaccounted == 0
    assert report.in_flight == ROWS
    check_traces(settings, ids)


def check_traces(settings, ids):
    """Each event has one trace, and one line by which its key finds it."""
    traces = counting(settings)
    taken = Counter(trace.event_id for trace in traces if trace.phase == "ingestion")
    found = Counter(trace.refers_to for trace in traces if trace.phase == "key")
    assert taken == found == Counter(ids)
    assert all(trace.intake_minute for trace in traces)


@pytest.mark.parametrize(
    ("settings", "after"),
    [
        pytest.param(400, False, id="many pages-before the mark"),
        pytest.param(400, True, id="many pages-after the mark", marks=pytest.mark.campaign),
        pytest.param(ROWS, False, id="one page-before the mark", marks=pytest.mark.campaign),
        pytest.param(ROWS, True, id="one page-after the mark", marks=pytest.mark.campaign),
    ],
    indirect=["settings"],
)
def test_a_page_killed_around_its_mark_has_each_trace_once(settings, after):
    dying = DIES_AROUND_THE_MARK.format(after=after, nth=1)
    child = children.start(settings, dying + INGEST)
    try:
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert child.returncode == -signal.SIGKILL, output.decode()
    before = len(recorded(settings))
    assert before > 0, "traces are on disk before the mark"
    children.run(settings, INGEST)
    ids = [decode(value).id for value in values_in_kafka(settings)]
    assert len(ids) == ROWS
    check_traces(settings, ids)
    assert (len(recorded(settings)) > 2 * ROWS) is not after, "those of the dead run came again"


def test_a_second_run_of_a_finished_source_adds_nothing(settings):
    first = services.run_ingest(settings, "orders")
    second = services.run_ingest(settings, "orders")
    assert (first.accepted, second.accepted) == (ROWS, 0)
    assert len(values_in_kafka(settings)) == ROWS
