"""G6: code that ends its interpreter parks its events, whichever host the task runs on next."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pyspark
import pytest
from tests.support import children, orders, streams

from waybill import services
from waybill.services import applications

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]
ROWS = 400
DIES = {20: "os._exit(9)", 120: "ctypes.string_at(0)", 220: "os.kill(os.getpid(), signal.SIGKILL)"}
DIES |= {number + 50: end for number, end in DIES.items()}
CODE = "import ctypes, os, signal\n\n\ndef transform(event):\n    number = event.data['number']\n"
CODE += "".join(f"    if number == {number}: {end}\n" for number, end in DIES.items())
CODE += "    event.data['doubled'] = 0\n    event.data['note'] = 'none'\n    return event\n"


@pytest.fixture
def work_dir():
    """A relative folder: each executor has it below its own."""
    path = Path(f".waybill/spark-{uuid.uuid4().hex[:8]}")
    executors = Path(pyspark.__file__).parent / "work"
    before = set(executors.glob("*"))
    yield path
    for folder in [path, *(set(executors.glob("*")) - before)]:
        shutil.rmtree(folder, ignore_errors=True)


def test_deaths_of_workers_that_share_no_disk_park_their_events_only(
    stack_settings, tmp_path, work_dir
):
    spark = {"master": "local-cluster[2,1,1024]", "work_dir": work_dir}
    run_killers(streams.with_orders(stack_settings, tmp_path, rows=ROWS, **spark))
    assert work_dir.is_dir(), "the driver's own"


def test_deaths_where_each_task_is_tried_once_park_their_events_only(stack_settings, tmp_path):
    run_killers(streams.with_orders(stack_settings, tmp_path, rows=ROWS, master="local[2]"))


def run_killers(settings):
    orders.write_orders(settings.pipelines_dir, rows=ROWS, code=CODE)
    services.run_deploy(settings, settings.pipelines_dir / "orders", who="test")
    services.run_ingest(settings, "orders")
    with streams.stopped_at_end(settings):

        def all_processed() -> bool:
            services.start_application(settings, "processing", "default")
            staged = services.balance(settings).in_flight
            return parked(settings) + staged == ROWS and parked(settings) > 0

        try:
            children.wait_until(all_processed, what="a commit of all events")
        finally:
            print(applications.application_last_words(settings, "processing", "default", lines=200))
    kinds = {p.error_type: p.parked for p in services.parked_partitions(settings)}
    assert kinds == {"interpreter_crashed": len(DIES)}


def parked(settings):
    return sum(p.parked for p in services.parked_partitions(settings))
