"""The shipper's loop: until it is stopped, through outages, and what is left at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from waybill.errors import RetryError
from waybill.tracing.files.shipper import Shipper, ShipReport

if TYPE_CHECKING:
    from tenacity import RetryCallState

LOG = logging.getLogger(__name__)
_IDLE_S = 1.0
_BACK_OFF_MOST_S = 30.0


def ship_until(
    shipper: Shipper,
    stop: Callable[[], bool],
    *,
    drain_s: float = 20.0,
) -> ShipReport:
    """Ship until ``stop()`` is true, then what is left, for at most about ``drain_s``.

    A store that is away is waited out, with back-off up to 30 s.

    Raises:
        InputError, StopError: going on makes no sense; see ``Shipper.step`` and ``FileManager``.
    """
    total = ShipReport()
    while not stop():
        report = _step(shipper, stop)
        if report is None:
            _sleep(min(_IDLE_S, shipper.roll_s / 2), stop)
        else:
            total = total.plus(report)
    return total.plus(_drain(shipper, drain_s))


def _drain(shipper: Shipper, drain_s: float) -> ShipReport:
    deadline = time.monotonic() + drain_s
    total = ShipReport()
    while time.monotonic() < deadline:
        report = _step(shipper, lambda: time.monotonic() >= deadline, everything=True)
        if report is None:
            break
        total = total.plus(report)
    left = shipper.files.counts()
    if left["closed"] + left["shipping"]:
        LOG.warning("stopped with files in the spool, shipped at the next start: %s", left)
    return total


def _step(
    shipper: Shipper, stop: Callable[[], bool], *, everything: bool = False
) -> ShipReport | None:
    """Ship one shipment, waiting out a store that is away; None also when stopped meanwhile."""
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        wait_random_exponential,
    )

    def note(state: RetryCallState) -> None:
        if state.outcome is not None and state.next_action is not None:
            shipper.postpone(state.outcome.exception() or RetryError(), state.next_action.sleep)

    retrying = Retrying(
        retry=retry_if_exception_type(RetryError),
        wait=wait_random_exponential(multiplier=0.5, max=_BACK_OFF_MOST_S),
        stop=lambda _: stop(),
        sleep=lambda delay_s: _sleep(delay_s, stop),
        before_sleep=note,
        reraise=True,
    )
    try:
        return retrying(shipper.step, everything=everything)
    except RetryError as error:
        shipper.postpone(error, 0.0)
        return None


def _sleep(delay_s: float, stop: Callable[[], bool]) -> None:
    """Sleep, looking at ``stop`` five times a second."""
    deadline = time.monotonic() + delay_s
    while not stop() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
