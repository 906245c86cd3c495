"""A Celery worker that is grown, shrunk and drained by its node's enhancer: a real one, with Redis.

Celery is no requirement of Waybill; ``make celery`` brings it. The test is the parent of a worker and
runs the enhancer's side in a process that sees Celery's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import servers
from tests.support.real_airflow import CELERY, _Redis, fetch_celery

pytestmark = pytest.mark.campaign
ROOT = Path(__file__).parents[2]
TASKS = """
import os, time
import celery
from celery import platforms
app = celery.Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.worker_prefetch_multiplier = 1
app.conf.task_acks_late = True
app.conf.task_default_queue = "default"
app.conf.worker_proc_alive_timeout = 60.0

died_with_parent = platforms.set_pdeathsig

def starts_slowly(signal):
    "What a child does first, while it still has its parent's handler of SIGTERM."
    time.sleep(3)
    died_with_parent(signal)

platforms.set_pdeathsig = starts_slowly

@app.task
def wait(seconds):
    time.sleep(seconds)
    return os.getpid()
"""
ENHANCE = """
import json, os, sys, time
import tasks
from waybill.capacity import CeleryPool, Enhancer, EnhancerLimits, Usage
from waybill.errors import RetryError

pool = CeleryPool(os.environ["BROKER"], "celery@node", ["default"])
found = {}
until = time.monotonic() + 120
while True:
    try:
        found["first"] = pool.read()
        break
    except RetryError as error:
        assert time.monotonic() < until, error

def settled(what, seconds=60):
    until = time.monotonic() + seconds
    while not what(pool.read()):
        assert time.monotonic() < until, pool.read()
        time.sleep(0.2)
    return pool.read()

results = [tasks.wait.delay(60) for _ in range(2)]
settled(lambda seen: seen[1] == 2)
enhancer = Enhancer(pool, lambda: Usage(0.1, 0.0, 0.2), EnhancerLimits(2, 4))
reports = [enhancer.look() for _ in range(2)]
found["grown"] = settled(lambda seen: seen[0] == 3)
refusals = found["refusals"] = []
until = time.monotonic() + 60
while True:
    try:
        pool.resize(2, now=3)
        break
    except RetryError as error:
        assert "still start" in str(error) or "busy" in str(error), error
        refusals.append(str(error))
        assert time.monotonic() < until, error
        time.sleep(0.5)
found["shrunk"] = settled(lambda seen: seen[0] == 2)
found["at_work"] = pool.read()[1]
enhancer.look(drains=True)
time.sleep(1)
late = tasks.wait.delay(0)
try:
    pool.resize(1, now=2)
except RetryError as error:
    found["refused"] = str(error)
found["pids"] = len({one.get(timeout=120) for one in results})
time.sleep(3)
found["late"] = late.state
found["left"] = settled(lambda seen: seen[1] == 0)[1]
print(json.dumps(found))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    fetch_celery()
    redis = _Redis(servers.new_home(), servers.random_ports().s3_port)
    redis.start()
    (tmp_path / "tasks.py").write_text(TASKS)
    paths = [str(tmp_path), str(ROOT / "include"), str(CELERY)]
    try:
        yield {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "BROKER": f"redis://127.0.0.1:{redis._port}/0",
        }
    finally:
        redis.stop()


def test_a_worker_grows_shrinks_no_further_than_its_tasks_and_drains(environment, tmp_path):
    words = ["celery", "-A", "tasks", "worker", "-c", "2", "-n", "celery@node", "-Q", "default"]
    words += ["--without-gossip", "--without-mingle"]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", *words], env=environment, stdout=log, stderr=log, cwd=tmp_path
        )
        try:
            done = subprocess.run(
                [sys.executable, "-c", ENHANCE],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
        finally:
            worker.terminate()
            worker.wait(240)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["first"] == [2, 0]
    assert (found["grown"][0], found["shrunk"][0], found["at_work"]) == (3, 2, 2)
    assert "1 of them still start" in found["refusals"][0], (
        "one that starts would not heed its signal"
    )
    assert "All processes busy" in found["refused"], "tasks that run are not cut off"
    assert found["pids"] == 2, "both tasks went to their end"
    assert (found["late"], found["left"]) == ("PENDING", 0), "a node that drains takes no new task"
