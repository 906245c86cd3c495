"""A service of the embedded stack: start, healthy, stop.

Starting is idempotent and repairs: a healthy service is left alone, one that hangs is ended first,
what a killed one left behind is ended too, but no process that is registered itself. A service that
does not come up ends in a `ServiceError` with the last lines of its log.

To add a long-living process of our own, add one `Process` to `waybill.stack.embedded.services`::

    Process("trace-shipper", settings.home, [sys.executable, "-m", "waybill.cli", "traces", "ship"],
    env)
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from waybill.errors import RetryError
from waybill.stack import ports as loopback
from waybill.stack import processes, state_folder
from waybill.stack.processes import Launch, ProcessRecord

POLL_S = 0.1
SETTLED_AFTER_S = 1.0
RECORDED_WITHIN_S = 10.0
_ASK_S = 5.0


class ServiceError(RetryError):
    """A service did not come up; says which, why, and shows its last log lines."""


class Service(ABC):
    """One server process under ``<home>``. Subclasses say how it is prepared, started and asked.

    ``ports``: setting name of `StackSettings` -> port; checked before the start.
    """

    name: str
    after: tuple[str, ...] = ()
    """Services that have to be healthy before this one starts."""
    start_timeout_s = 60.0
    stop_grace_s = 15.0
    hanging_after_s = 15.0
    """A living process that does not answer for this long is ended and started anew."""
    advice = ""
    """What a user can do when this service does not come up."""

    cancelled = threading.Event()
    """Set (for all services of the process) when nobody waits any more: starts are given up."""

    def __init__(self, home: Path, ports: Mapping[str, int] | None = None) -> None:
        self.home = home.absolute()
        self.ports = dict(ports or {})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Return its log file."""
        return self.home / "logs" / f"{self.name}.log"

    @property
    def run_dir(self) -> Path:
        """Return the process registry."""
        return self.home / "run"

    def prepare(self) -> None:  # noqa: B027 - nothing to do, unless a service has
        """Write configuration and make folders; called before each start, repeatable."""

    def finish(self) -> None:  # noqa: B027 - as above
        """Do what is left once it answers (create a bucket); repeatable."""

    @abstractmethod
    def launch(self) -> None:
        """Start the process; it is found by `record` from then on."""

    @abstractmethod
    def healthy(self) -> bool:
        """Ask the server itself; False when it does not answer or is not ours."""

    def hangs(self) -> bool:
        """Say whether it lives and is of no use; the supervisor then starts it anew.

        Not of a server that may be at work: by default none is taken for that.
        """
        return False

    def record(self) -> ProcessRecord | None:
        """Return the registered process, living or not."""
        return processes.read_record(self.run_dir / f"{self.name}.json")

    def running(self) -> ProcessRecord | None:
        """Return the record when its process lives."""
        record = self.record()
        return record if record is not None and record.process() is not None else None

    @property
    def child(self) -> subprocess.Popen[bytes] | None:
        """Return the process that this object started, if it did."""
        return self._child

    def start(self) -> bool:
        """Bring it up; return False when it was up already.

        Raises:
            InputError: one of its ports is in use.
            ServiceError: it did not come up.
        """
        last = self.record()
        if self.running() is not None:
            if self._comes_up(self.hanging_after_s):
                self.finish()
                return False
            self.stop()
        self.end_leftovers(last)
        loopback.require_free(self.ports)
        state_folder.rotate(self.log)
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark = self.log.stat().st_size if self.log.exists() else 0
        self.prepare()
        if self.cancelled.is_set():
            raise ServiceError(f"{self.name} was not started: given up")
        self.launch()
        if not self._comes_up(self.start_timeout_s):
            raise self._failure(mark)
        self.finish()
        return True

    def stop(self) -> None:
        """End it with its whole session; nothing happens when it does not run."""
        self.recorded()
        record = self.record()
        if record is not None:
            processes.end(record, grace_s=self.stop_grace_s)
        self._reap()

    def recorded(self) -> None:
        """Wait until a process started a moment ago has written who it is, or ended."""
        deadline = time.monotonic() + RECORDED_WITHIN_S
        while self._child is not None and self._child.poll() is None and self.record() is None:
            if time.monotonic() > deadline:
                self._child.kill()  # it has run nothing of the service yet
            time.sleep(POLL_S)

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait(10)
            self._child = None

    def end_leftovers(self, last: ProcessRecord | None) -> None:
        """End what an earlier process of this service left (`processes`, P3, P4).

        ``last``: its record, as it was before it was stopped.
        """
        if last is not None:
            processes.end(last, grace_s=0)
        marks = {last.mark} if last is not None and last.mark else set()
        held = processes.mark_files(self.run_dir, self.name)
        spared = processes.registered_sessions(self.run_dir)
        processes.end_marked(marks, held, spared=spared)
        self._reap()

    def _comes_up(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.healthy():
                return True
            if self._is_dead():
                return False
            if self.cancelled.wait(POLL_S):
                return False
        return False

    def _is_dead(self) -> bool:
        if self._child is not None:
            return self._child.poll() is not None
        return self.running() is None

    def _failure(self, log_start: int) -> ServiceError:
        how = f"did not answer within {self.start_timeout_s:.0f} s"
        if self._is_dead():
            code = f" with exit code {self._child.returncode}" if self._child is not None else ""
            how = f"ended at its start{code}"
        self.stop()
        said = state_folder.tail(self.log, log_start) or "(nothing)"
        return ServiceError(
            f"{self.name} {how}. The end of its log, {self.log}:\n{said}\n{self.advice}".rstrip()
        )


class SpawnedService(Service):
    """A service that is a command in a session of its own."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line of the server."""

    def environment(self) -> Mapping[str, str]:
        """Return the whole environment of the server."""
        return os.environ

    def launch(self) -> None:
        """Start the process, recorded from its first instruction."""
        what = Launch(
            self.name, self.command(), self.environment(), self.home, self.log, dict(self.ports)
        )
        self._child = processes.spawn(self.run_dir, what)


def own_environment(home: Path) -> dict[str, str]:
    """Return the environment of our own processes: all else they read from ``stack.env``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return {**kept, "WAYBILL_HOME": str(home)}


def answers(url: str) -> bool:
    """Tell whether a server on loopback answers a GET with 200."""
    import httpx

    try:
        with httpx.Client(timeout=_ASK_S, trust_env=False) as client:
            return client.get(url).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


class Process(SpawnedService):
    """A long-living process of our own: a command, and how to tell that it works."""

    def __init__(
        self,
        name: str,
        home: Path,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        asks: Callable[[], bool] | None = None,
        after: tuple[str, ...] = (),
    ) -> None:
        super().__init__(home)
        self.name = name
        self.after = after
        self._command = list(command)
        self._env = dict(env)
        self._asks = asks

    def command(self) -> Sequence[str]:
        """Return the command it was made with."""
        return self._command

    def environment(self) -> Mapping[str, str]:
        """Return the environment it was made with."""
        return self._env

    def healthy(self) -> bool:
        """Ask as told, else: it has been running for a second."""
        if self._asks is not None:
            return self._asks()
        running = self.running()
        return running is not None and time.time() - running.path.stat().st_mtime > SETTLED_AFTER_S
