"""Parked events: kept with their reasons until somebody decides, then replayed or discarded.

The parked events of one pipeline, event name, stage and error type are a *parked group*, which
tables and JSON call a partition. A task's parked events of all groups are one packed object; a
*segment* is one group's byte range in it.

Invariants
  I1  An event's own bytes come back byte for byte, whatever they are.
  I2  A packed object, and each segment's byte range in it, is a valid ``.jsonl.zst`` file.
  I3  A segment exists when the transaction that committed its events' offsets says so; an object
      that no such transaction names is garbage.
  I4  Numbers of a group are the sums of its segments, after every transaction.
  I5  A segment moves parked -> replaying -> replayed, parked -> discarded, and back by cancelling
      or undoing; parked -> replaced when it is cut; parked or replaying -> quarantined when it is
      damaged, and back once it is mended. At most one replay of a group runs.
  I6  An object is deleted only when all its segments are replayed or discarded, and nothing brings
      a segment back once its object is claimed for deletion.
  I7  What users named never becomes part of a key.
  I8  A pipeline has one active hold at most; what was held goes back once no hold is active.
  I9  No event is parked twice with the same id and version, as ``copies`` says it.

``Parking`` is the way in. The layout of a packed object is in ``packed``, that of a line in
``event``; what a segment's state means, and the order of locks, in ``states``.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.parking.auto_replays import AutoReplay as AutoReplay
    from waybill.parking.auto_replays import OnChange as OnChange
    from waybill.parking.auto_replays import note_seen as note_seen
    from waybill.parking.auto_replays import read_mark as read_mark
    from waybill.parking.auto_replays import read_marks as read_marks
    from waybill.parking.auto_replays import remove_mark as remove_mark
    from waybill.parking.auto_replays import set_mark as set_mark
    from waybill.parking.discards import TooManyCutsError as TooManyCutsError
    from waybill.parking.event import ParkedEvent as ParkedEvent
    from waybill.parking.exporting import KINDS as KINDS
    from waybill.parking.exporting import ExportReport as ExportReport
    from waybill.parking.exporting import contents as contents
    from waybill.parking.exporting import export as export
    from waybill.parking.fingerprints import fingerprint as fingerprint
    from waybill.parking.fingerprints import fingerprint_of as fingerprint_of
    from waybill.parking.groups import Sort as Sort
    from waybill.parking.holds import Hold as Hold
    from waybill.parking.holds import begin_probe as begin_probe
    from waybill.parking.holds import end_probe as end_probe
    from waybill.parking.holds import held_groups as held_groups
    from waybill.parking.holds import held_pipelines as held_pipelines
    from waybill.parking.holds import read_holds as read_holds
    from waybill.parking.holds import record_storm as record_storm
    from waybill.parking.holds import release as release
    from waybill.parking.holds import to_replay as to_replay
    from waybill.parking.identities import ANY_REPLAY as ANY_REPLAY
    from waybill.parking.identities import ID_BYTES as ID_BYTES
    from waybill.parking.identities import NO_ID as NO_ID
    from waybill.parking.identities import Identity as Identity
    from waybill.parking.identities import identify as identify
    from waybill.parking.identities import split_ids as split_ids
    from waybill.parking.identities import unpack_ids as unpack_ids
    from waybill.parking.locations import Decided as Decided
    from waybill.parking.locations import ParkedPlace as ParkedPlace
    from waybill.parking.locations import Whereabouts as Whereabouts
    from waybill.parking.locations import whereabouts as whereabouts
    from waybill.parking.masking import masked_event as masked_event
    from waybill.parking.masking import masked_words as masked_words
    from waybill.parking.masking import own_words as own_words
    from waybill.parking.model import CleanUpReport as CleanUpReport
    from waybill.parking.model import DiscardReport as DiscardReport
    from waybill.parking.model import FailureCause as FailureCause
    from waybill.parking.model import ObjectDescriptor as ObjectDescriptor
    from waybill.parking.model import ParkedFile as ParkedFile
    from waybill.parking.model import ParkedFiles as ParkedFiles
    from waybill.parking.model import ParkedGroup as ParkedGroup
    from waybill.parking.model import ParkedGroupFilter as ParkedGroupFilter
    from waybill.parking.model import ParkedGroupPage as ParkedGroupPage
    from waybill.parking.model import RecheckReport as RecheckReport
    from waybill.parking.model import RefreshReport as RefreshReport
    from waybill.parking.model import Replay as Replay
    from waybill.parking.model import ReplayConditions as ReplayConditions
    from waybill.parking.model import Segment as Segment
    from waybill.parking.names import storable as storable
    from waybill.parking.names import summary as summary
    from waybill.parking.object_keys import new_key as new_key
    from waybill.parking.object_keys import new_refused_key as new_refused_key
    from waybill.parking.object_keys import new_staged_again_key as new_staged_again_key
    from waybill.parking.object_keys import new_unloaded_key as new_unloaded_key
    from waybill.parking.packed import NAMES as NAMES
    from waybill.parking.packed import CorruptSegmentError as CorruptSegmentError
    from waybill.parking.packed import PackedObject as PackedObject
    from waybill.parking.packed import Packer as Packer
    from waybill.parking.packed import ParkedGroupKey as ParkedGroupKey
    from waybill.parking.packed import SegmentDescriptor as SegmentDescriptor
    from waybill.parking.packed import read_directory as read_directory
    from waybill.parking.packed import read_segment as read_segment
    from waybill.parking.parking import Parking as Parking
    from waybill.parking.quarantine import park_made_again as park_made_again
    from waybill.parking.quarantine import park_mended as park_mended
    from waybill.parking.quarantine import quarantine_missing as quarantine_missing
    from waybill.parking.reading import Damage as Damage
    from waybill.parking.reading import SliceReading as SliceReading
    from waybill.parking.reading import Unreadable as Unreadable
    from waybill.parking.reading import read_event_page as read_event_page
    from waybill.parking.reading import read_segment_events as read_segment_events
    from waybill.parking.reading import segments_in_order as segments_in_order
    from waybill.parking.recording import OF_LOADS as OF_LOADS
    from waybill.parking.replays import Beside as Beside
    from waybill.parking.replays import read_ended as read_ended
    from waybill.parking.request import MOST_EVENTS as MOST_EVENTS
    from waybill.parking.request import EntryRequest as EntryRequest
    from waybill.parking.request import ParkedEventsRequest as ParkedEventsRequest
    from waybill.parking.request import ParkedFilter as ParkedFilter
    from waybill.parking.request import ParkedGroupRequest as ParkedGroupRequest
    from waybill.parking.sampling import Drawn as Drawn
    from waybill.parking.sampling import EventSample as EventSample
    from waybill.parking.sampling import Stratum as Stratum
    from waybill.parking.segment_stream import SegmentStream as SegmentStream
    from waybill.parking.segment_stream import write_segments as write_segments
    from waybill.parking.selection import in_window as in_window
    from waybill.parking.selection import matches as matches
    from waybill.parking.selection import read_replay as read_replay
    from waybill.parking.states import HELD as HELD
    from waybill.parking.states import lock_groups as lock_groups

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "auto_replays": [
            "AutoReplay",
            "OnChange",
            "note_seen",
            "read_mark",
            "read_marks",
            "remove_mark",
            "set_mark",
        ],
        "discards": ["TooManyCutsError"],
        "event": ["ParkedEvent"],
        "exporting": ["ExportReport", "KINDS", "contents", "export"],
        "fingerprints": ["fingerprint", "fingerprint_of"],
        "groups": ["Sort"],
        "holds": [
            "Hold",
            "begin_probe",
            "end_probe",
            "held_groups",
            "held_pipelines",
            "read_holds",
            "record_storm",
            "release",
            "to_replay",
        ],
        "identities": [
            "ANY_REPLAY",
            "ID_BYTES",
            "Identity",
            "NO_ID",
            "identify",
            "split_ids",
            "unpack_ids",
        ],
        "locations": ["Decided", "ParkedPlace", "Whereabouts", "whereabouts"],
        "masking": ["masked_event", "masked_words", "own_words"],
        "model": [
            "CleanUpReport",
            "DiscardReport",
            "FailureCause",
            "ObjectDescriptor",
            "ParkedFile",
            "ParkedFiles",
            "ParkedGroup",
            "ParkedGroupFilter",
            "ParkedGroupPage",
            "RecheckReport",
            "RefreshReport",
            "Replay",
            "ReplayConditions",
            "Segment",
        ],
        "names": ["storable", "summary"],
        "object_keys": [
            "new_key",
            "new_refused_key",
            "new_staged_again_key",
            "new_unloaded_key",
        ],
        "packed": [
            "CorruptSegmentError",
            "NAMES",
            "PackedObject",
            "Packer",
            "ParkedGroupKey",
            "SegmentDescriptor",
            "read_directory",
            "read_segment",
        ],
        "parking": ["Parking"],
        "quarantine": ["park_made_again", "park_mended", "quarantine_missing"],
        "reading": [
            "Damage",
            "SliceReading",
            "Unreadable",
            "read_event_page",
            "read_segment_events",
            "segments_in_order",
        ],
        "recording": ["OF_LOADS"],
        "replays": ["Beside", "read_ended"],
        "request": [
            "EntryRequest",
            "MOST_EVENTS",
            "ParkedEventsRequest",
            "ParkedFilter",
            "ParkedGroupRequest",
        ],
        "sampling": ["Drawn", "EventSample", "Stratum"],
        "segment_stream": ["SegmentStream", "write_segments"],
        "selection": ["in_window", "matches", "read_replay"],
        "states": ["HELD", "lock_groups"],
    },
)
