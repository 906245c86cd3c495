"""Retention: what grows is trimmed, each by its setting, and what must last is named.

tables     what each table of the tracker grows by, and who trims it
rows       rows of the tracker that nothing asks for any more
records    records in Kafka whose commits are loaded
payloads   objects of large payloads that no event names any more

(Traces are trimmed by ``waybill.tracing``, staged and parked objects by ``waybill.parking``.)

Invariants
  I1  Balance and audit are the same before and after, to the digit: they sum minutes and totals,
      and what is in flight; a row goes only when neither asks for it.
  I2  A transaction deletes a limited number of rows. A kill between any two leaves what the next
      run goes on with; a run that has nothing to do changes nothing.
  I3  What decides is in the tracker, by the tracker's clock.
"""

from __future__ import annotations

from waybill.operations.retention.payloads import PayloadReport, trim_payloads
from waybill.operations.retention.records import TopicTrim, trim_log
from waybill.operations.retention.rows import TRIMS, trim_rows
from waybill.operations.retention.tables import GROWTH, Growth

__all__ = [
    "GROWTH",
    "TRIMS",
    "Growth",
    "PayloadReport",
    "TopicTrim",
    "trim_log",
    "trim_payloads",
    "trim_rows",
]
