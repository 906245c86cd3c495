"""The traces of a task: one for each end of an event, the same whether groups share a batch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.processing.made import chained, event, pipeline
from tests.unit.processing.test_storms import BROKEN, doing

from waybill.events import HELD_ERROR, encode
from waybill.processing import Chain, ChainResult, Chunk, Plan
from waybill.processing.traces import trace_batches
from waybill.tracing import THROUGH
from waybill.tracing.parquet import unfolded
from waybill.tracing.trace import MEMORY_SCHEMA

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of(result: ChainResult) -> list[dict[str, Any]]:
    batches = trace_batches(
        result, topic="t", batch_id="b", staged_key="staged/x", parked_key="parked/y", now=NOW
    )
    rows = unfolded(pa.Table.from_batches(batches, MEMORY_SCHEMA)).to_pylist()
    return sorted(rows, key=lambda row: (row["event_id"], row["phase"]))


def test_each_end_of_an_event_is_one_trace_with_its_place() -> None:
    events = doing((1, None), (1, "fail"), (1, "filter"), (1, "many"))
    rows = rows_of(chained(pipeline(BROKEN), events))
    assert [
        (r["event_id"], r["phase"], r["outcome"], r["error_type"], r["object_key"]) for r in rows
    ] == [
        ("e0", "mapping", "passed", None, "staged/x"),
        ("e0", "transformation", "passed", None, None),
        ("e1", "transformation", "parked", "value_error", "parked/y"),
        ("e2", "transformation", "filtered", None, None),
        ("e3", "transformation", "passed", None, None),
        ("e3/0", "mapping", "parked", "type_mismatch", "parked/y"),
        *[(f"e3/{n}", "mapping", "passed", None, "staged/x") for n in (1, 2, 3)],
    ]
    assert [row["kafka_offset"] for row in rows] == [0, 0, 1, 2, 3, 3, 3, 3, 3]
    assert {(r["topic"], r["batch"], r["at"], r["attempt"]) for r in rows} == {("t", "b", NOW, 0)}


@pytest.mark.parametrize("own_batch", [1, 10_000])
def test_sharing_a_batch_changes_no_trace(monkeypatch: pytest.MonkeyPatch, own_batch: int) -> None:
    events = [
        event(n, {"id": n, "n": n, "do": "filter" if n % 7 == 0 else None}, pipeline_id=one)
        for n, one in enumerate(["p1", "p2", "p3"] * 40)
    ]
    result = chained([pipeline(BROKEN, ident=one) for one in ("p1", "p2", "p3")], events)
    together = rows_of(result)
    monkeypatch.setattr("waybill.processing.traces._OWN_BATCH", own_batch)
    assert rows_of(result) == together
    assert {(r["event_id"], r["pipeline_id"]) for r in together} == {
        (e.id, e.pipeline_id) for e in events
    }


def test_many_small_groups_make_few_batches() -> None:
    plans = [pipeline(BROKEN, ident=f"p{n}") for n in range(30)]
    events = [event(n, {"id": n, "n": n}, pipeline_id=f"p{n % 30}") for n in range(90)]
    batches = trace_batches(
        chained(plans, events), topic="t", batch_id="b", staged_key="s", parked_key="", now=NOW
    )
    assert [batch.num_rows for batch in batches] == [90]


def test_what_has_no_id_has_no_trace() -> None:
    assert rows_of(chained(pipeline(BROKEN), [])) == []
    assert rows_of(chained(pipeline(BROKEN), [b"no event"])) == []


def test_every_trace_has_its_intake_minute() -> None:
    rows = rows_of(chained(pipeline(BROKEN), doing((2, None), (1, "fail"), (1, "many"))))
    assert {row["intake_minute"] for row in rows} == {event(0).intake_minute}


def test_what_a_hold_parks_is_traced() -> None:
    made = pipeline(BROKEN)
    chain = Chain({made.id: Plan(made)}, held=[made.id])
    values = [encode(one) for one in doing((2, None))]
    chain.process(Chunk(values, [0, 0], [7, 8], [0, 0]))
    assert [
        (row["phase"], row["outcome"], row["error_type"], row["kafka_offset"], row["object_key"])
        for row in rows_of(chain.result)
    ] == [("transformation", "parked", HELD_ERROR, n, "parked/y") for n in (7, 8)]


def test_an_event_that_gets_another_name_passed_under_its_own() -> None:
    code = """
def transform(event):
    if event.data["n"] % 2:
        event.name = "refund"
    return event
"""
    made = pipeline(code, events=("order", "refund"))
    rows = rows_of(chained(made, [event(n, {"id": n, "n": n}) for n in range(3)]))
    assert [(row["event_id"], row["phase"], row["event_name"]) for row in rows] == [
        ("e0", "mapping", "order"), ("e0", "transformation", "order"),
        ("e1", "mapping", "refund"), ("e1", "transformation", "order"),
        ("e2", "mapping", "order"), ("e2", "transformation", "order"),
    ]  # fmt: skip


def test_who_passes_both_stages_is_one_line_also_beside_others() -> None:
    events = doing((300, None), (1, "fail"), (1, "many"), (300, None))
    batches = trace_batches(
        chained(pipeline(BROKEN), events), topic="t", batch_id="b", staged_key="staged/x",
        parked_key="parked/y", now=NOW,
    )  # fmt: skip
    lines = pa.Table.from_batches(batches, MEMORY_SCHEMA)
    through = [row["event_id"] for row in lines.to_pylist() if row["phase"] == THROUGH]
    assert through == [f"e{n}" for n in (*range(300), *range(302, 602))]
    rows = rows_of(chained(pipeline(BROKEN), events))
    passed = [(r["event_id"], r["phase"], r["object_key"]) for r in rows if r["event_id"] == "e7"]
    assert passed == [("e7", "mapping", "staged/x"), ("e7", "transformation", None)]
    assert len(rows) == 2 * 600 + 2 + 4
