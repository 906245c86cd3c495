"""Keep the applications of virtual clusters running: one look at one of them, by whoever looks.

Invariants
  S1  Nothing is started because reports stay away: the backend confirms the death first. Only where
      nobody can ask (a process of another host, a start whose starter died) the lease decides;
      then whoever lives has 15 s more to report: an outage of the tracker is over for both.
  S2  A start takes the next epoch from exactly the start, and the last report, that the backend was
      asked about, in one statement: of supervisors that look at once, one starts. What it starts
      carries the epoch, and whatever has an older one is fenced by it, alive or not.
  S3  A supervisor may die at any line. Before the epoch is taken, nothing happened; after it, the
      application either comes and says who it is, or its lease runs out; what comes later than
      another start has an older epoch, and ends itself.
  S4  Nothing is known of a supervisor between two looks: waits between restarts are in the row.
  S5  All times are the database's. A clock that is set back delays a takeover by a lease, and an
      end by force by as much as it was set back.
  S6  A supervisor that ends leaves applications running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from waybill import __version__
from waybill.back_off import BackOff
from waybill.clusters.applications import (
    HANGS_S,
    RESTARTS,
    STALE_S,
    Application,
    ApplicationKind,
    ask_restart,
    begin_start,
    note_clock,
    note_ended,
    note_started,
    older_code,
    read_application,
)
from waybill.errors import InputError, RetryError
from waybill.storage import TrackerStore

Word = Literal["alive", "dead", "unknown", "no answer"]
"""What a backend says of an application. ``unknown``: it cannot be asked about this one, ever (a
process of another host); ``no answer``: it could not be asked now."""
Action = Literal["start", "stop", "kill", "wait"]
KILL_S = 60.0
"""Where a backend's ``stop`` does not wait for the end, an application is killed after so long."""


class Backend(Protocol):
    """What applications run on. Each call may take seconds; none is made in a transaction."""

    def start(self, application: Application) -> str:
        """Start an application with its epoch, outside the caller's lifetime.

        Returns:
            What the backend knows it by.

        Raises:
            InputError: it cannot be started as things are.
            RetryError: it was not started, or nobody knows; the lease decides.
        """

    def ask(self, application: Application) -> Word:
        """Tell whether this start of it lives.

        Raises:
            RetryError: the backend does not answer; taken as ``no answer``.
        """

    def stop(self, application: Application) -> None:
        """Ask it to end, beside what its row says, which it reads with each report itself."""

    def kill(self, application: Application) -> None:
        """End it by force.

        Raises:
            RetryError: the backend does not answer.
        """

    def last_words(self, application: Application) -> str:
        """Return the end of its log; empty: the backend has none."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found and did."""

    application: Application
    """After it."""
    word: Word
    action: Action
    words: str = ""
    """The end of the log of one that died."""
    problem: str = ""
    """Why a start, or the question to the backend, failed."""


def decide(application: Application, word: Word, *, back_off: BackOff = RESTARTS) -> Action:
    """Return what follows from an application's row and from what its backend says of it. Pure."""
    if application.epoch and word == "no answer":
        return "wait"
    if _is_over(application, word):
        is_due = application.wanted == "running" and application.waits_s(back_off) == 0
        return "start" if is_due and not _may_report(application, word) else "wait"
    return _end_of(application) if word == "alive" else "wait"


def _end_of(living: Application) -> Action:
    if living.silence_s >= HANGS_S:
        return "kill"
    if not living.is_unwanted:
        return "wait"
    return "kill" if living.now_s - living.wanted_s >= KILL_S else "stop"


def _may_report(application: Application, word: Word) -> bool:
    """Tell whether what nobody can ask after is waited for, since its lease was found over."""
    if application.epoch == 0 or word == "dead":
        return False
    return application.ended_s is None or 0 <= application.now_s - application.ended_s < STALE_S


