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
  I5  Who carries a plan out, the driver or a task of an executor, speaks to the object store and to
      the one destination, never to the tracker; what came of it is a value. Run twice, or killed
      and run again, it is done once: the destination's books say so.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.loading.backoff import Patience as Patience
    from waybill.loading.backoff import StoppedError as StoppedError
    from waybill.loading.delivery import DeliveryParts as DeliveryParts
    from waybill.loading.delivery import deliver as deliver
    from waybill.loading.failures import ExecutorsFailedError as ExecutorsFailedError
    from waybill.loading.failures import ForeignError as ForeignError
    from waybill.loading.failures import NotTakenError as NotTakenError
    from waybill.loading.failures import failure_to_json as failure_to_json
    from waybill.loading.failures import raise_failure as raise_failure
    from waybill.loading.loader import Loader as Loader
    from waybill.loading.next_loads import NextLoad as NextLoad
    from waybill.loading.next_loads import next_load as next_load
    from waybill.loading.placement import placement_of as placement_of
    from waybill.loading.plans import LoadPlan as LoadPlan
    from waybill.loading.plans import LoadReport as LoadReport
    from waybill.loading.quarantine import KeptRange as KeptRange
    from waybill.loading.quarantine import LeftError as LeftError
    from waybill.loading.quarantine import LostObject as LostObject
    from waybill.loading.quarantine import RecoveryReport as RecoveryReport
    from waybill.loading.quarantine import Run as Run
    from waybill.loading.quarantine import WaitingError as WaitingError
    from waybill.loading.quarantine import check_in_log as check_in_log
    from waybill.loading.quarantine import kept_ranges as kept_ranges
    from waybill.loading.quarantine import lost_objects as lost_objects
    from waybill.loading.quarantine import recover_lost as recover_lost
    from waybill.loading.quarantine import settle_lost as settle_lost
    from waybill.loading.rewinds import Rewind as Rewind
    from waybill.loading.rewinds import open_rewinds as open_rewinds
    from waybill.loading.rewinds import settle_rewinds as settle_rewinds
    from waybill.loading.sizes import LoadSizes as LoadSizes
    from waybill.loading.states import Waiting as Waiting
    from waybill.loading.states import all_waiting as all_waiting
    from waybill.loading.states import ask_to_park as ask_to_park
    from waybill.loading.states import take_back as take_back
    from waybill.loading.status import OWN_SCHEMA as OWN_SCHEMA
    from waybill.loading.status import DestinationLine as DestinationLine
    from waybill.loading.status import destination_lines as destination_lines
    from waybill.loading.status import dry_run as dry_run
    from waybill.loading.status import examine as examine
    from waybill.loading.status import known_destination as known_destination
    from waybill.loading.status import rewind_findings as rewind_findings
    from waybill.loading.status import schemas_of as schemas_of

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "backoff": ["Patience", "StoppedError"],
        "delivery": ["DeliveryParts", "deliver"],
        "failures": [
            "ExecutorsFailedError",
            "ForeignError",
            "NotTakenError",
            "failure_to_json",
            "raise_failure",
        ],
        "loader": ["Loader"],
        "next_loads": ["NextLoad", "next_load"],
        "placement": ["placement_of"],
        "plans": ["LoadPlan", "LoadReport"],
        "quarantine": [
            "LeftError",
            "LostObject",
            "RecoveryReport",
            "Run",
            "WaitingError",
            "KeptRange",
            "check_in_log",
            "kept_ranges",
            "lost_objects",
            "recover_lost",
            "settle_lost",
        ],
        "rewinds": ["Rewind", "open_rewinds", "settle_rewinds"],
        "sizes": ["LoadSizes"],
        "states": ["Waiting", "all_waiting", "ask_to_park", "take_back"],
        "status": [
            "DestinationLine",
            "OWN_SCHEMA",
            "destination_lines",
            "dry_run",
            "examine",
            "known_destination",
            "rewind_findings",
            "schemas_of",
        ],
    },
)
