"""Learning from events, where they are met.

A task, and a dry run, make room for what events bring in their own plans only (`LocalLearner`).
What a task made of them so has no effect: the driver keeps what was learned (`learn_once`), and
runs the batch again with the mapping that is in force then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from waybill.mappings import InForce, NameRules, learn, rules_of
from waybill.pipelines import EventDeclaration, Pipeline
from waybill.settings import DestinationSettings

_LOG = logging.getLogger(__name__)


def rules_for(pipeline: Pipeline, destinations: Mapping[str, DestinationSettings]) -> NameRules:
    """Return the name rules of a pipeline's destination; PostgreSQL's, if it is not configured."""
    return destination_rules(pipeline.destination, destinations)


def destination_rules(name: str, destinations: Mapping[str, DestinationSettings]) -> NameRules:
    """Return the name rules of a destination; PostgreSQL's, if it is not configured."""
    settings = destinations.get(name)
    return rules_of("postgres" if settings is None else settings.kind)


class LocalLearner:
    """Makes room for what events bring, in this process, and tells nobody.

    Args:
        rules: of the destination.
        learns: False: it makes no room any more, and only knows how many columns there may be.
    """

    def __init__(self, rules: NameRules, *, learns: bool = True) -> None:
        self._rules = rules
        self._learns = learns
        self.most_columns = rules.most_columns

    def __call__(
        self,
        pipeline: Pipeline,  # noqa: ARG002 - a learner's signature
        known: InForce,
        payloads: Sequence[Any],
    ) -> InForce | None:
        """See `Learner`."""
        learned = _learned(known.declaration, payloads, self._rules) if self._learns else None
        return None if learned is None else InForce(known.number, learned)


def _learned(
    declared: EventDeclaration, payloads: Sequence[Any], rules: NameRules
) -> EventDeclaration | None:
    """Return what is learned from payloads; None: nothing.

    User code makes values that raise, whatever is asked of them: such a payload teaches nothing,
    and does not keep its neighbours from it.
    """
    try:
        return learn(declared, payloads, rules)
    except Exception:  # noqa: BLE001 - they are met again, one by one
        _LOG.exception("event %r: learning one by one", declared.name)
    payloads = [payload for payload in payloads if _teaches(declared, payload, rules)]
    return learn(declared, payloads, rules)


def _teaches(declared: EventDeclaration, payload: Any, rules: NameRules) -> bool:
    try:
        learn(declared, [payload], rules)
    except Exception as error:  # noqa: BLE001 - what the event parks with says what is wrong
        _LOG.warning("event %r: nothing is learned from a payload: %r", declared.name, error)
        return False
    return True
