"""The applications of virtual clusters in the tracker: a row a cluster and kind.

An application is who holds the row's *epoch*. Each start takes the next one, by compare-and-set;
who has an older one may not report any more, and ends itself. All times are the database's clock.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

from sqlalchemy import Connection, Double, case, cast, func, select, true, update
from sqlalchemy.dialects.postgresql import JSONB, insert

from waybill import __version__
from waybill.back_off import BackOff
from waybill.clusters.announcements import (
    acknowledge,
    application_name,
    newest_announcement,
    read_acknowledgement,
)
from waybill.clusters.processes import process_identity
from waybill.clusters.serving import ASKED_TO_END, ApplicationEnd, Serving, error_words
from waybill.errors import RetryError, WaybillError
from waybill.events import rfc3339
from waybill.ledger import FencedError
from waybill.storage import TrackerStore
from waybill.storage.tracker import applications, json_value, text_value

_LOG = logging.getLogger(__name__)
ApplicationKind = Literal["processing", "loading"]
KINDS: tuple[ApplicationKind, ...] = ("processing", "loading")
Wanted = Literal["running", "stopped"]
PROCESS = "process"
"""Name of the backend whose applications are processes of a worker's host."""
HEARTBEAT_S = 5.0
"""Time between two reports of an application."""
STALE_S = 15.0
"""An application that did not report for so long is asked after."""
ARRIVAL_S = 60.0
"""For so long one that was just started is not asked after, before its first report."""
LEASE_S = 60.0
"""After so long without a report, one that nobody can ask after may be replaced."""
HANGS_S = 1_800.0
"""A loop that did not come round for so long hangs: it reports no more, and is killed when it was
silent for as long again."""
RESTARTS = BackOff(1.0, 300.0)
"""Waits between a death and the next start."""
_NOW = func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class Application:
    """One application of a cluster, as its row was at ``now_s``. Times: seconds since the epoch."""

    cluster: str
    kind: ApplicationKind
    now_s: float
    """The database's clock when the row was read."""
    epoch: int = 0
    """Of the newest start; 0: it was never started."""
    backend: str = ""
    """What it runs on: the name of a ``Backend``."""
    external_id: str = ""
    """What the backend knows it by; empty: the start is not through, or its starter died."""
    code_version: str = ""
    """Version of Waybill that it runs."""
    wanted: Wanted = "running"
    wanted_by: str = ""
    """Who said so."""
    wanted_s: float = 0.0
    """When that was said, or a restart was asked for."""
    restart_epoch: int = 0
    """An application of this epoch, or an older one, is to be replaced by a newer."""
    at_work: bool = False
    """Its loop came round: the session is there, with executors where it has any of its own; topics
    or destinations are looked at."""
    started_s: float | None = None
    heartbeat_s: float | None = None
    """When it reported last; None: not yet."""
    ended_s: float | None = None
    """When its end was confirmed by the backend, or its lease ran out; a report takes it back."""
    failures: int = 0
    """Deaths in a row, each soon after its start."""
    tracker_since_s: float = 0.0
    """Since when the database is up: nobody could report before."""
    reported: Serving | None = None
    """What it said last that it serves; None: nothing since its start."""
    end: ApplicationEnd | None = None
    """Why a start of it ended, of those that said so the newest."""

    @property
    def silence_s(self) -> float:
        """Return for how long nothing was heard of it; below 0: the clock was set back since."""
        heard = self.started_s if self.heartbeat_s is None else self.heartbeat_s
        since_s = min(self.tracker_since_s, self.now_s)
        return self.now_s - max(0.0 if heard is None else heard, since_s)

    @property
    def is_silent(self) -> bool:
        """Tell whether nothing was heard of it for too long; a start is given a minute."""
        return self.silence_s >= (ARRIVAL_S if self.heartbeat_s is None else STALE_S)

    @property
    def is_stale(self) -> bool:
        """Tell whether its backend is to be asked.

        A report in the future is of before the clock was set back, and as good as none.
        """
        return self.is_silent or self.is_ahead

    @property
    def is_ahead(self) -> bool:
        """Tell whether its last report lies in the future: the clock was set back since."""
        return self.silence_s < -HEARTBEAT_S

    @property
    def is_expired(self) -> bool:
        """Tell whether its lease is over: who cannot ask after it may start another one."""
        return self.silence_s >= LEASE_S

    @property
    def is_seen(self) -> bool:
        """Tell whether it reported within its lease."""
        return self.heartbeat_s is not None and self.now_s - self.heartbeat_s < LEASE_S

    @property
    def is_at_work(self) -> bool:
        """Tell whether it is at work, by what it reported within its lease."""
        return self.at_work and self.is_seen and self.ended_s is None

    @property
    def serving(self) -> Serving | None:
        """Return what it serves now; None: it does not run, or says nothing of that."""
        return self.reported if self.is_running else None

    @property
    def is_running(self) -> bool:
        """Tell whether it runs, by its reports: it was started, and is heard of or begins."""
        return self.epoch > 0 and self.ended_s is None and not self.is_silent

    @property
    def has_left(self) -> bool:
        """Tell whether it said that it ends, and nothing since."""
        end = self.end
        return end is not None and end.epoch == self.epoch and end.at_s >= (self.heartbeat_s or 0.0)

    @property
    def last_end(self) -> ApplicationEnd | None:
        """Return why this start of it ended, or the one before; None: neither said so."""
        is_late = self.end is not None and self.end.epoch >= self.epoch - 1
        return self.end if is_late else None

    @property
    def is_unwanted(self) -> bool:
        """Tell whether this start of it should end, for good or for another one."""
        return self.wanted == "stopped" or self.epoch <= self.restart_epoch

    def is_same_report(self, other: Application) -> bool:
        """Tell whether nothing was heard of it since, and it was not started anew."""
        return (self.epoch, self.heartbeat_s, self.external_id) == (
            other.epoch,
            other.heartbeat_s,
            other.external_id,
        )

    def waits_s(self, back_off: BackOff = RESTARTS) -> float:
        """Return how long its next start waits from ``now_s`` on; 0: not at all.

        An end in the future is of before the clock was set back: nobody waits for that.
        """
        if self.ended_s is None or self.epoch <= self.restart_epoch:
            return 0.0
        passed_s = self.now_s - self.ended_s
        return max(0.0, back_off.wait_s(self.failures) - passed_s) if passed_s >= 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "kind": self.kind,
            "state": application_state(self),
            "epoch": self.epoch,
            "backend": self.backend,
            "external_id": self.external_id,
            "code_version": self.code_version,
            "wanted": self.wanted,
            "wanted_by": self.wanted_by,
            "failures": self.failures,
            "started_at": _said(self.started_s),
            "heartbeat_at": _said(self.heartbeat_s),
            "serving": None if self.serving is None else self.serving.to_json(),
            "last_end": None if self.last_end is None else _end_to_json(self.last_end),
        }


