"""The steps of examining a destination: each is tried, the first that fails ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from waybill.destinations.model import Finding
from waybill.errors import RetryError, WaybillError

Step = tuple[str, Callable[[], str]]
"""What is tried, and what does it: returns what was found, or raises."""


def run_steps(
    steps: Sequence[Step], within: Callable[[], AbstractContextManager[None]] = nullcontext
) -> list[Finding]:
    """Return what each step found; the first that fails ends it.

    Args:
        steps: in order.
        within: what each runs in: raises the engine's errors as Waybill's.
    """
    findings: list[Finding] = []
    for step, act in steps:
        try:
            with within():
                findings.append(Finding(step, ok=True, words=act()))
        except WaybillError as error:
            away = isinstance(error, RetryError)
            findings.append(Finding(step, ok=False, words=str(error), may_pass=away))
            break
    return findings


def saying(words: str, action: Callable[[], object]) -> Callable[[], str]:
    """Return a step's action that says the same whenever it succeeds."""

    def act() -> str:
        action()
        return words

    return act
