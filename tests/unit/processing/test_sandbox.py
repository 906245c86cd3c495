"""User code in confined processes: what it does there harms one event, and reaches nothing."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers import wait_for
from tests.support.hostile_code import HOGS, SPIES, USES, as_nobody
from tests.support.processes import freeze, is_still, wake
from tests.support.user_code import sandbox
from tests.unit.processing.made import chained, event, faults, pipeline, results, rows, total

from waybill.errors import RetryError, StopError
from waybill.events import decode_head, encode, read_heads
from waybill.processing import Fault, InProcess, Plan, Retries, outcomes_of
from waybill.processing.failures import TooLargeError
from waybill.processing.sandbox import Sandbox, confinement, pool
from waybill.processing.sandbox.frames import pack, pack_reply, unpack, unpack_outcomes
from waybill.settings import SandboxSettings

HEAD = "import os, signal, sys, time\n"
CRASHES = {
    "os._exit": "os._exit(0)",
    "sigkill": "os.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "answers nonsense": "\n        for file in (3, 4, 5):\n            try: os.write(file, b'x' * 64)\n"
    "            except OSError: pass  # of these, one is of a fixed size",
}


def code_of(body: str) -> str:
    return f"{HEAD}def transform(event):\n    n = event.data['id']\n    {body}\n    return event\n"


def ran(code: str, count: int, box: Sandbox | None = None, **options: Any) -> list[Any]:
    """Return outcomes of so many events, as ``results`` gives them."""
    events = [decode_head(encode(event(n))) for n in range(count)]
    values = [encode(event(n)) for n in range(count)]
    plan = Plan(pipeline(code).model_copy(update=options))
    return results(outcomes_of(events, (box or sandbox()).run(plan, events, values, None)))


def codes(body: str, count: int, box: Sandbox | None = None, **options: Any) -> list[str | None]:
    found = ran(code_of(body), count, box, **options)
    assert [index for index, _, _ in found] == list(range(count))
    for index, children, fault in found:
        if fault is None:
            assert children == [event(index)]
    return [fault.code if fault else None for _, _, fault in found]


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("at", [(0,), (4,), (9,), (0, 1, 9), tuple(range(10))], ids=str)
def test_a_crash_parks_its_event_and_no_other(crash: str, at: tuple[int, ...]) -> None:
    found = codes(f"if n in {at}: {crash}", 10)
    assert found == ["interpreter_crashed" if n in at else None for n in range(10)]


@pytest.mark.parametrize(
    ("crash", "words"), [("os._exit(7)", "exit status 7"), (CRASHES["sigkill"], "signal 9")]
)
def test_how_the_interpreter_ended_is_told(crash: str, words: str) -> None:
    [(_, _, fault)] = ran(code_of(crash), 1)
    assert words in fault.message


def test_a_crash_after_a_large_result_loses_nothing_of_it() -> None:
    body = "if n == 0: event.data['x'] = 'x' * 5_000_000\n    if n == 1: os._exit(1)"
    found = ran(code_of(body), 3)
    assert len(found[0][1][0].data["x"]) == 5_000_000
    assert [fault and fault.code for _, _, fault in found] == [None, "interpreter_crashed", None]


@pytest.mark.parametrize("loop", ["while True: pass", "while True: time.sleep(9)"])
def test_an_endless_loop_is_a_timeout(loop: str) -> None:
    found = codes(f"if n == 1:\n        {loop}", 3, sandbox(1.0))
    assert found == [None, "transformation_timeout", None]


@pytest.mark.parametrize(
    "stuck",
    [
        "any(iter(int, 1))",
        "signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(3600)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}); time.sleep(3600)",
    ],
)
def test_code_that_does_not_give_up_is_ended(stuck: str) -> None:
    began = time.monotonic()
    found = codes(f"if n == 1: {stuck}", 3, sandbox(1.0))
    assert found == [None, "transformation_timeout", None]
    assert time.monotonic() - began < 300


def test_an_event_has_its_own_time_beside_those_of_the_requests_before() -> None:
    """Each request counts its events from 0, and the clock looks at that number once in a while."""
    box = sandbox(3.0)
    for _ in range(3):
        assert codes("time.sleep(1.5)", 1, box) == [None]


def test_an_event_that_is_run_again_has_its_time_anew() -> None:
    code = (
        "import time\nTRIES = []\ndef transform(event):\n"
        "    TRIES.append(1)\n    time.sleep(1.5)\n"
        "    if len(TRIES) < 3: raise ConnectionError('away')\n    return event\n"
    )
    retries = Retries(3, backoff_s=0.01)
    assert faults(chained(pipeline(code), [event(1)], retries=retries, code=sandbox(3.0))) == []


@pytest.mark.parametrize("who", ["both", "the platform"])
def test_a_machine_that_stood_still_parks_nothing(who: str) -> None:
    """Amid an event, for longer than any event may take; the code may have answered meanwhile."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            box = Sandbox(SandboxSettings(), timeout_s=2.0)
            os.write(writing, f"{process_of(box).pid}\n".encode())
            os.write(
                writing, repr(codes("open('begun', 'w').close(); time.sleep(0.6)", 1, box)).encode()
            )
            box.close()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        codes_pid = int(pipe.readline())
        begun = Path(psutil.Process(codes_pid).cwd(), "begun")
        stopped = [pid, codes_pid] if who == "both" else [pid]
        wait_for(lambda: begun.exists() or select.select([pipe], [], [], 0)[0])  # or it is over
        freeze(stopped)
        time.sleep(7)  # three times as long as an event may take end its process
        wake(reversed(stopped))
        assert pipe.read() == "[None]"
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("code", "words", "timeout_s"),
    [
        ("1/0", "ZeroDivisionError", 100.0),
        ("os._exit(0)", "exit status 0", 100.0),
        ("while True: pass", "no result within", 1.0),
        ("any(iter(int, 1))", "did not give up", 1.0),
    ],
)
def test_code_that_cannot_be_loaded_is_invalid(code: str, words: str, timeout_s: float) -> None:
    for _ in range(2):
        found = ran(HEAD + code, 3, sandbox(timeout_s))
        assert {fault.code for _, _, fault in found} == {"code_invalid"}
        assert words in found[0][2].message


