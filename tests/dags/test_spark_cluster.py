"""Both applications on a standalone cluster: a master and two workers of one core, client mode."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.faults.standalone_campaign import spark_cluster
from tests.support import children, orders, streams

from waybill import services
from waybill.access import Decision
from waybill.clusters import process_state, read_application, stop_cluster
from waybill.services import applications
from waybill.storage import open_tracker

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
]
ROWS = 200
ANN = Decision("ann", "it is late")
ASKED = "it was asked to end"


@pytest.fixture
def settings(stack_settings, tmp_path, monkeypatch):
    """Orders, and a connection of the cluster; each worker has its own folder and no settings."""
    with spark_cluster(tmp_path / "spark-cluster") as cluster:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", cluster.url)
        (tmp_path / "conf").mkdir()
        placed = f"spark.local.dir {tmp_path / 'placed'}\n"
        (tmp_path / "conf" / "spark-defaults.conf").write_text(placed)
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
        spark = {
            "connection_id": "spark_here",
            "master": "local[1]",  # of no effect: the connection says where
            "processing_max_cores": 1,
            "loading_max_cores": 1,
            "driver_memory": "512m",
        }
        made = streams.with_orders(stack_settings, tmp_path, rows=ROWS, **spark)
        with streams.stopped_at_end(made):
            yield made


def look(settings):
    """Look at both as the tasks do; return the looks."""
    from waybill.services import supervise_application
    from waybill_airflow.spark_submit import spark_backends

    backends = spark_backends(settings)
    return [
        supervise_application(settings, kind, "default", backends) for kind in applications.KINDS
    ]


def row(settings, kind):
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return read_application(connection, kind, "default")


def at_rest(settings):
    report = services.balance(settings)
    return report.ingested == ROWS and not report.in_flight and not report.unaccounted


def wait(settings, what, condition):
    def holds():
        look(settings)
        time.sleep(1)
        return condition()

    try:
        children.wait_until(holds, what=what)
    finally:
        for kind in applications.KINDS:
            print(applications.application_last_words(settings, kind, "default", lines=40))


def test_they_carry_the_events_are_replaced_when_killed_and_end_when_asked(settings, tmp_path):
    services.run_ingest(settings, "orders")
    wait(settings, "all at rest", lambda: at_rest(settings))
    found = [row(settings, kind) for kind in applications.KINDS]
    assert [(one.epoch, one.backend, one.at_work) for one in found] == [(1, "process", True)] * 2
    assert [(one.reported.wanted, one.reported.running) for one in found] == [(1, 1)] * 2
    words = applications.application_last_words(settings, "processing", "default", lines=400)
    assert "started anew" not in words
    assert len(list((tmp_path / "placed").glob("blockmgr-*"))) == 2, "the driver is as submitted"

    leader = int(found[0].external_id.rpartition(":")[2])
    os.kill(leader, signal.SIGKILL)
    wait(settings, "replaced", lambda: row(settings, "processing").epoch == 2)
    wait(settings, "at work again", lambda: row(settings, "processing").at_work)

    with open_tracker(settings.tracker) as tracker:
        stop_cluster(tracker, "default", ANN)
    running = [row(settings, kind).external_id for kind in applications.KINDS]
    children.wait_until(  # nobody looks: each reads it with its next report
        lambda: [process_state(one) for one in running] == ["dead", "dead"],
        limit_s=120,
        what="both end",
    )
    assert [one.action for one in look(settings)] == ["wait", "wait"]
    assert [row(settings, kind).ended_s is None for kind in applications.KINDS] == [False, False]
    ends = [row(settings, kind).last_end for kind in applications.KINDS]
    assert [(one.epoch, one.why) for one in ends] == [(2, ASKED), (1, ASKED)]
    streams.assert_once_each(settings, orders.good_numbers(ROWS))
