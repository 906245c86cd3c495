"""The local capacity enhancer: workers above the configured number where the node has room.

Tasks that wait for a network or a disk leave the CPU idle: more of them run at once at no cost.
Tasks that burn CPU do not, and more of them only slow each other. So a worker is added where all
are busy while CPU, disks and memory have room, and taken away where one of them has none, or where
nobody needs it; one at a time, after several looks that say the same, never below the tasks that
run, and never below the number that is configured.

``adjust`` is pure; ``Enhancer`` looks, acts and reports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from waybill.capacity.records import NodeReport
from waybill.errors import InputError, RetryError

_LOG = logging.getLogger(__name__)
_AGREEING = 2
"""So many looks in a row must want the same step,"""
_IDLE_AGREEING = 6
"""and so many that a worker is not needed."""
_CELERY_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class EnhancerLimits:
    """How far a node goes."""

    configured: int
    """Workers by configuration; never fewer."""
    most: int
    """Never more."""
    cpu_room: float = 0.6
    """Below it there is room for a worker,"""
    cpu_full: float = 0.9
    """and above it one is too many; in between nothing changes."""
    io_wait_room: float = 0.3
    io_wait_full: float = 0.6
    memory_room: float = 0.8
    memory_full: float = 0.92

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            InputError: what, and what it must be.
        """
        if not 1 <= self.configured <= self.most:
            raise InputError(
                f"a node has at least one worker, and at most WAYBILL_CAPACITY__MAX_WORKERS: found "
                f"{self.configured} configured and at most {self.most}"
            )


@dataclass(frozen=True, slots=True)
class Usage:
    """How busy a node is; shares from 0 to 1."""

    cpu: float
    io_wait: float
    memory: float


@dataclass(frozen=True, slots=True)
class EnhancerState:
    """What is remembered from look to look."""

    wish: int = 0
    """1, -1 or 0: the step that the last looks wanted,"""
    looks: int = 0
    """and how many of them in a row."""


def adjust(
    state: EnhancerState, usage: Usage, workers: int, running: int, limits: EnhancerLimits
) -> tuple[int, str, EnhancerState]:
    """Return the step (1, 0, -1), why, and what is to be remembered.

    Args:
        state: of the look before.
        usage: of the node.
        workers: that it has.
        running: tasks on it.
        limits: of the node.
    """
    wish, why, needed = _wish(usage, workers, running, limits)
    looks = state.looks + 1 if wish == state.wish else 1
    if wish == 0 or looks < needed:
        return 0, why, EnhancerState(wish, looks)
    return wish, why, EnhancerState()


def _wish(usage: Usage, workers: int, running: int, limits: EnhancerLimits) -> tuple[int, str, int]:
    """Return the step that this look wants, why, and how many looks must agree."""
    can_go = workers > max(limits.configured, running)
    if full := _beyond(usage, limits, "full"):
        if can_go:
            return -1, full, _AGREEING
        return 0, f"{full}; {running} tasks run, {limits.configured} workers stay", _AGREEING
    if workers < limits.configured:
        return 1, f"fewer than the {limits.configured} that are configured", 1
    if running < workers:
        idle = can_go and running < workers - 1
        return -idle, f"{running} tasks run on {workers} workers", _IDLE_AGREEING
    short = _beyond(usage, limits, "room")
    if not short and workers < limits.most:
        return 1, f"all {workers} workers are busy, and CPU, disks and memory have room", _AGREEING
    return 0, short or f"all are busy; {limits.most} workers are the most", _AGREEING


def _beyond(usage: Usage, limits: EnhancerLimits, level: str) -> str:
    """Return what is beyond a level, in words; "": nothing."""
    seen = {"CPU": usage.cpu, "I/O wait": usage.io_wait, "memory": usage.memory}
    names = ("cpu", "io_wait", "memory")
    over = [
        f"{title} {value:.0%}"
        for (title, value), name in zip(seen.items(), names, strict=True)
        if value > getattr(limits, f"{name}_{level}")
    ]
    return ", ".join(over)


