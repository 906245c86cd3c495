"""Missing and doubled ids, named from traces; what was only written twice is neither."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.reconciliation.id_comparison import MinuteIds, compare_ids
from waybill.tracing.sql import MINUTE_SCHEMA

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
ALL = ("ingestion", "transformation", "mapping", "destination")
Row = dict[str, Any]


def row(event_id: str, phase: str, outcome: str, place: int, **more: Any) -> Row:
    values = {
        "event_id": event_id,
        "phase": phase,
        "outcome": outcome,
        "batch": f"{phase}-1",
        "kafka_partition": 0,
        "kafka_offset": place,
        "commit_number": None,
        "attempt": 0,
        "replay_id": None,
        "at": NOON,
    }
    return {**values, **more}


def taken(event_id: str, place: int) -> Row:
    return row(event_id, "ingestion", "accepted", place, batch="intake:p:1", attempt=None)


def processed(event_id: str, place: int, **more: Any) -> list[Row]:
    more = {"batch": "b1", **more}
    return [
        row(event_id, "transformation", "passed", place, **more),
        row(event_id, "mapping", "passed", place, **more),
    ]


def loaded(event_id: str, place: int, outcome: str = "delivered") -> Row:
    return row(event_id, "destination", outcome, place, batch="load:w:1", attempt=None)


def whole(*names: str) -> list[Row]:
    """Return all traces of events that go the way as they should."""
    found = []
    for place, name in enumerate(names):
        found += [taken(name, place), *processed(name, place), loaded(name, place)]
    return found


def compared(rows: list[Row], *, done: set[str] | None = None, **more: Any) -> MinuteIds:
    random.Random(5).shuffle(rows)
    halves = [rows[::2], rows[1::2]]
    batches = [pa.RecordBatch.from_pylist(half, MINUTE_SCHEMA) for half in halves]
    return compare_ids(batches, lambda names: names if done is None else names & done, ALL, **more)


def named(found: MinuteIds) -> dict[str, tuple[list[str], list[str]]]:
    return {
        stage: (ids.missing, ids.doubled)
        for stage, ids in found.stages.items()
        if ids.missing or ids.doubled
    }


def without(rows: list[Row], event_id: str, *phases: str) -> list[Row]:
    return [r for r in rows if r["event_id"] != event_id or r["phase"] not in phases]


def test_a_minute_in_order_names_nobody() -> None:
    found = compared(whole("a", "b", "c"))
    assert named(found) == {}
    assert found.have == dict.fromkeys(ALL, 3)


def test_what_gets_lost_is_named_where_it_got_lost() -> None:
    rows = without(whole("a", "b", "c"), "b", "transformation", "mapping", "destination")
    assert named(compared(rows)) == {"transformation": (["b"], [])}
    rows = without(whole("a", "b", "c"), "b", "mapping", "destination")
    assert named(compared(rows)) == {"mapping": (["b"], [])}
    rows = without(whole("a", "b", "c"), "b", "destination")
    assert named(compared(rows)) == {"destination": (["b"], [])}


def test_one_lost_and_one_doubled_do_not_cancel_each_other() -> None:
    rows = without(whole("a", "b"), "a", "transformation", "mapping", "destination")
    rows += [*processed("b", 7), loaded("b", 7, "duplicate")]
    found = compared(rows)
    assert named(found) == {"transformation": (["a"], ["b"])}
    assert found.recognised == {"b"}


def test_a_copy_that_was_delivered_twice_was_not_recognised() -> None:
    rows = [*whole("a"), *processed("a", 7), loaded("a", 7, "delivered")]
    found = compared(rows)
    assert named(found) == {"transformation": ([], ["a"])}
    assert found.recognised == set()


def test_a_row_doubled_in_a_staged_object_is_doubled_at_the_destination() -> None:
    assert named(compared([*whole("a", "b"), loaded("a", 9, "duplicate")])) == {
        "destination": ([], ["a"])
    }


def test_traces_written_twice_are_one() -> None:
    again = [{**r, "at": NOON + timedelta(seconds=3)} for r in whole("a", "b")]
    assert named(compared([*whole("a", "b"), *again])) == {}


def test_traces_of_batches_that_were_not_committed_do_not_count() -> None:
    extra = processed("a", 0, batch="b0")
    found = compared([*whole("a"), *extra], done={"intake:p:1", "b1", "load:w:1"})
    assert named(found) == {}
    assert found.have["mapping"] == 1


def test_what_kafka_refused_is_not_missing() -> None:
    refused = row("a", "ingestion", "parked", 0, batch="refused:w:0", kafka_partition=None)
    found = compared([taken("a", 0), refused, *whole("b")])
    assert named(found) == {}
    assert found.have["ingestion"] == 1


def test_what_parks_or_is_filtered_is_not_missing_and_comes_back_by_replay() -> None:
    rows = [
        taken("a", 0), row("a", "transformation", "filtered", 0, batch="b1"),
        taken("b", 1), row("b", "transformation", "parked", 1, batch="b1"),
        *processed("b", 50, attempt=1), loaded("b", 50),
        taken("c", 2), row("c", "transformation", "passed", 2, batch="b1"),
        row("c", "mapping", "parked", 2, batch="b1"),
        row("c", "mapping", "passed", 51, batch="b1", attempt=1), loaded("c", 51),
    ]  # fmt: skip
    assert named(compared(rows)) == {}


def test_children_are_found_by_their_record_and_holes_between_them() -> None:
    parent = [taken("p", 0), row("p", "transformation", "passed", 0, batch="b1")]
    children = [
        part
        for n in (0, 1, 3)
        for part in (row(f"p/{n}", "mapping", "passed", 0, batch="b1"), loaded(f"p/{n}", n))
    ]
    assert named(compared([*parent, *children])) == {"mapping": (["p/2"], [])}
    assert named(compared(parent)) == {"mapping": (["p"], [])}


def test_children_of_another_event_name_are_found_elsewhere() -> None:
    parent = [taken("p", 0), row("p", "transformation", "passed", 0, batch="b1")]
    other = pa.RecordBatch.from_pylist(
        [row("p/0", "mapping", "passed", 0, batch="b1")], MINUTE_SCHEMA
    )
    assert named(compared(parent, elsewhere=[other])) == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(("", "lost", "twice")), st.sampled_from(ALL[1:])),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_each_event_lost_or_doubled_anywhere_is_named_there(
    fates: list[tuple[str, str]],
) -> None:
    rows: list[Row] = []
    missing: dict[str, Counter[str]] = {stage: Counter() for stage in ALL[1:]}
    doubled: dict[str, Counter[str]] = {stage: Counter() for stage in ALL[1:]}
    for number, (fate, stage) in enumerate(fates):
        name = f"{number:032x}"
        own = [taken(name, number), *processed(name, number), loaded(name, number)]
        if fate == "lost":
            own = own[: ALL.index(stage)]
            missing[stage][name] += 1
        elif fate == "twice" and stage == "transformation":
            own += [*processed(name, 100 + number), loaded(name, 100 + number, "duplicate")]
            doubled[stage][name] += 1
        elif fate == "twice" and stage == "destination":
            own.append(loaded(name, 100 + number, "duplicate"))
            doubled[stage][name] += 1
        rows += own
    found = compared(rows)
    for stage in ALL[1:]:
        assert Counter(found.stages[stage].missing) == missing[stage]
        assert Counter(found.stages[stage].doubled) == doubled[stage]


@pytest.mark.parametrize("events", [200_000])
def test_a_large_minute_takes_a_second_or_two(events: int) -> None:
    ids = pa.array([f"{n:032x}" for n in range(events)])
    places = pa.array(range(events), pa.int64())

    def batch(phase: str, outcome: str, name: str, *, last: int = events) -> pa.RecordBatch:
        columns: dict[str, Any] = {
            "event_id": ids[:last], "phase": [phase] * last, "outcome": [outcome] * last,
            "batch": [name] * last, "kafka_partition": [0] * last, "kafka_offset": places[:last],
            "commit_number": [None] * last, "attempt": [0] * last, "replay_id": [None] * last,
            "at": [NOON] * last,
        }  # fmt: skip
        return pa.RecordBatch.from_pydict(columns, MINUTE_SCHEMA)

    batches = [
        batch("ingestion", "accepted", "intake:p:1"),
        batch("transformation", "passed", "b1"),
        batch("mapping", "passed", "b1"),
        batch("destination", "delivered", "load:w:1", last=events - 1),
    ]
    began = time.monotonic()
    found = compare_ids(batches, lambda names: names, ALL)
    print(f"{events} events: {time.monotonic() - began:.2f} s")
    assert named(found) == {"destination": ([f"{events - 1:032x}"], [])}
