"""Retention: what grows is trimmed, by settings; what is kept for good is named.

rows         rows of the tracker that nothing asks for any more; what each table grows by
records      records in Kafka whose commits are loaded
payloads     objects of large payloads that no event names any more
source_keys  keys of tables' rows that no deployed pipeline compares with any more

(Traces are trimmed by ``waybill.tracing``, staged and parked objects by ``waybill.parking``.)

Invariants
  I1  Balance and audit are the same before and after, to the digit: they sum minutes and totals,
      and what is in flight; a row goes only when neither asks for it.
  I2  A transaction deletes a limited number of rows. A kill between any two leaves what the next
      run goes on with; a run that has nothing to do changes nothing.
  I3  What decides is in the tracker, by the tracker's clock.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.retention.payloads import PayloadReport as PayloadReport
    from waybill.retention.payloads import trim_payloads as trim_payloads
    from waybill.retention.records import TopicTrim as TopicTrim
    from waybill.retention.records import trim_log as trim_log
    from waybill.retention.rows import GROWTH as GROWTH
    from waybill.retention.rows import TRIMS as TRIMS
    from waybill.retention.rows import Growth as Growth
    from waybill.retention.rows import table_sizes as table_sizes
    from waybill.retention.rows import trim_rows as trim_rows
    from waybill.retention.source_keys import SourceKeysReport as SourceKeysReport
    from waybill.retention.source_keys import trim_source_keys as trim_source_keys

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "payloads": ["PayloadReport", "trim_payloads"],
        "records": ["TopicTrim", "trim_log"],
        "rows": ["GROWTH", "Growth", "TRIMS", "table_sizes", "trim_rows"],
        "source_keys": ["SourceKeysReport", "trim_source_keys"],
    },
)
