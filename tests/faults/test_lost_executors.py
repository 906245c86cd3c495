"""A standalone cluster that loses its workers, and its master: applications end, and come back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.faults.standalone_campaign import WORKERS, spark_cluster
from tests.support import children, orders, streams

from waybill import services
from waybill.clusters import read_application
from waybill.clusters.records import read_clusters
from waybill.services import applications
from waybill.storage import open_tracker

pytestmark = [pytest.mark.serves, pytest.mark.campaign]
ROWS = 200


@pytest.fixture
def cluster(tmp_path):
    with spark_cluster(tmp_path / "spark-cluster") as made:
        yield made


@pytest.fixture
def settings(stack_settings, tmp_path, cluster):
    spark = {
        "master": cluster.url,
        "processing_max_cores": 1,
        "loading_max_cores": 1,
        "driver_memory": "512m",
    }
    made = streams.with_orders(stack_settings, tmp_path, rows=ROWS, **spark)
    with streams.stopped_at_end(made):
        yield made


def rows(settings):
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return [read_application(connection, kind, "default") for kind in applications.KINDS]


def is_served(settings) -> bool:
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return all(one.is_served for one in read_clusters(connection))


def wait(settings, what, condition, *, supervised: bool = True, limit_s: float = 300):
    began = time.monotonic()

    def holds():
        if supervised:
            for kind in applications.KINDS:
                services.supervise_application(settings, kind, "default")
        time.sleep(0.5)
        return condition()

    try:
        children.wait_until(holds, limit_s=limit_s, what=what)
    finally:
        print(f"{what}: after {time.monotonic() - began:.0f} s")


def end_by_themselves(settings, text: str) -> None:
    """Wait, without a supervisor, until both have ended and said why."""

    def statuses():
        return [applications.application_status(settings, k, "default") for k in applications.KINDS]

    def ended() -> bool:
        return not any(one.running for one in statuses())

    wait(settings, f"ended: {text}", ended, supervised=False)
    for log in [Path(one.log).read_text(errors="replace") for one in statuses()]:
        assert text in log, log[-3000:]  # threads of Spark's say much more behind it
    assert all(one.last_end and text in one.last_end.why for one in rows(settings))


def at_work(settings):
    return lambda: all(one.at_work and one.ended_s is None for one in rows(settings))


def at_rest(settings):
    report = services.balance(settings)
    return report.ingested == ROWS and not report.in_flight and not report.unaccounted


def test_applications_without_executors_end_and_serve_nobody_until_there_are_some(
    settings, cluster
):
    wait(settings, "at work", at_work(settings))
    assert is_served(settings)

    for number in range(WORKERS):
        cluster.kill_worker(number)
    services.run_ingest(settings, "orders")  # there is work now
    wait(settings, "not served", lambda: not is_served(settings), supervised=False, limit_s=30)
    end_by_themselves(settings, "Spark has had no executor for 6")

    cluster.kill_master()
    wait(settings, "started", lambda: all(one.epoch > 1 for one in rows(settings)))
    end_by_themselves(settings, "Spark did not start")
    assert not is_served(settings)

    cluster.start_master()
    for number in range(WORKERS):
        cluster.start_worker(number)
    wait(settings, "at work again", at_work(settings))
    wait(settings, "at rest", lambda: at_rest(settings))
    cluster.kill_master()
    cluster.start_master()  # its workers come back to it; applications of before are unknown to it
    last = [one.epoch for one in rows(settings)]
    wait(
        settings,
        "replaced",
        lambda: all(b.epoch > a for a, b in zip(last, rows(settings), strict=True)),
    )
    wait(settings, "at work once more", at_work(settings))
    streams.assert_once_each(settings, orders.good_numbers(ROWS))
