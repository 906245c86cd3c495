"""Keep one application running: what to do at each look at it. No Airflow, no clock of its own.

Invariants
I1  Nothing is started while it is not known whether the application runs (the library could
    not tell): a second one would be fenced by its lease, but is not provoked.
I2  An application that runs is adopted, whoever started it: a supervisor owns no process.
I3  A dead application is started again for ever; the wait before each start doubles from
    ``first_s`` to ``longest_s``, and begins anew once it ran for ``healthy_s``.
I4  Only an explicit request stops it. The end of a supervisor leaves it running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from waybill.back_off import BackOff

if TYPE_CHECKING:
    from collections.abc import Callable


class Status(Protocol):
    """What a look at the application shows."""

    @property
    def pid(self) -> int | None:
        """Process id of the driver; ``None`` when there never was one."""

    @property
    def running(self) -> bool:
        """The process with this id is the one that was started, and it is alive."""


class Application(Protocol):
    """One application, wherever it runs."""

    def start(self) -> int:
        """Start it outside the caller's lifetime and return its process id."""

    def status(self) -> Status:
        """Look at it."""

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""

    def last_words(self) -> str:
        """Return the end of its log."""


class Journal(Protocol):
    """Where a supervisor says what it saw and did."""

    def info(self, message: str, *values: object) -> None:
        """Say what happened."""

    def warning(self, message: str, *values: object) -> None:
        """Say what went wrong and is being mended."""


RESTARTS = BackOff(1.0, 300.0)
"""Waits between a death and the next start."""


class Supervisor:
    """Start, adopt, restart or stop one application; call :meth:`look` every few seconds.

    :param application: what is supervised.
    :param wanted: whether it shall run now.
    :param journal: where each change is said, restarts with their number.
    :param on_start: called with the process id after each start, to be remembered.
    """

    def __init__(
        self,
        application: Application,
        *,
        wanted: Callable[[], bool],
        journal: Journal,
        on_start: Callable[[int], None] = lambda _pid: None,
        back_off: BackOff | None = None,
    ) -> None:
        self._application = application
        self._wanted = wanted
        self._journal = journal
        self._on_start = on_start
        self._back_off = back_off or RESTARTS
        self.pid: int | None = None
        """Of the application that was seen running last; ``None`` when it is not running."""
        self.starts = 0
        self._deaths = 0
        self._seen_since = 0.0
        self._next_start = 0.0
        self._unwanted = False

    def look(self, now: float) -> None:
        """Look once and do what follows. ``now``: seconds of a clock that never goes back.

        :raises waybill.errors.InputError: it cannot be started as things are (no Java, …).
        """
        from waybill.errors import RetryError

        wanted = self._wanted()
        try:
            status = self._application.status()
        except RetryError as error:
            self._journal.warning("not known whether it runs, so nothing is started: %s", error)
            return
        if not wanted:
            self._keep_stopped(status)
        elif status.running:
            self._adopt(status, now)
        else:
            self._restart(now)

    def _keep_stopped(self, status: Status) -> None:
        if not self._unwanted:
            self._journal.info("asked to stop: it is stopped and kept so until asked to run")
        if status.running:
            self._application.stop()
            self._journal.info("stopped pid %s", status.pid)
        self._unwanted, self.pid, self._deaths, self._next_start = True, None, 0, 0.0

    def _adopt(self, status: Status, now: float) -> None:
        self._unwanted = False
        if status.pid != self.pid:
            self._journal.info("runs as pid %s", status.pid)
            self.pid, self._seen_since = status.pid, now

    def _restart(self, now: float) -> None:
        self._unwanted = False
        if self.pid is not None:
            self._note_death(now)
        if now >= self._next_start:
            self._start(now)

    def _note_death(self, now: float) -> None:
        lived_s = now - self._seen_since
        self._deaths = self._back_off.failures(self._deaths, lived_s)
        wait_s = self._back_off.wait_s(self._deaths)
        self._next_start = now + wait_s
        self._journal.warning(
            "pid %s died after %.0f s (%d in a row); next start in %.1f s; the end of its log:\n%s",
            self.pid,
            lived_s,
            self._deaths,
            wait_s,
            self._application.last_words(),
        )
        self.pid = None

    def _start(self, now: float) -> None:
        from waybill.errors import RetryError

        try:
            pid = self._application.start()
        except RetryError as error:
            self._deaths += 1
            self._next_start = now + self._back_off.wait_s(self._deaths)
            self._journal.warning("start failed, next in %.0f s: %s", self._next_start - now, error)
            return
        self.starts += 1
        self.pid, self._seen_since = pid, now
        self._on_start(pid)
        self._journal.info("started as pid %s (start %d of this supervisor)", pid, self.starts)


__all__ = ["RESTARTS", "Application", "Journal", "Status", "Supervisor"]
