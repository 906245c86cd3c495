"""The auditor: asks of every intake minute whether the books balance, before anybody else does.

auditing_breaches   breaches: opened, updated, explained, closed by name
auditing_states     how each minute stands, for pages
auditing_round      one round: all that changed and all that moves, in one moment; on it
                    auditing_snapshot (that moment), auditing_verdicts (what the counts say),
                    auditing_sums, auditing_ranges (beside the minutes), auditing_list (what there
                    is to do), auditing_writing (what is written, and told)
auditing_naming     the ids of a breach's events, once the minute's traces are in (auditing_ids)
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
from waybill.operations.auditing_naming import (
    NamedMinute,
    NamingLimits,
    NamingReport,
    name_breaches,
)
from waybill.operations.auditing_round import AuditLimits, AuditReport, audit
from waybill.operations.auditing_states import MinuteState, Verdict, minute_states

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
