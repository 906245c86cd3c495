"""The supervising task and its trigger, with real processes and the real tracker."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from tests.support.books import open_books

from waybill.access import Decision

pytestmark = pytest.mark.serves
SLEEPER = """
import os, sys, time
print("up", os.getpid(), sys.argv[1:], flush=True)
time.sleep(60)
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch, postgres):
    """A folder with entry points that only sleep, and a tracker: they never report."""
    (tmp_path / "dags").mkdir()
    jobs = tmp_path / "spark_jobs"
    jobs.mkdir()
    for kind in ("processing", "loading"):
        (jobs / f"{kind}.py").write_text(textwrap.dedent(SLEEPER))
    monkeypatch.setenv("WAYBILL_DAGS_DIR", str(tmp_path / "dags"))
    monkeypatch.delenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", raising=False)
    with open_books(postgres, "supervised") as books:
        monkeypatch.setenv("WAYBILL_TRACKER__DSN", books.dsn.get_secret_value())
        from waybill_airflow.triggers import applications

        monkeypatch.setattr(applications, "ROWS", applications.SharedRows())
        yield tmp_path, books
    for pid in running_pids():
        os.kill(pid, signal.SIGKILL)


def running_pids():
    """The applications that children of this test started: sleepers in this test's folder."""
    from waybill.services import application_status
    from waybill.settings import Settings

    found = [application_status(Settings(), kind, "default") for kind in ("processing", "loading")]
    return [status.pid for status in found if status.running]


def operator(**options):
    from waybill_airflow.operators.spark_application import SparkApplicationOperator

    options = {"shift": timedelta(seconds=1), "poll_s": 0.05, **options}
    return SparkApplicationOperator(task_id="processing", kind="processing", **options)


async def fired(trigger):
    """Run a trigger as the triggerer does: made anew from what it says of itself."""
    from airflow.sdk.module_loading import import_string

    where, arguments = trigger.serialize()
    async for event in import_string(where)(**arguments).run():
        return event.payload
    return None


def run(task, events=None):
    """Run a task until it ends, over all its deferrals; ``events``: what woke it."""
    from airflow.sdk.exceptions import TaskDeferred

    call, arguments = task.execute, {}
    while True:
        try:
            return call({}, **arguments)
        except TaskDeferred as deferred:
            event = asyncio.run(fired(deferred.trigger))
            if events is not None:
                events.append(event["reason"])
            call = getattr(task, deferred.method_name)
            arguments = {**(deferred.kwargs or {}), "event": event}


def first_look(task):
    """Run a task until it waits: here its worker, or the triggerer, may be killed."""
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as deferred:
        task.execute({})
    return deferred.value


def pid_of(result):
    return int(result["external_id"].rpartition(":")[2])


def known_pid(tracker, *, but):
    """The process that the row names, unless it is one of these; None: it names none."""
    from waybill.clusters import read_application

    with tracker.transaction() as connection:
        named = read_application(connection, "processing", "default").external_id
    pid = int(named.rpartition(":")[2] or 0)
    return None if pid in but else pid


def test_the_application_outlives_the_shift_and_the_next_shift_adopts_it(checkout):
    first = run(operator())
    assert running_pids() == [pid_of(first)]
    assert (first["epoch"], first["starts"]) == (1, 1)
    second = run(operator())
    assert second == {**first, "starts": 0}
    assert running_pids() == [pid_of(first)]


def test_a_task_that_waits_holds_nothing_and_whoever_comes_next_goes_on_from_the_row(checkout):
    first_look(operator())
    [pid] = running_pids()
    again = run(operator())  # a retry on any worker: the first task is gone
    assert (pid_of(again), again["starts"]) == (pid, 0)


def test_a_killed_application_is_started_again_each_time(checkout, monkeypatch):
    from waybill.clusters import applications

    monkeypatch.setattr(applications, "ARRIVAL_S", 0.3)  # they do not report: ask soon
    monkeypatch.setattr("waybill_airflow.operators.spark_application._QUIET_S", 0.1)
    _, tracker = checkout
    task = operator(shift=timedelta(seconds=15))
    pids, failures, events = [], [], []

    def kill_twice():
        try:
            for _ in range(2):
                pid = wait_for(lambda: known_pid(tracker, but=pids))
                pids.append(pid)
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: known_pid(tracker, but=pids))
        except Exception as error:
            failures.append(error)

    killer = threading.Thread(target=kill_twice)
    killer.start()
    result = run(task, events)
    killer.join()
    assert failures == []
    assert len(set(pids)) == 2
    assert (result["starts"], result["epoch"]) == (3, 3)
    assert running_pids() == [pid_of(result)]
    assert "look" in events


