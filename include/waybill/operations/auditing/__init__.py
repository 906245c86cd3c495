"""The auditor: asks of every intake minute whether the books balance, before anybody else does.

breaches   opened, updated, explained, closed by name
states     how each minute stands, for pages
rounds     one round: all that changed and all that moves, in one moment; on it snapshot (that
           moment), verdicts (what the counts say), sums, ranges (beside the minutes), to_do (what
           there is to do), writing (what is written, and told)
naming     the ids of a breach's events, once the minute's traces are in (ids)
"""

from __future__ import annotations

from waybill.operations.auditing.breaches import (
    KINDS,
    Breach,
    BreachKey,
    Opened,
    close_breach,
    open_breach,
    read_breaches,
    settle,
)
from waybill.operations.auditing.naming import (
    NamedMinute,
    NamingLimits,
    NamingReport,
    name_breaches,
)
from waybill.operations.auditing.rounds import AuditLimits, AuditReport, audit
from waybill.operations.auditing.states import MinuteState, Verdict, minute_states

__all__ = [
    "KINDS",
    "AuditLimits",
    "AuditReport",
    "Breach",
    "BreachKey",
    "MinuteState",
    "NamedMinute",
    "NamingLimits",
    "NamingReport",
    "Opened",
    "Verdict",
    "audit",
    "close_breach",
    "minute_states",
    "name_breaches",
    "open_breach",
    "read_breaches",
    "settle",
]
