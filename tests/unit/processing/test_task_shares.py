"""Which task of a batch reads what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.processing.spark.task_shares import shares_of

RANGES = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.dictionaries(
        st.integers(0, 5),
        st.tuples(st.integers(0, 99), st.integers(1, 99_999)).map(lambda at: (at[0], sum(at))),
        min_size=1,
    ),
    min_size=1,
)


@given(RANGES, st.integers(1, 9))
def test_each_range_is_of_one_task(ranges, most_tasks: int) -> None:
    shares = shares_of(ranges, most_tasks)
    assert len(shares) <= most_tasks
    assert all(shares)
    found = [one for share in shares for one in share]
    assert found == [(t, n, *ranges[t][n]) for t in sorted(ranges) for n in sorted(ranges[t])]
