"""The supervising task and its trigger, with real processes and the real tracker."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.support.books import open_books
from tests.support.triggers import completed, fired

from waybill.access import Decision

pytestmark = pytest.mark.serves
SLEEPER = """
import os, sys, time
print("up", os.getpid(), sys.argv[1:], flush=True)
time.sleep(1200)
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
    with open_books(postgres, "supervised") as books:
        monkeypatch.setenv("WAYBILL_TRACKER__DSN", books.dsn.get_secret_value())
        from waybill_airflow.triggers import applications
        from waybill_airflow.triggers.shared_rows import SharedRows

        monkeypatch.setattr(applications, "ROWS", SharedRows(applications._read_rows))
        monkeypatch.setattr("waybill_airflow.operators.spark_application._PAUSE_S", 0.05)
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


def run(task):
    """Run a task until it ends, over all its deferrals."""
    from airflow.sdk.exceptions import TaskDeferred

    look = partial(task.execute, {})
    while True:
        try:
            return look()
        except TaskDeferred as deferred:
            look = woken(task, deferred)


def woken(task, deferred):
    """Wait until the trigger fires; return what the task does then."""
    event = completed(fired(deferred.trigger))
    return partial(getattr(task, deferred.method_name), {}, **deferred.kwargs, event=event)


def waits(look):
    """Let a task look until it waits: here its worker, or the triggerer, may be killed."""
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as deferred:
        look()
    return deferred.value


def first_look(task):
    return waits(partial(task.execute, {}))


def pid_of(result):
    return int(result["external_id"].rpartition(":")[2])


def known_pid(tracker):
    """The process that the row names; 0: it names none."""
    from waybill.clusters import read_application

    with tracker.transaction() as connection:
        named = read_application(connection, "processing", "default").external_id
    return int(named.rpartition(":")[2] or 0)


def test_the_application_outlives_the_shift_and_the_next_shift_adopts_it(checkout):
    first = run(operator())
    assert running_pids() == [pid_of(first)]
    assert (first["epoch"], first["starts"]) == (1, 1)
    second = run(operator())
    assert second == {**first, "starts": 0}
    assert running_pids() == [pid_of(first)]


def test_a_task_that_waits_holds_nothing_and_whoever_comes_next_goes_on_from_the_row(checkout):
    first_look(operator(shift=None))
    [pid] = running_pids()
    again = run(operator())  # a retry on any worker: the first task is gone
    assert (pid_of(again), again["starts"]) == (pid, 0)


def test_a_killed_application_is_started_again_each_time(checkout, monkeypatch):
    from waybill.clusters import applications

    monkeypatch.setattr(applications, "ARRIVAL_S", 0.3)  # they do not report: ask soon
    monkeypatch.setattr("waybill_airflow.operators.spark_application._QUIET_S", 0.1)
    _, tracker = checkout
    task = operator(shift=None)
    deferred = first_look(task)
    pids = [known_pid(tracker)]
    for _ in range(2):
        os.kill(pids[-1], signal.SIGKILL)
        until = time.monotonic() + 600
        while known_pid(tracker) in {0, pids[-1]}:
            assert time.monotonic() < until, "it was not started again"
            deferred = waits(woken(task, deferred))
        pids.append(known_pid(tracker))
    assert len(set(pids)) == 3
    assert deferred.kwargs["starts"] == 3
    assert running_pids() == pids[-1:]


def test_a_silent_application_that_lives_is_left_alone(checkout, monkeypatch):
    from waybill.clusters import applications

    monkeypatch.setattr(applications, "ARRIVAL_S", 0.0)
    monkeypatch.setattr(applications, "LEASE_S", 0.0)
    monkeypatch.setattr("waybill_airflow.operators.spark_application._QUIET_S", 0.3)
    task = operator(shift=None)
    deferred = first_look(task)
    pids = running_pids()
    for _ in range(3):
        assert deferred.trigger.quiet_s == 0.3, "asked after, but not all the time"
        deferred = waits(woken(task, deferred))
    assert deferred.kwargs["starts"] == 1
    assert running_pids() == pids


@pytest.mark.parametrize("word", ["alive", "no answer", "unknown"])
def test_between_two_looks_there_is_a_pause_unless_a_start_is_due(word):
    """Worker and triggerer may have other clocks, versions and variables, and disagree for long."""
    from waybill.clusters import Application, Look
    from waybill_airflow.operators import spark_application

    now_s = time.time()
    ended = Application("default", "processing", now_s, epoch=1, ended_s=now_s - 99, failures=1)
    works = replace(ended, ended_s=None, heartbeat_s=now_s)
    for application in (ended, works):
        look = Look(application, word, "wait")
        assert operator()._quiet_s(look) >= spark_application._PAUSE_S >= 5
    assert operator()._quiet_s(Look(ended, "dead", "wait")) == 0
    died = replace(ended, ended_s=now_s, failures=3)
    assert operator()._quiet_s(Look(died, "dead", "wait")) == 4


def test_a_shift_is_over_when_the_triggerers_clock_says_so(checkout):
    task = operator(shift=timedelta(hours=1))
    deferred = first_look(task)
    again = task.look_again({}, {"reason": "shift"}, **deferred.kwargs)
    assert (again["epoch"], again["starts"]) == (1, 1)


def test_a_variable_of_airflow_stops_nothing(checkout, monkeypatch):
    """Whoever may write variables may not stop a stream by that: `POST …/clusters/{name}/stop`."""
    monkeypatch.setenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", "stop")
    first = run(operator())
    assert run(operator())["external_id"] == first["external_id"]
    assert running_pids() == [pid_of(first)]


def test_what_a_person_said_stands_until_it_is_undone(checkout):
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


def test_an_entry_point_that_is_missing_fails_the_task_with_what_to_do(checkout):
    from waybill.errors import InputError

    folder, _ = checkout
    (folder / "spark_jobs" / "processing.py").unlink()
    with pytest.raises(InputError, match="WAYBILL_DAGS_DIR"):
        run(operator())


def test_the_started_application_is_no_child_that_dies_with_the_tasks_session(checkout):
    first_look(operator(shift=None))
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
    assert completed(fired(deferred.trigger)) == {"reason": "shift"}, "it never asked for a look"
    assert running_pids() == []


def test_a_trigger_has_a_task_look_when_the_tracker_is_away_for_long(checkout, monkeypatch, caplog):
    from waybill_airflow.triggers import applications

    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("WAYBILL_TRACKER__CONNECT_TIMEOUT_S", "1")
    monkeypatch.setattr(applications, "_UNANSWERED_S", 0.1)
    trigger = applications.ApplicationTrigger("processing", "default", None, 0.0, 0.1)
    assert completed(fired(trigger)) == {"reason": "look"}
    assert "while the tracker does not answer" in caplog.text


def test_the_triggers_of_a_process_read_the_rows_in_one_query(checkout, monkeypatch):
    from waybill_airflow.triggers import applications
    from waybill_airflow.triggers.shared_rows import SharedRows

    run(operator())
    monkeypatch.setattr(applications, "ROWS", SharedRows(applications._read_rows))
    began_s = time.time()
    made = [
        applications.ApplicationTrigger("processing", "default", began_s + 5.0, 0.0, 0.5)
        for _ in range(50)
    ]

    async def all_of_them():
        return await asyncio.gather(*(fired(one) for one in made))

    assert {one["reason"] for one in completed(all_of_them())} == {"shift"}
    assert 1 <= applications.ROWS.reads <= (time.time() - began_s) / 0.5 + 1


def wait_for(condition, limit_s=300.0):
    until = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
    return found
