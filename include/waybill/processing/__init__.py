"""Stages: what happens to events between the log and the destination. Pure: values in, values out.

A chain takes the messages of one task in chunks. Each event enters at its stage (transformation,
mapping, or destination for a replay of what a destination refused), and ends as a typed row,
parked, or filtered on purpose.

Invariants
  I1  Every message ends in exactly one way, or in children that each do; counts come from records.
  I2  One event's failure, whatever it is, changes nothing for its neighbours.
  I3  What is parked is the event as it entered the stage that failed, byte for byte when that stage
      was its first. An event made by a transformation that cannot be written down parks its parent.
  I4  What is learned from events is kept before they are mapped for good: a row is never written
      without a value that its table has, or can get, a column for (policy ``evolve``), nor by a
      mapping that nobody keeps. A mapping is only ever followed by a later one, and rows of one
      table keep their order over it.
  I5  A transient error of user code is met again, a bounded number of times an event and seconds a
      task, before the event is parked; what comes after it waits.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.processing.chain import MOST_SLICE_BYTES as MOST_SLICE_BYTES
    from waybill.processing.chain import Chain as Chain
    from waybill.processing.chain import TopicOwner as TopicOwner
    from waybill.processing.clock import Clock as Clock
    from waybill.processing.code_runner import CodeRunner as CodeRunner
    from waybill.processing.code_runner import InProcess as InProcess
    from waybill.processing.code_runner import outcomes_of as outcomes_of
    from waybill.processing.conversion import convert as convert
    from waybill.processing.dry_runner import DryRunner as DryRunner
    from waybill.processing.dry_runner import Fate as Fate
    from waybill.processing.dry_runner import Row as Row
    from waybill.processing.failed_events import identity_of as identity_of
    from waybill.processing.failed_events import parked_event as parked_event
    from waybill.processing.failures import EventTimeoutError as EventTimeoutError
    from waybill.processing.failures import Fault as Fault
    from waybill.processing.failures import describe as describe
    from waybill.processing.kept_mappings import mappings_in_force as mappings_in_force
    from waybill.processing.kept_mappings import mappings_once_deployed as mappings_once_deployed
    from waybill.processing.learning import LocalLearner as LocalLearner
    from waybill.processing.learning import destination_rules as destination_rules
    from waybill.processing.learning import rules_for as rules_for
    from waybill.processing.mapping import MappingFault as MappingFault
    from waybill.processing.mapping import map_rows as map_rows
    from waybill.processing.plan import Learner as Learner
    from waybill.processing.plan import Plan as Plan
    from waybill.processing.results import COUNT_NAMES as COUNT_NAMES
    from waybill.processing.results import ChainResult as ChainResult
    from waybill.processing.results import Chunk as Chunk
    from waybill.processing.results import Counts as Counts
    from waybill.processing.results import Failure as Failure
    from waybill.processing.results import Mapped as Mapped
    from waybill.processing.results import TooMuchMadeError as TooMuchMadeError
    from waybill.processing.sandbox import sandbox_with as sandbox_with
    from waybill.processing.sandbox import shared_sandbox as shared_sandbox
    from waybill.processing.staged import TAIL_BYTES as TAIL_BYTES
    from waybill.processing.staged import StagedFrame as StagedFrame
    from waybill.processing.staged import StagedObjectError as StagedObjectError
    from waybill.processing.staged import StagedPacker as StagedPacker
    from waybill.processing.staged import read_staged as read_staged
    from waybill.processing.staged import staged_tables as staged_tables
    from waybill.processing.staged import system_columns as system_columns
    from waybill.processing.storms import Storm as Storm
    from waybill.processing.storms import Tally as Tally
    from waybill.processing.storms import find_storms as find_storms
    from waybill.processing.traces import trace_batches as trace_batches
    from waybill.processing.transformation import Retries as Retries
    from waybill.processing.transformation import TooSlowError as TooSlowError
    from waybill.processing.transformation import Watch as Watch
    from waybill.processing.transformation import compile_transformation as compile_transformation

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "chain": ["MOST_SLICE_BYTES", "Chain", "TopicOwner"],
        "clock": ["Clock"],
        "code_runner": ["CodeRunner", "InProcess", "outcomes_of"],
        "conversion": ["convert"],
        "failed_events": ["identity_of", "parked_event"],
        "failures": ["EventTimeoutError", "Fault", "describe"],
        "kept_mappings": ["mappings_in_force", "mappings_once_deployed"],
        "learning": ["LocalLearner", "destination_rules", "rules_for"],
        "mapping": ["MappingFault", "map_rows"],
        "plan": ["Learner", "Plan"],
        "results": [
            "COUNT_NAMES",
            "ChainResult",
            "Chunk",
            "Counts",
            "Failure",
            "Mapped",
            "TooMuchMadeError",
        ],
        "sandbox": ["sandbox_with", "shared_sandbox"],
        "staged": [
            "StagedFrame",
            "StagedObjectError",
            "StagedPacker",
            "TAIL_BYTES",
            "read_staged",
            "staged_tables",
            "system_columns",
        ],
        "storms": ["Storm", "Tally", "find_storms"],
        "traces": ["trace_batches"],
        "transformation": ["Retries", "TooSlowError", "Watch", "compile_transformation"],
        "dry_runner": ["Fate", "Row", "DryRunner"],
    },
)
