from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.unit.tracing.samples import NOON_US, batch, ids

import waybill.tracing
from waybill.errors import InputError
from waybill.tracing import OUTCOMES, PHASES, TRACE_SCHEMA, Trace, traces
from waybill.tracing.trace import MEMORY_SCHEMA, to_traces


def test_every_exported_name_is_there() -> None:
    assert [name for name in waybill.tracing.__all__ if not hasattr(waybill.tracing, name)] == []


def test_scalars_are_given_to_every_id_and_arrays_to_their_own() -> None:
    made = traces(
        ["a", "b"],
        pipeline_id="p",
        event_name=["flight", "weather"],
        phase="mapping",
        outcome=pa.array(["passed", "parked"]),
        at_us=[NOON_US, NOON_US + 1],
        error_type=["", "wrong_type"],
        kafka_partition=3,
        kafka_offset=pa.array([7, 8]),
        attempt=[1, None],
    )
    assert made.schema == MEMORY_SCHEMA
    first, second = to_traces(pa.Table.from_batches([made]))
    noon = datetime.fromtimestamp(NOON_US / 1e6, UTC)
    assert first == Trace(
        "a",
        "p",
        "flight",
        "mapping",
        "passed",
        "",
        "",
        "",
        3,
        7,
        "",
        "",
        None,
        1,
        "",
        None,
        "",
        noon,
    )
    assert (second.event_name, second.outcome, second.error_type) == (
        "weather",
        "parked",
        "wrong_type",
    )
    assert (second.attempt, second.at.microsecond) == (None, 1)


def test_empty_text_is_stored_as_null() -> None:
    made = batch(["a", "b"], topic="", object_key=["", "k"])
    assert made.column("topic").null_count == 2
    assert made.column("object_key").to_pylist() == [None, "k"]


def test_no_ids_make_no_traces() -> None:
    assert batch([]).num_rows == 0


def test_ids_of_any_text_pass() -> None:
    names = ["", "../x", "a\x00b", "🛫" * 100, "p/0"]
    assert batch(names).column("event_id").to_pylist() == names


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"phase": "maping"}, "maping"),
        ({"outcome": ["passed", "lost"]}, "lost"),
        ({"payload": "secret"}, "payload"),
        ({"kafka_offset": [1]}, "length"),
        ({"kafka_offset": ["x", "y"]}, "made"),
        ({"at_us": [NOON_US, None]}, "at"),
    ],
)
def test_a_wrong_column_is_named(columns, named) -> None:
    with pytest.raises(InputError, match=named):
        batch(["a", "b"], **columns)


def test_a_null_id_is_refused() -> None:
    with pytest.raises(InputError, match="1 of 2 event ids"):
        batch(["a", None])


def test_every_phase_and_outcome_is_taken() -> None:
    for phase in PHASES:
        for outcome in OUTCOMES:
            assert batch(["a"], phase=phase, outcome=outcome).num_rows == 1


def test_a_larger_batch_after_a_smaller_one_keeps_its_constants() -> None:
    for count in (10, 5000, 20_000, 3):
        made = batch(ids(count), topic="t")
        assert made.column("topic").to_pylist() == ["t"] * count
        made.validate(full=True)


def test_the_schema_holds_no_payload() -> None:
    assert TRACE_SCHEMA.names == [
        *("event_id", "pipeline_id", "event_name", "phase", "outcome", "error_type", "host"),
        *("topic", "kafka_partition", "kafka_offset", "object_key", "batch", "commit_number"),
        *("attempt", "replay_id", "intake_minute", "refers_to", "at"),
    ]
