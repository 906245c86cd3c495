"""The traces of a load: each row's outcome, why it was refused, and where it is parked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from waybill.destinations import LoadOutcome
from waybill.loading.traces import load_traces
from waybill.tracing import traces


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


ALIKE = ["pipeline_id", "event_name", "outcome", "op"]


def traces_by_commit(
    outcome: LoadOutcome, codes: Mapping[str, str], first: int
) -> list[dict[str, Any]]:
    """Return the traces of one commit, made group by group of what its rows share."""
    rows = outcome.rows
    assert rows is not None
    found: list[dict[str, Any]] = []
    numbers = pc.add(rows.column("number").combine_chunks(), first)
    for group in rows.select(ALIKE).group_by(ALIKE).aggregate([]).to_pylist():
        mask = reduce(pc.and_, [pc.equal(rows.column(name), group[name]) for name in ALIKE])
        chosen = rows.filter(mask)
        ids = chosen.column("event_id").to_pylist()
        parked = outcome.parked[-1] if group["outcome"] == "parked" else None
        deleted = (group["outcome"], group["op"]) == ("delivered", "delete")
        batch = traces(
            ids,
            pipeline_id=group["pipeline_id"],
            event_name=group["event_name"],
            phase="destination",
            outcome="deleted" if deleted else group["outcome"],
            at_us=1_000_000,
            batch=f"load:warehouse:{outcome.commit_number}",
            commit_number=outcome.commit_number,
            kafka_offset=numbers.filter(mask.combine_chunks()),
            object_key="warehouse" if parked is None else str(parked["key"]),
            error_type=None if parked is None else [codes.get(one) for one in ids],
            replay_id=chosen.column("replay_id").to_pylist(),
            intake_minute=chosen.column("intake_minute").combine_chunks(),
        )
        found += batch.to_pylist()
    return found


ROW = st.tuples(
    st.sampled_from(["p", "q"]),
    st.sampled_from(["order", "item"]),
    st.sampled_from(["delivered", "superseded", "duplicate", "parked"]),
    st.sampled_from(["upsert", "delete"]),
    st.sampled_from([None, "r", "s"]),
)


@given(
    st.lists(st.one_of(st.none(), st.lists(ROW, max_size=6)), max_size=5),
    st.integers(0, 3),
    st.booleans(),
)
def test_traces_of_all_commits_are_those_of_each_by_itself(
    commits: list[list[tuple[str, str, str, str, str | None]] | None],
    first: int,
    has_several_objects: bool,
) -> None:
    outcomes = []
    for number, given_rows in enumerate(commits, 3):
        columns = list(zip(*given_rows, strict=True)) if given_rows else [()] * 5
        count = len(given_rows or ())
        rows = pa.table(
            {
                "event_id": pa.array([f"e{number}-{n}" for n in range(count)], pa.string()),
                "pipeline_id": pa.array(columns[0], pa.string()),
                "event_name": pa.array(columns[1], pa.string()),
                "outcome": pa.array(columns[2], pa.string()),
                "intake_minute": pa.array(range(100, 100 + count), pa.int32()),
                "replayed": pa.array([False] * count, pa.bool_()),
                "replay_id": pa.array(columns[4], pa.string()),
                "number": pa.array(range(count), pa.int64()),
                "op": pa.array(columns[3], pa.string()),
            }
        )
        key = f"parked/{number if has_several_objects else 'object'}"
        parked = ({"key": key},) if "parked" in columns[2] else ()
        outcomes.append(LoadOutcome(number, [], {}, parked, None if given_rows is None else rows))
    codes = {f"e{n}-{m}": f"code{m}" for n in range(9) for m in range(0, 6, 2)}
    before = {4: first, 6: 7}
    expected = [
        trace
        for outcome in outcomes
        if outcome.rows is not None
        for trace in traces_by_commit(outcome, codes, before.get(outcome.commit_number, 0))
    ]
    batches = load_traces("warehouse", outcomes, codes, now_us=1_000_000, before=before)
    found = [row for batch in batches for row in batch.to_pylist()]
    assert len(batches) <= 1
    assert sorted(found, key=lambda row: row["event_id"]) == sorted(
        expected, key=lambda row: row["event_id"]
    )
