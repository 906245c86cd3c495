"""The embedded stack's supervisor: starts again what died, as a container's restart policy does.

A process of its own (``python -m waybill.stack.supervisor``), registered like every other, in a
session of its own: it goes on when the terminal closes. ``waybill up`` starts it last.

V1  What it watches stands in ``<home>/run/supervised``; the file is there from the first `up` that
    came to its end until `down`. Without it the supervisor ends, and nobody starts one.
V2  It starts things under the lock that `up` and `down` hold, so neither meets it at work. `down`
    removes the file and ends the supervisor before it asks for that lock, and once more under it.
V3  It may be killed at any line: what it started is registered by itself, and the next `up`, or
    supervisor, goes on from there. A supervisor that died is started by the next `waybill` command
    (`ensure`).
V4  It starts what is dead. A server that lives and does not answer may be at work (PostgreSQL
    recovers for minutes) and is left alone, but for Airflow's components: one that gave no sign of
    life for ``hanging_after_s``, and for as long again, is ended and started anew
    (`Service.hangs`, `Service.start`). What a service stands on must answer before it is started.

After a death a service is started at once, then with waits of 2 s to 1 min; two minutes of life
begin that anew. Which exit code a process left is known only of those that the supervisor itself
started.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from waybill.back_off import BackOff
from waybill.errors import RetryError, WaybillError
from waybill.stack import credentials, processes, state_folder
from waybill.stack.service import Process, Service, ServiceError, own_environment

NAME = "supervisor"
_LOG = logging.getLogger(__name__)
_LOOK_S = 1.0
_ASK_S = 10.0
"""Time between two questions to a service that lives, whether it hangs."""
_BACK_OFF = BackOff(2.0, 60.0)


@dataclass(slots=True)
class Restarts:
    """How often a service was started again, and how it ended last."""

    restarts: int = 0
    last_exit: str = ""
    """When it was found dead, and what is known of its end."""
    problem: str = ""
    """Why it did not come up when it was last started; empty: it did."""


def state_file(run_dir: Path) -> Path:
    """Return the file that names what is supervised."""
    return run_dir / "supervised"


def read_state(run_dir: Path) -> dict[str, Restarts] | None:
    """Return {service: restarts} of what is supervised; None: nothing is to be."""
    try:
        raw = json.loads(state_file(run_dir).read_text(encoding="utf-8"))
        return {str(name): Restarts(**told) for name, told in raw.items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        _LOG.warning("%s cannot be read: %s; `waybill up` writes it anew", run_dir, error)
        return None


def write_state(run_dir: Path, state: Mapping[str, Restarts]) -> None:
    """Write what is supervised, whole or not at all."""
    text = json.dumps({name: asdict(told) for name, told in state.items()}, indent=1)
    state_folder.write_private(state_file(run_dir), text + "\n")


def process(home: Path, after: Sequence[str]) -> Process:
    """Return the supervisor as a service of the stack."""
    command = [sys.executable, "-m", "waybill.stack.supervisor"]
    return Process(NAME, home, command, own_environment(home), after=tuple(after))


def begin(home: Path, names: Sequence[str], *, anew: bool = False) -> bool:
    """Have these services supervised; False when the supervisor ran. The caller holds the lock.

    Args:
        home: the state folder.
        names: of the services.
        anew: end one that runs first: what it starts has its environment, so it needs the caller's.
    """
    run_dir = home / "run"
    known = read_state(run_dir) or {}
    write_state(run_dir, {name: known.get(name, Restarts()) for name in names})
    own = process(home, ())
    if anew:
        own.stop()
    return own.start()


def end(home: Path) -> None:
    """End the supervisor, and have nobody start it again; what it watched runs on."""
    state_file(home / "run").unlink(missing_ok=True)
    process(home, ()).stop()


def ensure(home: Path) -> bool:
    """Start the supervisor if it should run and has died; returns whether it was started.

    Costs a look at one file where no stack runs. Does nothing while `up` or `down` is at work.

    Raises:
        ServiceError: it ended at its start.
    """
    run_dir = home.absolute() / "run"
    if not state_file(run_dir).exists():
        return False
    own = process(home.absolute(), ())
    if own.running() is not None:
        return False
    try:
        with state_folder.exclusive(run_dir / ".lock", timeout_s=0):
            if not state_file(run_dir).exists() or own.running() is not None:
                return False
            return own.start()
    except ServiceError:
        raise
    except RetryError:
        return False


class Supervisor:
    """Watches the services of one state folder.

    Args:
        home: the state folder.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._run_dir = home / "run"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, int] = {}
        """In a row; the first waits for nothing."""
        self._next_try: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._ask_next: dict[str, float] = {}
        self._ill_since: dict[str, float] = {}
        self._services: Sequence[Service] = ()
        self._settings_of = 0

    def run(self) -> None:
        """Watch until nothing is to be supervised any more."""
        while (state := read_state(self._run_dir)) is not None:
            try:
                self.look(state)
            except (WaybillError, OSError, ValueError) as error:
                _LOG.warning("%s", error)
            time.sleep(_LOOK_S)
        _LOG.info("nothing is to be supervised; the supervisor ends")

    def look(self, state: Mapping[str, Restarts]) -> None:
        """Start what is dead and due; wait until all of it has come up or failed.

        Raises:
            WaybillError: a service cannot be asked.
            OSError: the state folder cannot be read or written.
        """
        services = {one.name: one for one in self._supervised() if one.name in state}
        if not any(self._is_due(one) for one in services.values()):
            return
        try:
            with state_folder.exclusive(self._run_dir / ".lock", timeout_s=0):
                known = read_state(self._run_dir)
                if known is not None:
                    self._start_dead(services, known)
        except RetryError:
            return  # `up` or `down` is at work: look again later

    def _supervised(self) -> Sequence[Service]:
        """Return the stack's services; made anew when `up` has written other settings."""
        from waybill.settings import ENV_FILE_NAME, Settings
        from waybill.stack.embedded import Stack

        written = (self._home / ENV_FILE_NAME).stat().st_mtime_ns
        if written != self._settings_of:
            stack = Stack(Settings(home=self._home))
            self._services = stack.supervised(credentials.read(self._home))
            self._settings_of = written
        return self._services

    def _is_due(self, service: Service) -> bool:
        now = time.monotonic()
        if service.running() is not None and not self._hangs(service):
            if now - self._started.get(service.name, now) > _BACK_OFF.healthy_s:
                self._starts.pop(service.name, None)
            return False
        return now >= self._next_try.get(service.name, 0.0)

    def _hangs(self, service: Service) -> bool:
        """Say whether it lives, and was of no use for long."""
        name, now = service.name, time.monotonic()
        if now >= self._ask_next.get(name, 0.0):
            self._ask_next[name] = now + _ASK_S
            if service.hangs():
                self._ill_since.setdefault(name, now)
            else:
                self._ill_since.pop(name, None)
        return now - self._ill_since.get(name, now) >= service.hanging_after_s

    def _start_dead(self, services: Mapping[str, Service], state: dict[str, Restarts]) -> None:
        due = [one for one in services.values() if self._is_due(one)]
        ready = [
            one for one in due if all(services[n].healthy() for n in one.after if n in services)
        ]
        if not ready:
            return
        for service in ready:
            told = state.setdefault(service.name, Restarts())
            told.restarts += 1
            told.last_exit = self._last_exit(service)
            _LOG.warning("%s is started again: dead or hanging at %s", service.name, told.last_exit)
        write_state(self._run_dir, state)
        with ThreadPoolExecutor(len(ready)) as pool:
            problems = list(pool.map(self._start, ready))
        for service, problem in zip(ready, problems, strict=True):
            state[service.name].problem = problem
        write_state(self._run_dir, state)

    def _start(self, service: Service) -> str:
        """Start a service; returns why it did not come up, or nothing."""
        name = service.name
        wait_s = _BACK_OFF.wait_s(self._starts.get(name, 0))
        self._starts[name] = self._starts.get(name, 0) + 1
        try:
            service.start()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are watched on
            expected = isinstance(error, WaybillError)
            _LOG.error("%s did not come up: %s", name, error, exc_info=not expected)
            return str(error).partition("\n")[0]
        finally:
            self._next_try[name] = time.monotonic() + wait_s
            self._started[name] = time.monotonic()
            self._ill_since.pop(name, None)
            if service.child is not None:
                self._children[name] = service.child
        _LOG.info("%s is up again", name)
        return ""

    def _last_exit(self, service: Service) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if service.running() is not None:
            return f"{now}, it lived but gave no sign of it"
        child = self._children.pop(service.name, None)
        code = None if child is None else child.poll()
        if code is None:
            return f"{now}, exit code not seen"
        return f"{now}, " + (f"exit code {code}" if code >= 0 else f"signal {-code}")


def main() -> None:
    """Run for the state folder ``WAYBILL_HOME`` until `down`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    os.environ.pop(processes.MARK_VARIABLE, None)  # PostgreSQL is to outlive the supervisor (P4)
    with suppress(KeyboardInterrupt):
        Supervisor(Path(os.environ["WAYBILL_HOME"])).run()


if __name__ == "__main__":
    main()
