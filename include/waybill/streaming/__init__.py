"""Streaming: the only room that knows Spark. Drivers, tasks, and how a micro-batch is committed.

Invariants
  I1  A consumer starts where the ledger stands; Spark's own checkpoint is new at each start.
  I2  A task writes at most one staged and one parked object, under fresh keys, before it returns
      their descriptors; only returned descriptors are committed.
  I3  A batch is committed before Spark is told that it is done.
  I4  Any doubt about a log (a hole, another topic id, a tail that was cut) stops its consumer; the
      stop is in the tracker until somebody settles it. A batch is committed only if no leader
      changed since the log was held against the ledger.
"""

__all__: list[str] = []
