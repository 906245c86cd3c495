"""Loads that a destination does not take: waited for, told of, parked when somebody wants it.

A load is never given up: its staged objects keep, and their rows with them, until the destination
takes them or they are parked.

Invariants
  I1  A destination has a row in ``destination_states`` from the first load that it did not take to
      the next one that it takes; that goes in the transaction which acknowledges it.
  I2  Rows are parked as a load is acknowledged: one tracker transaction moves the position, counts
      every row in and parked, names the object, under the lease. A SIGKILL before it leaves an
      object that no row names.
  I3  What was parked may be in the destination all the same: a load whose answer was lost, a loader
      that froze. Its replay brings the same versions, so the destination says ``duplicate``.
  I4  Parking ends with the first load that the destination takes, or when the order is taken back.
"""
