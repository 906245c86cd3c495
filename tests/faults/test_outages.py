"""A server that is away is waited for; nothing is lost, nothing is doubled."""

from __future__ import annotations

import threading
import time

import pytest
from tests.support import children, orders, streams

from waybill import wiring
from waybill.events import decode
from waybill.storage import open_log

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.timeout(600)]
ROWS = 3_000


@pytest.fixture
def settings(stack_settings, tmp_path):
    made = streams.with_orders(stack_settings, tmp_path, rows=ROWS, max_events_per_batch=800)
    with streams.stopped_at_end(made):
        yield made


def test_kafka_down_at_start_is_waited_for(settings, kafka):
    kafka.stop()
    child = children.start(
        settings, "from waybill.wiring import run_ingest\nprint(run_ingest(settings, 'orders'))"
    )
    try:
        time.sleep(4)
        assert child.poll() is None, "ingestion gave up while Kafka was down"
        kafka.start()
        output, _ = child.communicate(timeout=90)
    finally:
        kafka.start()
        children.kill(child)
    assert child.returncode == 0, output.decode()
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    ids = [decode(value).id for value in log.read(topic.name, log.watermarks(topic))]
    assert (len(ids), len(set(ids))) == (ROWS, ROWS)


def test_the_object_store_down_mid_run_is_waited_for(settings, s3):
    streams.keep_running(settings)
    wiring.run_ingest(settings, "orders")
    streams.rest_of(settings, rows=ROWS)
    orders.write_orders(settings.pipelines_dir, rows=2 * ROWS)
    s3.stop()
    more = threading.Thread(target=wiring.run_ingest, args=(settings, "orders"))
    more.start()
    time.sleep(8)
    s3.start()
    more.join()
    report = streams.rest_of(settings, rows=3 * ROWS)
    fates = orders.expected(2 * ROWS)
    good = 2 * ROWS - sum(fates.values())
    numbers = streams.warehouse_numbers(settings)
    assert (len(numbers), len(set(numbers))) == (good, good)
    assert report.delivered == good
    assert report.duplicate == ROWS - sum(orders.expected(ROWS).values())


def test_the_tracker_down_mid_run_is_waited_for(settings, postgres):
    streams.keep_running(settings)
    wiring.run_ingest(settings, "orders")
    children.wait_until(
        lambda: wiring.balance(settings).delivered > 0, limit_s=120, what="the first load"
    )
    postgres.stop()
    time.sleep(3)
    postgres.start()
    report = streams.rest_of(settings, rows=ROWS)
    good = ROWS - sum(orders.expected(ROWS).values())
    assert report.delivered == good
    assert sorted(streams.warehouse_numbers(settings)) == sorted(
        set(streams.warehouse_numbers(settings))
    )
