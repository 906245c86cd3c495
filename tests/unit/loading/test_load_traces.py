"""The traces of a load: each row's outcome, why it was refused, and where it is parked."""

from __future__ import annotations

import pyarrow as pa

from waybill.destinations import LoadOutcome
from waybill.loading.traces import load_traces


def outcome_of(
    number: int, *outcomes: str, replay_id: str | None = None, op: str = "upsert"
) -> LoadOutcome:
    rows = pa.table(
        {
            "event_id": [f"e{n}" for n in range(1, len(outcomes) + 1)],
            "pipeline_id": ["p"] * len(outcomes),
            "event_name": ["order"] * len(outcomes),
            "outcome": list(outcomes),
            "intake_minute": pa.array(range(100, 100 + len(outcomes)), pa.int32()),
            "replayed": [False] * len(outcomes),
            "replay_id": pa.array([None] * (len(outcomes) - 1) + [replay_id], pa.string()),
            "number": pa.array(range(len(outcomes)), pa.int64()),
            "op": [op] * len(outcomes),
        }
    )
    return LoadOutcome(number, [], {}, ({"key": "parked/object"},), rows)


def traces_of(
    *outcomes: LoadOutcome, codes: dict[str, str] | None = None
) -> list[dict[str, object]]:
    batches = load_traces("warehouse", outcomes, codes or {}, now_us=1_000_000)
    return sorted(
        (row for batch in batches for row in batch.to_pylist()),
        key=lambda row: (row["batch"], row["kafka_offset"]),
    )


def test_a_refused_row_says_why_and_where_it_is() -> None:
    codes = {"e2": "destination_check_violation", "e3": "destination_value_refused"}
    found = traces_of(outcome_of(7, "delivered", "parked", "parked"), codes=codes)
    assert [(t["event_id"], t["outcome"], t["error_type"], t["object_key"]) for t in found] == [
        ("e1", "delivered", None, "warehouse"),
        ("e2", "parked", "destination_check_violation", "parked/object"),
        ("e3", "parked", "destination_value_refused", "parked/object"),
    ]
    assert {t["batch"] for t in found} == {"load:warehouse:7"}


def test_each_row_has_its_number_its_intake_minute_and_its_replay() -> None:
    found = traces_of(
        outcome_of(7, "delivered", "superseded", "delivered", replay_id="r"),
        outcome_of(8, "duplicate"),
        LoadOutcome(9, [], {}, (), None),
    )
    assert [
        (t["batch"], t["kafka_offset"], t["outcome"], t["intake_minute"], t["replay_id"])
        for t in found
    ] == [
        ("load:warehouse:7", 0, "delivered", 100, None),
        ("load:warehouse:7", 1, "superseded", 101, None),
        ("load:warehouse:7", 2, "delivered", 102, "r"),
        ("load:warehouse:8", 0, "duplicate", 100, None),
    ]


def test_a_delete_that_the_destination_took_says_so() -> None:
    found = traces_of(outcome_of(7, "delivered", "superseded", "duplicate", op="delete"))
    assert [t["outcome"] for t in found] == ["deleted", "superseded", "duplicate"]
