"""Load a user's code, and run its ``transform`` over events: none that fails stops its neighbours.

``transform(event)`` returns the event (changed or not), an event made by ``event.child``, a list of
events, or None: filtered on purpose. It may change ``data``, ``name`` and ``op``; all else is what
the event is, and stays. Code with ``transform_batch(table)`` instead has the batch form
(``batch_form``).

An endless loop is ended by ``EventTimeoutError``, raised into the code by a watchdog's signal. What
ends the interpreter is met by ``waybill.processing.sandbox``.

Transient errors of user code: the event is run again, in place, before it is parked.

In place, because events of its key that come after it have to wait for it. What all events of one
topic spend on it together in a task, waits and repeated runs, is bounded: a service that is down
for long costs its team that much once, and from then on its events park at the first error.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_double, c_int64
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from waybill.back_off import BackOff
from waybill.errors import ParkError, RetryError
from waybill.events import Event, duplicate, error_type, refuse_wrong_name
from waybill.pipelines import BATCH_FUNCTION, EVENT_FUNCTION
from waybill.processing.failures import (
    CODE_FILE_PREFIX,
    EventTimeoutError,
    Fault,
    describe,
    words_of,
)
from waybill.processing.shared_code import SharedCode

T = TypeVar("T")


class TooSlowError(RetryError):
    """Events took longer than others can wait for; nothing came of those that were on."""


class Retries:
    """How often and how long one task tries again for one topic.

    Args:
        attempts: runs of one event, the first included.
        backoff_s: wait before the second run, doubled before each later one.
        budget_s: for all waits and repeated runs; a run that has begun is not cut short.
        clock: seconds.
        sleep: waits so many seconds.
        spent: where the seconds are counted; in a process of user code, memory that it shares.
    """

    def __init__(
        self,
        attempts: int = 1,
        *,
        backoff_s: float = 0.2,
        budget_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        spent: c_double | None = None,
    ) -> None:
        self.attempts = attempts
        self.backoff_s = backoff_s
        self.budget_s = budget_s
        self.deadline = math.inf
        """When events have taken too long (``time.monotonic``): what runs them in processes of
        their own then raises ``TooSlowError``."""
        self.most_bytes = math.inf
        """Of answers for one group of events; beyond, these raise ``TooMuchMadeError``."""
        self._back_off = BackOff(backoff_s)
        self._clock = clock
        self._sleep = sleep
        self._spent = c_double() if spent is None else spent

    @property
    def spent_s(self) -> float:
        """Return the seconds spent so far."""
        return self._spent.value

    def charge(self, seconds: float) -> None:
        """Count what another process says that it spent: what is left, where that cannot be."""
        left_s = max(0.0, self.budget_s - self.spent_s)
        self._spent.value += seconds if 0 <= seconds <= left_s else left_s

    def settle(self, outcome: T, run_again: Callable[[], T]) -> T | Fault:
        """Return the outcome of an event; after a transient fault, of its last run.

        A transient fault that stays says in its message how many attempts there were.
        """
        attempt = 1
        while isinstance(outcome, Fault) and error_type(outcome.code).transient:
            wait_s = self._back_off.wait_s(attempt)
            if attempt >= self.attempts or self._spent.value + wait_s > self.budget_s:
                return replace(outcome, message=f"{outcome.message} (attempts: {attempt})")
            began = self._clock()
            try:
                self._sleep(wait_s)
                outcome = run_again()
            finally:
                self._spent.value += self._clock() - began
            attempt += 1
        return outcome


Transform = Callable[[Event], Any]
_KEPT = (
    "id",
    "pipeline_id",
    "team",
    "key",
    "source_version",
    "intake_version",
    "intake_minute",
    "time",
    "stage",
    "attempt",
    "replay_id",
    "data_ref",
)
_OPERATIONS = ("upsert", "delete")
_NO_CODE: Mapping[str, str] = MappingProxyType({})


class Watch(Protocol):
    """Where it is noted which event user code works on now.

    ``marker.value``: its index in the batch, or -1.
    """

    marker: c_int64

    def begin(self) -> None:
        """Tell what comes from what ran before: it may have had the same marker."""
        ...


class NoWatch:
    """A watch nobody looks at."""

    def __init__(self) -> None:
        self.marker = c_int64(-1)

    def begin(self) -> None:
        """Do nothing."""


class Code(NamedTuple):
    """A pipeline's code, loaded: the one of its functions that runs."""

    transform: Transform | None
    transform_batch: Callable[[Any], Any] | None


