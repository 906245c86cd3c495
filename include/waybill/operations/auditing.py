"""The auditor: asks of every intake minute whether the books balance, before anybody else does.

auditing_breaches   breaches: opened, updated, explained, closed by name
auditing_states     how each minute stands, for pages
"""

from __future__ import annotations

from waybill.operations.auditing_breaches import (
    KINDS,
    Breach,
    BreachKey,
    Opened,
    close_breach,
    open_breach,
    read_breaches,
    settle,
)
from waybill.operations.auditing_states import MinuteState, Verdict, minute_states

__all__ = [
    "KINDS",
    "Breach",
    "BreachKey",
    "MinuteState",
    "Opened",
    "Verdict",
    "close_breach",
    "minute_states",
    "open_breach",
    "read_breaches",
    "settle",
]
