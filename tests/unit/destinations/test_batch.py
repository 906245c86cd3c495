import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.destinations.orders import MINUTE, Order, commit_of, rows_of, spec_of, totals

from waybill.destinations import Commit, OutcomeCount, Rows
from waybill.destinations import batch as batch_module
from waybill.destinations.batch import (
    DUPLICATE,
    OUTCOMES,
    PARKED,
    batches_of,
    group_inputs,
    outcomes_of,
)
from waybill.destinations.refused import refused_rows
from waybill.errors import InputError, StopError
from waybill.pipelines import Column


def test_importing_the_room_loads_no_driver():
    code = (
        "import sys, waybill.destinations; "
        "print([m for m in ('pyarrow', 'sqlglot', 'adbc_driver_postgresql', 'psycopg', 'numpy') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": "include"},
    )
    assert done.stdout.strip() == "[]"


def test_rows_of_a_table_are_joined_in_the_order_of_commits():
    commits = [commit_of(1, [Order(1, 1, 1)]), commit_of(2, []), commit_of(3, [Order(2, 1, 1)])]
    (batch,) = batches_of(commits)
    assert batch.columns["id"].to_pylist() == [1, 2]
    assert [(f.commit_number, f.start, f.end) for f in batch.frames] == [(1, 0, 1), (3, 1, 2)]


def test_outcomes_are_counted_where_their_rows_came_from():
    commits = [
        commit_of(4, [Order(1, 1, 1), Order(2, 1, 1, minute=MINUTE + 1)]),
        commit_of(5, [Order(1, 1, 2, replayed=True), Order(3, 1, 1)]),
    ]
    (batch,) = batches_of(commits)
    batch.outcomes[:] = [0, PARKED, DUPLICATE, 0]
    found = outcomes_of(commits, [batch])
    first, second = found
    assert first.counts == [
        OutcomeCount("shop-orders", "order", MINUTE, in_first=1, delivered=1),
        OutcomeCount("shop-orders", "order", MINUTE + 1, in_first=1, parked=1),
    ]
    assert second.counts == [
        OutcomeCount(
            "shop-orders", "order", MINUTE, in_first=1, in_replayed=1, delivered=1, duplicate=1
        )
    ]
    assert second.rows["outcome"].to_pylist() == ["duplicate", "delivered"]
    assert totals(found)["in_first"] == 3
    assert group_inputs(commits[1]) == {("shop-orders", "order", MINUTE): (1, 1)}


def test_a_commit_without_rows_has_an_outcome_without_rows():
    (found,) = outcomes_of([commit_of(1, [])], [])
    assert (found.counts, found.rows.num_rows) == ([], 0)
    assert found.rows.column_names[:4] == ["event_id", "pipeline_id", "event_name", "outcome"]


def test_a_frame_without_one_of_its_own_columns_stops_the_load():
    rows = rows_of([Order(1, 1, 1)])
    broken = Rows(rows.pipeline_id, rows.event_name, rows.table, rows.data.drop_columns("what"))
    with pytest.raises(StopError, match=r"shop\.orders, column 'what'"):
        batches_of([Commit(1, (broken,))])


@pytest.mark.parametrize("name", ["_waybill_key", "_waybill_op"])
def test_a_frame_without_a_system_column_stops_the_load(name):
    rows = rows_of([Order(1, 1, 1)])
    broken = Rows(rows.pipeline_id, rows.event_name, rows.table, rows.data.drop_columns(name))
    with pytest.raises(StopError, match=name):
        batches_of([Commit(1, (broken,))])


def test_an_operation_that_is_none_stops_the_load():
    with pytest.raises(StopError, match="operation"):
        batches_of([commit_of(1, [Order(1, 1, 1, op="truncate")])])


def test_waiting_rows_that_do_not_fit_the_newest_type_are_named():
    one = Column(name="id", type="int64")
    old = spec_of("t", one, Column(name="n", type="string"))
    new = spec_of("t", one, Column(name="n", type="int32"))
    commits = [
        Commit(1, (rows_of([Order(1, 1, 1)], old, n=["many"]),)),
        Commit(2, (rows_of([Order(1, 1, 1)], new, n=[1]),)),
    ]
    with pytest.raises(InputError, match=r"shop\.t, column 'n': found string .* expected int32"):
        batches_of(commits)


def test_floats_that_json_cannot_say_are_parked_by_name():
    spec = spec_of("t", Column(name="id", type="int64"), Column(name="f", type="float64"))
    values = [float("nan"), float("-inf"), 0.1]
    rows = rows_of([Order(i, 1, 1) for i in range(3)], spec, f=values)
    (batch,) = batches_of([Commit(1, (rows,))])
    found = refused_rows(batch, dict.fromkeys(range(3), ("destination_check_violation", "no")))
    assert [row.row["f"] for row in found] == ["nan", "-inf", 0.1]


def test_a_refused_row_holds_only_the_columns_its_own_version_declares():
    one = Column(name="id", type="int64")
    old, new = spec_of("t", one), spec_of("t", one, Column(name="more", type="string"))
    commits = [
        Commit(1, (rows_of([Order(1, 1, 1)], old),)),
        Commit(2, (rows_of([Order(2, 1, 1)], new, more=["x"]),)),
    ]
    (batch,) = batches_of(commits)
    found = refused_rows(batch, dict.fromkeys(range(2), ("destination_check_violation", "no")))
    assert [(r.commit_number, r.row) for r in found] == [
        (1, {"id": 1}),
        (2, {"id": 2, "more": "x"}),
    ]


def test_chunked_rows_are_taken_as_they_come():
    rows = rows_of([Order(i, 1, 1) for i in range(4)])
    chunked = pa.concat_tables([rows.data.slice(0, 1), rows.data.slice(1)])
    commit = Commit(1, (Rows(rows.pipeline_id, rows.event_name, rows.table, chunked),))
    (batch,) = batches_of([commit])
    assert batch.columns["id"].to_pylist() == [0, 1, 2, 3]


