"""Events: what moves through Waybill, how it is named, and what can go wrong with it.

Invariants
  I1  decode(encode(event)) is the event; numbers survive exactly, whatever their size.
  I2  An event id depends only on what the event is (pipeline, name, key, version or content),
      never on when or by whom it was read.
  I3  Every error type that can park an event is in CATALOGUE, with its stage and what to do.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.events.catalogue import CATALOGUE as CATALOGUE
    from waybill.events.catalogue import CODE_ERRORS as CODE_ERRORS
    from waybill.events.catalogue import DELIVERY_ERRORS as DELIVERY_ERRORS
    from waybill.events.catalogue import ENTRY_STAGES as ENTRY_STAGES
    from waybill.events.catalogue import HELD_ERROR as HELD_ERROR
    from waybill.events.catalogue import REFUSED_ROW as REFUSED_ROW
    from waybill.events.catalogue import STAGES as STAGES
    from waybill.events.catalogue import ErrorType as ErrorType
    from waybill.events.catalogue import Stage as Stage
    from waybill.events.catalogue import error_type as error_type
    from waybill.events.decoding import FirstPasses as FirstPasses
    from waybill.events.decoding import Heads as Heads
    from waybill.events.decoding import decode as decode
    from waybill.events.decoding import decode_head as decode_head
    from waybill.events.decoding import group_heads as group_heads
    from waybill.events.decoding import payload_bytes as payload_bytes
    from waybill.events.decoding import payloads_reader as payloads_reader
    from waybill.events.decoding import read_first_passes as read_first_passes
    from waybill.events.decoding import read_heads as read_heads
    from waybill.events.decoding import read_payload as read_payload
    from waybill.events.decoding import unpack_events as unpack_events
    from waybill.events.envelope import DELETE as DELETE
    from waybill.events.envelope import UPSERT as UPSERT
    from waybill.events.envelope import Event as Event
    from waybill.events.envelope import duplicate as duplicate
    from waybill.events.envelope import encode as encode
    from waybill.events.envelope import encode_data as encode_data
    from waybill.events.envelope import intake_template as intake_template
    from waybill.events.envelope import payload_key as payload_key
    from waybill.events.envelope import refuse_wrong_name as refuse_wrong_name
    from waybill.events.envelope import refuse_wrong_reference as refuse_wrong_reference
    from waybill.events.exact import dumps as dumps
    from waybill.events.exact import dumps_read as dumps_read
    from waybill.events.exact import loads as loads
    from waybill.events.exact import loads_exact as loads_exact
    from waybill.events.identity import EventIds as EventIds
    from waybill.events.identity import IntakeClock as IntakeClock
    from waybill.events.identity import Stamp as Stamp
    from waybill.events.identity import event_id as event_id
    from waybill.events.identity import key_id as key_id
    from waybill.events.identity import ordering_key as ordering_key
    from waybill.events.identity import source_version as source_version
    from waybill.events.identity import topic_name as topic_name
    from waybill.events.identity import wall_us as wall_us
    from waybill.events.reentry import GoingBack as GoingBack
    from waybill.events.reentry import going_back as going_back
    from waybill.events.times import instant as instant
    from waybill.events.times import rfc3339 as rfc3339
    from waybill.events.times import rfc3339_us as rfc3339_us
    from waybill.events.times import window as window
    from waybill.events.times import window_edge as window_edge

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "catalogue": [
            "CATALOGUE",
            "CODE_ERRORS",
            "DELIVERY_ERRORS",
            "ENTRY_STAGES",
            "ErrorType",
            "HELD_ERROR",
            "REFUSED_ROW",
            "STAGES",
            "Stage",
            "error_type",
        ],
        "decoding": [
            "FirstPasses",
            "Heads",
            "decode",
            "decode_head",
            "group_heads",
            "payload_bytes",
            "payloads_reader",
            "read_first_passes",
            "read_heads",
            "read_payload",
            "unpack_events",
        ],
        "envelope": [
            "Event",
            "DELETE",
            "UPSERT",
            "duplicate",
            "encode",
            "encode_data",
            "intake_template",
            "payload_key",
            "refuse_wrong_name",
            "refuse_wrong_reference",
        ],
        "exact": ["dumps", "dumps_read", "loads", "loads_exact"],
        "identity": [
            "EventIds",
            "IntakeClock",
            "Stamp",
            "event_id",
            "key_id",
            "ordering_key",
            "source_version",
            "topic_name",
            "wall_us",
        ],
        "reentry": ["GoingBack", "going_back"],
        "times": ["instant", "rfc3339", "rfc3339_us", "window", "window_edge"],
    },
)
