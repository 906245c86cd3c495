"""Tracing: one line for each point that an event passed, from the node to the object store.

A process records traces (``traces``, ``Recorder``) into finished files of the node's spool. One
process a node carries them to the object store (``run_shipper``; the room ``waybill.files`` keeps
the books of them). ``TraceQuery`` answers with the trail of one event from both places.

Layout
  <spool>/<file id>.parquet                                         see ``waybill.files``
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
  I3, I4  Shipped exactly once, deleted after that: I2 and I3 of ``waybill.files``.
  I5  No reader sees a trace twice, or not at all, because of a compaction; see ``manifests``.
      (Athena sees it twice for some minutes: its trails are DISTINCT.)
  I6  A trail reads the spool first, then the store; what both hold counts once: a file that is
      shipped meanwhile is found in the store. What one place holds twice was written twice.
  I7  The number of buckets never changes: the layout object holds it; another one is an error.
  I8  A full spool makes writers wait, then raises; nothing is dropped.
"""

from waybill.tracing.athena_traces import AthenaTraces
from waybill.tracing.compaction import CompactionReport, Compactor
from waybill.tracing.duckdb_traces import DuckDbTraces
from waybill.tracing.expiring import expire_traces
from waybill.tracing.layout import Hour, bucket_of
from waybill.tracing.projection import table_statements
from waybill.tracing.query import MINUTE_SCHEMA, TraceQuery
from waybill.tracing.recorder import Recorder, open_recorder
from waybill.tracing.selection import open_traces
from waybill.tracing.shipping import TracePacker, run_shipper, trace_spool
from waybill.tracing.store import TraceStore
from waybill.tracing.trace import OUTCOMES, PHASES, THROUGH, TRACE_SCHEMA, Trace, traces
from waybill.tracing.watch import QueryCancelledError, QueryWatch, Searched, Watched

__all__ = [
    "MINUTE_SCHEMA",
    "OUTCOMES",
    "PHASES",
    "THROUGH",
    "TRACE_SCHEMA",
    "AthenaTraces",
    "CompactionReport",
    "Compactor",
    "DuckDbTraces",
    "Hour",
    "QueryCancelledError",
    "QueryWatch",
    "Recorder",
    "Searched",
    "Trace",
    "TracePacker",
    "TraceQuery",
    "TraceStore",
    "Watched",
    "bucket_of",
    "expire_traces",
    "open_recorder",
    "open_traces",
    "run_shipper",
    "table_statements",
    "trace_spool",
    "traces",
]
