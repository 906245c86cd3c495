"""Applications as processes: started once, found again, stopped whole, never confused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import orjson
import psutil
import pytest

from waybill.clusters import Application, process_identity
from waybill.errors import InputError, RetryError
from waybill.services import (
    application_last_words,
    application_status,
    applications,
    start_application,
    stop_application,
)
from waybill.settings import Settings
from waybill.stack import processes

RUNS = """
import os, sys, time
print("started with", sys.argv[1:], os.environ["WAYBILL_HOME"], flush=True)
time.sleep(1200)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    (tmp_path / "spark_jobs").mkdir()
    (tmp_path / "dags").mkdir()
    write(tmp_path, RUNS)
    made = Settings(home=tmp_path / "home", dags_dir=tmp_path / "dags")
    yield made
    for kind in applications.KINDS:
        stop_application(made, kind, "default")


def write(folder: Path, code: str) -> None:
    for kind in applications.KINDS:
        (folder / "spark_jobs" / f"{kind}.py").write_text(code)


def wait_for(what: Callable[[], object], *, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def record(settings: Settings) -> Path:
    return settings.home / "run" / "spark-processing-default.json"


def test_an_application_is_started_found_and_stopped(settings: Settings) -> None:
    assert application_status(settings, "processing", "default").running is False
    pid = start_application(settings, "processing", "default")
    found = application_status(settings, "processing", "default")
    assert (found.pid, found.running) == (pid, True)
    assert os.getsid(pid) == pid, "it has a session of its own"
    wait_for(lambda: "started with" in application_last_words(settings, "processing", "default"))
    words = application_last_words(settings, "processing", "default")
    assert "['--cluster', 'default']" in words
    assert str(settings.home.resolve()) in words
    assert application_status(settings, "loading", "default").running is False
    assert stop_application(settings, "processing", "default") is True
    assert not record(settings).exists()
    assert application_status(settings, "processing", "default").to_json()["pid"] is None
    assert stop_application(settings, "processing", "default") is False


def test_starting_one_that_runs_keeps_it(settings: Settings) -> None:
    assert start_application(settings, "processing", "default") == start_application(
        settings, "processing", "default"
    )


def test_one_that_died_is_seen_and_started_anew(settings: Settings) -> None:
    pid = start_application(settings, "processing", "default")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not application_status(settings, "processing", "default").running)
    again = start_application(settings, "processing", "default")
    assert again != pid
    assert application_status(settings, "processing", "default").pid == again


def test_a_recycled_pid_is_not_taken_for_the_application(settings: Settings) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(1200)"], start_new_session=True
    )
    try:
        record(settings).parent.mkdir(parents=True)
        created = psutil.Process(bystander.pid).create_time()
        row = {"pid": bystander.pid, "create_time": created - 100}
        record(settings).write_bytes(orjson.dumps(row))
        assert application_status(settings, "processing", "default").running is False
        assert stop_application(settings, "processing", "default") is False
        assert bystander.poll() is None, "a bystander was stopped"
        row["create_time"] = created
        record(settings).write_bytes(orjson.dumps(row))
        assert application_status(settings, "processing", "default").running is True
    finally:
        record(settings).unlink()
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"[]", b"5", b"{}", b'{"pid":"x","create_time":1}', b'{"pid":-1}', b"\xff"],
)
def test_a_record_that_cannot_be_read_is_no_application(settings: Settings, garbage: bytes) -> None:
    record(settings).parent.mkdir(parents=True)
    record(settings).write_bytes(garbage)
    assert application_status(settings, "processing", "default").running is False
    assert start_application(settings, "processing", "default") > 0


@pytest.mark.parametrize("killed", [False, True], ids=["stop", "killed, then start"])
def test_what_the_application_left_behind_ends(
    settings: Settings, tmp_path: Path, killed: bool
) -> None:
    """A JVM whose Python is gone, for one."""
    write(
        tmp_path,
        "import subprocess, sys, time\n"
        "code = '''import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);\n"
        "print('child', os.getpid(), flush=True); time.sleep(1200)'''\n"
        "child = subprocess.Popen([sys.executable, '-c', code])\n"
        "time.sleep(1200)\n",
    )
    pid = start_application(settings, "processing", "default")
    wait_for(lambda: "child" in application_last_words(settings, "processing", "default"))
    child = int(application_last_words(settings, "processing", "default").split()[-1])
    assert alive(child)
    if killed:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid))
        assert start_application(settings, "processing", "default") != pid
    else:
        assert stop_application(settings, "processing", "default") is True
    wait_for(lambda: not alive(child))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_that_does_not_listen_is_killed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "time.sleep(1200)\n",
    )
    monkeypatch.setattr(applications, "_STOP_S", 0.5)
    pid = start_application(settings, "processing", "default")
    wait_for(lambda: "deaf" in application_last_words(settings, "processing", "default"))
    assert stop_application(settings, "processing", "default") is True
    assert not alive(pid)


