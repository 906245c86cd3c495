"""Tracing: one line for each point that an event passed, from the node to the object store.

A process records traces (``traces``, ``Recorder``) into finished files of the node's spool. One
process a node carries them to the object store (``run_shipper``); ``waybill.tracing.files`` keeps
the books of them. ``TraceQuery`` answers with the trail of one event from both places.

Layout
  <spool>/<file id>.parquet                                         see ``waybill.tracing.files``
  traces/bucket=NNN/dt=YYYY-MM-DD/hour=HH/<name>.parquet            UTC; sorted by event id
  traces/_layout.json                                               number of buckets, hash
  traces/_compactions/dt=…/hour=HH.json                             compactions that are not over
  traces/_compacted/dt=…/hour=HH/<run>.json                         what was compacted, for shippers
  bucket = crc32(text of the event id before its first "/") modulo the number of buckets, with three
  digits. One more bucket, numbered as there are buckets, is the fresh one: a node ships one object
  an hour into it, and compaction (``Compactor``) cuts an hour's fresh objects into its buckets.

Invariants
  I1  A trace holds no payload.
  I2  What ``Recorder.write`` returned for is on disk: written, synced, renamed, directory synced.
      What it did not return for was never promised; a torn file is removed and noted.
  I3, I4  Shipped exactly once, deleted after that: I2 and I3 of ``waybill.tracing.files``.
  I5  No reader sees a trace twice, or not at all, because of a compaction; see ``manifests``.
      (Athena sees it twice for some minutes: its trails are DISTINCT.)
  I6  A trail reads the spool first, then the store; what both hold counts once: a file that is
      shipped meanwhile is found in the store. What one place holds twice was written twice.
  I7  The number of buckets never changes: the layout object holds it; another one is an error.
  I8  A full spool makes writers wait, then raises; nothing is dropped.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.tracing.athena_traces import AthenaTraces as AthenaTraces
    from waybill.tracing.backends import open_traces as open_traces
    from waybill.tracing.compaction import CompactionReport as CompactionReport
    from waybill.tracing.compaction import Compactor as Compactor
    from waybill.tracing.duckdb_traces import DuckDbTraces as DuckDbTraces
    from waybill.tracing.expiry import expire_traces as expire_traces
    from waybill.tracing.layout import Hour as Hour
    from waybill.tracing.layout import TraceStore as TraceStore
    from waybill.tracing.layout import bucket_of as bucket_of
    from waybill.tracing.query import QueryCancelledError as QueryCancelledError
    from waybill.tracing.query import QueryWatch as QueryWatch
    from waybill.tracing.query import Searched as Searched
    from waybill.tracing.query import TraceQuery as TraceQuery
    from waybill.tracing.query import Watched as Watched
    from waybill.tracing.recorder import Recorder as Recorder
    from waybill.tracing.recorder import open_recorder as open_recorder
    from waybill.tracing.shipping import TracePacker as TracePacker
    from waybill.tracing.shipping import run_shipper as run_shipper
    from waybill.tracing.shipping import trace_spool as trace_spool
    from waybill.tracing.sql import MINUTE_SCHEMA as MINUTE_SCHEMA
    from waybill.tracing.sql import table_statements as table_statements
    from waybill.tracing.sql import table_updates as table_updates
    from waybill.tracing.trace import INTAKE_STEP_US as INTAKE_STEP_US
    from waybill.tracing.trace import OUTCOMES as OUTCOMES
    from waybill.tracing.trace import PHASES as PHASES
    from waybill.tracing.trace import THROUGH as THROUGH
    from waybill.tracing.trace import TRACE_SCHEMA as TRACE_SCHEMA
    from waybill.tracing.trace import Trace as Trace
    from waybill.tracing.trace import traces as traces

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "athena_traces": ["AthenaTraces"],
        "compaction": ["CompactionReport", "Compactor"],
        "duckdb_traces": ["DuckDbTraces"],
        "expiry": ["expire_traces"],
        "layout": ["Hour", "TraceStore", "bucket_of"],
        "query": ["QueryCancelledError", "QueryWatch", "Searched", "TraceQuery", "Watched"],
        "recorder": ["Recorder", "open_recorder"],
        "backends": ["open_traces"],
        "shipping": ["TracePacker", "run_shipper", "trace_spool"],
        "sql": ["MINUTE_SCHEMA", "table_statements", "table_updates"],
        "trace": [
            "INTAKE_STEP_US",
            "OUTCOMES",
            "PHASES",
            "THROUGH",
            "TRACE_SCHEMA",
            "Trace",
            "traces",
        ],
    },
)
