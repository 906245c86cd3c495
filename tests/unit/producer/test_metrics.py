"""The producer's metrics, as a scrape of prometheus_client's text shows them. No broker is needed."""

import errno
import os
import subprocess
import sys
import threading
import time

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.topics import until

from waybill.errors import InputError, StopError
from waybill.producer import LosslessProducer
from waybill.producer.metrics import ProducerMetrics
from waybill.settings import WalSettings

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@pytest.fixture
def opened(tmp_path):
    producers = []

    def open_one(name, folder="a", **values):
        settings = WalSettings(
            dir=tmp_path / folder, segment_bytes=64 * 1024, checkpoint_interval_ms=50, **values
        )
        producers.append(LosslessProducer(settings, NOWHERE, name=name))
        return producers[-1]

    yield open_one
    for producer in producers:
        producer.close(0)


@pytest.fixture
def registry():
    return CollectorRegistry(auto_describe=False)


def scrape(registry):
    """Return {(sample's name, its log, le or None): value} of the text that a server would get."""
    text = generate_latest(registry).decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "a family may stand in a scrape once"
    return {
        (sample.name, sample.labels.get("log"), sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(found, log):
    prefix = "waybill_producer_"
    return {
        name.removeprefix(prefix): value
        for (name, its_log, le), value in found.items()
        if its_log == log and le is None
    }


def test_a_scrape_has_the_numbers_of_the_statistics(opened, registry):
    producer = opened("orders/eu")
    metrics = ProducerMetrics(producer, registry)
    for n in range(640):
        producer.produce("t", b"%d" % n)
    found = of(scrape(registry), "orders/eu")
    age_s = found.pop("checkpoint_age_seconds")
    assert 0 <= age_s < 10
    took_s = found.pop("append_latency_seconds_sum")
    assert took_s == pytest.approx(producer.stats.append_latency.sum_ns / 1e9)
    assert found == {
        "appended_total": 640,
        "delivered_total": 0,
        "retried_total": 0,
        "undeliverable_total": 0,
        "recovered_total": 0,
        "poisoned_segments_total": 0,
        "in_doubt": 640,
        "retrying": 0,
        "parked": 0,
        "wal_bytes": producer.stats.wal_bytes,
        "append_latency_seconds_count": 10,
    }
    assert found["wal_bytes"] >= 64 * 1024
    producer.produce("t", b"one more")
    assert of(scrape(registry), "orders/eu")["appended_total"] == 641
    metrics.unregister()


def test_the_histogram_counts_up_in_seconds(opened, registry):
    producer = opened("p")
    ProducerMetrics(producer, registry)
    for took_ns in (1000, 1001, 3000, 10**9):
        producer._latency.add(took_ns)
    found = scrape(registry)
    buckets = {
        float(le): value
        for (name, _, le), value in found.items()
        if name == "waybill_producer_append_latency_seconds_bucket"
    }
    assert list(buckets) == sorted(buckets)
    assert len(buckets) == 19
    shown = [buckets[bound] for bound in (1e-6, 2e-6, 4e-6, 0.131072, float("inf"))]
    assert shown == [1, 2, 3, 3, 4]
    assert of(found, "p")["append_latency_seconds_sum"] == pytest.approx(1.000005001)
    assert b"measured for one call of produce in 64" in generate_latest(registry)


def test_two_producers_share_a_registry(opened, registry):
    first, second = opened("first"), opened("second")
    of_first, of_second = ProducerMetrics(first, registry), ProducerMetrics(second, registry)
    first.produce("t", b"1")
    found = scrape(registry)
    assert of(found, "first")["appended_total"] == 1
    assert of(found, "second")["appended_total"] == 0
    of_first.unregister()
    of_first.unregister()
    found = scrape(registry)
    assert of(found, "first") == {}
    assert of(found, "second")["appended_total"] == 0
    of_second.unregister()
    assert scrape(registry) == {}
    of_second.register()
    of_second.register()
    assert of(scrape(registry), "second")["appended_total"] == 0


def test_two_open_producers_of_one_name_need_two_labels(opened, registry):
    ProducerMetrics(opened("p", "a"), registry)
    other = opened("p", "b")
    with pytest.raises(InputError, match="log='p'"):
        ProducerMetrics(other, registry)
    other.produce("t", b"1")
    ProducerMetrics(other, registry, log="p of b")
    found = scrape(registry)
    assert (of(found, "p")["appended_total"], of(found, "p of b")["appended_total"]) == (0, 1)


def test_a_closed_producer_keeps_its_counts_until_it_is_opened_again(opened, registry):
    producer = opened("p")
    metrics = ProducerMetrics(producer, registry)
    for _ in range(3):
        producer.produce("t", b"x")
    assert producer.close(0) == 3
    found = of(scrape(registry), "p")
    assert (found["appended_total"], found["in_doubt"]) == (3, 3)
    assert not {"wal_bytes", "checkpoint_age_seconds"} & found.keys()
    again = opened("q", "b")
    ProducerMetrics(again, registry, log="p")  # takes the closed one's place
    metrics.unregister()  # has nothing to take away any more
    assert of(scrape(registry), "p")["appended_total"] == 0


def test_a_producer_in_trouble_is_scraped(opened, registry):
    producer = opened("p")
    ProducerMetrics(producer, registry)
    producer._maintenance.stop(StopError("the disk fails"))
    with pytest.raises(StopError):
        producer.produce("t", b"x")
    assert of(scrape(registry), "p")["appended_total"] == 0


def test_a_producer_that_waits_for_room_is_scraped_without_waiting_long(opened, registry):
    producer = opened("p", max_in_flight=3)
    ProducerMetrics(producer, registry)

    def produce():
        with pytest.raises(StopError, match="closed while"):
            for _ in range(10):
                producer.produce("t", b"x")

    thread = threading.Thread(target=produce)
    thread.start()
    until(lambda: producer.stats.appended == 4)  # three in the queue, one that waits
    began = time.monotonic()
    assert of(scrape(registry), "p")["in_doubt"] == 4
    assert time.monotonic() - began < 60
    producer.close(0)
    thread.join(300)
    assert not thread.is_alive()


def test_a_segment_that_the_disk_refused_to_sync_is_counted(opened, registry, monkeypatch):
    def refuse(file):
        monkeypatch.undo()
        raise OSError(errno.EIO, "Input/output error")

    producer = opened("p")
    ProducerMetrics(producer, registry)
    producer.produce("t", b"x")
    monkeypatch.setattr(type(producer._log._segments[0].file), "sync", refuse)
    producer._log.sync(producer._gate)
    assert of(scrape(registry), "p")["poisoned_segments_total"] == 1
    assert producer.stats.poisoned == 1


def test_names_that_are_taken_are_refused(opened, registry):
    Gauge("waybill_producer_parked", "of somebody else", registry=registry)
    producer = opened("p")
    with pytest.raises(ValueError, match="waybill_producer_parked"):
        ProducerMetrics(producer, registry)


def test_a_fork_that_does_not_use_the_producer_shows_nothing_and_opens_nothing(
    opened, registry, tmp_path
):
    producer = opened("p")
    ProducerMetrics(producer, registry)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = 0 if of(scrape(registry), "p") == {} else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["p"]
    assert of(scrape(registry), "p")["appended_total"] == 0


def test_the_producer_alone_needs_no_prometheus():
    code = "import sys, waybill.producer; print([m for m in sys.modules if 'prometheus' in m])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "[]"