def test_one_whose_starter_lives_and_does_not_look_can_be_stopped(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end stays a zombie until its parent asks: that is an end all the same."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from waybill.services import start_application as start\n"
        "from waybill.settings import Settings\n"
        "home = Path(sys.argv[1])\n"
        "start(Settings(home=home / 'home', dags_dir=home / 'dags'), 'processing', 'default')\n"
        "print('ready', flush=True)\n"
        "time.sleep(1200)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": "include"},
        stdout=subprocess.PIPE,
    )
    try:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ready\n"
        monkeypatch.setattr(applications, "_STOP_S", 600.0)
        began = time.monotonic()
        assert stop_application(settings, "processing", "default") is True
        assert time.monotonic() - began < 300
    finally:
        starter.kill()
        starter.communicate()


@pytest.mark.parametrize("cluster", ["", "../x", "a/b", "a b", "x" * 101, ".hidden", "a\0"])
def test_a_cluster_name_that_is_no_file_name_is_refused(settings: Settings, cluster: str) -> None:
    with pytest.raises(InputError, match="letters, digits"):
        start_application(settings, "processing", cluster)


def test_an_unknown_kind_and_a_missing_script_are_the_users_mistakes(
    settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="processing, loading"):
        start_application(settings, "sorting", "default")  # type: ignore[arg-type]
    (tmp_path / "spark_jobs" / "processing.py").unlink()
    with pytest.raises(InputError, match="WAYBILL_DAGS_DIR"):
        start_application(settings, "processing", "default")
    assert application_last_words(settings, "processing", "default") == ""


def test_last_words_are_the_end_of_the_log_whatever_it_holds(settings: Settings) -> None:
    log = Path(application_status(settings, "processing", "default").log)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 50_000 + b"\n" + b"\n".join(b"line %d \xff" % n for n in range(40)))
    words = application_last_words(settings, "processing", "default", lines=2).splitlines()
    assert words == ["line 38 �", "line 39 �"]


def test_a_late_start_leaves_the_one_of_a_newer_epoch_alone(settings: Settings) -> None:
    newer = start_application(settings, "processing", "default", applications.Start(7))
    with pytest.raises(RetryError, match="start 7, newer than 6, runs"):
        start_application(settings, "processing", "default", applications.Start(6))
    assert application_status(settings, "processing", "default").pid == newer
    newest = start_application(settings, "processing", "default", applications.Start(8))
    assert newest != newer
    assert not is_alive(newer)


def test_of_two_starts_at_once_the_newer_lives(settings: Settings) -> None:
    """The older may live beside it: its epoch is refused, and it ends itself."""
    together = threading.Barrier(2)

    def start(epoch: int) -> int | None:
        together.wait()
        how = applications.Start(epoch)
        try:
            return start_application(settings, "processing", "default", how)
        except RetryError:
            return None

    with ThreadPoolExecutor(2) as pool:
        older, newer = pool.map(start, (1, 2))
    assert newer is not None
    assert is_alive(newer)
    for pid in {older, newer} - {None}:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def test_a_late_start_does_not_take_the_record_of_a_newer_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one has looked, sees nothing, and goes on when the newer one has begun."""
    looked, newer_is_up = threading.Event(), threading.Event()
    rotate = applications.state_folder.rotate

    def late(log: Path) -> None:
        if threading.current_thread().name == "older":
            looked.set()
            newer_is_up.wait(3)
        rotate(log)

    monkeypatch.setattr(applications.state_folder, "rotate", late)
    pids: dict[str, int] = {}

    def start(name: str, epoch: int) -> None:
        with suppress(RetryError):
            pids[name] = start_application(
                settings, "processing", "default", applications.Start(epoch)
            )

    older = threading.Thread(target=start, args=("older", 6), name="older")
    older.start()
    assert looked.wait(300)
    start("newer", 7)
    newer_is_up.set()
    older.join()
    try:
        assert application_status(settings, "processing", "default").pid == pids["newer"]
        assert "older" not in pids or not is_alive(pids["older"])
    finally:
        for pid in pids.values():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()


def test_a_late_stop_leaves_the_record_of_a_newer_start(settings: Settings) -> None:
    start_application(settings, "processing", "default")
    older = processes.read_record(record(settings))
    assert older is not None
    stop_application(settings, "processing", "default")
    newer = start_application(settings, "processing", "default")
    processes.end(older, grace_s=0)
    assert application_status(settings, "processing", "default").pid == newer


def test_what_the_registry_does_not_name_is_ended_by_what_its_row_says(settings: Settings) -> None:
    registered = start_application(settings, "processing", "default")
    by_hand = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1200)"])
    named = process_identity(by_hand.pid)
    row = Application("default", "processing", 0.0, epoch=3, external_id=named)
    applications.ProcessBackend(settings).stop(row)
    assert by_hand.wait(300) == -signal.SIGTERM
    assert is_alive(registered), "it is another start"


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
