"""Consumers of destinations, with a thread each: started when wanted, and again when they stopped.

A consumer that stops (a table that does not fit) is loud in the log and is tried again with
back-off; its neighbours flow on. So is one whose lease another application took: it lets go, and if
it is wanted here all the same (it was moved away and back between two looks), it takes the lease
again. That is refused where a newer application serves this cluster (``ApplicationLease.check``),
and only that ends this one, at its next beat.

A consumer ends between two loads, and is waited for by nobody: the next look asks again. When the
application ends, loads have `LAST_BATCH_S` to end in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from waybill.back_off import BackOff, RetryTimer
from waybill.clusters import HeldConsumer, Serving
from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.ledger import FencedError, load_position
from waybill.loading import Loader, LoadSizes, NextLoad, Patience, StoppedError, next_load
from waybill.processing.spark import (
    CONSUMER_BACK_OFF,
    IDLE_AFTER_S,
    LAST_BATCH_S,
    give_memory_back,
    try_later,
)
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
_STOPPING_S = 5.0
"""What is not wanted any more and has not ended after so long is left to the next look."""
_ENDS_S = 0.2
"""What a consumer that is told to end is waited for."""
_STEP_S = 0.05
_SHORTEST_S = 0.1
"""Between two looks for commits, whatever the settings say."""
_AWAY = BackOff(1.0, 15.0)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Between two looks of a consumer for commits that nobody told it of, in seconds."""

    usual_s: float
    """0: there is none, and so it stays."""
    idle_s: float
    """Where nothing came for a minute."""

    def behind(self, took_s: float) -> float:
        """Return the rest behind a load that took so long."""
        return max(0.0, min(took_s, self.usual_s - took_s))

    def quiet(self, since_s: float) -> float:
        """Return the pause of one to which nothing has come for so long."""
        if not self.usual_s or since_s < IDLE_AFTER_S:
            return max(self.usual_s, _SHORTEST_S)
        return max(self.usual_s, self.idle_s)


class LoadingConsumer:
    """One destination: a thread that has its loads made, one behind the other.

    Where it waits for commits, the first one is loaded at once. Where they keep coming, it rests
    between two small loads for as long as the first of them took, and begins one in each usual
    pause at the least: so there is time for others' work, and more commits go together.

    Args:
        tracker: the books.
        loader: of the destination.
        patience: makes the loads.
        sizes: of a load.
        pauses: between looks.
        staged: is set when there are commits; it looks by itself, too.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        loader: Loader,
        patience: Patience,
        *,
        sizes: LoadSizes,
        pauses: Pauses,
        staged: threading.Event | None = None,
    ) -> None:
        self._tracker = tracker
        self._loader = loader
        self._patience = patience
        self._sizes = sizes
        self._pauses = pauses
        self._staged = staged or threading.Event()
        self._position = load_position(tracker, loader.name)
        self._ending = threading.Event()
        self._away = ""
        self._thread = threading.Thread(target=self._run, name=f"load-{loader.name}", daemon=True)
        self.error: WaybillError | None = None
        """What it ended with."""

    def start(self) -> None:
        """Load what comes, beginning where the destination stands."""
        _LOG.info("%s: starts after commit %d", self._loader.consumer, self._position)
        self._thread.start()

    def look(self) -> None:
        """See whether a destination that is waited for answers, when nothing else asks it."""
        self._patience.look()

    @property
    def is_running(self) -> bool:
        """Whether it loads what comes."""
        return self._thread.is_alive()

    @property
    def problem(self) -> str:
        """Why its destination takes nothing; empty: it does, as far as is known."""
        return self._away or self._patience.problem

    @property
    def is_ending(self) -> bool:
        """Whether it was told to end: a destination that is away is waited for no more."""
        return self._ending.is_set()

    def ask_to_end(self) -> None:
        """Have no more loads begin."""
        self._ending.set()
        self._staged.set()

    def end(self) -> bool:
        """Have it end; False: a load goes on, or a comparison, ask again."""
        self.ask_to_end()
        if self._thread.is_alive():
            self._thread.join(_ENDS_S)
        return not self._thread.is_alive() and self._patience.end()

    def close(self) -> None:
        """Close the destination."""
        self._loader.close()

    def _run(self) -> None:
        try:
            self._load_all()
        except WaybillError as error:
            self.error = error
            if not isinstance(error, StoppedError):
                _LOG.exception("%s ends", self._loader.consumer)
        except Exception as error:  # noqa: BLE001 - whoever looks is told, and starts it again
            self.error = WaybillError(f"{type(error).__name__}: {error}")
            _LOG.exception("%s ends", self._loader.consumer)

    def _load_all(self) -> None:
        """Load what comes until told to end."""
        worked_at, failures = time.monotonic(), 0
        # one that waits for more rows is not told of each batch: there may be many
        told = self._ending if self._sizes.min_rows else self._staged
        while not self.is_ending:
            began = time.monotonic()
            self._staged.clear()
            try:
                load = next_load(
                    self._tracker, self._loader.name, self._sizes, after=self._position
                )
            except RetryError as error:
                failures += 1
                self._away = str(error)
                wait_s = _AWAY.wait_s(failures)
                _LOG.warning("%s waits %.0f s: %s", self._loader.consumer, wait_s, error)
                self._ending.wait(wait_s)
                continue
            self._away, failures = "", 0
            if load is not None:
                self._deliver(load)
                worked_at = time.monotonic()
                self._ending.wait(self._pauses.behind(worked_at - began))
            elif not self.is_ending:  # that was told before its event was cleared
                told.wait(self._pauses.quiet(time.monotonic() - worked_at))

    def _deliver(self, load: NextLoad) -> None:
        self._patience.deliver(load.references, after=load.after, until=load.until)
        self._position = load.until
        give_memory_back()


class Consumer(Protocol):
    """A consumer that was started."""

    @property
    def problem(self) -> str:
        """Why it loads nothing now; empty: it works."""

    @property
    def error(self) -> WaybillError | None:
        """What it ended with."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""

    def look(self) -> None:
        """Do what is due beside the loads."""

    def ask_to_end(self) -> None:
        """Have no more loads begin; waits for nothing."""

    def end(self) -> bool:
        """Have it end between two loads; False: it goes on, ask again."""

    def close(self) -> None:
        """Give back what it holds; it has ended."""


