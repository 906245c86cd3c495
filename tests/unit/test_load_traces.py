"""The traces of a load: what was refused says why, and where it is parked."""

from __future__ import annotations

import pyarrow as pa

from waybill.destinations import LoadOutcome
from waybill.streaming.loading import _load_traces


def test_a_refused_row_says_why_and_where_it_is() -> None:
    rows = pa.table(
        {
            "event_id": ["e1", "e2", "e3"],
            "pipeline_id": ["p"] * 3,
            "event_name": ["order"] * 3,
            "outcome": ["delivered", "parked", "parked"],
        }
    )
    outcome = LoadOutcome(7, [], {}, {"key": "parked/object"}, rows)
    codes = {"e2": "destination_check_violation", "e3": "destination_value_refused"}
    found = pa.Table.from_batches(
        [b for b in _load_traces("warehouse", outcome, rows, codes, 1_000_000)]
    ).to_pylist()
    assert {(t["event_id"], t["outcome"], t["error_type"], t["object_key"]) for t in found} == {
        ("e1", "delivered", None, "warehouse"),
        ("e2", "parked", "destination_check_violation", "parked/object"),
        ("e3", "parked", "destination_value_refused", "parked/object"),
    }
    assert {t["batch"] for t in found} == {"load:warehouse:7"}
