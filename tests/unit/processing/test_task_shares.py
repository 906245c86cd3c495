"""Which task of a batch reads what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.processing.spark.batches import check_ranges_seen, ranges_seen
from waybill.processing.spark.task_shares import Share, shares_of

PARTITIONS = st.dictionaries(
    st.integers(0, 5),
    st.tuples(st.integers(0, 99), st.integers(1, 99_999)).map(lambda at: (at[0], sum(at))),
    min_size=1,
)
RANGES = st.dictionaries(st.sampled_from("abcdefgh"), PARTITIONS, min_size=2)


def events_of(share: Share) -> int:
    return sum(one.end - one.start for one in share)


@given(RANGES, st.integers(1, 9))
def test_of_several_topics_each_range_is_of_one_task(ranges, most_tasks):
    shares = shares_of(ranges, most_tasks)
    assert len(shares) <= most_tasks
    assert all(shares)
    found = [one for share in shares for one in share]
    assert found == [(t, n, *ranges[t][n]) for t in sorted(ranges) for n in sorted(ranges[t])]


@given(PARTITIONS, st.integers(1, 9))
def test_a_topic_with_fewer_tasks_than_partitions_gives_each_as_many_events(ranges, most_tasks):
    shares = shares_of({"t": ranges}, most_tasks)
    assert 0 < len(shares) <= min(most_tasks, len(ranges))
    if most_tasks < len(ranges):
        assert max(map(events_of, shares)) - min(map(events_of, shares)) <= 1


@given(PARTITIONS, st.integers(1, 9))
def test_tasks_read_each_offset_of_a_topic_once(ranges, most_tasks):
    """As the commit checks it, of what tasks tell."""
    told = [
        {"ranges": [[n, start, end - 1, end - start, 0, ""] for _, n, start, end in share]}
        for share in shares_of({"t": ranges}, most_tasks)
    ]
    assert check_ranges_seen("t", ranges, ranges_seen(told), {}) == dict.fromkeys(ranges, 0)


def test_three_cores_work_on_four_partitions_for_as_long():
    """Whole partitions would have one of them work on two, and the others wait."""
    shares = shares_of({"t": {n: (0, 30) for n in range(4)}}, 3)
    assert [[one[1:] for one in share] for share in shares] == [
        [(0, 0, 30), (1, 0, 10)],
        [(1, 10, 30), (2, 0, 20)],
        [(2, 20, 30), (3, 0, 30)],
    ]