@dataclass(slots=True)
class _State:
    running: Consumer | None = None
    retry: RetryTimer = field(default_factory=lambda: RetryTimer(CONSUMER_BACK_OFF))
    is_ending: bool = False
    """It was told to end, by not being wanted or by a fence: it ends before it starts anew."""
    error: WaybillError | None = None
    """Why it was not started, or ended, last."""


class Consumers:
    """Keeps one consumer running for each name.

    Args:
        start: starts that of a name where the ledger stands.
    """

    def __init__(self, start: Callable[[str], Consumer]) -> None:
        self._start = start
        self._states: dict[str, _State] = {}
        self._wanted: dict[str, None] | None = None
        """By the last look."""

    def look(self, wanted: Iterable[str]) -> None:
        """Start what is wanted and does not run; end what is not wanted any more.

        Waits for no load: what it cannot do yet is done by a later look.
        """
        names = self._wanted = dict.fromkeys(wanted)
        for name, state in self._states.items():
            if name not in names and state.running is not None:
                state.is_ending = True  # also of those that this look does not come to
                state.running.ask_to_end()
        until = time.monotonic() + _STOPPING_S
        for name, state in list(self._states.items()):
            if (state.is_ending or name not in names) and time.monotonic() < until:
                self._let_go(state)
                if name not in names and not state.is_ending:
                    del self._states[name]
        for name in names:
            state = self._states.setdefault(name, _State())
            if not state.is_ending:
                self._keep(name, state)

    def serving(self, version: int) -> Serving | None:
        """Return what the last look left running, by this version; None before the first one."""
        if self._wanted is None:
            return None
        held = filter(None, map(self._held, self._wanted))
        return Serving.of(version, len(self._wanted), list(held))

    def _held(self, name: str) -> HeldConsumer | None:
        state = self._states.get(name, _State())
        if state.running is not None and not state.is_ending:
            problem = state.running.problem
            return HeldConsumer(name, "fails", problem) if problem else None
        return HeldConsumer.of(name, state.error, "for its turn, or for its last load")

    def ask_to_end(self) -> None:
        """Have no more loads begin; waits for nothing."""
        for state in self._states.values():
            if state.running is not None:
                state.running.ask_to_end()

    def stop(self, limit_s: float = LAST_BATCH_S) -> bool:
        """End all at the end of their loads; False: some take longer than the limit."""
        self.ask_to_end()
        deadline = time.monotonic() + limit_s
        for state in self._states.values():
            while state.running is not None and not state.running.end():
                if time.monotonic() >= deadline:
                    _LOG.warning("loads are cut off after %.0f s", limit_s)
                    return False
                time.sleep(_STEP_S)
        return True

    def close(self) -> None:
        """Give back what the consumers hold, once Spark has ended."""
        for state in self._states.values():
            if state.running is not None:
                state.running.close()

    def _let_go(self, state: _State) -> None:
        state.is_ending = True
        if state.running is not None:
            if not state.running.end():
                return
            state.running.close()
        state.running, state.is_ending = None, False

    def _keep(self, name: str, state: _State) -> None:
        if state.running is None:
            if time.monotonic() >= state.retry.due:
                self._try(name, state)
        elif (error := _look(state.running)) is not None:
            state.is_ending, state.error = True, error
            try_later(name, state.retry, error)

    def _try(self, name: str, state: _State) -> None:
        state.retry.began = time.monotonic()
        try:
            state.running, state.error = self._start(name), None
        except (StopError, InputError, RetryError) as error:
            state.error = error
            try_later(name, state.retry, error)


def _look(consumer: Consumer) -> WaybillError | None:
    """Look at a consumer; returns why it cannot go on."""
    if not consumer.is_running:
        return consumer.error or WaybillError("its thread ended")
    try:
        consumer.look()
    except FencedError as error:
        return error
    return None
