"""Events: what moves through Waybill, how it is named, and what can go wrong with it.

Invariants
  I1  decode(encode(event)) is the event; numbers survive exactly, whatever their size.
  I2  An event id depends only on what the event is (pipeline, name, key, version or content),
      never on when or by whom it was read.
  I3  Every error type that can park an event is in CATALOGUE, with its stage and what to do.
"""

from waybill.events.catalogue import (
    CATALOGUE,
    DELIVERY_ERRORS,
    ENTRY_STAGES,
    HELD_ERROR,
    STAGES,
    ErrorType,
    Stage,
    error_type,
)
from waybill.events.decoding import decode, payload_bytes
from waybill.events.envelope import (
    Event,
    duplicate,
    encode,
    encode_data,
    payload_key,
    refuse_wrong_name,
    refuse_wrong_reference,
)
from waybill.events.exact import dumps, loads, loads_exact
from waybill.events.going_back import GoingBack, going_back
from waybill.events.identity import (
    IntakeClock,
    Stamp,
    event_id,
    key_id,
    ordering_key,
    source_version,
    topic_name,
    wall_us,
)

__all__ = [
    "CATALOGUE",
    "DELIVERY_ERRORS",
    "ENTRY_STAGES",
    "HELD_ERROR",
    "STAGES",
    "ErrorType",
    "Event",
    "GoingBack",
    "IntakeClock",
    "Stage",
    "Stamp",
    "decode",
    "dumps",
    "duplicate",
    "encode",
    "encode_data",
    "error_type",
    "event_id",
    "going_back",
    "key_id",
    "loads",
    "loads_exact",
    "ordering_key",
    "payload_bytes",
    "payload_key",
    "refuse_wrong_name",
    "refuse_wrong_reference",
    "source_version",
    "topic_name",
    "wall_us",
]
