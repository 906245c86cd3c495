"""Eager checks: what is out of the usual before any equation of the ledger breaks.

run        all of them, once: what is found is told as breaches, what is over is settled
quiet      a pipeline brings nothing where it always did
lateness   a run that did not come, events and rows that wait for too long
parked     a larger share parks than usual
drift      a table's rows against what loads put there
stranded   events in the write-ahead logs of runs that are gone
draining   topics whose old generation does not end
slots      sources that keep more for a pipeline than they may
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
