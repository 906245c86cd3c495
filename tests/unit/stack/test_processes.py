"""P1-P6 of waybill.stack.processes, on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests import servers
from tests.servers import wait_for

from waybill.stack import processes
from waybill.stack.processes import Launch, ProcessRecord

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
LEAVES_A_CHILD = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); time.sleep(600)"
)
FORKS = """
import os, setproctitle, time
if os.fork() == 0:
    {first}
    setproctitle.setproctitle("worker " * 1000)
time.sleep(600)
"""
"""It leaves a child as Airflow's scheduler does: the title is written over the environment."""
OTHER_ENVIRONMENT = (
    "import subprocess, time;"
    "subprocess.Popen(['sleep', '600'], env={{}}, start_new_session={detached}); time.sleep(600)"
)
READS = "import sys, time; files = [open(name) for name in sys.argv[1:]]; time.sleep(600)"


def launch(run_dir: Path, code: str, name: str = "thing") -> ProcessRecord:
    command = [sys.executable, "-c", code]
    what = Launch(name, command, dict(os.environ), run_dir, run_dir / "logs" / f"{name}.log")
    processes.spawn(run_dir, what)
    return wait_for(lambda: processes.read_record(run_dir / f"{name}.json"))


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.fixture
def sleeper():
    """A process that nobody here has a right to end."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_started_process_is_recorded_before_its_first_instruction(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    record = tmp_path / "thing.json"
    code = f"import shutil; shutil.copy({str(record)!r}, {str(seen)!r})"
    what = Launch("thing", [sys.executable, "-c", code], os.environ, tmp_path, tmp_path / "log")
    child = processes.spawn(tmp_path, what)
    assert child.wait(300) == 0
    assert json.loads(seen.read_text())["pid"] == child.pid


def test_a_recycled_pid_is_neither_found_nor_ended(tmp_path: Path, sleeper) -> None:
    path = processes.register(tmp_path, "kafka", sleeper.pid)
    stale = {**json.loads(path.read_text()), "create_time": 1000.0, "boot": "another-boot:17"}
    path.write_text(json.dumps(stale))
    record = processes.read_record(path)
    assert record is not None
    assert record.process() is None
    assert record.members() == []
    processes.end(record, grace_s=1)
    assert sleeper.poll() is None
    assert not path.exists()


def test_a_record_of_another_room_needs_only_pid_and_create_time(tmp_path: Path, sleeper) -> None:
    created = psutil.Process(sleeper.pid).create_time()
    path = tmp_path / "spark-x.json"
    path.write_text(json.dumps({"pid": sleeper.pid, "create_time": created}))
    [record] = processes.read_registry(tmp_path)
    assert record.name == "spark-x"
    assert record.process() is not None
    processes.end(record, grace_s=5)
    assert sleeper.wait(300) == -signal.SIGTERM


def test_a_clock_that_was_set_does_not_hide_a_process(tmp_path: Path, sleeper) -> None:
    path = processes.register(tmp_path, "kafka", sleeper.pid)
    shifted = json.loads(path.read_text())
    shifted["create_time"] -= 3600.0
    path.write_text(json.dumps(shifted))
    record = processes.read_record(path)
    assert record is not None
    assert record.process() is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "null"])
def test_a_torn_registry_file_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "torn.json").write_text(text)
    assert processes.read_registry(tmp_path) == []


def test_ending_takes_the_whole_session_with_it(tmp_path: Path) -> None:
    record = launch(tmp_path, LEAVES_A_CHILD)
    [child] = wait_for(lambda: children(record.pid))
    processes.end(record, grace_s=5)
    assert record.process() is None
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_process_that_ignores_term_is_killed(tmp_path: Path) -> None:
    record = launch(tmp_path, STUBBORN)
    wait_for(lambda: "deaf" in record.log_file.read_text())
    began = time.monotonic()
    processes.end(record, grace_s=0.5)
    assert record.process() is None
    assert time.monotonic() - began < 300


def test_what_a_killed_leader_left_in_its_session_is_ended(tmp_path: Path) -> None:
    record = launch(tmp_path, LEAVES_A_CHILD)
    [child] = wait_for(lambda: children(record.pid))
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: record.process() is None)
    assert child.is_running()
    processes.end(record, grace_s=1)
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_child_in_a_session_of_its_own_is_found_by_the_mark(tmp_path: Path, sleeper) -> None:
    code = (
        "import subprocess, time;"
        "subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    )
    record = launch(tmp_path, code)
    [child] = wait_for(lambda: children(record.pid))
    processes.end(record, grace_s=5)
    assert child.is_running()
    processes.end_marked([record.mark], [])
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert sleeper.poll() is None


def orphan_of(record: ProcessRecord, *, marked: bool = False) -> psutil.Process:
    """Kill the leader, once its only child has lost its mark; return the child."""
    [child] = wait_for(lambda: children(record.pid))
    wait_for(lambda: bool(processes._mark(child)) == marked)
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: record.process() is None)
    assert child.is_running()
    return child


def has_ended(process: psutil.Process) -> bool:
    return not processes._lives(process)


@pytest.mark.parametrize("first", ["pass", "os.setpgid(0, 0)"])
def test_an_orphan_that_wrote_its_title_over_its_mark_is_ended(tmp_path: Path, first: str) -> None:
    record = launch(tmp_path, FORKS.format(first=first))
    child = orphan_of(record)
    processes.end(record, grace_s=0)
    assert has_ended(child)


def test_an_orphan_without_mark_in_a_session_of_its_own_is_ended(tmp_path: Path, sleeper) -> None:
    record = launch(tmp_path, FORKS.format(first="os.setsid()"))
    child = orphan_of(record)
    processes.end(record, grace_s=0)
    assert not has_ended(child)
    processes.end_marked([], processes.mark_files(tmp_path), spared=[child.pid])
    assert not has_ended(child)
    processes.end_marked([], processes.mark_files(tmp_path))
    assert has_ended(child)
    assert sleeper.poll() is None


def test_an_orphan_that_kept_nothing_but_its_output_is_ended(tmp_path: Path) -> None:
    record = launch(tmp_path, OTHER_ENVIRONMENT.format(detached=False))
    child = orphan_of(record)
    processes.end(record, grace_s=0)
    assert has_ended(child)


def test_an_orphan_that_may_not_be_looked_at_is_ended_while_the_lock_is_held(
    tmp_path: Path, monkeypatch
) -> None:
    def refuse(pid: int) -> dict[Path, str]:
        raise PermissionError(pid)

    monkeypatch.setattr(processes, "_open_files", refuse)
    held = launch(tmp_path, FORKS.format(first="pass"), "held")
    child = orphan_of(held)
    processes.end(held, grace_s=0)
    assert has_ended(child)

    free = launch(tmp_path, OTHER_ENVIRONMENT.format(detached=False), "free")
    stranger = orphan_of(free)
    processes.end(free, grace_s=0)
    assert not has_ended(stranger)
    stranger.kill()


def test_who_only_reads_mark_file_and_log_is_left_alone(tmp_path: Path) -> None:
    record = launch(tmp_path, "import time; time.sleep(600)")
    [mark_file] = wait_for(lambda: processes.mark_files(tmp_path))
    command = [sys.executable, "-c", READS, str(mark_file), str(record.log)]
    reader = subprocess.Popen(command)
    try:
        wait_for(lambda: mark_file in processes._open_files(reader.pid))
        os.kill(record.pid, signal.SIGKILL)
        processes.end(record, grace_s=0)
        processes.end_marked([record.mark], [mark_file])
        assert reader.poll() is None
    finally:
        reader.kill()
        reader.wait()


def test_what_a_started_process_writes_is_its_owners_alone(tmp_path: Path) -> None:
    made = tmp_path / "made"
    launch(tmp_path, f"open({str(made)!r}, 'w').write('event'); import os; os.mkdir('folder')")
    wait_for((tmp_path / "folder").exists)
    assert made.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("run", ["run", "waybill/.waybill/run"])
def test_the_end_of_a_tests_folder_ends_what_lost_its_leader_there(run: str) -> None:
    home = servers.new_home()
    record = launch(home / run, FORKS.format(first="os.setsid()"))
    child = orphan_of(record)
    servers.end_home(home)
    assert has_ended(child)


def test_no_mark_ends_nobody(sleeper) -> None:
    processes.end_marked([], [])
    assert sleeper.poll() is None