def load_code(code: str, name: str, shared: Mapping[str, str] = _NO_CODE) -> Code:
    """Return the function of a pipeline's source text.

    Args:
        code: the text.
        name: of the pipeline.
        shared: the texts of the shared modules of its version, by path. Loading the same version
            once more loads them anew.

    Raises:
        ParkError: ``code_invalid``; the text cannot be loaded, or has neither ``transform`` nor
            ``transform_batch``. Of both, which no deploy takes any more, ``transform`` runs.
    """
    module = ModuleType(f"waybill_pipeline_{name}")
    modules = SharedCode(f"waybill_{code_digest(name, code, shared)}", shared) if shared else None
    try:
        if modules is not None:
            modules.install()
            module.__dict__["__builtins__"] = modules.builtins
        exec(compile(code, f"{CODE_FILE_PREFIX}{name}/transformation.py", "exec"), module.__dict__)  # noqa: S102
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place, said = describe(error).where, words_of(error)
        if modules is not None:
            said = said.replace(f"{modules.name}.", "")
        words = f"transformation of {name!r}: {said}" + (f" ({place})" if place else "")
        raise ParkError("code_invalid", words, where=place) from error
    event_form, batch_form = map(module.__dict__.get, (EVENT_FUNCTION, BATCH_FUNCTION))
    if callable(event_form):
        return Code(event_form, None)
    if callable(batch_form):
        return Code(None, batch_form)
    words = f"has no function {EVENT_FUNCTION}, nor {BATCH_FUNCTION}"
    raise ParkError("code_invalid", f"transformation of {name!r} {words}")


def code_digest(name: str, code: str, shared: Mapping[str, str]) -> str:
    """Return what the code of a pipeline's version is known by, 32 hex digits."""
    parts = [name, code, *chain.from_iterable(sorted(shared.items()))]
    text = "\0".join(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def compile_transformation(code: str, name: str) -> Transform:
    """Return the ``transform`` of a pipeline's source text.

    Raises:
        ParkError: ``code_invalid``; the text cannot be loaded, or has the batch form.
    """
    transform = load_code(code, name).transform
    if transform is None:
        raise ParkError("code_invalid", f"transformation of {name!r} takes tables, not events")
    return transform


Outcome = Event | list[Event] | Fault | None
"""The event itself, its children, what went wrong, or None: filtered."""


class Again(NamedTuple):
    """How an event is run again after a transient error."""

    retries: Retries
    fresh: Callable[[int], Event]
    """Returns an event as it came, by its index: user code changed it, perhaps, and then failed.
    May raise ParkError."""


def run(
    transform: Transform,
    events: Sequence[Event],
    watch: Watch,
    again: Again | None = None,
) -> Iterator[Outcome]:
    """Yield what became of each event, in order. Cost: about 0.6 µs an event beside user code's."""
    watch.begin()
    marker = watch.marker
    for index, event in enumerate(events):
        marker.value = index
        try:
            outcome = _outcome(transform, event)
        except EventTimeoutError as error:  # while its exception was asked for its words
            outcome = describe(error)
        marker.value = -1
        if type(outcome) is Fault and again is not None:
            once_more = partial(_rerun, transform, again.fresh, index, watch)
            outcome = again.retries.settle(outcome, once_more)
        yield outcome


def _rerun(
    transform: Transform, fresh: Callable[[int], Event], index: int, watch: Watch
) -> Outcome:
    try:
        event = fresh(index)
    except ParkError as error:
        return describe(error)
    return _watched(transform, event, index, watch)


def _watched(transform: Transform, event: Event, index: int, watch: Watch) -> Outcome:
    watch.begin()
    watch.marker.value = index
    try:
        outcome = _outcome(transform, event)
    except EventTimeoutError as error:  # while its exception was asked for its words
        outcome = describe(error)
    watch.marker.value = -1
    return outcome


def _outcome(transform: Transform, event: Event) -> Outcome:
    before = duplicate(event)
    try:
        result = transform(event)
        unchanged = result is event
        if unchanged:
            before.data = event.data  # the same object: what it holds is not compared
            if event == before:
                return event
        _refuse_changed(before, event)
        return _children(event, result)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        for name in _KEPT:
            setattr(event, name, getattr(before, name))
        event.name, event.op = before.name, before.op
        return describe(error)


def _refuse_changed(before: Event, after: Event) -> None:
    names = [name for name in _KEPT if getattr(before, name) != getattr(after, name)]
    if names:
        words = f"transform changed {', '.join(names)} of its event"
        raise ParkError("result_invalid", f"{words}; it may change data, name and op")


def _children(event: Event, result: Any) -> list[Event] | None:
    if result is None:
        return None
    results = [result] if isinstance(result, Event) else result
    words = f"transform returned {type(result).__name__}"
    if isinstance(results, list | tuple):
        wrong = [n for n, child in enumerate(results) if not isinstance(child, Event)]
        if wrong:
            kind = type(results[wrong[0]]).__name__
            words += f" with {kind} at index {wrong[0]}; a list must hold events only"
            raise ParkError("result_invalid", words)
    else:
        raise ParkError("result_invalid", f"{words}; it must return an event, a list or None")
    for child in results:
        check_child(child)
    if len(results) == 1 and results[0].id == event.id:
        only = results[0]
        return [msgspec.structs.replace(event, data=only.data, name=only.name, op=only.op)]
    children = [
        msgspec.structs.replace(event.child(index, child.data, name=child.name), op=child.op)
        for index, child in enumerate(results)
    ]
    return children or None


def check_child(child: Event) -> None:
    """Refuse a name or an op that an event cannot have.

    Raises:
        ParkError: ``result_invalid``.
    """
    try:
        refuse_wrong_name(child.name)
    except ValueError as error:
        raise ParkError("result_invalid", str(error)) from error
    if child.op not in _OPERATIONS:
        raise ParkError("result_invalid", "op of an event must be 'upsert' or 'delete'")