def messages(code: str, box: Sandbox, **options: Any) -> set[str]:
    """Return what the events of a pipeline that cannot be loaded park with."""
    found = ran(code, 3, box, **options)
    assert {fault and fault.code for _, _, fault in found} == {"code_invalid"}
    return {fault.message for _, _, fault in found}


def test_code_that_cannot_be_loaded_is_not_loaded_for_each_request() -> None:
    box = sandbox()
    for code in ("def", f"{HEAD}raise ValueError(time.monotonic_ns())"):
        first = messages(code, box)
        pid = process_of(box).pid
        assert [messages(code, box) for _ in range(3)] == [first] * 3
        assert process_of(box).pid == pid


def test_what_others_broke_is_not_the_fault_of_code_that_is_loaded_then() -> None:
    box = sandbox()
    assert codes("sys.modules['colorsys'] = None", 1, box) == [None]
    found = ran("import colorsys\ndef transform(event): return event\n", 2, box)
    assert [fault for _, _, fault in found] == [None] * 2


def test_what_kept_code_from_being_loaded_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that was down for a moment, a machine that stood still."""
    monkeypatch.setattr(pool, "_REMEMBERED_S", 1.0)
    box = sandbox(readable=(tmp_path,))
    code = f"open({str(tmp_path / 'rates')!r})\ndef transform(event): return event\n"
    assert "FileNotFoundError" in messages(code, box).pop()
    (tmp_path / "rates").touch()
    wait_for(lambda: ran(code, 1, box)[0][2] is None)


def test_code_that_one_process_cannot_load_may_be_loaded_by_another() -> None:
    code = f"{HEAD}import socket\nsocket.socket().close()\ndef transform(event): return event\n"
    assert "Machine is not on the network" in messages(code, sandbox()).pop()
    assert ran(code, 1, network=True)[0][2] is None


LOADS_LONG = (
    f"{HEAD}open('loading', 'w').close()\nwhile os.path.exists('loading'): time.sleep(0.01)\n"
    "def transform(event): return event\n"
)
"""Until `killed_at_loading` lets it go on."""


def killed_at_loading(
    box: Sandbox, times: int, *, server: bool, run: Callable[[], list[Any]]
) -> list[Any]:
    """Run something while processes of a sandbox, or its servers, are killed as they load code."""
    mine = {process_of(box).ppid()}
    left, is_over = times, threading.Event()

    def kill() -> None:
        nonlocal left
        while not is_over.wait(0.02):
            for process in psutil.Process().children(recursive=True):
                try:
                    loads = Path(process.cwd(), "loading")
                    if process.ppid() in mine and loads.exists():
                        if left:
                            psutil.Process(process.ppid() if server else process.pid).kill()
                            left -= 1
                            process.wait(60)  # else it may be done before it has its server's end
                        loads.unlink()
                except (psutil.Error, OSError):
                    continue
            if server:
                mine.update(process.pid for process in psutil.Process().children())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        return run()
    finally:
        is_over.set()
        killer.join()
        assert not left


@pytest.mark.parametrize("server", [False, True], ids=["a process", "its server"])
def test_the_oom_killer_parks_nothing_while_code_is_loaded(*, server: bool) -> None:
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        found = killed_at_loading(box, 3, server=server, run=lambda: ran(LOADS_LONG, 2, box))
    finally:
        box.close()
    assert [fault for _, _, fault in found] == [None] * 2


def test_a_server_that_is_killed_each_time_parks_nothing() -> None:
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        with pytest.raises(RetryError, match="its server ended"):
            killed_at_loading(box, 5, server=True, run=lambda: ran(LOADS_LONG, 2, box))
    finally:
        box.close()


def test_code_that_kills_itself_each_time_it_is_loaded_is_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_KILLED_WAIT_S", 0.01)
    [message] = messages(f"{HEAD}{CRASHES['sigkill']}", sandbox())
    assert "signal 9" in message


def test_code_that_answers_nonsense_when_it_is_loaded_is_invalid() -> None:
    code = (
        "import struct\nfor file in (3, 4, 5):\n"
        "    try: os.write(file, struct.pack('<Q', 1) + b'\\xc1')\n    except OSError: pass\n"
    )
    [message] = messages(HEAD + code, sandbox())
    assert message == "the code broke its process"


def test_neighbours_of_a_pipeline_that_cannot_be_loaded_flow() -> None:
    pipelines = [pipeline(f"{HEAD}os._exit(0)"), pipeline(ident="p2")]
    events = [event(1), event(2, pipeline_id="p2"), event(3)]
    result = chained(pipelines, events, code=sandbox())
    invalid = [(n, "transformation", "code_invalid") for n in (0, 2)]
    assert faults(result) == invalid
    assert [row["n"] for row in rows(result)] == [2]


def test_what_crashes_parks_and_the_rest_is_staged() -> None:
    result = chained(
        pipeline(code_of("if n == 2: os._exit(1)")), [event(n) for n in (1, 2, 3)], code=sandbox()
    )
    assert faults(result) == [(1, "transformation", "interpreter_crashed")]
    assert [row["n"] for row in rows(result)] == [1, 3]
    assert total(result, "transformation") == {"in_first": 3, "passed": 2, "out": 2, "parked": 1}


def process_of(box: Sandbox) -> psutil.Process:
    """Return the process that runs the code, as the code itself tells it."""
    [(_, [child], _)] = ran(code_of("event.data = {'id': n, 'pid': os.getpid()}"), 1, box)
    return psutil.Process(child.data["pid"])


def test_a_process_that_somebody_else_killed_parks_nothing() -> None:
    """The OOM killer, or a person, ends it while it works: its events are run again."""
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        victim = process_of(box)
        kill = threading.Timer(0.3, victim.kill)
        kill.start()
        assert codes("if n == 2: time.sleep(1)", 5, box) == [None] * 5
        kill.join()
        assert psutil.wait_procs([victim], timeout=300)[1] == []
    finally:
        box.close()


def test_code_that_an_ended_process_could_not_load_is_not_at_fault() -> None:
    """It goes into a new one, which loads it."""
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        victim = process_of(box)
        victim.kill()
        # its server waits for it when told to end it
        wait_for(lambda: victim.status() == psutil.STATUS_ZOMBIE)
        assert codes("pass", 2, box) == [None] * 2
    finally:
        box.close()


def test_a_process_of_another_release_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read requests otherwise: an older one takes deletes for upserts."""
    monkeypatch.setattr("waybill.processing.sandbox.pool.__version__", "0.0.1")
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        with pytest.raises(RetryError, match="another release of Waybill than 0.0.1"):
            codes("pass", 2, box)
    finally:
        box.close()


