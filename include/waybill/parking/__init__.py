"""Parked events: held with their reasons until somebody decides, and how they go back or go away.

Invariants
  I1  An event's own bytes come back byte for byte, whatever they are.
  I2  A packed object, and each segment's byte range in it, is a valid ``.jsonl.zst`` file.
  I3  A segment exists when the transaction that committed its events' offsets says so; an object
      that no such transaction names is garbage.
  I4  Numbers of a partition are the sums of its segments, after every transaction.
  I5  A segment moves parked -> replaying -> replayed, parked -> discarded, and back by cancelling
      or undoing; parked -> replaced when it is cut; parked or replaying -> quarantined when it is
      damaged, and back once it is mended. At most one replay of a partition runs.
  I6  An object is deleted only when all its segments are replayed or discarded, and nothing brings
      a segment back once its object is claimed for deletion.
  I7  What users named never becomes part of a key.
  I8  A pipeline has one active hold at most; what was held goes back once no hold is active.
  I9  No event is parked twice with the same id and version, as ``copies`` says it.

The format (``event``, ``packed``, ``reading``) does no I/O; ``Parking`` is the rest. The layout of
a packed object is in ``packed``, that of a line in ``event``, the order of locks in ``selection``.
"""

from waybill.parking.event import ParkedEvent
from waybill.parking.exporting import ExportReport, export
from waybill.parking.fingerprints import fingerprint
from waybill.parking.holds import Hold
from waybill.parking.identities import ANY_REPLAY, Identity, identify
from waybill.parking.merging import GroupReading
from waybill.parking.model import (
    CleanUpReport,
    DiscardReport,
    FingerprintGroup,
    ObjectDescriptor,
    Partition,
    PartitionFilter,
    PartitionPage,
    RecheckReport,
    RefreshReport,
    Replay,
    ReplayConditions,
    Segment,
)
from waybill.parking.names import storable
from waybill.parking.packed import (
    CorruptSegmentError,
    PackedObject,
    Packer,
    SegmentDescriptor,
    new_key,
    read_directory,
)
from waybill.parking.parking import Parking
from waybill.parking.reading import read_segment
from waybill.parking.refused_keys import new_refused_key
from waybill.parking.sampling import Drawn, EventChoice, EventSample, Stratum, fingerprint_of

__all__ = [
    "ANY_REPLAY",
    "CleanUpReport",
    "CorruptSegmentError",
    "DiscardReport",
    "Drawn",
    "EventChoice",
    "EventSample",
    "ExportReport",
    "FingerprintGroup",
    "GroupReading",
    "Hold",
    "Identity",
    "ObjectDescriptor",
    "PackedObject",
    "Packer",
    "ParkedEvent",
    "Parking",
    "Partition",
    "PartitionFilter",
    "PartitionPage",
    "RecheckReport",
    "RefreshReport",
    "Replay",
    "ReplayConditions",
    "Segment",
    "SegmentDescriptor",
    "Stratum",
    "export",
    "fingerprint",
    "fingerprint_of",
    "identify",
    "new_key",
    "new_refused_key",
    "read_directory",
    "read_segment",
    "storable",
]
