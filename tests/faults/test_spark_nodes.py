"""Spark nodes on loopback under load: grown for what waits, drained, killed; events exact.

A real standalone master; its workers are nodes that the infra coordinator starts and drains, their
enhancers are the product's, and one application processes on them. Loading runs in its driver, so
that each core is processing's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.faults.standalone_campaign import SparkCluster
from tests.support import children, orders, streams
from tests.support.processes import command_line, has_ended

from waybill import services
from waybill.capacity import CapacityStatus, Node
from waybill.services import applications
from waybill.services.spark_nodes import worker_folder
from waybill.settings import Settings
from waybill.stack import LoopbackNodes, processes, read_record

pytestmark = [pytest.mark.serves, pytest.mark.campaign, pytest.mark.timeout(3600)]
ROWS = 8_000
LIMIT_S = 900.0
LIMITS = {"grow_every_s": 0, "shrink_after_s": 0, "wait_objective_s": 1, "min_nodes": 1}
SLOW = f"import time\n{orders.FIRST}".replace(
    "    order = event.data", "    time.sleep(0.05)\n    order = event.data"
)
"""So many events are seven minutes of a core."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path / "master", 1)
    made.start_master()
    yield made
    made.close()


@pytest.fixture
def settings(stack_settings: Settings, tmp_path: Path, cluster: SparkCluster) -> Iterator[Settings]:
    spark = {
        "master": cluster.url,
        "processing_max_cores": 2,
        "driver_memory": "512m",
        "max_events_per_batch": 200,
    }
    own = {"loopback": ("spark",), "cores": 1, "look_s": 1.0, "spark_worker_memory": "1200m"}
    base = stack_settings.model_copy(
        update={"capacity": stack_settings.capacity.model_copy(update=own)}
    )
    made = streams.with_orders(base, tmp_path, rows=ROWS, **spark)
    home = orders.write_orders(tmp_path / "pipelines", rows=ROWS, code=SLOW)
    services.run_deploy(made, home, who="test")
    with streams.stopped_at_end(made):
        yield made
    for record in processes.read_registry(tmp_path / "run"):
        processes.end(record, grace_s=5)


def scaled(settings: Settings, **limits: float) -> Any:
    """Run a round of both coordinators."""
    services.run_coordinator(settings)
    report = round_of(settings, **limits)
    print(time.strftime("%H:%M:%S"), report.decisions["spark"], report.removed, report.problems)
    return report


def round_of(settings: Settings, **limits: float) -> Any:
    """Run a round of the infra coordinator."""
    own = settings.capacity.model_copy(update={"thresholds": {"spark": LIMITS | limits}})
    return services.scale_nodes(settings.model_copy(update={"capacity": own}))


def until(true: Callable[[], Any], what: str) -> Any:
    ends = time.monotonic() + LIMIT_S
    while not (found := true()):
        assert time.monotonic() < ends, what
        time.sleep(0.5)
    print(time.strftime("%H:%M:%S"), what)
    return found


def status(settings: Settings) -> CapacityStatus:
    return services.capacity_status(settings)


def reported(settings: Settings) -> dict[str, Node]:
    return {one.name: one for one in status(settings).nodes if one.is_heard}


def workers(settings: Settings) -> dict[str, psutil.Process]:
    """Return the workers that live, by their node's name."""
    records = processes.read_registry(settings.home / "run")
    found = {one.name: one.process() for one in records if one.name.startswith("loopback-spark-")}
    return {
        name: process
        for name, process in found.items()
        if process is not None and not name.endswith("-enhancer")
    }


def runs_tasks(worker: psutil.Process) -> bool:
    """Tell whether an executor on a node has run a task of ours: it has Python then."""
    below = worker.children(recursive=True)
    return any("waybill.processing.spark.daemon" in command_line(one) for one in below)


def log_of(settings: Settings) -> str:
    return applications.application_last_words(settings, "processing", "default", lines=10_000)


def in_flight(settings: Settings) -> int:
    return services.balance(settings).in_flight


def acknowledged(settings: Settings) -> bool:
    found = status(settings)
    known = {one.name: one.version for one in found.followers}
    mine = [known.get(f"{kind} of default") for kind in applications.KINDS]
    return found.version > 0 and mine == [found.version] * 2