INT, WIDE = Column(name="n", type="int32"), Column(name="n", type="int64")
ID = Column(name="id", type="int64", nullable=False)
TABLES = [
    spec_of("a", ID, INT),
    spec_of("a", ID, WIDE),
    spec_of("a", ID, INT, Column(name="more", type="string")),
    spec_of("b", ID, Column(name="f", type="float64")),
]
FRAME = st.tuples(
    st.sampled_from(TABLES),
    st.sampled_from(["p", "q"]),
    st.sampled_from(["order", "item"]),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.booleans(),
            st.sampled_from([None, "r", "s"]),
            st.sampled_from(["upsert", "delete"]),
            st.sampled_from([0, 1, 2, 3]),
        ),
        max_size=4,
    ),
    st.booleans(),
)


def frame_of(spec, pipeline, event, drawn, is_old, start):
    orders = [
        Order(start + n, 1, 1, op=op, replayed=replayed, minute=MINUTE + minute, replay_id=replay)
        for n, (minute, replayed, replay, op, _) in enumerate(drawn)
    ]
    numbers = [o.id for o in orders]
    values = {"n": numbers, "more": [str(n) for n in numbers], "f": [-0.0 for _ in numbers]}
    data = rows_of(orders, spec, **values).data
    if is_old:
        data = data.drop_columns(["_waybill_replay", "_waybill_attempt"])
    return Rows(pipeline, event, spec, data)


def outcomes_by_row(commits, batches, before):
    """Return (counts, replays, rows) of each commit, counted row by row."""
    found = {commit.number: ({}, {}, []) for commit in commits}
    for batch in batches:
        context = batch.context.to_pylist()
        for frame in batch.frames:
            counts, replays, rows = found[frame.commit_number]
            for ordinal in range(frame.start, frame.end):
                row, outcome = context[ordinal], OUTCOMES[batch.outcomes[ordinal]]
                own = (frame.rows.pipeline_id, frame.rows.event_name)
                names = counts.setdefault((*own, row["_waybill_intake_minute"]), Counter())
                names["in_replayed" if row["_waybill_replayed"] else "in_first"] += 1
                names[outcome] += 1
                if replay := row["_waybill_replay"]:
                    replays.setdefault(replay, Counter())[outcome] += 1
                rows.append(
                    {
                        "event_id": row["_waybill_id"],
                        "pipeline_id": own[0],
                        "event_name": own[1],
                        "outcome": outcome,
                        "intake_minute": row["_waybill_intake_minute"],
                        "replayed": row["_waybill_replayed"],
                        "replay_id": row["_waybill_replay"],
                        "number": before.get(frame.commit_number, 0) + len(rows),
                        "op": row["_waybill_op"],
                    }
                )
    return found


@given(st.lists(st.lists(FRAME, max_size=3), min_size=1, max_size=5))
def test_many_commits_are_shaped_and_counted_as_each_frame_by_itself(drawn):
    commits, start = [], 0
    for number, frames in enumerate(drawn, 1):
        rows = []
        for frame in frames:
            rows.append(frame_of(*frame, start))
            start += len(frame[3])
        commits.append(Commit(number, tuple(rows)))
    codes = [row[4] for frames in drawn for frame in frames for row in frame[3]]
    batches = batches_of(commits)
    assert sum(batch.columns.num_rows for batch in batches) == start
    for batch in batches:
        place = (batch.spec.schema_name, batch.spec.name)
        alone = [
            batches_of([Commit(frame.commit_number, (frame.rows,))], {place: batch.spec})[0]
            for frame in batch.frames
        ]
        assert batch.columns.equals(pa.concat_tables([one.columns for one in alone]))
        assert batch.context.equals(pa.concat_tables([one.context for one in alone]))
        assert [f.end - f.start for f in batch.frames] == [
            f.rows.data.num_rows for f in batch.frames
        ]
        batch.outcomes[:] = [codes[key] for key in batch.columns["id"].to_pylist()]
    before = {2: 10}
    expected = outcomes_by_row(commits, batches, before)
    outcomes = outcomes_of(commits, batches, before=before)
    assert [outcome.commit_number for outcome in outcomes] == [commit.number for commit in commits]
    for outcome in outcomes:
        counts, replays, rows = expected[outcome.commit_number]
        assert outcome.counts == [OutcomeCount(*key, **counts[key]) for key in sorted(counts)]
        assert outcome.replays == replays
        assert outcome.rows.to_pylist() == rows
        assert outcome.rows.schema == outcomes_of([Commit(1, ())], [])[0].rows.schema


def test_commits_of_one_table_are_shaped_together_and_errors_name_whose_rows_they_are(monkeypatch):
    shaped = []
    fitted = batch_module._fitted
    monkeypatch.setattr(
        batch_module, "_fitted", lambda rows, spec: shaped.append(rows) or fitted(rows, spec)
    )
    batches_of([commit_of(number, [Order(number, 1, 1)]) for number in range(100)])
    assert len(shaped) == 1
    one = Column(name="id", type="int64")
    old = spec_of("t", one, Column(name="n", type="string"))
    new = spec_of("t", one, Column(name="n", type="int32"))
    good, bad = (rows_of([Order(1, 1, 1)], old, n=[text]) for text in ("1", "many"))
    commits = [
        Commit(1, (good,)),
        Commit(2, (replace(good, pipeline_id="second"),)),
        Commit(3, (replace(bad, pipeline_id="third"),)),
    ]
    with pytest.raises(InputError, match="in rows of 'third', expected int32"):
        batches_of(commits, {("shop", "t"): new})