def _is_over(application: Application, word: Word) -> bool:
    """Tell whether nothing of an application runs, or what does may be replaced."""
    if application.epoch == 0 or word == "dead":
        return True
    return word == "unknown" and (application.ended_s is not None or application.is_expired)


def needs_look(
    application: Application, *, version: str = __version__, back_off: BackOff = RESTARTS
) -> bool:
    """Tell from the row alone whether a supervisor should ask the backend now. Pure, and cheap."""
    if application.epoch == 0 or application.ended_s is not None:
        return application.wanted == "running" and application.waits_s(back_off) == 0
    return application.is_unwanted or application.is_stale or older_code(application, version)


def supervise(
    tracker: TrackerStore,
    backends: Mapping[str, Backend],
    kind: ApplicationKind,
    cluster: str,
    *,
    start_on: str,
    back_off: BackOff = RESTARTS,
) -> Look:
    """Look at one application once, and do what follows. Safe beside others that do the same.

    Args:
        tracker: the books.
        backends: by name; an application is asked after where it was started.
        kind: of the application.
        cluster: which one it serves.
        start_on: the backend of a start.
        back_off: waits between restarts.

    Raises:
        InputError: it cannot be started as things are.
        RetryError: the tracker does not answer.
    """
    before = _read(tracker, kind, cluster, restart_older=True)
    backend = backends.get(before.backend)
    word, problem = _ask(backend, before)
    words = ""
    if word == "unknown" and before.ended_s is None and before.is_ahead:
        note_clock(tracker, before)
    if before.epoch and before.ended_s is None and _is_over(before, word):
        words = backend.last_words(before) if backend else ""
        note_ended(tracker, before, back_off=back_off)
        again = _read(tracker, kind, cluster)
        if not again.is_same_report(before):  # it came, or another start did: the word is not of it
            return Look(again, "unknown", "wait")
        before = again
    action = decide(before, word, back_off=back_off)
    if action == "start":
        look = _start(tracker, backends[start_on], start_on, before, back_off)
        return replace(look, words=words)
    if action != "wait" and backend is not None:
        word, problem = _end(backend, action, before)
        if word == "dead":
            note_ended(tracker, before, back_off=back_off)
    return Look(_read(tracker, kind, cluster), word, action, words, problem)


def _read(
    tracker: TrackerStore, kind: ApplicationKind, cluster: str, *, restart_older: bool = False
) -> Application:
    with tracker.transaction() as connection:
        found = read_application(connection, kind, cluster)
        if restart_older and older_code(found) and ask_restart(connection, found):
            found = read_application(connection, kind, cluster)
    return found


def _ask(backend: Backend | None, application: Application) -> tuple[Word, str]:
    if application.epoch == 0:
        return "dead", ""
    if backend is None:
        return "unknown", f"nothing is known here of the backend {application.backend!r}"
    try:
        return backend.ask(application), ""
    except RetryError as error:
        return "no answer", str(error)


def _end(backend: Backend, action: Action, application: Application) -> tuple[Word, str]:
    try:
        (backend.kill if action == "kill" else backend.stop)(application)
    except RetryError as error:
        return "no answer", str(error)
    return _ask(backend, application)


def _start(
    tracker: TrackerStore, backend: Backend, name: str, seen: Application, back_off: BackOff
) -> Look:
    epoch = begin_start(tracker, seen, backend=name)
    if epoch is None:
        return Look(_read(tracker, seen.kind, seen.cluster), "unknown", "wait")
    begun = _read(tracker, seen.kind, seen.cluster)
    if begun.epoch != epoch:
        return Look(begun, "unknown", "wait")
    try:
        external_id = backend.start(begun)
    except InputError:
        note_ended(tracker, begun, back_off=back_off)
        raise
    except RetryError as error:
        return Look(_read(tracker, seen.kind, seen.cluster), "unknown", "wait", problem=str(error))
    note_started(tracker, begun, external_id)
    return Look(_read(tracker, seen.kind, seen.cluster), "alive", "start")