def is_gone(settings: Settings, name: str, before: list[psutil.Process]) -> bool:
    ended = all(has_ended(one) for one in before)
    return ended and not (worker_folder(settings) / name).exists()


def grown(settings: Settings, *others: str) -> str:
    """Have a node more than these, wait until the application works on it, and return its name."""
    until(lambda: scaled(settings, max_nodes=2) and len(workers(settings)) == 2, "a second worker")
    [new] = set(workers(settings)) - set(others)
    until(lambda: new in reported(settings), "the second node reports")
    until(lambda: runs_tasks(workers(settings)[new]), "tasks run on the second node")
    until(lambda: reported(settings)[new].report.running == 1, "its enhancer says so")
    return new


def draining(settings: Settings) -> str:
    """Have one node drain, of two, and return its name once its worker takes no executor."""
    assert in_flight(settings) > 0
    assert scaled(settings, max_nodes=1).decisions["spark"].action == "shrink"
    [name] = [one.name for one in reported(settings).values() if one.state == "draining"]
    until(lambda: reported(settings)[name].report.drains, "it takes no executor any more")
    return name


def test_spark_nodes_grow_for_what_waits_drain_behind_their_tasks_and_events_stay_exact(settings):
    scaled(settings, max_nodes=1)
    [first] = until(lambda: reported(settings), "the first node reports")
    assert list(workers(settings)) == [first]
    assert scaled(settings, max_nodes=1).version == 1, "it is announced"
    local = settings.spark.model_copy(update={"master": "local[1]"})
    services.start_application(settings.model_copy(update={"spark": local}), "loading", "default")
    services.start_application(settings, "processing", "default")
    until(lambda: acknowledged(settings), "both applications acknowledge the nodes")

    services.run_ingest(settings, "orders")
    until(lambda: runs_tasks(workers(settings)[first]), "tasks run on the first node")
    until(lambda: wants_two(settings), "two nodes are wanted")
    children.killed((LoopbackNodes, "resize", 1), lambda: round_of(settings, max_nodes=2))
    assert list(workers(settings)) == [first], "decided, and nothing started"
    children.killed((LoopbackNodes, "_await_record", 1), lambda: round_of(settings, max_nodes=2))
    until(lambda: len(workers(settings)) == 2, "started, though who started it is dead")
    second = grown(settings, first)
    assert len(workers(settings)) == 2, "not started twice"
    until(lambda: acknowledged(settings), "both acknowledge the node that was added")

    drained = draining(settings)
    [stays] = {first, second} - {drained}
    before = [workers(settings)[drained], *workers(settings)[drained].children(recursive=True)]
    enhancer = read_record(settings.home / "run" / f"{drained}-enhancer.json").process()
    enhancer.kill()
    until(lambda: scaled(settings, max_nodes=1).removed == (drained,), "it is ended")
    assert list(workers(settings)) == [stays]
    until(lambda: is_gone(settings, drained, before), "nothing of it is left")
    assert "Lost task" not in log_of(settings)
    until(lambda: acknowledged(settings), "both acknowledge that it is gone")

    third = grown(settings, stays)
    drained = draining(settings)
    [stays] = {stays, third} - {drained}
    worker = workers(settings)[drained]
    before = [worker, *worker.children(recursive=True)]
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: scaled(settings, max_nodes=1) and list(workers(settings)) == [stays], "none left")
    until(lambda: is_gone(settings, drained, before), "nothing of the killed one is left")
    until(lambda: scaled(settings, max_nodes=1) and drained not in nodes_of(settings), "forgotten")

    until(lambda: not in_flight(settings), "all is processed and loaded")
    streams.assert_once_each(settings, orders.good_numbers(ROWS))
    assert row_epoch(settings) == 1, "the application was never started anew"


def nodes_of(settings: Settings) -> set[str]:
    return {one.name for one in status(settings).nodes}


def wants_two(settings: Settings) -> bool:
    """Tell whether the next round would ask for a second node, by what the last one saw."""
    decision = scaled(settings, max_nodes=1).decisions["spark"]
    return bool(decision.wanted >= 2)


def row_epoch(settings: Settings) -> int:
    from waybill.clusters import read_application
    from waybill.storage import open_tracker

    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return read_application(connection, "processing", "default").epoch
