"""The catalogue of error types: stable codes, each with its stage and what a user can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["ingestion", "transformation", "mapping", "destination"]
STAGES: tuple[Stage, ...] = ("ingestion", "transformation", "mapping", "destination")
ENTRY_STAGES: tuple[Stage, ...] = STAGES[1:]
"""Where an event on the wire may enter: it was taken in already."""


@dataclass(frozen=True, slots=True)
class ErrorType:
    """One way an event can fail."""

    code: str
    stage: Stage | Literal["any"]
    title: str
    advice: str
    transient: bool
    """True: the same event may pass later with nothing changed."""


def _permanent(stage: Stage | Literal["any"], *rows: tuple[str, str, str]) -> list[ErrorType]:
    return [ErrorType(code, stage, title, advice, transient=False) for code, title, advice in rows]


def _transient(stage: Stage | Literal["any"], *rows: tuple[str, str, str]) -> list[ErrorType]:
    return [ErrorType(code, stage, title, advice, transient=True) for code, title, advice in rows]


_FIX_SOURCE = "Fix the record at its source, or discard it; it was never sent to Kafka."
_FIX_CODE = "Correct the transformation, dry-run it on the parked events, deploy, replay."
_DECLARE = (
    "Declare the event, or correct the transformation that named it; dry-run, deploy, replay. "
    "Where the transformation gave the name, the event that it ran on is parked as it came: a "
    "replay runs it again."
)
_FIX_MAPPING = (
    "Change the mapping, dry-run, deploy, replay. What is parked is what the transformation made: "
    "a replay does not run it again."
)
_FIX_DESTINATION = (
    "Change the destination's table, then replay: what is parked is the mapped row. Or correct the "
    "source and discard."
)

_ALL: list[ErrorType] = [
    *_permanent(
        "ingestion",
        ("source_row_malformed", "A row of the source cannot be read", _FIX_SOURCE),
        (
            "source_truncated",
            "A table of the source was truncated; its rows stay at the destination",
            "Delete them there, if they are to go as well; then discard.",
        ),
        (
            "source_schema_unknown",
            "A message names a schema that the registry does not have, or that cannot be used",
            "Register the schema, and read the source again; or discard the record.",
        ),
        ("source_encoding_invalid", "A row is not valid text in its encoding", _FIX_SOURCE),
        ("source_value_invalid", "A value does not fit its declared source type", _FIX_SOURCE),
        ("key_missing", "A field of the primary key is missing or null", _FIX_SOURCE),
        ("source_version_invalid", "The version field is not a 64-bit number or time", _FIX_SOURCE),
        (
            "event_undeclared",
            "The source gives an event name that the pipeline does not declare",
            "Declare the event, deploy, and read the source again; or discard the record.",
        ),
        ("payload_not_json", "The payload has no JSON form (NaN, unknown type)", _FIX_SOURCE),
        ("payload_too_large", "The payload is larger than the limit", _FIX_SOURCE),
        ("payload_too_deep", "The payload is nested too deeply", _FIX_SOURCE),
        (
            "delivery_too_large",
            "Kafka refused the message as too large",
            "Raise the topic's max.message.bytes, then replay.",
        ),
        (
            "delivery_topic_unknown",
            "Kafka does not know the topic",
            "Find out who deleted it; make it again, then replay.",
        ),
        ("delivery_unauthorized", "Kafka did not allow the write", "Grant the right, then replay."),
        ("delivery_refused", "Kafka refused the message for good", "See the message; then replay."),
    ),
    *_permanent(
        "transformation",
        ("envelope_not_json", "The message is not JSON", "Fix the producer; then discard."),
        (
            "envelope_invalid",
            "The message is not a Waybill event",
            "Fix the producer; then discard.",
        ),
        (
            "pipeline_unknown",
            "No deployed pipeline with this id sends to the topic",
            "Deploy it, then replay.",
        ),
        (
            "foreign_event",
            "The event's team or pipeline does not belong to its topic",
            "Find who wrote it, and take their right to; then discard.",
        ),
        ("data_ref_missing", "The payload's object is gone", "Restore the object, then replay."),
        (
            "data_ref_refused",
            "The event names an object that is not a payload of its pipeline",
            "Fix the producer; then discard.",
        ),
        ("null_value", "The code met a null it did not expect", _FIX_CODE),
        ("field_missing", "The code asked for a field that is not there", _FIX_CODE),
        ("type_error", "The code met a value of another type", _FIX_CODE),
        ("value_out_of_range", "A value is outside what the code allows", _FIX_CODE),
        ("value_error", "A value cannot be converted", _FIX_CODE),
        ("index_error", "The code went past the end of a list", _FIX_CODE),
        ("attribute_error", "The code asked a value for what it does not have", _FIX_CODE),
        ("division_by_zero", "The code divided by zero", _FIX_CODE),
        ("overflow", "A number grew too large", _FIX_CODE),
        ("unicode_error", "Text could not be encoded or decoded", _FIX_CODE),
        ("assertion_failed", "An assertion of the code failed", _FIX_CODE),
        ("recursion_error", "The code called itself too deeply", _FIX_CODE),
        ("memory_error", "The code ran out of memory", _FIX_CODE),
        ("import_error", "A module is not installed where the code runs", "Install it, replay."),
        ("network_closed", "The code opened a connection", "Declare `network: true`."),
        ("lookup_failed", "A look-up found nothing", _FIX_CODE),
        ("record_incomplete", "The code refused a record that lacks data", _FIX_CODE),
        ("record_invalid", "The code refused a record that breaks a rule", _FIX_CODE),
        ("record_inconsistent", "The code refused a record that contradicts itself", _FIX_CODE),
        ("transformation_failed", "The code raised an error of its own", _FIX_CODE),
        ("transformation_timeout", "The code took too long for one event", _FIX_CODE),
        ("interpreter_crashed", "The code ended the Python interpreter", _FIX_CODE),
        ("code_invalid", "The transformation cannot be loaded", _FIX_CODE),
        ("result_invalid", "The transformation returned something else than it may", _FIX_CODE),
    ),
    *_transient(
        "transformation",
        (
            "data_ref_unreadable",
            "The object store answers, but does not give the payload's object",
            "See the message (rights, storage class, the store's own error); fix it, then replay.",
        ),
        ("io_error", "The code's own input or output failed", "Check the service, then replay."),
    ),
    *_permanent(
        "mapping",
        ("event_name_unknown", "The pipeline declares no such event name", _DECLARE),
        ("not_an_object", "The payload is not a JSON object, so it has no columns", _FIX_MAPPING),
        ("unknown_column", "The payload has a field that the mapping does not name", _FIX_MAPPING),
        ("not_null_violation", "A column declared NOT NULL got no value", _FIX_MAPPING),
        ("type_mismatch", "A value does not fit its column's type", _FIX_MAPPING),
        ("number_out_of_range", "A number is too large for its column's type", _FIX_MAPPING),
        ("precision_lost", "A decimal has more digits than its column", _FIX_MAPPING),
        ("timestamp_invalid", "A value is not a timestamp", _FIX_MAPPING),
        ("text_invalid", "Text holds characters that cannot be stored", _FIX_MAPPING),
        ("mapped_key_missing", "A key column of the destination got no value", _FIX_MAPPING),
    ),
    *_permanent(
        "destination",
        (
            "destination_unique_violation",
            "The destination has another row with this value",
            "Resolve the conflict there, then replay.",
        ),
        (
            "destination_foreign_key_violation",
            "The row refers to one that is not there",
            "Load what it refers to, then replay.",
        ),
        (
            "destination_check_violation",
            "A check of the destination refused the row",
            _FIX_DESTINATION,
        ),
        (
            "destination_not_null_violation",
            "The destination's column takes no null",
            _FIX_DESTINATION,
        ),
        (
            "destination_value_refused",
            "The destination cannot store a value",
            _FIX_DESTINATION,
        ),
        (
            "destination_schema_conflict",
            "The table differs from the mapping",
            "Change the table or the mapping, then replay.",
        ),
    ),
    *_transient(
        "destination",
        ("destination_unreachable", "The destination did not answer", "Replay when it is healthy."),
        ("destination_throttled", "The destination asked to slow down", "Replay later."),
        ("destination_timeout", "The destination took too long", "Replay later."),
        ("destination_full", "The destination has no space", "Make room there, then replay."),
        ("destination_unauthorized", "The destination refused the login", "Fix it, then replay."),
        (
            "executors_failed",
            "Spark's executors could not carry the load out",
            "See the message: their memory, their way to the destination, or `loaded_by: driver`; "
            "then replay.",
        ),
    ),
    *_transient(
        "any",
        ("object_store_unreachable", "The object store did not answer", "Replay when it is back."),
        ("kafka_unreachable", "Kafka did not answer", "Replay when it is back."),
        (
            "pipeline_held",
            "Its pipeline is held after a storm of failures",
            "Released by itself once a probe passes, or by hand.",
        ),
    ),
    *_permanent(
        "any",
        ("unexpected_error", "An error that Waybill has no code for", "See the message and where."),
        (
            "segment_damaged",
            "The part of a parked file that holds it is damaged or gone",
            "Restore the object from a copy of the bucket, then replay; else discard.",
        ),
    ),
]

DELIVERY_ERRORS = frozenset(row.code for row in _ALL if row.code.startswith("delivery_"))
"""Kafka refused the message: what is parked is a whole event, also at stage ``ingestion``."""
CODE_ERRORS = frozenset(row.code for row in _ALL if row.advice == _FIX_CODE)
"""A transformation that is corrected cures them, on the events as they parked."""
HELD_ERROR = "pipeline_held"
"""Nothing is wrong with the event: its pipeline was held when it came."""
REFUSED_ROW = "record_invalid"
"""Of a row that a transformation of tables refuses, and gives no error type."""
CATALOGUE: dict[str, ErrorType] = {row.code: row for row in _ALL}

_YOURS = "only your code: it says so with a `ParkError`, or in the column `_error_type`"
NOT_RAISED: dict[str, str] = {
    "record_invalid": _YOURS,
    "record_inconsistent": _YOURS,
    "object_store_unreachable": "your code; Waybill itself waits for the object store",
    "kafka_unreachable": "your code; Waybill itself keeps the event in the write-ahead log",
    "pipeline_held": "Waybill, for the events of a pipeline that is held",
    "segment_damaged": "no event: said of what is in quarantine",
}
"""Codes under which no stage of Waybill parks, with who does."""


def error_type(code: str) -> ErrorType:
    """Return the catalogue's entry; an unknown code is ``unexpected_error``."""
    return CATALOGUE.get(code, CATALOGUE["unexpected_error"])