class WorkerPool(Protocol):
    """The workers of a node, by the executor's own means."""

    def read(self) -> tuple[int, int]:
        """Return (workers, running tasks).

        Raises:
            RetryError: who knows does not answer.
            InputError: who knows refuses.
        """

    def resize(self, workers: int, *, now: int) -> None:
        """Have so many workers instead of ``now``; raises as ``read``."""

    def drain(self) -> None:
        """Take no new task; again changes nothing. Raises as ``read``."""


class Enhancer:
    """Looks at its node, adds or takes a worker, and says what it saw.

    Args:
        pool: the workers.
        usage: returns how busy the node is since the last call.
        limits: of the node.
    """

    def __init__(
        self, pool: WorkerPool, usage: Callable[[], Usage], limits: EnhancerLimits
    ) -> None:
        self._pool, self._usage, self._limits = pool, usage, limits
        self._state = EnhancerState()
        self._changed = ""

    def look(self, *, drains: bool = False) -> NodeReport:
        """Look once.

        Args:
            drains: the node is to take no new task.

        Raises:
            RetryError: the executor does not answer.
        """
        if drains:  # first: a task that came in between would not be counted
            self._pool.drain()
        workers, running = self._pool.read()
        usage = self._usage()
        if drains:
            self._changed = "it drains: no new task is taken"
        else:
            step, why, self._state = adjust(self._state, usage, workers, running, self._limits)
            if step:
                self._pool.resize(workers + step, now=workers)
                self._changed = f"{workers} -> {workers + step} workers: {why}"
                _LOG.info("%s", self._changed)
                workers += step
        shares = (usage.cpu, usage.io_wait, usage.memory)
        return NodeReport(workers, running, *shares, why=self._changed, drains=drains)


class MachineUsage:
    """How busy this machine is, since the call before (psutil)."""

    def __init__(self) -> None:
        import psutil

        psutil.cpu_times_percent()  # the first call has nothing to compare with

    def __call__(self) -> Usage:
        """Return it."""
        import psutil

        shares = psutil.cpu_times_percent()
        io_wait = getattr(shares, "iowait", 0.0) / 100
        idle = shares.idle / 100
        memory = psutil.virtual_memory().percent / 100
        return Usage(_share(1 - idle - io_wait), _share(io_wait), memory)


class AirflowPool:
    """The slots of one of Airflow's pools, through its public API: for the LocalExecutor.

    Args:
        read: returns (slots, slots in use).
        write: sets the slots.
    """

    def __init__(self, read: Callable[[], tuple[int, int]], write: Callable[[int], None]) -> None:
        self._read, self._write = read, write

    def read(self) -> tuple[int, int]:
        """Return (slots, running tasks)."""
        return self._read()

    def resize(self, workers: int, *, now: int) -> None:
        """Set the slots."""
        del now
        self._write(workers)

    def drain(self) -> None:
        """Set no slots: what runs goes on."""
        if self._read()[0]:
            self._write(0)


