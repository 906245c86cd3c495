"""The supervising task, with real processes found through the library's own registry."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from waybill.back_off import BackOff

FAST = BackOff(first_s=0.1, longest_s=0.5, healthy_s=5.0)


class Store:
    """Airflow's task_state_store: survives the tries of a task."""

    def __init__(self):
        self.values = {}

    def get(self, key, default=None):
        return self.values.get(key, default)

    def set(self, key, value):
        self.values[key] = value


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with entry points that only sleep: the library starts them as it would Spark's."""
    (tmp_path / "dags").mkdir()
    jobs = tmp_path / "spark_jobs"
    jobs.mkdir()
    for kind in ("processing", "loading"):
        (jobs / f"{kind}.py").write_text(
            textwrap.dedent(
                """
                import os, sys, time
                print("up", os.getpid(), sys.argv[1:], flush=True)
                time.sleep(60)
                """
            )
        )
    monkeypatch.setenv("WAYBILL_DAGS_DIR", str(tmp_path / "dags"))
    monkeypatch.delenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", raising=False)
    yield tmp_path
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

    options = {"shift": timedelta(seconds=1), "poll_s": 0.05, "back_off": FAST, **options}
    return SparkApplicationOperator(task_id="processing", kind="processing", **options)


def run(task, store):
    return task.execute_resumable({"task_state_store": store})


def test_the_application_outlives_the_shift_and_the_next_shift_adopts_it(checkout):
    first = run(operator(), Store())
    assert running_pids() == [first["pid"]]
    second = run(operator(), Store())
    assert second == {**first, "starts": 0}
    assert running_pids() == [first["pid"]]


def test_a_retry_after_a_worker_crash_attaches_to_what_runs(checkout):
    store = Store()
    pid = operator().submit_job({"task_state_store": store})
    store.set("spark_application_pid", pid)  # and here the worker is killed
    again = run(operator(), store)
    assert again["pid"] == pid
    assert again["starts"] == 0


def test_a_crash_before_the_pid_was_stored_starts_no_second_one(checkout):
    pid = operator().submit_job({"task_state_store": Store()})
    again = run(operator(), Store())
    assert again["pid"] == pid
    assert again["starts"] == 0


def test_a_killed_application_is_started_again_each_time(checkout):
    store = Store()
    task = operator(shift=timedelta(seconds=30))
    pids, failures = [], []

    def kill_three_times():
        try:
            for _ in range(3):
                pid = wait_for(lambda: next((p for p in running_pids() if p not in pids), None))
                pids.append(pid)
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: next((p for p in running_pids() if p not in pids), None))
            wait_for(lambda: store.get("spark_application_pid") not in pids)
        except Exception as error:
            failures.append(error)
        task.shift = timedelta(0)

    killer = threading.Thread(target=kill_three_times)
    killer.start()
    result = run(task, store)
    killer.join()
    assert failures == []
    assert len(set(pids)) == 3
    assert result["starts"] == 4
    assert running_pids() == [result["pid"]] == [store.get("spark_application_pid")]


def test_a_retry_that_finds_it_dead_starts_it(checkout):
    store = Store()
    pid = operator().submit_job({"task_state_store": store})
    store.set("spark_application_pid", pid)
    os.kill(pid, signal.SIGKILL)
    again = run(operator(), store)
    assert again["pid"] != pid
    assert running_pids() == [again["pid"]]


def test_ending_the_task_leaves_the_application_running(checkout):
    from airflow.sdk.exceptions import AirflowException

    task = operator(shift=None, poll_s=5.0)
    store = Store()
    threading.Timer(0.5, task.on_kill).start()
    started = time.monotonic()
    with pytest.raises(AirflowException, match="left running"):
        run(task, store)
    assert time.monotonic() - started < 5.0, "SIGKILL comes five seconds after SIGTERM"
    assert running_pids() == [store.get("spark_application_pid")]


def test_the_variable_stops_it_and_starts_it_again(checkout, monkeypatch):
    from waybill_airflow.operators import spark_application

    monkeypatch.setattr(spark_application, "_REQUEST_MAX_AGE_S", 0.0)
    first = run(operator(), Store())
    assert running_pids() == [first["pid"]]
    monkeypatch.setenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", "stop")
    stopped = run(operator(), Store())
    assert running_pids() == []
    assert stopped == {**first, "pid": None, "starts": 0}
    monkeypatch.setenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", "run")
    run(operator(), Store())
    assert len(running_pids()) == 1


def test_an_unknown_request_changes_nothing_and_is_said(checkout, monkeypatch, caplog):
    monkeypatch.setenv("AIRFLOW_VAR_WAYBILL_STREAM_DEFAULT", "stopp")
    run(operator(), Store())
    assert len(running_pids()) == 1


def test_an_entry_point_that_is_missing_fails_the_task_with_what_to_do(checkout):
    from waybill.errors import InputError

    (checkout / "spark_jobs" / "processing.py").unlink()
    with pytest.raises(InputError, match="WAYBILL_DAGS_DIR"):
        run(operator(), Store())


def test_the_started_application_is_no_child_that_dies_with_the_tasks_session(checkout):
    pid = operator().submit_job({"task_state_store": Store()})
    assert os.getsid(pid) != os.getsid(0)
    streams = [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)]
    assert streams[0] == "/dev/null"
    assert all(stream.endswith("spark-processing-default.log") for stream in streams[1:])
    wait_for(lambda: psutil.Process(pid).cmdline()[-2:] == ["--cluster", "default"])


def wait_for(condition, limit_s=20.0):
    until = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
    return found
