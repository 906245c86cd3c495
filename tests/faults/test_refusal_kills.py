"""SIGKILL between any two writes while a refused message is parked: parked and counted once."""

from __future__ import annotations

import signal

import pytest
from tests.support import children, refusals
from tests.support.recorded import counting
from tests.support.refusals import BIG, ROWS, delivered, numbers
from tests.support.replays import run_replay

from waybill import services
from waybill.events import decode

pytestmark = pytest.mark.serves
OTHERS = [number for number in range(ROWS) if number != BIG]
PATCHES = """
import os, signal, threading
from waybill import services
from waybill.ingestion import run as pages; from waybill.ingestion import refused_messages as undeliverable
from waybill.ingestion.refused_messages import Undeliverable
from waybill.parking import Parking
from waybill.producer import LosslessProducer
from waybill.storage import ObjectStore

parked, committed = threading.Event(), threading.Event()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_after(event):
    assert event.wait(600)
    die()

def before(owner, name, act):
    real = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: (act(), real(*given, **named))[1])

def after(owner, name, act):
    real = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: (real(*given, **named), act())[0])
"""
STORED = """
real_put = ObjectStore.put
def put(self, key, body):
    real_put(self, key, body)
    if key.startswith("parked/refused/"):
        die()
ObjectStore.put = put
"""
COMMITTED = 'after(undeliverable, "commit_refusal", die)\n'
BEFORE_THE_MARK = """
after(Undeliverable, "park", parked.set)
before(LosslessProducer, "mark", lambda: die_after(parked))
"""
BEFORE_THE_PAGE = """
after(Undeliverable, "park", parked.set)
before(pages, "commit_intake", lambda: die_after(parked))
"""
BEFORE_MARKED_REPLAYED = 'before(Parking, "mark_replayed", die)\n'
INGEST = 'services.run_ingest(settings, "orders")\n'
NAMES = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "ingestion",
    "error_type": "delivery_too_large",
    "who": "test",
    "run_id": "r1",
}
REPLAY = f"from tests.support.replays import run_replay\nrun_replay(settings, **{NAMES})\n"


@pytest.fixture
def settings(stack_settings, tmp_path):
    return refusals.with_a_big_order(stack_settings, tmp_path, page_rows=ROWS)


def killed(settings, where, what):
    child = children.start(settings, PATCHES + where + what)
    try:
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert child.returncode == -signal.SIGKILL, output.decode()


def books(settings):
    """Return (ingested, parked, replayed, in flight, unaccounted), and the parked events."""
    report = services.balance(settings)
    with services.opened_parking(settings) as parking:
        events = [event for p in parking.partitions() for event in parking.events(p.id)]
    told = (report.ingested, report.parked, report.replayed, report.in_flight, report.unaccounted)
    return told, [(decode(e.value).data["number"], e.attempt, e.stage) for e in events]


def refused_traces(settings):
    """Return (attempt, error type) of the traces that count of refused events, one a batch."""
    traces = [trace for trace in counting(settings) if trace.outcome == "parked"]
    assert len({trace.batch for trace in traces}) == len(traces)
    assert all(trace.intake_minute and trace.object_key for trace in traces)
    return sorted((trace.attempt, trace.error_type) for trace in traces)


@pytest.mark.parametrize(
    ("where", "garbage"),
    [
        pytest.param(STORED, 2, id="object stored", marks=pytest.mark.campaign),
        pytest.param(COMMITTED, 0, id="parked, not settled", marks=pytest.mark.campaign),
        pytest.param(BEFORE_THE_MARK, 0, id="parked, page not marked"),
        pytest.param(
            BEFORE_THE_PAGE, 0, id="parked, page not committed", marks=pytest.mark.campaign
        ),
    ],
)
def test_a_killed_ingest_parks_a_refused_event_once(settings, where, garbage):
    killed(settings, where, INGEST)
    if where is STORED:
        killed(settings, where, INGEST)  # now while the log is opened
    for group in services.balance(settings).pipelines:  # a refusal may be counted before its page
        assert not [words for words in group.breaches if words.startswith("ingestion")]
    services.run_ingest(settings, "orders")
    assert numbers(delivered(settings)) == OTHERS
    assert books(settings) == ((ROWS, 1, 0, ROWS - 1, 0), [(BIG, 0, "ingestion")])
    services.run_ingest(settings, "orders")
    assert books(settings) == ((ROWS, 1, 0, ROWS - 1, 0), [(BIG, 0, "ingestion")])
    assert refused_traces(settings) == [(0, "delivery_too_large")]
    report = services.refresh_tracker(settings, grace_s=0)
    assert (report.garbage_deleted, report.garbage_kept_undecided) == (garbage, 0)
    assert (report.missing, report.aggregates_corrected) == ((), 0)


@pytest.mark.parametrize(
    ("where", "garbage"),
    [
        pytest.param(STORED, 1, id="object stored"),
        pytest.param(COMMITTED, 0, id="parked, not settled", marks=pytest.mark.campaign),
        pytest.param(
            BEFORE_THE_MARK, 0, id="parked, segment not marked", marks=pytest.mark.campaign
        ),
        pytest.param(
            BEFORE_MARKED_REPLAYED,
            0,
            id="parked, segment not marked replayed",
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_a_killed_replay_parks_a_refused_event_once_more(settings, where, garbage):
    services.run_ingest(settings, "orders")
    killed(settings, where, REPLAY)
    run_replay(settings, **NAMES)
    assert numbers(delivered(settings)) == OTHERS
    assert books(settings) == ((ROWS, 1, 1, ROWS - 1, 0), [(BIG, 1, "ingestion")])
    assert refused_traces(settings) == [(0, "delivery_too_large"), (1, "delivery_too_large")]
    report = services.refresh_tracker(settings, grace_s=0)
    assert (report.garbage_deleted, report.garbage_kept_undecided) == (garbage, 0)


def test_what_was_parked_is_not_sent_although_kafka_would_take_it_now(settings):
    """Killed between the park's commit and the producer's checkpoint; then the limit is raised."""
    killed(settings, COMMITTED, INGEST)
    refusals.limit(settings, 10_000_000)
    services.run_ingest(settings, "orders")
    assert numbers(delivered(settings)) == OTHERS
    assert books(settings) == ((ROWS, 1, 0, ROWS - 1, 0), [(BIG, 0, "ingestion")])
    run_replay(settings, **NAMES)
    assert numbers(delivered(settings)) == sorted([*OTHERS, BIG])
