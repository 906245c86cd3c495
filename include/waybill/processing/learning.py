"""Learning from events: for good, where mappings are kept, or in a dry run that keeps nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from waybill.errors import RetryError
from waybill.mappings import InForce, NameRules, in_force, learn, learn_once, over, rules_of
from waybill.pipelines import EventDeclaration, Pipeline, topic_of
from waybill.settings import DestinationSettings
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_S = 5.0


def rules_for(pipeline: Pipeline, destinations: Mapping[str, DestinationSettings]) -> NameRules:
    """Return the name rules of a pipeline's destination; PostgreSQL's, if it is not configured."""
    settings = destinations.get(pipeline.destination)
    return rules_of("postgres" if settings is None else settings.kind)


class DryRunLearner:
    """Makes room for what events bring, and tells nobody."""

    def __init__(self, rules: NameRules) -> None:
        self._rules = rules
        self.most_columns = rules.most_columns

    def __call__(
        self,
        pipeline: Pipeline,  # noqa: ARG002 - a learner's signature
        known: InForce,
        payloads: Sequence[Any],
    ) -> InForce | None:
        """See `Learner`."""
        learned, _ = _learned(known.declaration, payloads, self._rules)
        return None if learned is None else InForce(known.number, learned)


class TrackerLearner:
    """Makes room for what events bring by a new version of the mapping, in the tracker.

    Two who learn the same at once make one version. Killed after it was made, and before the rows
    are written, it leaves a column that is empty until those rows come again.

    Args:
        open_tracker: asked only when there is something to learn.
        rules: of the destination.
        limit_s: how long it waits, with back-off, for a tracker that is away.
    """

    def __init__(
        self, open_tracker: Callable[[], TrackerStore], rules: NameRules, *, limit_s: float
    ) -> None:
        self._open = open_tracker
        self._rules = rules
        self._limit_s = limit_s
        self.most_columns = rules.most_columns

    def __call__(
        self, pipeline: Pipeline, known: InForce, payloads: Sequence[Any]
    ) -> InForce | None:
        """See `Learner`.

        Raises:
            RetryError: the tracker stayed away for ``limit_s``.
        """
        learned, payloads = _learned(known.declaration, payloads, self._rules)
        if learned is None:
            return None
        for attempt in Retrying(
            retry=retry_if_exception_type(RetryError),
            wait=wait_random_exponential(multiplier=0.2, max=_LONGEST_WAIT_S),
            stop=stop_after_delay(self._limit_s),
            before_sleep=_say_why,
            reraise=True,
        ):
            with attempt:
                return self._once(pipeline, known, payloads)
        raise AssertionError("Retrying ends by a value or an error")

    def _once(self, pipeline: Pipeline, known: InForce, payloads: Sequence[Any]) -> InForce:
        author = f"processing/{topic_of(pipeline)}"
        with self._open() as tracker:
            made = learn_once(
                tracker, pipeline.id, known.declaration, payloads, self._rules, author
            )
        _LOG.info("%s, %s: mapping %d", pipeline.name, made.event_name, made.number)
        return InForce(made.number, made.declaration)


def _learned(
    declared: EventDeclaration, payloads: Sequence[Any], rules: NameRules
) -> tuple[EventDeclaration | None, Sequence[Any]]:
    """Return what is learned from payloads, and those that it was learned from.

    User code makes values that raise, whatever is asked of them: such a payload teaches nothing,
    and does not keep its neighbours from it.
    """
    try:
        return learn(declared, payloads, rules), payloads
    except Exception:  # noqa: BLE001 - they are met again, one by one
        _LOG.exception("event %r: learning one by one", declared.name)
    payloads = [payload for payload in payloads if _teaches(declared, payload, rules)]
    return learn(declared, payloads, rules), payloads


def _teaches(declared: EventDeclaration, payload: Any, rules: NameRules) -> bool:
    try:
        learn(declared, [payload], rules)
    except Exception as error:  # noqa: BLE001 - what the event parks with says what is wrong
        _LOG.warning("event %r: nothing is learned from a payload: %r", declared.name, error)
        return False
    return True


def _say_why(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    _LOG.warning("waiting for the tracker, to learn from events: %s", error)


def mappings_in_force(tracker: TrackerStore, pipeline_id: str) -> dict[str, InForce]:
    """Return what a pipeline's event names map to; without those that were never learned."""
    found = in_force(tracker, [pipeline_id]).values()
    return {one.event_name: InForce(one.number, one.declaration) for one in found}


def mappings_once_deployed(
    tracker: TrackerStore, active: Pipeline, proposed: Pipeline
) -> dict[str, InForce]:
    """Return what the event names of a version that is not deployed would map to.

    Raises:
        InputError: the version declares what cannot be laid over what was learned.
    """
    kept = mappings_in_force(tracker, active.id)
    if proposed.version == active.version:
        return kept
    laid = {
        name: over(event, kept[name].declaration, active.events.get(name))
        for name, event in proposed.events.items()
        if name in kept
    }
    return {name: InForce(kept[name].number + 1, event) for name, event in laid.items()}