class CeleryPool:
    """A worker of Celery, through its remote control.

    Args:
        broker: its address.
        worker: ``celery@<host>``.
        queues: that it takes tasks from.
    """

    def __init__(self, broker: str, worker: str, queues: Collection[str]) -> None:
        try:
            import celery
        except ImportError as error:
            raise InputError(
                "WAYBILL_CAPACITY__EXECUTOR is celery, and Celery is not installed here: it comes "
                "with apache-airflow-providers-celery"
            ) from error
        self._app = celery.Celery(broker=broker)
        self._app.conf.broker_connection_retry_on_startup = False
        connection = self._app.connection_for_write()
        self._away = (*connection.connection_errors, *connection.channel_errors)
        self._to, self._queues = [worker], tuple(queues)

    def read(self) -> tuple[int, int]:
        """Return (processes, tasks that run or were taken)."""
        workers, _ = pool_size(self._asked("stats"))
        return workers, len(self._asked("active")) + len(self._asked("reserved"))

    def resize(self, workers: int, *, now: int) -> None:
        """Grow or shrink; Celery takes idle processes away only, and refuses where all are busy.

        None is taken away while one is starting: it would not heed the signal to end, and Celery
        would count it as gone.
        """
        if workers < now and (starting := pool_size(self._asked("stats"))[1]):
            raise RetryError(
                f"Celery's worker {self._to[0]} keeps its {now} processes: "
                f"{starting} of them still start"
            )
        control = self._app.control
        ask = control.pool_grow if workers > now else control.pool_shrink
        given = {"destination": self._to, "reply": True, "timeout": _CELERY_ANSWER_S}
        answers = self._answered(lambda: ask(abs(workers - now), **given))
        answer = {name: said for one in answers for name, said in one.items()}.get(self._to[0], {})
        if "ok" not in answer:
            why = answer.get("error", "it does not answer")
            raise RetryError(f"Celery's worker {self._to[0]} keeps its {now} processes: {why}")

    def drain(self) -> None:
        """Have it take tasks from no queue."""
        for queue in self._queues:
            cancel = partial(self._app.control.cancel_consumer, queue, destination=self._to)
            self._answered(cancel)

    def _asked(self, method: str) -> Any:
        inspect = self._app.control.inspect(destination=self._to, timeout=_CELERY_ANSWER_S)
        answers = self._answered(getattr(inspect, method))
        if not answers or self._to[0] not in answers:
            raise RetryError(f"the Celery worker {self._to[0]} does not answer")
        answer = answers[self._to[0]]
        if isinstance(answer, Mapping) and "error" in answer:  # while it starts, or ends
            why = f"{answer['error']!s:.200}"
            raise RetryError(f"the Celery worker {self._to[0]} cannot say: {why}")
        return answer

    def _answered(self, ask: Callable[[], Any]) -> Any:
        from kombu.exceptions import OperationalError

        try:
            return ask()
        except (OperationalError, OSError, *self._away) as error:
            raise RetryError(f"Celery's broker does not answer: {error}") from error


def pool_size(stats: object) -> tuple[int, int]:
    """Return (processes of a Celery worker, those of them that take no task yet).

    Args:
        stats: that it answers. Where the kind of pool does not say who starts, nobody does.

    Raises:
        RetryError: it says nothing of a pool: it has none yet, or none any more.
    """
    pool = stats.get("pool") if isinstance(stats, Mapping) else None
    if not isinstance(pool, Mapping):
        raise RetryError(f"the Celery worker says nothing of its pool: {pool!r:.100}")
    processes = len(pool.get("processes") or ())
    try:
        ready = int(pool["writes"]["inqueues"]["total"])
    except (KeyError, TypeError, ValueError):  # another pool than Celery's own of processes
        ready = processes
    try:
        workers = processes or int(pool.get("max-concurrency", 0))
    except (TypeError, ValueError) as error:
        raise RetryError(
            f"the Celery worker does not say how large its pool is: {error}"
        ) from error
    return workers, max(0, processes - ready)


class SparkWorker:
    """A worker of Spark's standalone cluster: its cores are Spark's to give, none is added.

    Args:
        cores: that it offers.
        used: returns how many of them executors have.
        decommission: has it take no new executor, and those that it has no new task; they end
            behind the tasks that they run. Again changes nothing.
    """

    def __init__(
        self, cores: int, used: Callable[[], int], decommission: Callable[[], None]
    ) -> None:
        self._cores, self._used, self._decommission = cores, used, decommission

    def read(self) -> tuple[int, int]:
        """Return (cores, cores in use)."""
        return self._cores, self._used()

    def resize(self, workers: int, *, now: int) -> None:
        """Refuse: a node has the cores that it has."""
        raise InputError(f"a Spark node has the cores that it has: {now}, not {workers}")

    def drain(self) -> None:
        """Decommission it."""
        self._decommission()


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


__all__ = [
    "AirflowPool",
    "CeleryPool",
    "Enhancer",
    "EnhancerLimits",
    "EnhancerState",
    "MachineUsage",
    "SparkWorker",
    "Usage",
    "WorkerPool",
    "adjust",
]
