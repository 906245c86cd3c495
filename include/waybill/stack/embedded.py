"""The embedded stack as one thing: up, status, down, wipe.

Services start in parallel, each after those it names in ``after``. Whatever the reason why `up`
ends, what runs is registered: the next `up` completes it, `down` ends it. `up` and `down` exclude
each other by a lock.

The supervisor (`supervisor`) starts again what dies between `up` and `down`.

Order of `down`: the supervisor, Airflow (nobody starts new work), what other rooms registered
(Spark applications), the rest, and last any process that a stopped service left in a session of its
own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

import psutil
from pydantic import SecretStr

from waybill.errors import InputError
from waybill.settings import ENV_FILE_NAME, Settings
from waybill.stack import (
    credentials,
    environment,
    jars,
    ports,
    processes,
    state_folder,
    supervisor,
)
from waybill.stack.airflow import COMPONENTS, Airflow, AirflowComponent
from waybill.stack.credentials import FILE as CREDENTIALS_FILE
from waybill.stack.credentials import Credentials
from waybill.stack.java import find_java
from waybill.stack.kafka import Kafka
from waybill.stack.postgres import Postgres
from waybill.stack.processes import ProcessRecord
from waybill.stack.seaweed import SeaweedFS
from waybill.stack.service import Process, Service, answers, own_environment

DATA = (
    "run",
    "logs",
    "postgres",
    "postgres.new",
    "kafka",
    "s3",
    "airflow",
    "wal",
    "spark",
    "traces",
    "declarations",
)
FILES = (CREDENTIALS_FILE, ENV_FILE_NAME, "demo.json")
COLLECTOR = "collector"
FOREIGN_GRACE_S = 20.0
_WAIT_FOR_STARTS_S = 1800.0
"""PostgreSQL may be recovering under the lock."""

Notice = Callable[[str, str], None]
"""Told of each service: its name, and ``starting``, ``up`` or ``was up``."""


@dataclass(frozen=True)
class ServiceStatus:
    """One line of `Stack.status`.

    ``memory_bytes``: of its whole session, what processes share counted once; ``up_since``: seconds
    since the epoch. ``restarts``, ``last_exit`` and ``problem`` are the supervisor's: how often it
    started the service again, how that had ended last, and why it did not come up then.
    ``suspended``: pids of its processes that a signal (SIGSTOP) stopped; it is not healthy then.
    """

    name: str
    pid: int | None
    ports: tuple[int, ...]
    memory_bytes: int
    up_since: float | None
    healthy: bool
    log: str
    restarts: int = 0
    last_exit: str = ""
    problem: str = ""
    suspended: tuple[int, ...] = ()

    @property
    def resume(self) -> str:
        """Return the command that resumes what is suspended."""
        return f"kill -CONT {' '.join(map(str, self.suspended))}"

    def to_json(self) -> dict[str, object]:
        """Return the status as JSON."""
        return asdict(self)


class Stack:
    """The services under ``settings.home``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = environment.resolve_paths(settings)
        self.home = self.settings.home
        self.run_dir = self.home / "run"
        self._fresh: set[str] = set()
        """What the last `up` started."""
        self._has_run = False
        """Whether the last `up` found services at work; PostgreSQL may be used alone."""
        self._kept = environment.kept_destinations(self.home)
        """What `waybill destination add` changes while this `up` waits for it is not undone."""
        self.not_applied: list[str] = []
        """Names of settings that are not those of services which the last `up` found at work."""

    def services(self, keys: Credentials) -> list[Service]:
        """Return all that `up` starts: what is supervised, and the supervisor."""
        watched = self.supervised(keys)
        return [*watched, supervisor.process(self.home, [one.name for one in watched])]

    def supervised(self, keys: Credentials) -> list[Service]:
        """Return the services in the order they start.

        A long-living process of our own is one `waybill.stack.service.Process` more in this list.
        """
        settings = self.settings
        postgres = Postgres(self.home)
        s3 = settings.s3.model_copy(
            update={
                "access_key": SecretStr(keys.s3_access_key),
                "secret_key": SecretStr(keys.s3_secret_key),
            }
        )
        airflow = Airflow(settings, keys, postgres)
        return [
            postgres,
            Kafka(self.home, settings.stack, settings.spark.jars_dir.parent / jars.KAFKA),
            SeaweedFS(self.home, settings.stack, s3),
            *(AirflowComponent(airflow, component) for component in COMPONENTS),
            Process(
                "trace-shipper",
                self.home,
                [sys.executable, "-m", "waybill.cli", "traces", "ship"],
                own_environment(self.home),
                after=(Postgres.name, SeaweedFS.name),
            ),
            *self._collector(),
        ]

    def _collector(self) -> list[Service]:
        """Return the collector, if it was asked for."""
        own = self.settings.collector
        if not own.embedded:
            return []
        url = f"http://{own.host}:{own.port}/healthz"
        process = Process(
            COLLECTOR,
            self.home,
            [sys.executable, "-m", "waybill.cli", "collector"],
            own_environment(self.home),
            asks=partial(answers, url),
            after=(Postgres.name, Kafka.name, SeaweedFS.name),
        )
        process.stop_grace_s = own.stop_s + own.answer_s
        process.advice = "another port: WAYBILL_COLLECTOR__PORT=<port>"
        return [process]

    def with_collector(self, *, wanted: bool) -> Stack:
        """Return the stack with the collector among its services, or without it."""
        own = self.settings.collector.model_copy(update={"embedded": wanted})
        stack = Stack(self.settings.model_copy(update={"collector": own}))
        stack._kept = self._kept
        return stack

    def up(
        self, *, free_ports: bool = False, notice: Notice = lambda _name, _what: None
    ) -> Settings:
        """Bring up everything that is not up; return the settings that later commands will read.

        While the supervisor, or another `up`, starts something, it waits for that.

        Raises:
            InputError: Java, a jar or a port is not to be had.
            ServiceError: a service did not come up; the others stay up.
        """
        state_folder.make_private(self.home, DATA)
        with state_folder.exclusive(self.run_dir / ".lock", timeout_s=_WAIT_FOR_STARTS_S):
            find_java()
            new = jars.ensure(self.settings.spark.jars_dir.parent)
            if new:
                notice("jars", f"{new} fetched")
            self._choose_ports(free_ports=free_ports)
            self._end_collector_unless_wanted()
            watched = self.supervised(credentials.read_or_draw(self.home))
            self._has_run = any(one.running() for one in watched if one.name != Postgres.name)
            settings = self._start(watched, notice)
            notice(supervisor.NAME, "starting")
            # The collector's secrets are variables: who starts it again has to have them too.
            names = [service.name for service in watched]
            fresh = supervisor.begin(self.home, names, anew=COLLECTOR in self._fresh)
            notice(supervisor.NAME, "up" if fresh else "was up")
            return settings

    def database(self, name: str) -> str:
        """Start PostgreSQL if it is down, and make a database if it is not there; return its URL.

        Raises:
            ServiceError: PostgreSQL does not come up.
        """
        state_folder.make_private(self.home, DATA)
        with state_folder.exclusive(self.run_dir / ".lock", timeout_s=_WAIT_FOR_STARTS_S):
            postgres = Postgres(self.home)
            postgres.start()
            return postgres.create_database(name)

    def _end_collector_unless_wanted(self) -> None:
        record = processes.read_record(self.run_dir / f"{COLLECTOR}.json")
        if record is not None and not self.settings.collector.embedded:
            processes.end(record, grace_s=self.settings.collector.stop_s)

    def _choose_ports(self, *, free_ports: bool) -> None:
        held = {
            setting: port
            for record in processes.read_registry(self.run_dir)
            if record.process() is not None
            for setting, port in record.ports.items()
        }
        wanted = ports.port_settings(self.settings.stack)
        moved = {s: p for s, p in held.items() if wanted.get(s, p) != p}
        if moved and not free_ports:
            words = ", ".join(f"{s} is {p}, wanted {wanted[s]}" for s, p in moved.items())
            raise InputError(f"the stack runs on other ports ({words}): `waybill down` first")
        stack = self.settings.stack.model_copy(update=held)
        if free_ports:
            stack = ports.with_free_ports(stack, keep=held)
        else:
            idle = {s: p for s, p in wanted.items() if s not in held}
            ports.require_free(idle)
        self.settings = self.settings.model_copy(update={"stack": stack})

    def _start(self, services: Sequence[Service], notice: Notice) -> Settings:
        told: list[Settings] = []

        def one(service: Service, needs: list[Future[None]]) -> None:
            for need in needs:
                need.result()
            notice(service.name, "starting")
            fresh = service.start()
            if fresh:
                self._fresh.add(service.name)
            if isinstance(service, Postgres):
                told.append(self._tell(service))
            notice(service.name, "up" if fresh else "was up")

        with ThreadPoolExecutor(len(services)) as pool:
            futures: dict[str, Future[None]] = {}
            for service in services:
                needs = [futures[name] for name in service.after]
                futures[service.name] = pool.submit(one, service, needs)
            try:
                for future in futures.values():
                    future.result()
            except KeyboardInterrupt:
                Service.cancelled.set()  # what is half up is stopped; what is up stays
                raise
        return told[0]

    def _tell(self, postgres: Postgres) -> Settings:
        keys = credentials.read_or_draw(self.home)
        settings = environment.embedded_settings(self._with_changes(), keys, postgres)
        environment.write(settings)
        if self._has_run:
            self.not_applied = environment.not_applied(settings)
        else:
            environment.keep_started(settings)
        return settings

    def _with_changes(self) -> Settings:
        """Return the settings with the destinations that were changed since they were read."""
        before, now = self._kept, environment.kept_destinations(self.home)
        gone = before.keys() - now.keys()
        news = {name: one for name, one in now.items() if before.get(name) != one}
        rest = {name: one for name, one in self.settings.destinations.items() if name not in gone}
        return self.settings.model_copy(update={"destinations": {**rest, **news}})

    def status(self) -> list[ServiceStatus]:
        """Look at every service and every registered process; asks each server, some seconds."""
        services = self.services(credentials.read(self.home))
        with ThreadPoolExecutor(len(services)) as pool:
            healthy = list(pool.map(lambda s: s.healthy(), services))
        told = supervisor.read_state(self.run_dir) or {}
        lines = [
            replace(
                _line(s.name, s.running(), tuple(s.ports.values()), str(s.log), healthy=ok),
                **asdict(told.get(s.name, supervisor.Restarts())),
            )
            for s, ok in zip(services, healthy, strict=True)
        ]
        return lines + [
            _line(r.name, r, tuple(r.ports.values()), r.log, healthy=True)
            for r in self._foreign()
            if r.process() is not None
        ]

    def _foreign(self) -> list[ProcessRecord]:
        """Return what other rooms registered."""
        own = {service.name for service in self.services(credentials.read(self.home))}
        return [r for r in processes.read_registry(self.run_dir) if r.name not in own]

    def down(self, *, wipe: bool = False, notice: Notice = lambda _name, _what: None) -> None:
        """End everything that was started here; with ``wipe`` delete the data too, not the jars."""
        if not self.home.exists():
            return
        if supervisor.process(self.home, ()).running() is not None:
            notice(supervisor.NAME, "stopping")
        supervisor.end(self.home)  # it may hold the lock, for as long as a server takes to start
        with state_folder.exclusive(self.run_dir / ".lock"):
            supervisor.end(self.home)  # an `up` may have started it meanwhile
            services = self.services(credentials.read(self.home))
            marks = [r.mark for s in services if (r := s.record()) is not None and r.mark]
            airflow = [s for s in services if isinstance(s, AirflowComponent)]
            self._stop(airflow, notice)
            for record in reversed(self._foreign()):
                if record.process() is not None:
                    notice(record.name, "stopping")
                processes.end(record, grace_s=FOREIGN_GRACE_S)
            self._stop([s for s in services if s not in airflow], notice)
            processes.end_marked(marks, processes.mark_files(self.run_dir))
            for record in self._foreign():  # what somebody started while it was being ended
                processes.end(record, grace_s=0)
            if wipe:
                self._wipe()

    @staticmethod
    def _stop(services: Sequence[Service], notice: Notice) -> None:
        def one(service: Service) -> None:
            if service.running() is not None:
                notice(service.name, "stopping")
            service.stop()

        with ThreadPoolExecutor(max(1, len(services))) as pool:
            list(pool.map(one, services))

    def _wipe(self) -> None:
        """Delete what the stack and the rooms wrote; the file that describes it goes last."""
        for name in DATA:
            if (self.home / name).exists():
                shutil.rmtree(self.home / name)
        for name in FILES:
            (self.home / name).unlink(missing_ok=True)


def _line(
    name: str, record: ProcessRecord | None, where: tuple[int, ...], log: str, *, healthy: bool
) -> ServiceStatus:
    process = record.process() if record is not None else None
    if record is None or process is None:
        return ServiceStatus(name, None, where, 0, None, healthy=False, log=log)
    family = _family(name, record, process)
    suspended = tuple(one.pid for one in family if _is_suspended(one))
    return ServiceStatus(
        name,
        record.pid,
        where,
        memory_bytes=sum(map(_memory, family)),
        up_since=process.create_time(),
        healthy=healthy and not suspended,
        log=log,
        suspended=suspended,
    )


def _family(name: str, record: ProcessRecord, process: psutil.Process) -> list[psutil.Process]:
    """Return a service's processes: its session; PostgreSQL's children have their own."""
    return [process, *process.children()] if name == Postgres.name else record.members()


def _memory(process: psutil.Process) -> int:
    """Return this process's share of memory (PSS), or RSS where the system tells no more."""
    try:
        with suppress(psutil.AccessDenied, AttributeError):
            return int(process.memory_full_info().pss)
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _is_suspended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