def test_a_silent_application_that_lives_is_left_alone(checkout, monkeypatch):
    from waybill.clusters import applications

    monkeypatch.setattr(applications, "ARRIVAL_S", 0.1)
    monkeypatch.setattr(applications, "LEASE_S", 0.1)
    monkeypatch.setattr("waybill_airflow.operators.spark_application._QUIET_S", 0.3)
    events = []
    result = run(operator(shift=timedelta(seconds=2)), events)
    assert (result["starts"], result["epoch"]) == (1, 1)
    assert running_pids() == [pid_of(result)]
    assert 2 <= len(events) <= 8, "asked after, but not all the time"


def test_ending_the_task_leaves_the_application_running(checkout):
    deferred = first_look(operator(shift=None, poll_s=5.0))
    [pid] = running_pids()
    operator().on_kill()
    asyncio.run(deferred.trigger.on_kill())
    asyncio.run(deferred.trigger.cleanup())
    assert running_pids() == [pid]


def test_the_variable_stops_it_and_starts_it_again(checkout, monkeypatch):
    first = run(operator())
    assert running_pids() == [pid_of(first)]
    monkeypatch.setenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", "stop")
    stopped = run(operator())
    assert running_pids() == []
    assert stopped == {**first, "external_id": None, "starts": 0}
    monkeypatch.delenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT")
    run(operator())
    assert len(running_pids()) == 1


def test_the_variable_wakes_a_task_that_waits(checkout, monkeypatch):
    deferred = first_look(operator(shift=None))
    monkeypatch.setenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", "stop")
    assert asyncio.run(fired(deferred.trigger)) == {"reason": "look"}


def test_that_there_is_no_variable_does_not_undo_what_a_person_said(checkout):
    from waybill.clusters import start_cluster, stop_cluster

    _, tracker = checkout
    ann = Decision("ann", "maintenance")
    run(operator())
    stop_cluster(tracker, "default", ann)
    assert run(operator())["external_id"] is None
    assert run(operator())["external_id"] is None
    assert running_pids() == []
    start_cluster(tracker, "default", ann)
    assert run(operator())["epoch"] == 2


def test_an_unknown_request_changes_nothing_and_is_said(checkout, monkeypatch, caplog):
    monkeypatch.setenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", "stopp")
    run(operator())
    assert len(running_pids()) == 1


def test_an_entry_point_that_is_missing_fails_the_task_with_what_to_do(checkout):
    from waybill.errors import InputError

    folder, _ = checkout
    (folder / "spark_jobs" / "processing.py").unlink()
    with pytest.raises(InputError, match="WAYBILL_DAGS_DIR"):
        run(operator())


def test_the_started_application_is_no_child_that_dies_with_the_tasks_session(checkout):
    first_look(operator())
    [pid] = running_pids()
    assert os.getsid(pid) != os.getsid(0)
    streams = [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)]
    assert streams[0] == "/dev/null"
    assert all(stream.endswith("spark-processing-default.log") for stream in streams[1:])
    wait_for(lambda: psutil.Process(pid).cmdline()[-2:] == ["--cluster", "default"])
    assert psutil.Process(pid).cmdline()[-4:-2] == ["--epoch", "1"]


def test_a_tracker_that_is_away_starts_nothing_and_keeps_the_task_waiting(checkout, monkeypatch):
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("WAYBILL_TRACKER__CONNECT_TIMEOUT_S", "1")
    deferred = first_look(operator(shift=None))
    assert deferred.trigger.quiet_s > 1
    deferred.trigger.quiet_s, deferred.trigger.until_s = 0.0, time.time() + 0.5
    assert asyncio.run(fired(deferred.trigger)) == {"reason": "shift"}, "it never asked for a look"
    assert running_pids() == []


def test_the_triggers_of_a_process_read_the_rows_in_one_query(checkout, monkeypatch):
    from waybill_airflow.triggers import applications

    run(operator())
    monkeypatch.setattr(applications, "ROWS", applications.SharedRows())
    until_s = time.time() + 1.0
    made = [
        applications.ApplicationTrigger("processing", "default", until_s, 0.0, 0.2)
        for _ in range(50)
    ]

    async def all_of_them():
        return await asyncio.gather(*(fired(one) for one in made))

    assert {one["reason"] for one in asyncio.run(all_of_them())} == {"shift"}
    assert 1 <= applications.ROWS.reads <= 8


def wait_for(condition, limit_s=20.0):
    until = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
    return found
