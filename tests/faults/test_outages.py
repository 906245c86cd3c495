"""A server that is away is waited for; nothing is lost, nothing is doubled."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from tests.support import children, orders, streams

from waybill import services
from waybill.services import applications

pytestmark = [pytest.mark.serves, pytest.mark.slow]
ROWS = 3_000
JUNK = 40


@pytest.fixture
def settings(stack_settings, tmp_path):
    made = streams.with_orders(stack_settings, tmp_path, rows=ROWS, max_events_per_batch=200)
    with streams.stopped_at_end(made):
        yield made


@pytest.mark.campaign
def test_kafka_down_at_start_is_waited_for(settings, kafka):
    kafka.stop()
    child = children.start(
        settings, "from waybill.services import run_ingest\nprint(run_ingest(settings, 'orders'))"
    )
    try:
        time.sleep(4)
        assert child.poll() is None, "ingestion gave up while Kafka was down"
        kafka.start()
        output, _ = child.communicate(timeout=600)
    finally:
        kafka.start()
        children.kill(child)
    assert child.returncode == 0, output.decode()
    ids = list(streams.sent_ids(settings))
    assert (len(ids), len(set(ids))) == (ROWS, ROWS)


@pytest.mark.campaign
def test_the_object_store_down_mid_run_is_waited_for(settings, s3):
    streams.keep_running(settings)
    services.run_ingest(settings, "orders")
    streams.rest_of(settings, rows=ROWS)
    first = services.balance(settings).delivered
    before = _pids(settings)
    orders.write_orders(settings.pipelines_dir, rows=2 * ROWS)
    s3.stop()
    services.run_ingest(settings, "orders")  # it needs no object store: Kafka takes the events
    assert streams.logged(settings) == 3 * ROWS, "nothing came while the store was away"
    time.sleep(5)  # processing has begun a batch of them
    away = services.balance(settings)
    assert (away.delivered, away.duplicate, away.in_flight) == (first, 0, 2 * ROWS)
    s3.start()
    report = streams.rest_of(settings, rows=3 * ROWS)
    assert _pids(settings) == before
    good = orders.good_numbers(2 * ROWS)
    assert report.delivered == len(good)
    again = len(orders.good_numbers(ROWS))  # the source was read again from its beginning
    streams.assert_once_each(settings, good, duplicates=again)
    with pytest.raises(AssertionError):
        streams.assert_once_each(settings, good)  # a second coming is noticed


@pytest.mark.campaign
def test_the_tracker_down_mid_run_is_waited_for(settings, postgres):
    services.run_ingest(settings, "orders")
    streams.keep_running(settings)
    good = orders.good_numbers(ROWS)
    children.wait_until(  # the first of 15 batches or more
        lambda: services.balance(settings).parked > 0, what="a commit of processing"
    )
    assert services.balance(settings).in_flight > 0, "all was done before the outage"
    before = _pids(settings)
    postgres.stop()
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for number in range(JUNK):
        producer.produce(orders.topic_of(settings.pipelines_dir), b"no event %d" % number)
    assert producer.flush(300) == 0
    assert streams.logged(settings) == ROWS + JUNK, "nothing came while the tracker was away"
    time.sleep(8)  # longer than a commit is tried for: queries end
    postgres.start()
    report = streams.rest_of(settings, rows=ROWS + JUNK)
    assert _pids(settings) == before, "an application ended: a whole Spark was started anew"
    assert report.delivered == len(good)
    streams.assert_once_each(settings, good)
    parked = {p.error_type: p.parked for p in services.parked_partitions(settings)}
    assert parked.pop("envelope_not_json") == JUNK
    fates = orders.expected(ROWS)
    assert report.filtered == fates.pop("filtered")
    assert parked == fates


def _pids(settings) -> dict[str, int | None]:
    return {
        kind: applications.application_status(settings, kind, "default").pid
        for kind in applications.KINDS
    }
