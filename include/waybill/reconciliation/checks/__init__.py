"""Eager checks: what is out of the usual before any equation of the ledger breaks.

checks     all of them, once: what is found is told as breaches, what is over is settled
habits     quiet, parked_jump: decided by the pure functions of quiet, parked
lateness   late: ages of what waits, decided by ages
stranded   events in the write-ahead logs of runs that are gone
drift      a table's rows against what loads put there
measured   what is measured in the tracker; limits, findings, told: values
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.reconciliation.checks.findings import span as span
    from waybill.reconciliation.checks.limits import WatchLimits as WatchLimits
    from waybill.reconciliation.checks.run import WatchParts as WatchParts
    from waybill.reconciliation.checks.run import WatchReport as WatchReport
    from waybill.reconciliation.checks.run import tell as tell
    from waybill.reconciliation.checks.run import watch as watch

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "findings": ["span"],
        "limits": ["WatchLimits"],
        "run": ["WatchParts", "WatchReport", "tell", "watch"],
    },
)
