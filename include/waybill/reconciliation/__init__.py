"""The auditor: asks of every intake minute whether the books balance, before anybody else does.

breaches        opened, updated, explained, closed by name
minutes         how each minute stands, for pages
rounds          one round: all that changed and all that moves, in one moment; it stands on
                snapshot (that moment), verdicts (what the counts say), segment_sums and
                offset_ranges (beside the minutes) and queue (what there is to do)
missing_ids     the ids of a breach's events, once the minute's traces are in (id_comparison)
balance_report  the books of all minutes together, for `waybill balance`
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.reconciliation.balance_report import BalanceReport as BalanceReport
    from waybill.reconciliation.balance_report import PipelineBalance as PipelineBalance
    from waybill.reconciliation.balance_report import balance as balance
    from waybill.reconciliation.breaches import KINDS as KINDS
    from waybill.reconciliation.breaches import Breach as Breach
    from waybill.reconciliation.breaches import BreachKey as BreachKey
    from waybill.reconciliation.breaches import Opened as Opened
    from waybill.reconciliation.breaches import close_breach as close_breach
    from waybill.reconciliation.breaches import count_breaches as count_breaches
    from waybill.reconciliation.breaches import open_breach as open_breach
    from waybill.reconciliation.breaches import read_breach as read_breach
    from waybill.reconciliation.breaches import read_breaches as read_breaches
    from waybill.reconciliation.breaches import settle as settle
    from waybill.reconciliation.minutes import MOST_ROWS as MOST_ROWS
    from waybill.reconciliation.minutes import Cell as Cell
    from waybill.reconciliation.minutes import Grid as Grid
    from waybill.reconciliation.minutes import MinuteState as MinuteState
    from waybill.reconciliation.minutes import Span as Span
    from waybill.reconciliation.minutes import Verdict as Verdict
    from waybill.reconciliation.minutes import minute_states as minute_states
    from waybill.reconciliation.missing_ids import NamedMinute as NamedMinute
    from waybill.reconciliation.missing_ids import NamingLimits as NamingLimits
    from waybill.reconciliation.missing_ids import NamingReport as NamingReport
    from waybill.reconciliation.missing_ids import name_breaches as name_breaches
    from waybill.reconciliation.queue import last_report as last_report
    from waybill.reconciliation.rounds import AuditLimits as AuditLimits
    from waybill.reconciliation.rounds import AuditReport as AuditReport
    from waybill.reconciliation.rounds import audit as audit
    from waybill.reconciliation.service import BalanceFilter as BalanceFilter
    from waybill.reconciliation.service import BalanceService as BalanceService
    from waybill.reconciliation.service import BreachFilter as BreachFilter
    from waybill.reconciliation.service import BreachPage as BreachPage
    from waybill.reconciliation.service import BreachState as BreachState
    from waybill.reconciliation.service import EventRows as EventRows
    from waybill.reconciliation.service import Overview as Overview
    from waybill.reconciliation.service import PipelineRow as PipelineRow
    from waybill.reconciliation.service import RowOf as RowOf

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "balance_report": ["BalanceReport", "PipelineBalance", "balance"],
        "breaches": [
            "Breach",
            "BreachKey",
            "KINDS",
            "Opened",
            "close_breach",
            "count_breaches",
            "open_breach",
            "read_breach",
            "read_breaches",
            "settle",
        ],
        "minutes": ["Cell", "Grid", "MOST_ROWS", "MinuteState", "Span", "Verdict", "minute_states"],
        "missing_ids": ["NamedMinute", "NamingLimits", "NamingReport", "name_breaches"],
        "queue": ["last_report"],
        "rounds": ["AuditLimits", "AuditReport", "audit"],
        "service": [
            "BalanceFilter",
            "BalanceService",
            "BreachFilter",
            "BreachPage",
            "BreachState",
            "EventRows",
            "Overview",
            "PipelineRow",
            "RowOf",
        ],
    },
)