@pytest.mark.parametrize("gone", ["nothing", "its folder"])
def test_a_server_that_somebody_else_killed_is_started_again(gone: str) -> None:
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        child = process_of(box)
        folder = Path(child.cwd()).parent
        server = child.parent()
        assert server is not None and server.ppid() == os.getpid()
        server.kill()
        assert psutil.wait_procs([child], timeout=600)[1] == []
        if gone == "its folder":
            shutil.rmtree(folder)
        assert codes("pass", 5, box) == [None] * 5
    finally:
        box.close()


def test_all_processes_end_with_who_uses_them() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        box = Sandbox(SandboxSettings(), timeout_s=100)
        threading.Thread(target=ran, args=(code_of("time.sleep(600)"), 1, box)).start()
        folders: dict[int, str] = {}
        while len(set(folders.values())) < 2:  # of the server, and of the process of the code
            time.sleep(0.05)
            family = psutil.Process().children(recursive=True)
            folders = {process.pid: process.cwd() for process in family}
        *_, folder = folders.values()
        os.write(writing, " ".join([folder, *map(str, folders)]).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        folder, *words = pipe.read().split()
    family = [int(word) for word in words]
    os.waitpid(pid, 0)
    assert len(family) == 2
    wait_for(lambda: not any(map(psutil.pid_exists, family)))
    assert not Path(folder).parent.exists()
    wait_for(lambda: {one.pid for one in psutil.Process().children(recursive=True)} <= before)


def test_a_fork_of_the_user_has_processes_of_its_own() -> None:
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        ask = "event.data = {'id': n, 'pid': os.getpid()}"
        [(_, [mine], _)] = ran(code_of(ask), 1, box)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            [(_, [childs], _)] = ran(code_of(ask), 1, box)
            os.write(writing, str(childs.data["pid"]).encode())
            box.close()
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            childs_pid = int(pipe.read())
        os.waitpid(pid, 0)
        [(_, [again], _)] = ran(code_of(ask), 1, box)
        assert childs_pid != mine.data["pid"] == again.data["pid"]
    finally:
        box.close()


# What it must not reach


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stack") / "stack.env"
    path.write_text("WAYBILL_S3__SECRET_KEY=canary-1f3a")
    path.chmod(0o644)
    return path


@pytest.fixture(scope="module")
def of_nobody() -> dict[str, list[str | None]]:
    """Return what becomes of each spy and hog where the platform runs as uid 65534."""
    return as_nobody()


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("spy", SPIES.values(), ids=SPIES)
def test_user_code_reaches_nothing_of_the_platform(
    spy: str, secret_file: Path, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://canary-1f3a@h/d")
    box = sandbox()
    if missing := box.missing():
        pytest.skip(f"this machine lacks {missing}")
    wanted = spy.format(file=str(secret_file), pid=os.getpid(), port=listener)
    [(_, children, fault)] = ran(code_of(wanted), 1, box)
    if spy.endswith("os.environ)"):
        assert "canary" not in repr(children[0].data)
        assert sorted(children[0].data["x"]) == ["HOME", "LANG", "TMPDIR"]
    else:
        assert children is None, children[0].data
        assert "canary" not in fault.message.replace(str(secret_file), "")
        allowed = {"io_error", "network_closed", "assertion_failed", "value_error"}
        assert fault.code in allowed, fault
    assert [path.name for path in secret_file.parent.iterdir()] == [secret_file.name]


@pytest.mark.parametrize("name", SPIES)
def test_as_another_user_than_root_it_reaches_nothing_either(
    name: str, of_nobody: dict[str, list[str | None]]
) -> None:
    """Files and processes of the platform have the same uid there."""
    allowed = {"io_error", "network_closed", "assertion_failed", "value_error"}
    [code] = of_nobody[name]
    assert name == "environment" or code in allowed


def test_no_process_of_user_code_was_ever_given_an_environment_or_a_file(
    secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at from outside: user code itself could not tell what its memory was made of."""
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://canary-1f3a@h/d")
    box = Sandbox(SandboxSettings(), timeout_s=100)
    with secret_file.open() as opened:
        os.set_inheritable(opened.fileno(), True)
        try:
            process = process_of(box)
            for pid in (process.pid, process.ppid()):
                given = Path(f"/proc/{pid}/environ").read_bytes()
                assert given.strip(b"\0").partition(b"=")[0] in {b"", b"LD_LIBRARY_PATH"}
                files = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
                assert str(secret_file) not in files
                assert sum(name.startswith("socket:") for name in files) == 1, files
        finally:
            box.close()


def test_a_pipeline_that_declares_the_network_opens_connections_and_nothing_local(
    listener: int,
) -> None:
    connect = f"import socket; socket.create_connection(('127.0.0.1', {listener}), 5).close()"
    assert codes(connect, 1, network=True) == [None]
    assert codes("import socket; socket.socket(socket.AF_UNIX)", 1, network=True) == ["io_error"]
    [(_, _, fault)] = ran(code_of(connect), 1)
    assert fault.code == "network_closed"
    assert "network: true" in fault.message


def test_files_that_the_settings_name_are_readable_and_no_more(tmp_path: Path) -> None:
    table = tmp_path / "rates.csv"
    table.write_text("a,b")
    box = sandbox(readable=(table,))
    assert codes(f"assert open({str(table)!r}).read() == 'a,b'", 1, box) == [None]
    assert codes(f"open({str(table)!r}, 'w')", 1, box) == ["io_error"]
    assert codes(f"os.listdir({str(tmp_path)!r})", 1, box) == ["io_error"]


def test_a_team_reaches_nothing_of_another() -> None:
    """Each has a process, a folder, and as root a user; they see neither files nor memory."""
    box = sandbox()
    write = (
        "open('note', 'w').write('x'); event.data['x'] = [os.getcwd(), os.getpid(), os.getuid()]"
    )
    [(_, [first], _)] = ran(code_of(write), 1, box, team="first")
    folder, pid, uid = first.data["x"]
    look = f"event.data['x'] = open({folder + '/note'!r}).read()"
    assert ran(code_of(look), 1, box, team="second")[0][2].code == "io_error"
    look = f"event.data['x'] = open('/proc/{pid}/mem', 'rb').read(1)"
    assert ran(code_of(look), 1, box, team="second")[0][2].code == "io_error"
    [(_, [second], _)] = ran(code_of(write), 1, box, team="second")
    assert second.data["x"][1] != pid
    if os.getuid() == 0:
        assert second.data["x"][2] != uid != 0


@pytest.mark.parametrize(("available", "kept"), [(900, True), (100, False)])
def test_processes_of_more_teams_wait_while_there_is_memory(
    monkeypatch: pytest.MonkeyPatch, available: int, *, kept: bool
) -> None:
    monkeypatch.setattr(pool, "_FEW_PROCESSES", 2)
    monkeypatch.setattr(pool, "_MOST_PROCESSES", 4)
    memory = SimpleNamespace(available=available, total=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    box = Sandbox(SandboxSettings(), timeout_s=100)

    def pid_of(team: str) -> int:
        [(_, [found], _)] = ran(code_of("event.data['n'] = os.getpid()"), 1, box, team=team)
        return found.data["n"]

    first = {team: pid_of(team) for team in "abcd"}
    assert (pid_of("a") == first["a"]) == kept
    pid_of("e")
    assert pid_of("b") != first["b"], "one that waited longest made room"
    box.close()


@pytest.mark.parametrize(("shared_by", "alike"), [("team", True), ("pipeline", False)])
def test_who_shares_a_process_is_a_setting(shared_by: str, *, alike: bool) -> None:
    box = sandbox(shared_by=shared_by)
    ask = code_of("event.data['x'] = os.getpid()")
    pids = {ran(ask, 1, box, id=f"p{n}")[0][1][0].data["x"] for n in range(2)}
    assert (len(pids) == 1) is alike


# What it may use


def test_memory_that_grows_ends_with_its_event() -> None:
    box = sandbox(memory_mb=200)
    body = "if n == 3: x = bytearray(2**29)"
    assert codes(body, 6, box) == [None, None, None, "memory_error", None, None]


def test_memory_that_others_used_up_is_not_the_fault_of_who_meets_its_end() -> None:
    box = sandbox(memory_mb=200)
    code = f"{HEAD}KEPT = []\ndef transform(event):\n    KEPT.append(bytearray(2**24))\n    return event\n"
    found = ran(code, 60, box)
    assert [fault for _, _, fault in found if fault] == []


def test_files_that_grow_end_with_their_event() -> None:
    box = sandbox(file_mb=4)  # which is looked at once in a while: the code waits for that
    body = (
        "if n == 1:\n        for i in range(99): open(str(i), 'wb').write(bytes(2**20))\n"
        "        time.sleep(90)"
    )
    assert codes(body, 3, box) == [None, "interpreter_crashed", None]
    assert codes("if n == 1: open('x', 'wb').write(bytes(2**24))", 3, box)[1] == "io_error"


@pytest.mark.parametrize("hog", HOGS.values(), ids=HOGS)
def test_what_no_limit_of_the_kernel_bounds_ends_with_its_event(hog: str) -> None:
    box = Sandbox(SandboxSettings(file_mb=4, memory_mb=128), timeout_s=100)
    try:
        found = codes(hog, 3, box)
    finally:
        box.close()  # its threads count for its team elsewhere
    assert found[1] is not None
    assert [found[0], found[2]] == [None, None]


@pytest.mark.parametrize("name", HOGS)
def test_nor_does_it_outlast_it_as_another_user(
    name: str, of_nobody: dict[str, list[str | None]]
) -> None:
    assert of_nobody[name] == [None, "interpreter_crashed", None]


@pytest.mark.parametrize("name", USES)
def test_what_code_does_in_its_own_folder_and_memory_goes_on(
    name: str, of_nobody: dict[str, list[str | None]]
) -> None:
    assert codes(USES[name], 1) == [None]
    assert of_nobody[f"use: {name}"] == [None]


def test_memory_that_runs_out_ends_user_code_first() -> None:
    box = sandbox()
    child = process_of(box)
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == "1000"
    server = child.parent()
    assert server is not None
    assert server.environ().keys() <= {"LD_LIBRARY_PATH", "LC_CTYPE"}


def test_between_its_batches_a_process_is_stopped() -> None:
    """A thread that is left behind has no time of its own."""
    box = sandbox()
    ran(
        f"{HEAD}import threading\n"
        "def work():\n    while True: time.sleep(0.001)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "def transform(event): return event\n",
        1,
        box,
        team="restless",
    )
    ask = code_of("event.data = {'id': n, 'pid': os.getpid()}")
    for _ in range(3):
        [(_, [child], _)] = ran(ask, 1, box, team="restless")
        process = psutil.Process(child.data["pid"])
        wait_for(partial(is_still, process.pid))
        used = sum(process.cpu_times()[:2])
        time.sleep(0.05)
        assert sum(process.cpu_times()[:2]) == used


@pytest.mark.parametrize("module, name", [(os, "pidfd_open"), (signal, "pidfd_send_signal")])
def test_a_machine_that_cannot_stop_a_process_is_told_and_runs_code(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_given: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(module, name, refused)
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        assert "stop between its batches (pidfd, Linux 5.3 or newer)" in box.missing()
        assert codes("if n == 1: os._exit(1)", 3, box) == [None, "interpreter_crashed", None]
    finally:
        box.close()


@pytest.mark.parametrize("made", ["{1, 'a'}", "frozenset('ab')", "[{'n': {1}}]"])
def test_a_set_whose_order_is_another_each_time_parks(made: str) -> None:
    code = f"if n == 1: event.data['s'] = {made}"
    assert codes(code, 3) == [None, "result_invalid", None]


DEEP = "for i in range(2100): os.mkdir('d'); os.chdir('d')"


def test_folders_of_any_depth_are_removed(tmp_path: Path) -> None:
    """Their path is longer than any system call takes."""
    box = Sandbox(SandboxSettings(), timeout_s=100)
    folder = Path(process_of(box).cwd()).parent
    codes(
        f"if n == 1:\n        os.mkdir('e', 0); os.symlink({str(tmp_path)!r}, 'l')\n        {DEEP}",
        2,
        box,
    )
    (tmp_path / "kept").touch()
    box.close()
    assert not folder.exists()
    assert (tmp_path / "kept").exists()


def test_folders_that_dead_servers_left_are_removed_and_no_others() -> None:
    boxes = [Sandbox(SandboxSettings(), timeout_s=100) for _ in range(3)]
    long_ago = time.time() - 3600
    try:
        children = [process_of(box) for box in boxes[:2]]
        used, left = (Path(child.cwd()).parent for child in children)
        server = children[1].parent()
        assert server is not None
        server.kill()
        assert psutil.wait_procs([children[1]], timeout=600)[1] == []
        process_of(boxes[2])
        assert left.exists(), "so young, its server may be on its way"
        boxes[2].close()
        for folder in (used, left):
            os.utime(folder, (long_ago, long_ago))
        process_of(boxes[2])
        assert not left.exists()
        assert used.exists()
    finally:
        for box in boxes:
            box.close()


def test_an_answer_that_drips_is_ended() -> None:
    body = (
        "if n == 1:\n        signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "        while True:\n            for fd in range(3, 9):\n                try: os.write(fd, bytes(1))\n"
        "                except OSError: pass\n            time.sleep(0.05)"
    )
    began = time.monotonic()
    found = codes(body, 3, sandbox(1.0))
    assert found[0] is None
    assert found[1] in {"transformation_timeout", "interpreter_crashed"}
    assert found[2] is None
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    "fill", ["open(f'{i}', 'w')", "os.mkdir('d'); os.chdir('d')", "os.symlink('x', f'{i}')"]
)
def test_many_small_files_end_with_their_event(fill: str) -> None:
    box = sandbox(file_mb=4)
    body = f"if n == 1:\n        for i in range(3000): {fill}\n        time.sleep(90)"
    found = codes(body, 3, box)
    assert found[0] is None
    assert found[1] in {"interpreter_crashed", "io_error"}
    assert found[2] is None


def test_numbers_of_millions_of_digits_cost_the_worker_nothing() -> None:
    code = code_of("event.data['n'] = 1 << 20_000_000")
    for kind in ("int64", "float64", "decimal(10,2)", "string", "json", "timestamp"):
        began = time.process_time()
        result = chained(pipeline(code, n=kind), [event(1)], code=sandbox())
        assert len(result.failures) == 1, kind
        assert time.process_time() - began < 10, kind
    code = code_of("return [event.child(i, {'id': 10**5000, 'n': 1}) for i in range(2)]")
    result = chained(pipeline(code), [event(1)], code=sandbox())
    assert faults(result) == [(0, "transformation", "result_invalid")]


def test_what_is_printed_harms_nobody() -> None:
    body = "if n == 1: print('x' * 10**8); sys.stderr.write('y' * 10**7); os.write(1, b'z' * 10**7)"
    assert codes(body, 3) == [None] * 3


def test_what_is_printed_is_logged_as_one_line_of_so_many_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "waybill.user_code")
    body = "print('\\x1b[2J\\rERROR forged\\n' + 'é' * 4_000 + 'x' * 9_000)"
    assert codes(body, 1, team="loud") == [None]
    [record] = [one for one in caplog.records if one.name == "waybill.user_code"]
    start = r"team loud printed: '\x1b[2J\rERROR forged\n"
    escaped = len(r"\x1b\r\n") - 3
    assert record.getMessage().startswith(start + "é")
    assert len(record.getMessage()) == len("team loud printed: ''") + 4096 + escaped


@pytest.mark.parametrize(
    "deed",
    [
        "sys.modules.clear()",
        "sys.modules['msgspec'] = None; sys.modules['json'] = None",
        "import builtins; builtins.isinstance = builtins.len = None",
        "import waybill.processing.transformation as t; t._outcome = None",
        "import gc; [d.clear() for d in gc.get_objects() if type(d) is dict and len(d) > 500]",
        "sys.setrecursionlimit(10)",
        "os.close(3); os.close(4); os.close(5)",
        "signal.setitimer(signal.ITIMER_REAL, 0)",
        "import threading; [threading.Thread(target=time.sleep, args=(9,)).start() for _ in range(9)]",
    ],
)
def test_code_that_breaks_its_own_process_breaks_nobody_else(deed: str) -> None:
    box = sandbox()
    found = codes(f"if n == 2: {deed}", 6, box, team=deed)
    assert found[:2] == [None, None]
    assert set(found[2:]) <= {None, "interpreter_crashed", "type_error", "recursion_error"}
    assert found[3:] == [None] * 3 or deed.startswith("import builtins")
    assert codes("pass", 6, box) == [None] * 6


def test_a_machine_without_the_confinement_is_told_and_refused_where_it_is_asked_for() -> None:
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        missing = box.missing()
    finally:
        box.close()
    strict = Sandbox(SandboxSettings(strict=True), timeout_s=100)
    try:
        if missing:
            with pytest.raises(StopError, match="this machine lacks"):
                codes("pass", 1, strict)
        else:
            assert codes("pass", 1, strict) == [None]
    finally:
        strict.close()


def test_the_filter_ends_each_call_one_way() -> None:
    """Each jump lands inside the program, and its last instruction lets the call pass."""
    for machine in ("x86_64", "aarch64"):
        for network in (False, True):
            program = list(confinement._program(machine, 4711, network=network))
            assert all(len(step) == 8 for step in program)
            for at, step in enumerate(program):
                code, yes, no = int.from_bytes(step[:2], "little"), step[2], step[3]
                if code & 7 == 5:
                    assert at + 1 + max(yes, no) < len(program)
            assert len(program) < 4096
            assert int.from_bytes(program[-1][4:], "little") == 0x7FFF0000


EPERM, ENOTTY, ENOSYS, EOPNOTSUPP = 1, 25, 38, 95
CALLS = [
    (("mmap", 0, 4096, 3, 0x22), 0),
    (("mmap", 0, 4096, 3, 0x20022), 0),
    (("mmap", 0, 4096, 3, 0x01), 0),
    (("mmap", 0, 4096, 3, 0x21), EPERM),
    (("mmap", 0, 4096, 3, 0x23), EPERM),
    (("mmap", 0, 4096, 3, 0x122), EPERM),
    (("fcntl", 3, 1), 0),
    (("fcntl", 3, 4, 0x800), 0),
    (("fcntl", 3, 4, 0x2800), EPERM),
    *((("fcntl", 3, command), EPERM) for command in (8, 10, 15, 1024, 1026)),
    (("ioctl", 3, 0x5401), 0),
    (("ioctl", 3, 0x541B), 0),
    (("ioctl", 3, 0x8901), ENOTTY),
    (("prctl", 15), 0),
    (("prctl", 1), EPERM),
    (("prctl", 4), EPERM),
    (("clone", 0x3D0F00), 0),
    (("clone", 0x3D0F00 - 0x400), EPERM),
    (("clone", 0x1200011), EPERM),
    (("clone3",), ENOSYS),
    (("fallocate", 3, 0, 0, 4096), EOPNOTSUPP),
    (("fallocate", 3, 1, 0, 4096), EOPNOTSUPP),
    (("close_range", 3, 9, 0), 0),
    (("close_range", 3, 9, 2), EPERM),
    (("socketpair", 1, 0x80001), 0),
    (("socketpair", 1, 2), EPERM),
    (("socketpair", 1, 5), EPERM),
    (("socketpair", 30, 1), EPERM),
    (("kill", 4711), 0),
    (("kill", 4712), EPERM),
    (("sendmsg", 3), EPERM),
]


@pytest.mark.parametrize(("call", "expected"), CALLS, ids=str)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_by_arguments(
    call: tuple[Any, ...], expected: int, machine: str
) -> None:
    name, *arguments = call
    number = (confinement._SPECIAL | confinement._OF_ITSELF)[name][machine]
    program = list(confinement._program(machine, 4711, network=False))
    assert verdict(program, machine, number, arguments) == expected
    assert verdict(program, machine, 0x3FFFFFFF, []) == ENOSYS
    open_to_all = list(confinement._program(machine, 4711, network=True))
    if name == "sendmsg":
        assert verdict(open_to_all, machine, number, arguments) == 0


def verdict(program: list[bytes], machine: str, number: int, arguments: list[int]) -> int:
    """Run the filter's program as the kernel does; return the error number, or 0."""
    data = struct.pack("<IIQ", number, confinement._ARCHITECTURES[machine], 0)
    data += struct.pack("<6Q", *arguments, *[0] * (6 - len(arguments)))
    at = loaded = 0
    while True:
        code, yes, no, value = struct.unpack("<HBBI", program[at])
        if code == 0x06:
            return 0 if value == 0x7FFF0000 else value & 0xFFFF
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}
            at += yes if holds[code] else no
        at += 1


# What comes back


def test_outcomes_are_those_of_code_that_runs_here() -> None:
    code = (
        "def transform(event):\n"
        "    n = event.data['id']\n"
        "    if n == 0: return None\n"
        "    if n == 1: return [event.child(0, {'a': 2**70}), event.child(1, None, name='other')]\n"
        "    if n == 2: return event.data['absent']\n"
        "    if n == 3: event.name = 'other'\n"
        "    if n == 4: event.op = 'delete'\n"
        "    if n == 5: event.id = 'forged'\n"
        "    if n == 6: event.intake_version = 1\n"
        "    if n == 7: return event.child(0, {})\n"
        "    if n == 8: return []\n"
        "    if n == 9: return 'x'\n"
        "    if n == 10: event.name = '\\0'\n"
        "    if n == 11: return [event]\n"
        "    if n == 12: raise SystemExit(3)\n"
        "    if n == 13: raise ValueError('\\ud800')\n"
        "    return event\n"
    )
    plan = Plan(pipeline(code))
    count = 15
    values = [encode(event(n)) for n in range(count)]
    events = [event(n) for n in range(count)]
    here = results(outcomes_of(events, InProcess().run(plan, events, values, None)))
    there = ran(code, count)
    assert there[2][2].stack_hash
    for (_, mine, my_fault), (_, theirs, their_fault) in zip(here, there, strict=True):
        assert theirs == mine
        if my_fault is not None and "\ud800" not in my_fault.message:
            assert their_fault == my_fault


VALUES = [
    2**200, -(2**63) - 1, -(2**64), 2**63, 0.1, float("inf"), Decimal("1.20"), Decimal("1E+99"), b"\xff\0",
    datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2), date(2026, 1, 2),
    clock_time(1, 2, 3), timedelta(days=-3, microseconds=5), "\ud800", {"\udfff": ["\ud800"]},
    {1: 2}, {"\udfff": {None: {0.5: 2**70}}}, None, True, [], {}, "x" * 100_000, {"a": {"b": [Decimal(1), 2**80]}},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_values_come_back_as_they_are(value: Any) -> None:
    content = pack_reply(b"s", [value], "")
    kinds, [found], _ = unpack(content)
    assert kinds == b"s"
    assert found == value
    assert type(found) is type(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.decimals(allow_nan=False) | st.datetimes() | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_any_value_comes_back_as_it_is(value: Any) -> None:
    assert unpack(pack([value])) == [value]


@pytest.mark.parametrize(
    "value", ["(x for x in [])", "lambda: 1", "type('Own', (), {})()", "object()", "1j"]
)
def test_a_result_that_cannot_leave_its_process_is_named(value: str) -> None:
    assert codes(f"if n == 1: event.data = {value}", 3) == [None, "result_invalid", None]


@pytest.mark.parametrize(
    "value",
    [
        "[[{}] * 1000] * 6_000",
        "[{'a': i} for i in range(1_400_000)]",
        "{(i,): 1 for i in range(9)}",
    ],
)
def test_a_result_that_grows_where_it_is_read_parks_alone(value: str) -> None:
    """Six million empty objects are 6 MB on their way, and 430 MB for who has them."""
    before = psutil.Process().memory_info().rss
    found = ran(code_of(f"if n == 2: event.data['x'] = {value}"), 4)
    assert [fault and fault.code for _, _, fault in found] == [None, None, "result_invalid", None]
    assert psutil.Process().memory_info().rss - before < 64 * 2**20


def test_more_children_than_a_worker_holds_are_not_made() -> None:
    reply = pack_reply(b"c", [[["a", "upsert", None]] * 600_000], "")
    kinds, bodies, _ = unpack(reply)
    with pytest.raises(TooLargeError):
        unpack_outcomes([event(1)], kinds, bodies)


SAME_HASH = f"[k * {2**61 - 1} for k in range(20_000)]"


def test_values_that_share_a_hash_cost_the_worker_no_time() -> None:
    """They cost the square of their number, wherever they are put into a set or a dict."""
    value = "type('Same', (set,), {'__iter__': lambda self: iter(SAME)})()"
    began = time.process_time()
    ran(f"{HEAD}SAME = {SAME_HASH}\n" + code_of(f"event.data['x'] = {value}"), 2)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "content",
    [
        b"\x81\x92\x01\x02\x00",
        b"\xc7\x15\x08\x91\x92\xd8\x02" + b"\x7f" * 16 + b"\x00",
        b"\xc7\x05\x08\x91\x92\x91\x01\x00",
    ],
    ids=["a list as a name", "a number of any size", "a list in pairs"],
)
def test_names_that_may_share_a_hash_are_not_read(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"invalid|ext_hook"):
        unpack(content)


def test_objects_with_strange_names_within_each_other_end() -> None:
    """Each level copies what is in it."""
    content = pack([])
    for _ in range(9):
        content = b"\xc9" + (len(content) + 3).to_bytes(4) + b"\x08\x91\x92\x01" + content
    with pytest.raises(ValueError, match="ext_hook"):
        unpack(content)
    value = "{0: event.data}"
    nested = f"for _ in range(20): event.data = {value}"
    assert codes(f"if n == 1:\n        {nested}", 3) == [None, "result_invalid", None]


def test_a_result_that_is_too_large_parks_alone() -> None:
    [_, (_, _, fault), _] = ran(code_of("if n == 1: event.data['x'] = 'x' * (65 * 2**20)"), 3)
    assert fault.code == "result_invalid"
    assert "at most 67,108,864" in fault.message


def test_a_result_that_holds_itself_parks_alone() -> None:
    assert codes("if n == 1: event.data['x'] = event.data", 3) == [None, "result_invalid", None]


def test_a_payload_that_only_the_careful_way_reads_is_read() -> None:
    """Escapes, numbers out of range, payloads from the store: not what the quick way takes."""
    quick = encode(event(1))
    assert b'"n":1' in quick
    values = [
        quick,
        quick.replace(b'"n":1', b'"n":1,"x":"\\u0000"'),
        quick.replace(b'"n":1', b'"n":1,"x":1e999'),
        quick.replace(b'"n":1', '"n":1,"x":"é"'.encode()),
    ]
    for part in ([0, 1, 2, 3], [0, 2], [0, 3], [2]):
        mine = [values[index] for index in part]
        here = chained(pipeline(n="int64", x="json"), mine)
        there = chained(pipeline(n="int64", x="json"), mine, code=sandbox())
        assert rows(there) == rows(here)
        assert faults(there) == faults(here)
        assert there.counts.to_json() == here.counts.to_json()


# Trying again


FLAKY = """
TRIES = {}
def transform(event):
    n = event.data["id"]
    event.data["n"] += 1
    TRIES[n] = TRIES.get(n, 0) + 1
    if TRIES[n] <= event.data.pop("fails"):
        %s
    event.data["tries"] = TRIES[n]
    return event
"""


def test_an_event_is_run_again_in_place_as_it_came() -> None:
    events = [event(n, {"id": n, "n": 0, "fails": 2 if n == 1 else 0}) for n in range(3)]
    given = pipeline(FLAKY % "raise ConnectionError('away')", n="int64", tries="int64")
    retries = Retries(3, backoff_s=0.01)
    result = chained(given, events, retries=retries, code=sandbox())
    assert result.failures == []
    found = sorted((row["id"], row["n"], row["tries"]) for row in rows(result))
    assert found == [(0, 1, 1), (1, 1, 3), (2, 1, 1)]
    assert 0.02 < retries.spent_s < 5


def test_a_budget_is_spent_once_also_across_crashes() -> None:
    code = "__import__('os')._exit(3) if n % 2 else None; raise OSError('away')"
    retries = Retries(3, backoff_s=0.2, budget_s=1.0)  # of 12 s that it would wait
    events = [event(n, {"id": n, "n": 0, "fails": 99}) for n in range(40)]
    result = chained(pipeline(FLAKY % code), events, retries=retries, code=sandbox())
    assert {failure.fault.code for failure in result.failures} == {
        "io_error",
        "interpreter_crashed",
    }
    assert 0.5 < retries.spent_s < 5


SPENDS = """
import sys
def transform(event):
    frame = sys._getframe()
    while "again" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["again"].retries._spent.value = float("%s")
    raise ConnectionError("away")
"""


@pytest.mark.parametrize("number", ["1e300", "-1e300", "nan"])
def test_code_that_says_what_it_spent_spends_at_most_what_it_has(number: str) -> None:
    retries = Retries(1, budget_s=5.0)
    chained(pipeline(SPENDS % number), [event(1)], retries=retries, code=sandbox())
    assert retries.spent_s == 5.0


def test_random_crashes_change_nothing_for_the_others() -> None:
    seed = 20261123
    rng = random.Random(seed)
    fatal = sorted(rng.sample(range(300), 12))
    found = codes(f"if n in {fatal}: os._exit(1)", 300)
    assert [n for n, code in enumerate(found) if code] == fatal, seed


def test_no_process_is_left_behind() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    box = Sandbox(SandboxSettings(), timeout_s=100)
    codes("if n in (1, 2): os._exit(1)", 4, box)
    box.close()
    wait_for(lambda: {one.pid for one in psutil.Process().children(recursive=True)} <= before)


@pytest.mark.parametrize("columns", [True, False], ids=["heads", "events"])
@pytest.mark.parametrize(
    ("code", "value", "expected"),
    [
        (
            "import sys; sys.set_int_max_str_digits(640)\ndef transform(event): return event\n",
            10**1000,
            ["interpreter_crashed", None],
        ),
        (
            "import waybill.processing.sandbox.child as child\n"
            "child._Child._run = lambda *a: child.pack(None)\n"
            "def transform(event): return event\n",
            1,
            ["interpreter_crashed", "interpreter_crashed"],
        ),
    ],
    ids=["a number that only it cannot read", "it says of all that it cannot read them"],
)
def test_a_process_that_cannot_read_what_others_can_is_not_asked_for_ever(
    columns: bool, code: str, value: int, expected: list[str | None]
) -> None:
    values = [encode(event(0, {"id": 0, "n": value})), encode(event(1))]
    groups = read_heads(values)
    assert groups is not None
    [(heads, _)] = groups
    events = heads if columns else [decode_head(one) for one in values]
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        found = results(outcomes_of(events, box.run(Plan(pipeline(code)), events, values, None)))
    finally:
        box.close()
    assert [fault and fault.code for _, _, fault in found] == expected


@pytest.mark.parametrize(
    "code",
    [
        "interpreter_crashed",
        "memory_error",
        "transformation_timeout",
        "code_invalid",
        "pipeline_held",
    ],
)
def test_no_event_gives_itself_a_type_that_only_waybill_gives(code: str) -> None:
    body = f"from waybill.errors import ParkError; raise ParkError({code!r}, 'mine', where='here')"
    [(_, _, fault)] = ran(code_of(body), 1)
    said = (fault.code, fault.message, fault.where)
    assert said == ("unexpected_error", f"{code}: mine", "here")


def test_a_process_that_says_that_its_pipeline_is_held_is_not_believed() -> None:
    lie = "import waybill.processing.transformation as t; t.describe = lambda e: t.Fault('pipeline_held', '')"
    assert codes(f"if n == 1:\n        {lie}; raise ValueError", 3, team="liar") == [
        None, "interpreter_crashed", None
    ]  # fmt: skip


def test_a_fault_that_is_made_up_is_none() -> None:
    """What answers instead of our own code can name any error type, or none."""
    for kinds, bodies in (
        (b"x", [["no_such_code", "m", "", "", []]]),
        (b"x", [["pipeline_held", "m", "", "", []]]),
        (b"x", [[5, "m", "", "", []]]),
        (b"x", ["abcde"]),
        (b"q", [None]),
        (b"n", [["\0", "upsert", {}]]),
        (b"n", [["x", "drop", {}]]),
        (b"n", [[None, "upsert", {}]]),
        (b"c", [[]]),
        (b"", []),
        (b"s", []),
        (b"ss", [1, 2]),
    ):
        with pytest.raises(Exception):  # noqa: B017 - any will do: it is met as a crash
            unpack_outcomes([event(1)], kinds, bodies)
    fault = unpack_outcomes([event(1)], b"x", [["value_error", "m", "w", "h", []]])
    assert fault == [Fault("value_error", "m", "w", "h")]
