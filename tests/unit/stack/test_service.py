"""What every service does, shown on a small one."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import psutil
import pytest
from tests.servers import wait_for

from waybill.errors import InputError
from waybill.settings import StackSettings
from waybill.stack import ports, processes, service
from waybill.stack.service import Process, Service, ServiceError, SpawnedService

LISTEN = (
    "import socket, sys, time; s = socket.socket();"
    "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
    "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); print('listening', flush=True)\n"
    "while True: s.accept()[0].close()"
)

LEAVES_A_WORKER = f"""
import os, setproctitle, subprocess, time
if os.fork() == 0:
    setproctitle.setproctitle("worker " * 1000)
    time.sleep(600)
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sleep", "601"], start_new_session=True)
{LISTEN}
"""
"""A worker in its session, and two processes with sessions of their own."""


class Listener(SpawnedService):
    """A server that accepts connections; ``code`` may make it do otherwise."""

    name = "listener"
    start_timeout_s = hanging_after_s = 300.0
    stop_grace_s = 2.0
    advice = "Ask Waybill."

    def __init__(self, home: Path, code: str = LISTEN, port: int = 0) -> None:
        port = port or ports.with_random_ports(StackSettings()).kafka_port
        super().__init__(home, {"kafka_port": port})
        self.code = code
        self.finished = 0

    def command(self):
        return [sys.executable, "-c", self.code, str(self.ports["kafka_port"])]

    def healthy(self) -> bool:
        if self.running() is None:
            return False
        try:
            socket.create_connection(("127.0.0.1", self.ports["kafka_port"]), 1).close()
        except OSError:
            return False
        return True

    def finish(self) -> None:
        self.finished += 1


class Thinker(Listener):
    """A server that is waited for briefly, and only once its code runs."""

    start_timeout_s = 1.0

    def launch(self) -> None:
        super().launch()
        wait_for(lambda: "thinking" in self.log.read_text())


@pytest.fixture
def listener(tmp_path: Path):
    service = Listener(tmp_path)
    yield service
    service.stop()


def test_starting_twice_starts_one_process(listener: Listener) -> None:
    assert listener.start() is True
    first = listener.running()
    assert Listener(listener.home, port=listener.ports["kafka_port"]).start() is False
    assert listener.running() == first
    assert first is not None
    assert first.log == str(listener.log)


def test_stop_leaves_no_process_and_no_record(listener: Listener) -> None:
    listener.start()
    record = listener.running()
    assert record is not None
    Listener(listener.home, port=listener.ports["kafka_port"]).stop()
    assert record.process() is None
    assert not record.path.exists()
    listener.stop()


def test_a_killed_service_is_started_again(listener: Listener) -> None:
    listener.start()
    record = listener.running()
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: record.process() is None)
    assert listener.start() is True
    again = listener.running()
    assert again is not None
    assert again.pid != record.pid


def test_a_restart_ends_what_a_killed_service_left_but_no_registered_process(
    tmp_path: Path,
) -> None:
    service = Listener(tmp_path, LEAVES_A_WORKER)
    service.start()
    record = service.running()
    assert record is not None
    left = wait_for(lambda: _three(psutil.Process(record.pid).children()))
    application, stray = (next(p for p in left if p.cmdline()[-1] == s) for s in ("600", "601"))
    [worker] = [p for p in left if p not in (application, stray)]
    processes.register(tmp_path / "run", "spark-x", application.pid)
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: record.process() is None)
    try:
        assert Listener(tmp_path, port=service.ports["kafka_port"]).start() is True
        assert not processes._lives(worker)
        assert not processes._lives(stray)
        assert processes._lives(application)
    finally:
        service.stop()
        application.kill()


def _three(found: list[psutil.Process]) -> list[psutil.Process]:
    """Return the children once each is what it will be."""
    ready = len(found) == 3 and sum(p.name() == "sleep" for p in found) == 2
    return found if ready else []


def test_a_service_without_its_methods_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"abstract methods .*healthy.* launch"):
        Service(tmp_path)
    with pytest.raises(TypeError, match=r"abstract methods .*command.* healthy"):
        SpawnedService(tmp_path)


def test_a_service_that_dies_at_its_start_shows_its_log_and_exit_code(tmp_path: Path) -> None:
    service = Listener(tmp_path, "import sys; print('no disk today'); sys.exit(3)")
    with pytest.raises(ServiceError) as error:
        service.start()
    words = str(error.value)
    assert "listener ended at its start with exit code 3" in words
    assert "no disk today" in words
    assert str(service.log) in words
    assert "Ask Waybill." in words
    assert service.running() is None


def test_an_older_failure_in_the_log_is_not_shown(tmp_path: Path) -> None:
    for words in ("first failure", "second failure"):
        with pytest.raises(ServiceError) as error:
            Listener(tmp_path, f"raise SystemExit({words!r})").start()
    assert "first" not in str(error.value)


def test_a_service_that_never_answers_is_ended(tmp_path: Path) -> None:
    service = Thinker(tmp_path, "import time; print('thinking', flush=True); time.sleep(600)")
    with pytest.raises(ServiceError, match=r"did not answer within 1 s(.|\n)*thinking"):
        service.start()
    assert service.record() is None


def test_a_living_service_that_stopped_answering_is_replaced(
    tmp_path: Path, listener, monkeypatch
) -> None:
    once = LISTEN.replace(
        "while True: s.accept()[0].close()", "s.accept(); s.close(); time.sleep(600)"
    )
    deaf = Listener(tmp_path, once, listener.ports["kafka_port"])
    deaf.start()
    record = deaf.running()
    assert record is not None
    wait_for(lambda: not deaf.healthy())
    monkeypatch.setattr(listener, "hanging_after_s", 1.0)
    assert listener.start() is True
    assert record.process() is None
    assert listener.healthy()


def test_a_port_in_use_is_found_before_anything_starts(tmp_path: Path, listener: Listener) -> None:
    listener.start()
    other = Listener(tmp_path / "other", port=listener.ports["kafka_port"])
    with pytest.raises(InputError, match=f"port {listener.ports['kafka_port']} is in use"):
        other.start()
    assert other.record() is None


def test_a_large_log_is_set_aside(listener: Listener) -> None:
    listener.log.parent.mkdir(parents=True)
    with listener.log.open("wb") as log:
        log.truncate(11 * 1024**2)
    listener.start()
    assert listener.log.stat().st_size < 1000
    assert listener.log.with_name("listener.log.1").exists()


def test_a_process_of_our_own_is_five_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    shipper = Process("shipper", tmp_path, command, os.environ)
    assert shipper.start() is True
    assert shipper.start() is False
    shipper.stop()
    assert shipper.running() is None


def test_a_process_that_ends_at_once_is_a_failure(tmp_path: Path, monkeypatch) -> None:
    # "at once" takes Python seconds on a busy machine
    monkeypatch.setattr(service, "SETTLED_AFTER_S", 300.0)
    command = [sys.executable, "-c", "raise SystemExit('no spool')"]
    with pytest.raises(ServiceError, match=r"shipper ended at its start(.|\n)*no spool"):
        shipper = Process("shipper", tmp_path, command, os.environ)
        shipper.start_timeout_s = 600.0
        shipper.start()


def test_a_service_stopped_the_moment_it_was_started_is_gone(listener: Listener) -> None:
    listener.launch()
    child = listener._child
    assert child is not None
    listener.stop()
    assert child.poll() is not None
    assert listener.record() is None


def test_a_start_that_is_given_up_leaves_nothing(listener: Listener, monkeypatch) -> None:
    monkeypatch.setattr(Service, "cancelled", threading.Event())
    Service.cancelled.set()
    with pytest.raises(ServiceError, match="given up"):
        listener.start()
    assert listener.record() is None
