"""Stages: what happens to events between the log and the destination. Pure: values in, values out.

A chain takes the messages of one task in chunks. Each event enters at its stage (transformation,
mapping, or destination for a replay of what a destination refused), and ends as a typed row,
parked, or filtered on purpose.

Invariants
  I1  Every message ends in exactly one way, or in children that each do; counts come from records.
  I2  One event's failure, whatever it is, changes nothing for its neighbours.
  I3  What is parked is the event as it entered the stage that failed, byte for byte when that stage
      was its first. An event made by a transformation that cannot be written down parks its parent.
  I4  What is learned from events is learned before they are mapped: a row is never written without
      a value that its table has, or can get, a column for (policy ``evolve``). A mapping is only
      ever followed by a later one, and rows of one table keep their order over it.
  I5  A transient error of user code is met again, a bounded number of times an event and seconds a
      task, before the event is parked; what comes after it waits.
"""

from waybill.stages.chain import Chain
from waybill.stages.clock import ChildClock, Clock
from waybill.stages.columns import MappingFault
from waybill.stages.counts import COUNT_NAMES, Counts
from waybill.stages.failures import EventTimeoutError, Fault, describe
from waybill.stages.mapping import map_rows
from waybill.stages.plan import Learner, Plan
from waybill.stages.results import ChainResult, Chunk, Failure, Mapped
from waybill.stages.retrying import Retries
from waybill.stages.staged import (
    StagedFrame,
    StagedPacker,
    read_staged,
    system_columns,
)
from waybill.stages.transformation import Watch, compile_transformation

__all__ = [
    "COUNT_NAMES",
    "Chain",
    "ChainResult",
    "ChildClock",
    "Chunk",
    "Clock",
    "Counts",
    "EventTimeoutError",
    "Failure",
    "Fault",
    "Learner",
    "Mapped",
    "MappingFault",
    "Plan",
    "Retries",
    "StagedFrame",
    "StagedPacker",
    "Watch",
    "compile_transformation",
    "describe",
    "map_rows",
    "read_staged",
    "system_columns",
]
