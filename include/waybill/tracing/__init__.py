"""Tracing: one line for each point that an event passed, from the node to the object store.

A process records traces (``traces``, ``Recorder``) into finished files of the node's spool. One
process a node carries them to the object store (``run_shipper``; the room ``waybill.files`` keeps
the books of them). ``TraceQuery`` answers with the trail of one event from both places.

Layout
  <spool>/<file id>.parquet                                        see ``waybill.files``
  traces/dt=YYYY-MM-DD/hour=HH/bucket=NNN/<ship id>.parquet        UTC; sorted by event id
  traces/_hours/dt=YYYY-MM-DD/hour=HH                              this hour has objects
  traces/_layout.json                                              number of buckets, hash
  bucket = crc32(event id as UTF-8) modulo the number of buckets. In Athena:
  ``crc32(to_utf8(event_id)) % 16``, written with three digits.

Invariants
  I1  A trace holds no payload.
  I2  What ``Recorder.write`` returned for is on disk: written, synced, renamed, directory synced.
      What it did not return for was never promised; a torn file is removed and noted.
  I3, I4  Shipped exactly once, deleted after that: I2 and I3 of ``waybill.files``.
  I5  An hour's marker is in the store before the hour's first object, so that a look-up without a
      time knows every hour there is.
  I6  A trail reads the spool first, then the store, then removes what it saw twice: a file that is
      shipped meanwhile is found in the store.
  I7  The number of buckets never changes: the layout object holds it; another one is an error.
  I8  A full spool makes writers wait, then raises; nothing is dropped.
"""

from waybill.tracing.athena_traces import AthenaTraces
from waybill.tracing.duckdb_traces import DuckDbTraces
from waybill.tracing.layout import bucket_of
from waybill.tracing.query import MINUTE_SCHEMA, TraceQuery
from waybill.tracing.recorder import Recorder, open_recorder
from waybill.tracing.selection import open_traces
from waybill.tracing.shipping import TracePacker, run_shipper, trace_spool
from waybill.tracing.store import TraceStore
from waybill.tracing.trace import OUTCOMES, PHASES, TRACE_SCHEMA, Trace, traces
from waybill.tracing.watch import QueryCancelledError, QueryWatch, Searched, Watched

__all__ = [
    "MINUTE_SCHEMA",
    "OUTCOMES",
    "PHASES",
    "TRACE_SCHEMA",
    "AthenaTraces",
    "DuckDbTraces",
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
    "open_recorder",
    "open_traces",
    "run_shipper",
    "trace_spool",
    "traces",
]
