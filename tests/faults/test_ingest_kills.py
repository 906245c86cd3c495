"""SIGKILL during ingestion: each row is in Kafka exactly once, and counted exactly once."""

from __future__ import annotations

import random

import pytest
from tests.support import children, orders

from waybill import wiring
from waybill.events import decode
from waybill.storage import open_log

pytestmark = pytest.mark.serves
SEED = 20261121
ROWS = 6_000
KILLS = 6
INGEST = """
from waybill.wiring import run_ingest
print(run_ingest(settings, "orders"))
"""


@pytest.fixture(params=[400, ROWS], ids=["many pages", "one page"])
def settings(request, stack_settings, tmp_path):
    orders.write_orders(tmp_path / "pipelines", rows=ROWS, page_rows=request.param)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    wiring.migrate(settings)
    wiring.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    return settings


def values_in_kafka(settings):
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    return list(log.read(topic.name, log.watermarks(topic)))


def test_a_killed_ingest_loses_and_doubles_nothing(settings):
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    killed = sum(
        children.run_and_kill(settings, INGEST, after_s=chance.uniform(0.9, 2.4))
        for _ in range(KILLS)
    )
    children.run(settings, INGEST)
    ids = [decode(value).id for value in values_in_kafka(settings)]
    report = wiring.balance(settings)
    assert killed > 0, "no run was killed: the machine is too fast for this test's times"
    assert len(ids) == ROWS
    assert len(set(ids)) == ROWS
    assert report.ingested == ROWS
    assert report.unaccounted == 0
    assert report.in_flight == ROWS


def test_a_second_run_of_a_finished_source_adds_nothing(settings):
    first = wiring.run_ingest(settings, "orders")
    second = wiring.run_ingest(settings, "orders")
    assert (first.accepted, second.accepted) == (ROWS, 0)
    assert len(values_in_kafka(settings)) == ROWS