def application_state(application: Application) -> str:
    """Return a word for how it is: what its row says, not what its backend would."""
    if application.epoch == 0 or application.ended_s is not None:
        return "stopped" if application.wanted == "stopped" else "waits for its start"
    if application.has_left:
        return "stopped" if application.wanted == "stopped" else "ended"
    if application.is_silent:
        return "not heard of"
    if application.is_unwanted:
        return "stopping"
    return "at work" if application.at_work else "starting"


def why_unserved(application: Application | None) -> str:
    """Return why no team should come into a cluster, by its application of processing.

    Empty: it is at work. One that ends at its start again and again was never at work.
    """
    one = application
    if one is None or not one.is_at_work:
        return "its application of processing is not at work"
    if one.reported is None or not one.reported.is_unable:
        return ""
    why = next((held.why for held in one.reported.held), "")
    return f"its application of processing can read none of its topics: {why}"


def _end_to_json(end: ApplicationEnd) -> dict[str, Any]:
    return {"epoch": end.epoch, "at": _said(end.at_s), "why": end.why}


def _said(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(datetime.fromtimestamp(seconds, UTC))


# Reading


def _seconds(name: str) -> Any:
    return func.extract("epoch", applications.c[name]).label(name)


_TIMES = ("wanted_at", "started_at", "heartbeat_at", "ended_at")
_PLAIN = (
    "cluster",
    "kind",
    "epoch",
    "backend",
    "external_id",
    "code_version",
    "wanted",
    "wanted_by",
    "restart_epoch",
    "at_work",
    "failures",
)
_CLOCKS = select(
    func.extract("epoch", func.clock_timestamp()).label("now_s"),
    func.extract("epoch", func.pg_postmaster_start_time()).label("tracker_since_s"),
)


def read_applications(connection: Connection) -> dict[tuple[str, str], Application]:
    """Return all applications that were ever started, or said something of, by (cluster, kind).

    Cost: one small statement.
    """
    clocks = _CLOCKS.subquery()
    columns = [applications.c[name] for name in (*_PLAIN, "report")]
    query = select(*columns, *map(_seconds, _TIMES), clocks).join_from(applications, clocks, true())
    rows: Sequence[Any] = connection.execute(query).all()
    return {(row.cluster, row.kind): _application(row) for row in rows}


def read_application(connection: Connection, kind: ApplicationKind, cluster: str) -> Application:
    """Return one application; one that nobody started yet is wanted, and has epoch 0."""
    found = read_applications(connection).get((cluster, kind))
    if found is not None:
        return found
    now_s, since_s = connection.execute(_CLOCKS).one()
    return Application(cluster, kind, float(now_s), tracker_since_s=float(since_s))


def _application(row: Any) -> Application:
    times = {name: None if (at := getattr(row, name)) is None else float(at) for name in _TIMES}
    return Application(
        **{name: getattr(row, name) for name in _PLAIN},
        now_s=float(row.now_s),
        tracker_since_s=float(row.tracker_since_s),
        wanted_s=times["wanted_at"] or 0.0,
        started_s=times["started_at"],
        heartbeat_s=times["heartbeat_at"],
        ended_s=times["ended_at"],
        reported=Serving.read(row.report.get("serving"), epoch=row.epoch),
        end=ApplicationEnd.read(row.report.get("end")),
    )


def kinds_at_work(connection: Connection, cluster: str) -> list[str]:
    """Return which applications of a cluster were seen within a minute, by name."""
    return sorted(
        kind
        for (name, kind), one in read_applications(connection).items()
        if name == cluster and one.is_seen and one.ended_s is None
    )


# Starts and ends


def _of(kind: str, cluster: str) -> Any:
    return (applications.c.cluster == cluster) & (applications.c.kind == kind)


def _as_seen(seen: Application) -> Any:
    """Return what holds while nothing was heard of an application since, nor another start made."""
    reported = cast(func.extract("epoch", applications.c.heartbeat_at), Double)
    return (
        _of(seen.kind, seen.cluster)
        & (applications.c.epoch == seen.epoch)
        & reported.is_not_distinct_from(seen.heartbeat_s)
    )


def _ensure(connection: Connection, kind: str, cluster: str) -> None:
    row = insert(applications).values(cluster=cluster, kind=kind)
    connection.execute(row.on_conflict_do_nothing())


_BEGUN: dict[str, Any] = {
    "epoch": applications.c.epoch + 1,
    "started_at": _NOW,
    "heartbeat_at": None,
    "ended_at": None,
    "at_work": False,
    "code_version": __version__,
}


def begin_start(tracker: TrackerStore, seen: Application, *, backend: str) -> int | None:
    """Take the next epoch for a start; every earlier application is fenced from now on.

    Args:
        tracker: the books.
        seen: the row on which the start was decided.
        backend: what it will run on.

    Returns:
        The epoch to start it with; None: since then it reported, somebody else started it, or it is
        to be stopped.

    Raises:
        RetryError: the tracker does not answer.
    """
    statement = (
        update(applications)
        .where(_as_seen(seen), applications.c.wanted == "running")
        .values(**_BEGUN, backend=backend, external_id="")
        .returning(applications.c.epoch)
    )
    with tracker.transaction() as connection:
        _ensure(connection, seen.kind, seen.cluster)
        epoch = connection.execute(statement).scalar()
    return None if epoch is None else int(epoch)


def note_started(tracker: TrackerStore, begun: Application, external_id: str) -> None:
    """Write down what the backend knows a start by, unless there is a newer one."""
    mine = _of(begun.kind, begun.cluster) & (applications.c.epoch == begun.epoch)
    with tracker.transaction() as connection:
        connection.execute(
            update(applications).where(mine).values(external_id=text_value(external_id))
        )


def note_ended(tracker: TrackerStore, ended: Application, *, back_off: BackOff = RESTARTS) -> None:
    """Write down that a start is over, once, and how many died soon in a row.

    One that was asked to end did not fail: by its row, or by a signal, which leaves the deaths
    before it as they are. One that reported meanwhile is not over.
    """
    lived_s = (ended.heartbeat_s or 0.0) - (ended.started_s or 0.0)
    failures = 0 if ended.is_unwanted else back_off.failures(ended.failures, lived_s)
    if failures and ended.has_left and ended.end is not None and ended.end.why == ASKED_TO_END:
        failures -= 1
    with tracker.transaction() as connection:
        connection.execute(
            update(applications)
            .where(_as_seen(ended), applications.c.ended_at.is_(None))
            .values(ended_at=_NOW, failures=failures)
        )


def note_clock(tracker: TrackerStore, ahead: Application) -> None:
    """Take a report in the future as one of now: else no lease ends until the clock is there."""
    with tracker.transaction() as connection:
        connection.execute(update(applications).where(_as_seen(ahead)).values(heartbeat_at=_NOW))


# What people want


def want_application(
    connection: Connection, kind: ApplicationKind, cluster: str, wanted: Wanted, *, by: str
) -> bool:
    """Have an application run, or be stopped and kept so; False: the same one said so already."""
    _ensure(connection, kind, cluster)
    is_news = (applications.c.wanted != wanted) | (applications.c.wanted_by != text_value(by))
    changed = connection.execute(
        update(applications)
        .where(_of(kind, cluster), is_news)
        .values(wanted=wanted, wanted_by=text_value(by), wanted_at=_NOW)
    )
    return bool(changed.rowcount)


def ask_restart(connection: Connection, application: Application) -> bool:
    """Have this start of an application be replaced by another; False: it is over, or was asked."""
    changed = connection.execute(
        update(applications)
        .where(
            _of(application.kind, application.cluster),
            applications.c.epoch == application.epoch,
            applications.c.restart_epoch < application.epoch,
            applications.c.ended_at.is_(None),
        )
        .values(restart_epoch=application.epoch, wanted_at=_NOW)
    )
    return bool(changed.rowcount)


def retire_applications(connection: Connection, cluster: str) -> None:
    """Stop a cluster's applications for good, and fence one that runs all the same.

    The rows stay: a cluster of the same name that is made later goes on from their epochs.
    """
    connection.execute(
        update(applications)
        .where(applications.c.cluster == cluster)
        .values(
            epoch=applications.c.epoch + 1,
            wanted="stopped",
            wanted_by="the cluster was deleted",
            wanted_at=_NOW,
            external_id="",
            ended_at=_NOW,
            at_work=False,
            report={},
        )
    )


# Of the application itself


@dataclass(frozen=True, slots=True)
class ApplicationLease:
    """One application's right to serve a cluster. A newer application of the cluster ends it."""

    tracker: TrackerStore
    kind: ApplicationKind
    cluster: str
    epoch: int
    started_at: datetime
    """Of the start: a tracker that was restored gives an epoch out again."""

    @classmethod
    def acquire(
        cls,
        tracker: TrackerStore,
        kind: ApplicationKind,
        cluster: str,
        *,
        epoch: int | None = None,
    ) -> Self:
        """Begin to serve the cluster.

        Args:
            tracker: the books.
            kind: of the application.
            cluster: which one it serves.
            epoch: that it was started with; None: nobody decided on this start (it was made by
                hand), and it takes the cluster over.

        Raises:
            FencedError: a newer application was started since.
            RetryError: the tracker does not answer.
        """
        own = process_identity(os.getpid())
        if epoch is None:
            taken = {**_BEGUN, "heartbeat_at": _NOW, "backend": PROCESS, "external_id": own}
            which = _of(kind, cluster)
        else:
            known = case((applications.c.external_id == "", own), else_=applications.c.external_id)
            taken = {
                "heartbeat_at": _NOW,
                "code_version": __version__,
                "external_id": known,
                "ended_at": None,
            }
            which = _of(kind, cluster) & (applications.c.epoch == epoch)
        statement = update(applications).where(which).values(**taken)
        with tracker.transaction() as connection:
            if epoch is None:
                _ensure(connection, kind, cluster)
            returned = statement.returning(applications.c.epoch, applications.c.started_at)
            row = connection.execute(returned).one_or_none()
        if row is None:
            raise FencedError(f"{kind} of {cluster!r} was started anew: epoch {epoch} is over")
        return cls(tracker, kind, cluster, row.epoch, row.started_at)

    def check(self, connection: Connection) -> None:
        """Hold that no newer application serves the cluster, until the transaction ends.

        Raises:
            FencedError: one does.
        """
        query = select(applications.c.epoch).where(self._mine).with_for_update(read=True)
        if connection.execute(query).one_or_none() is None:
            raise self._fenced()

    @property
    def _mine(self) -> Any:
        return (
            _of(self.kind, self.cluster)
            & (applications.c.epoch == self.epoch)
            & (applications.c.started_at == self.started_at)
        )

    def _fenced(self) -> FencedError:
        return FencedError(
            f"{self.kind} of {self.cluster!r} was started anew: epoch {self.epoch} is over"
        )

    def renew(self, *, at_work: bool | None = None, serving: Serving | None = None) -> bool:
        """Report; returns whether the application should go on.

        Args:
            at_work: whether it is; None: as it was.
            serving: what it serves; None: as it was.

        Raises:
            FencedError: a newer application serves the cluster.
            RetryError: the tracker does not answer.
        """
        news: dict[str, Any] = {} if at_work is None else {"at_work": at_work}
        if serving is not None:
            said = json_value({"serving": serving.to_json() | {"epoch": self.epoch}}, deepest=4)
            news["report"] = applications.c.report.op("||", return_type=JSONB)(cast(said, JSONB))
        statement = (
            update(applications)
            .where(self._mine)
            .values(heartbeat_at=_NOW, ended_at=None, **news)
            .returning(applications.c.wanted, applications.c.restart_epoch)
        )
        with self.tracker.transaction() as connection:
            row = connection.execute(statement).one_or_none()
        if row is None:
            raise self._fenced()
        return bool(row.wanted == "running" and row.restart_epoch < self.epoch)

    def acknowledge_nodes(self) -> None:
        """Acknowledge the nodes that were announced last, unless this start of it did.

        Raises:
            FencedError: a newer application serves the cluster.
            RetryError: the tracker does not answer.

        Cost: two looks at indexes; a row where it is news.
        """
        name = application_name(self.kind, self.cluster)
        with self.tracker.transaction() as connection:
            newest = newest_announcement(connection)
            own = read_acknowledgement(connection, name)
            if newest == 0 or (
                own is not None and (own.epoch, own.version) == (self.epoch, newest)
            ):
                return
            self.check(connection)
            acknowledge(connection, name, newest, epoch=self.epoch)
        _LOG.info("version %d of the nodes is acknowledged", newest)

    def note_end(self, why: str) -> None:
        """Write down why this application ends, and that it is not at work any more.

        The row of a newer one is left alone. It is no report: whether it lives, the backend says.

        Raises:
            RetryError: the tracker does not answer.
        """
        at_s = cast(func.extract("epoch", _NOW), Double)
        end = func.jsonb_build_object("epoch", self.epoch, "at_s", at_s, "why", text_value(why))
        report = func.jsonb_build_object("end", end)
        with self.tracker.transaction() as connection:
            connection.execute(
                update(applications).where(self._mine).values(report=report, at_work=False)
            )


class Heartbeat:
    """Reports every five seconds for an application, also while its loop waits for a server.

    A look at destinations that do not answer takes minutes; one of half an hour is taken for a loop
    that hangs, and nothing is reported any more.

    While the tracker is away the application goes on; whether it still may is decided by the first
    report that comes through.

    The loop also acknowledges the nodes that were announced, by then, within ``every_s``: one that
    hangs acknowledges nothing.

    When it ends, the tracker is told why. One that is killed says nothing.

    Args:
        lease: of the application.
        stop: called when it should end, from the thread that reports, each time anew.
        every_s: time between two reports.
        hangs_s: longest time between two beats of the loop.
    """

    def __init__(
        self,
        lease: ApplicationLease,
        stop: Callable[[], None] = lambda: None,
        *,
        every_s: float = HEARTBEAT_S,
        hangs_s: float = HANGS_S,
    ) -> None:
        self._lease = lease
        self._stop = stop
        self._every_s = every_s
        self._hangs_s = hangs_s
        self._beaten_at = time.monotonic()
        self._followed_at: float | None = None
        self._serving: Serving | None = None
        self._written: Serving | None = None
        self._one_report = threading.Lock()
        """One at a time: else an older one, held up on its way, would write over a newer one."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="heartbeat", daemon=True)

    def beat(self, *, at_work: bool = True, serving: Serving | None = None) -> None:
        """Say that the loop goes on, and report. For the loop.

        Args:
            at_work: False: it can do no work now, and no team should come in.
            serving: what it serves; None: not known yet. Written where it is news, and by the
                thread with each report of its own.

        Raises:
            FencedError: a newer application serves the cluster.
            RetryError: the tracker does not answer.
        """
        self._beaten_at = time.monotonic()
        with self._one_report:
            self._serving = serving
            self._renew(at_work=at_work, serving=None if serving == self._written else serving)
            self._written = serving
        if self._followed_at is None or self._beaten_at - self._followed_at >= self._every_s:
            self._lease.acknowledge_nodes()
            self._followed_at = self._beaten_at

    def _renew(self, *, at_work: bool | None = None, serving: Serving | None = None) -> None:
        if not self._lease.renew(at_work=at_work, serving=serving):
            self._stop()

    def _report(self) -> None:
        while not self._ended.wait(self._every_s):
            if time.monotonic() - self._beaten_at > self._hangs_s:
                continue
            try:
                with self._one_report:
                    self._renew(serving=self._serving)
            except FencedError:
                self._stop()
                return
            except RetryError as error:
                _LOG.info("the tracker was not told that this application is at work: %s", error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        self._ended.set()
        self._thread.join()
        why = ASKED_TO_END if error is None else error_words(error)
        try:
            self._lease.note_end(why)
        except WaybillError as untold:
            _LOG.info("the tracker was not told why this application ends: %s", untold)


def older_code(application: Application, version: str = __version__) -> bool:
    """Tell whether an application runs an older version of Waybill than what would be started.

    A newer one is left alone: while workers are upgraded one by one, they would take turns. Only a
    process is started with this version; what a cluster runs has that of the cluster's image.
    """
    known = application.backend == PROCESS and application.code_version != ""
    return known and _number(application.code_version) < _number(version)


def _number(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
