"""The loading application on executors of its own: killed amid loads, what arrives is exact."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.support import children, orders, streams
from tests.support.recorded import assert_traces_agree_with_the_books

from waybill import services
from waybill.access import Decision
from waybill.clusters import ClusterRequest
from waybill.ledger import acquire_lease, lease_holder
from waybill.services import applications
from waybill.storage import open_tracker

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.timeout(2400),
]
ROWS = 9_000
ELSEWHERE = "spark.hadoop.fs.defaultFS=hdfs://127.0.0.1:1"
"""As where HADOOP_CONF_DIR is set, or on YARN; nobody answers there."""


@pytest.fixture
def settings(stack_settings, tmp_path):
    """Loads of 3,000 rows and more, by executors; a path without a scheme is none of this disk."""
    made = streams.with_orders(stack_settings, tmp_path, rows=ROWS, max_events_per_batch=3_000)
    large = {"loaded_by": "executors", "min_rows": 2_500, "max_wait_s": 5.0}
    warehouse = made.destinations["warehouse"].model_copy(update=large)
    made = made.model_copy(update={"destinations": {"warehouse": warehouse}})
    request = ClusterRequest(name="default", spark_conf=[ELSEWHERE])
    services.set_cluster(made, request, Decision(who="ann"))
    with streams.stopped_at_end(made):
        yield made


def keep_running(settings) -> None:
    """Keep processing in this host's cores, and loading with two executors."""
    services.start_application(settings, "processing", "default")
    keep_loading(settings)


def keep_loading(settings) -> int:
    """Keep loading with two executors; return its process id."""
    spark = settings.spark.model_copy(update={"master": "local-cluster[2,1,1024]"})
    own = settings.model_copy(update={"spark": spark})
    return services.start_application(own, "loading", "default")


def move_away_and_back(settings) -> None:
    """Let another cluster's application have the destination between two looks of this one."""
    with open_tracker(settings.tracker) as tracker:
        consumer = "loading/warehouse"
        what = "it is loaded here"
        children.wait_until(lambda: lease_holder(tracker, consumer), what=what)
        acquire_lease(tracker, consumer, holder="another cluster's")


def kill_executors(settings) -> int:
    """Kill the executors of loading and their workers; return how many."""
    pid = applications.application_status(settings, "loading", "default").pid
    killed = 0
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if any("CoarseGrainedExecutorBackend" in part for part in process.cmdline()):
                below = process.children(recursive=True)
                for one in (process, *below):
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                killed += 1
    return killed


def test_executors_killed_amid_loads_and_a_lease_that_was_lost_change_no_count(
    settings, monkeypatch
):
    monkeypatch.setattr(streams, "keep_running", keep_running)
    pid = keep_loading(settings)
    move_away_and_back(settings)
    services.run_ingest(settings, "orders")

    def delivered() -> int:
        keep_running(settings)
        return services.balance(settings).delivered

    try:
        children.wait_until(delivered, what="a load")
        assert keep_loading(settings) == pid, "it goes on when its lease was lost"
        assert kill_executors(settings)
        report = streams.rest_of(settings, rows=ROWS)
    finally:
        said = Path(applications.application_status(settings, "loading", "default").log).read_text()
        print(said)
    assert "consumer 'loading/warehouse' was taken over" in said
    assert "loading/warehouse: executors load it" in said
    with open_tracker(settings.tracker) as tracker:
        assert lease_holder(tracker, "loading/warehouse").startswith("default:")
    fates = orders.expected(ROWS)
    assert report.filtered == fates.pop("filtered")
    assert {p.error_type: p.parked for p in services.parked_partitions(settings)} == fates
    streams.assert_once_each(settings, orders.good_numbers(ROWS))
    assert_traces_agree_with_the_books(settings)
