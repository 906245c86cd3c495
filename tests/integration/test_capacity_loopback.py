"""Nodes on loopback, grown and drained for real: Celery workers with Redis.

Celery is no requirement of Waybill; ``make celery`` brings it. The infra coordinator is the product's
own (``services.scale_nodes``), as are the enhancers that it starts; the tracker is a real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from tests import servers
from tests.support.books import open_books
from tests.support.real_airflow import CELERY, _Redis, fetch_celery

from waybill import services
from waybill.capacity import DelayReport, read_nodes, write_waits
from waybill.settings import (
    CapacitySettings,
    Settings,
    TrackerSettings,
    WalSettings,
)
from waybill.stack import processes, read_record
from waybill.storage import TrackerStore

pytestmark = [pytest.mark.campaign, pytest.mark.serves]
LIMIT_S = 300.0
POLICY = {"grow_every_s": 0, "shrink_after_s": 0, "max_nodes": 3}
TASKS = """
import json, os, pathlib, time
import celery
app = celery.Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.worker_prefetch_multiplier = 1
app.conf.task_acks_late = True
app.conf.task_default_queue = "default"

@app.task
def wait(name, until):
    folder = pathlib.Path(os.environ["MARKS"])
    (folder / (name + ".began")).write_text(json.loads(os.environ["WAYBILL_WAL"])["node"])
    while not (folder / until).exists():
        time.sleep(0.1)
    (folder / (name + ".done")).write_text("")
"""
OPEN_LOG = (
    "INSERT INTO write_ahead_logs (wal_id, pipeline_id, purpose, name, node, path, topic, "
    "rereadable, state) VALUES (repeat('a', 32), 'p', 'ingestion', 'p', :node, '/wal', 't', "
    "false, 'open')"
)


@pytest.fixture
def tracker(_postgres: Any) -> Iterator[TrackerStore]:
    with open_books(_postgres, "capacity_loopback", pool_size=4) as found:
        yield found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for record in processes.read_registry(tmp_path / "run"):
        processes.end(record, grace_s=5)


def settings(tracker: TrackerStore, home: Path, kind: str, **given: Any) -> Settings:
    thresholds = {kind: POLICY | given.pop("thresholds")}
    own = CapacitySettings(loopback=(kind,), thresholds=thresholds, look_s=1, **given)
    return Settings(
        home=home,
        tracker=TrackerSettings(dsn=tracker.dsn),
        wal=WalSettings(dir=home / "wal"),
        capacity=own,
    )


def until(true: Callable[[], Any], what: str) -> Any:
    ends = time.monotonic() + LIMIT_S
    while not (found := true()):
        assert time.monotonic() < ends, what
        time.sleep(0.5)
    return found


def reported(tracker: TrackerStore) -> dict[str, Any]:
    with tracker.transaction() as connection:
        return {node.name: node for node in read_nodes(connection) if node.is_heard}


def waits(tracker: TrackerStore) -> None:
    with tracker.transaction() as connection:
        write_waits(connection, DelayReport(time.time(), 0, 0, 0.0, 1.0, 0.0, 0.0, 0.0))


def living(home: Path, kind: str) -> list[str]:
    return [
        one.name
        for one in processes.read_registry(home / "run")
        if one.name.startswith(f"loopback-{kind}-")
        and not one.name.endswith("-enhancer")
        and one.process() is not None
    ]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    fetch_celery()
    redis = _Redis(servers.new_home(), servers.random_ports().s3_port)
    redis.start()
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "marks").mkdir()
    address = f"redis://127.0.0.1:{redis._port}/0"
    paths = [str(tmp_path), str(servers.CHECKOUT / "include"), str(CELERY)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("BROKER", address)
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    try:
        yield address
    finally:
        redis.stop()


def send(home: Path, name: str, goes_at: str) -> None:
    code = f"import tasks; tasks.wait.delay({name!r}, {goes_at!r})"
    subprocess.run([sys.executable, "-c", code], cwd=home, check=True, timeout=120)


def test_celery_nodes_grow_one_that_dies_is_replaced_and_one_drains_with_its_task_and_its_log(
    tracker, home, broker
):
    command = (
        sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "{workers}",
        "-n", "celery@{node}", "-Q", "{queues}", "--without-gossip", "--without-mingle",
    )  # fmt: skip
    given = {
        "executor": "celery",
        "celery_broker": SecretStr(broker),
        "workers": 1,
        "max_workers": 1,
    }
    two = settings(
        tracker, home, "ingestion", thresholds={"min_nodes": 2}, celery_command=command, **given
    )
    marks = home / "marks"

    def scaled(own: Settings) -> Any:
        waits(tracker)
        return services.scale_nodes(own)

    scaled(two)
    until(lambda: len(reported(tracker)) == 2, "both nodes report")
    first = living(home, "ingestion")
    assert sorted(reported(tracker)) == sorted(first)

    killed = read_record(home / "run" / f"{first[0]}.json")
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: killed.process() is None, "it died")
    scaled(two)
    second = living(home, "ingestion")
    assert first[0] not in second
    assert len(second) == 2, "one that died is replaced"
    until(lambda: set(second) <= reported(tracker).keys(), "the new node reports")

    send(home, "a", "go")
    send(home, "b", "go")
    until(lambda: len(list(marks.glob("*.began"))) == 2, "each node has a task")
    until(lambda: all(reported(tracker)[n].report.running == 1 for n in second), "they say so")
    where = {(marks / f"{one}.began").read_text(): one for one in "ab"}
    assert sorted(where) == sorted(second)

    one = two.model_copy(
        update={
            "capacity": two.capacity.model_copy(
                update={"thresholds": {"ingestion": POLICY | {"min_nodes": 1}}}
            )
        }
    )
    scaled(one)
    [drained] = [name for name, node in reported(tracker).items() if node.state == "draining"]
    with tracker.transaction() as connection:
        connection.execute(text(OPEN_LOG), {"node": drained})
    until(lambda: reported(tracker)[drained].report.drains, "it takes no new task")
    send(home, "late", "go")
    time.sleep(3)
    assert scaled(one).removed == (), "a task runs on it"
    assert not (marks / "late.began").exists(), "the other one is busy, this one takes no new task"
    (marks / "go").write_text("")
    until((marks / "late.done").exists, "the node that stays does what came late")
    assert {path.stem for path in marks.glob("*.done")} == {"a", "b", "late"}
    assert (marks / "late.began").read_text() != drained
    until(lambda: reported(tracker)[drained].report.running == 0, "its task is done")
    assert scaled(one).removed == (), "its write-ahead log is open"
    assert drained in living(home, "ingestion")
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE write_ahead_logs SET state = 'closed'"))
    assert scaled(one).removed == (drained,)
    assert living(home, "ingestion") == [name for name in second if name != drained]
    assert not [p for p in processes.read_registry(home / "run") if p.name.startswith(drained)]
