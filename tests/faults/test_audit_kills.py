"""The auditor beside ingestion that is killed anywhere: no false alarm, and no lost one."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from sqlalchemy import text
from tests.support import children, orders

from waybill import services
from waybill.events import wall_us
from waybill.storage import open_log, open_tracker

pytestmark = pytest.mark.serves
ROWS = 3_000
_DIE = """
import os, signal
from waybill.ingestion import run as module
from waybill.producer import LosslessProducer
def die(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)
def flushed(self, *given, **named):
    flush(self, 30.0)
    die()
flush = LosslessProducer.flush
{patch}
from waybill.services import run_ingest
run_ingest(settings, "orders")
"""
POINTS = {
    "in Kafka, the page not counted": "LosslessProducer.mark = flushed",
    "marked, not committed": "module.commit_intake = die",
    "marked, perhaps not in Kafka": "LosslessProducer.flush = die",
    "all in Kafka, the watermark open": "module.close_source = die",
    "nothing but the watermark": "module.RunWatermark.begin = die",
}
INGEST = """
from waybill.services import run_ingest
print(run_ingest(settings, "orders"))
"""


@pytest.fixture
def settings(stack_settings: Any, tmp_path: Any) -> Any:
    orders.write_orders(tmp_path / "pipelines", rows=ROWS, page_rows=500)
    made = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(made)
    services.run_deploy(made, tmp_path / "pipelines" / "orders", who="test")
    return made


def audited(settings: Any) -> list[Any]:
    """Run a round; returns all breaches that there ever were."""
    assert services.audit_round(settings).number > 0
    return [one.to_json() for one in services.breaches(settings, states=None)]


def states(settings: Any) -> dict[str, str]:
    """Return {why the way to the transformation moves: how many minutes}, open or not."""
    asked = "SELECT DISTINCT stages->'transformation'->>'why' AS why FROM audit_minutes"
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return {row.why for row in connection.execute(text(asked))}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point == "marked, not committed" else pytest.mark.campaign)
        for point in POINTS
    ],
)
def test_a_run_that_dies_anywhere_is_no_breach(settings: Any, point: str) -> None:
    child = children.start(settings, _DIE.format(patch=POINTS[point]))
    child.wait(timeout=600)
    assert child.returncode == -signal.SIGKILL
    assert audited(settings) == []
    assert services.balance(settings).unaccounted == 0
    services.run_ingest(settings, "orders")
    assert audited(settings) == []
    report = services.balance(settings)
    assert (report.ingested, report.in_flight, report.unaccounted) == (ROWS, ROWS, 0)
    assert report.settling == {}
    assert all(why.endswith("are on their way to it") for why in states(settings))


def test_what_a_dead_run_left_of_a_source_that_changed_is_counted(settings: Any) -> None:
    """Also where the source gives nothing any more."""
    child = children.start(settings, _DIE.format(patch=POINTS["in Kafka, the page not counted"]))
    child.wait(timeout=600)
    path = settings.pipelines_dir / "orders" / "orders.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    report = services.run_ingest(settings, "orders")
    assert (report.read, report.resumed, report.pages) == (0, 500, 1)
    assert audited(settings) == []
    books = services.balance(settings)
    assert (books.ingested, books.in_flight, books.unaccounted) == (500, 500, 0)
    assert books.settling == {}


@pytest.mark.campaign
def test_rounds_beside_a_running_ingestion_see_no_breach(settings: Any) -> None:
    ended = threading.Event()
    rounds: list[list[Any]] = []

    def look() -> None:
        while not ended.is_set():
            rounds.append(audited(settings))
            assert services.balance(settings).unaccounted == 0

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(2):
            children.run_and_kill(settings, INGEST, after_s=1.3)
        children.run(settings, INGEST)
    finally:
        ended.set()
        watcher.join()
    assert len(rounds) > 3
    assert not any(rounds)
    assert audited(settings) == []
    assert services.balance(settings).in_flight == ROWS


def test_a_message_that_never_came_into_kafka_is_found_though_a_run_was_killed(
    settings: Any,
) -> None:
    lost = (
        "import confluent_kafka as ck\n"
        "class P(ck.Producer):\n"
        "    def produce(self, topic, value, *a, **k):\n"
        "        if b'\"subject\":\"[77]\"' in (value or b''): topic = 'events.nowhere.nowhere'\n"
        "        return super().produce(topic, value, *a, **k)\n"
        "ck.Producer = P\n"
    )
    open_log(settings.kafka).ensure_topic("events.nowhere.nowhere")
    code = lost + _DIE.format(patch=POINTS["all in Kafka, the watermark open"])
    # one minute on its clock, whole with the next run only: pages of a later one would close it
    code = code.replace('"orders")', f'"orders", now_us=lambda: {wall_us()})')
    child = children.start(settings, code)
    child.wait(timeout=600)
    assert child.returncode == -signal.SIGKILL
    assert audited(settings) == []
    children.run(settings, lost + INGEST)
    [found] = audited(settings)
    assert (found["kind"], found["stage"], found["gap"]) == ("on_the_way", "transformation", 1)
