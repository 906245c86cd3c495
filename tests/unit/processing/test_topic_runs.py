"""Rows of several topics in one Arrow batch are told apart, in their order."""

from __future__ import annotations

from itertools import groupby

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from waybill.processing.spark.tasks import by_topic


@given(st.lists(st.sampled_from(["events.a.w", "events.b.w", "events.b.w2"]), min_size=1))
def test_runs_cover_all_rows_in_order(topics):
    batch = pa.record_batch({"topic": topics, "offset": list(range(len(topics)))})
    runs = [(topic, part.column("offset").to_pylist()) for topic, part in by_topic(batch)]
    expected = [
        (topic, [place for place, _ in rows])
        for topic, rows in groupby(enumerate(topics), key=lambda row: row[1])
    ]
    assert runs == expected


@given(st.integers(1, 5), st.integers(0, 5))
def test_a_batch_that_is_a_part_of_a_larger_one_is_read_from_its_own_start(first, rest):
    batch = pa.record_batch({"topic": ["a"] * first + ["b"] * rest, "offset": range(first + rest)})
    runs = [(t, part.column("offset").to_pylist()) for t, part in by_topic(batch.slice(1))]
    expected = [("a", list(range(1, first))), ("b", list(range(first, first + rest)))]
    assert runs == [run for run in expected if run[1]]
