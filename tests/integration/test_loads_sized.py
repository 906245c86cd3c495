"""What the data source of loads offers to Spark, over the tracker's commits and its clock."""

from __future__ import annotations

import pickle

import pytest
from tests.support.loads import opened_loads, some
from tests.unit.destinations.orders import Order, clean_database

from waybill.ledger.positions import StagedSum, commit_age_s, staged_after, staged_sums
from waybill.loading.delivery import DeliveryParts, deliver
from waybill.loading.sizes import LoadSizes
from waybill.loading.spark.source import StagedReader

pytestmark = pytest.mark.serves


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


def reader_of(loads, **sizes):
    reader = StagedReader("warehouse")
    reader._tracker, reader._sizes = loads.tracker, LoadSizes(**sizes)
    return reader


def age(loads, seconds):
    loads.sql("UPDATE batches SET committed_at = committed_at - :s * interval '1 s'", s=seconds)


def test_commits_are_offered_up_to_the_caps_and_none_is_left_out(loads):
    for first in range(0, 12, 4):
        loads.stage(some(first, 4))
    loads.stage([])
    reader = reader_of(loads, max_rows=8)
    assert reader.initialOffset() == {"commit": 0}
    assert [reader.latestOffset()["commit"] for _ in range(3)] == [2, 4, 4]
    [whole] = reader.partitions({"commit": 0}, {"commit": 4})
    assert [row[0] for row in reader.read(whole)] == [1, 2, 3]


def bomb(first):
    """Return rows that are 5 MB in memory, and a few KB in the object store."""
    return [Order(number, 1, number, what="a" * 50_000) for number in range(first, first + 100)]


def test_rows_that_compress_well_count_as_what_they_take_in_memory(loads):
    for first in (0, 100, 200):
        loads.stage(bomb(first))
    assert loads.sql("SELECT sum(bytes) FROM staged_objects")[0][0] < 100_000
    reader = reader_of(loads, max_bytes=8_000_000)
    assert [reader.latestOffset()["commit"] for _ in range(3)] == [1, 2, 3]


def test_rows_that_compress_well_are_not_small_and_go_where_others_go(loads):
    gone = []

    def executors(plan):
        gone.append([*plan.numbers])
        return [deliver(plan, None, DeliveryParts(loads.objects, loads.open))]

    patience = loads.patience(executors=executors)
    loads.deliver(patience, loads.stage(some(0, 5)))
    assert gone == []
    loads.deliver(patience, loads.stage(bomb(10)))
    assert gone == [[2]]
    assert loads.position == 2


def test_objects_of_an_older_release_count_as_eight_times_their_size(loads):
    loads.stage(some(1, 5))
    loads.sql("UPDATE staged_objects SET row_bytes = NULL")
    [(size,)] = loads.sql("SELECT bytes FROM staged_objects")
    assert staged_sums(loads.tracker, "warehouse", after=0, most=9) == [StagedSum(1, 5, 8 * size)]
    [reference] = staged_after(loads.tracker, "warehouse", after=0)
    assert (reference.bytes, reference.row_bytes) == (size, 8 * size)


def test_a_load_is_offered_when_its_first_commit_is_old_by_the_trackers_clock(loads):
    reader = reader_of(loads, min_rows=100, max_wait_s=900)
    loads.stage(some(1, 5))
    assert reader.latestOffset() == {"commit": 0}
    age(loads, 890)
    assert reader.latestOffset() == {"commit": 0}
    loads.stage(some(6, 5))
    age(loads, 11)
    assert reader.latestOffset() == {"commit": 2}
    loads.stage(some(11, 5))
    assert reader.latestOffset() == {"commit": 2}, "the next one waits for itself"


def test_a_load_is_offered_when_there_is_enough(loads):
    reader = reader_of(loads, min_rows=10, max_wait_s=900)
    loads.stage(some(1, 5))
    assert reader.latestOffset() == {"commit": 0}
    loads.stage(some(6, 5))
    assert reader.latestOffset() == {"commit": 2}


def test_a_reader_that_was_sent_elsewhere_opens_what_it_needs_anew(loads):
    reader = reader_of(loads)
    loads.stage(some(1, 5))
    reader.latestOffset()
    assert pickle.loads(pickle.dumps(reader))._tracker is None


def test_an_executor_reads_a_partition_without_the_tracker(loads, monkeypatch):
    loads.stage(some(1, 5))
    reader = reader_of(loads)
    [whole] = reader.partitions({"commit": 0}, {"commit": 1})
    sent = pickle.loads(pickle.dumps((reader, whole)))
    monkeypatch.setattr(StagedReader, "_open", lambda _: pytest.fail("the tracker is asked"))
    [row] = sent[0].read(sent[1])
    assert row[:3] == (1, *loads.sql("SELECT key, rows FROM staged_objects")[0])


def test_sums_of_commits_are_their_objects_and_no_others(loads):
    loads.stage(some(1, 5))
    loads.stage([])
    loads.stage(some(6, 2))
    sizes = dict(loads.sql("SELECT commit_number, row_bytes FROM staged_objects"))
    assert staged_sums(loads.tracker, "warehouse", after=0, most=9) == [
        StagedSum(1, 5, sizes[1]), StagedSum(3, 2, sizes[3]),
    ]  # fmt: skip
    assert [s.commit_number for s in staged_sums(loads.tracker, "warehouse", after=0, most=1)] == [
        1
    ]
    assert [s.commit_number for s in staged_sums(loads.tracker, "warehouse", after=1, most=9)] == [
        3
    ]
    assert staged_sums(loads.tracker, "elsewhere", after=0, most=9) == []
    age(loads, 50)
    assert 50 <= commit_age_s(loads.tracker, "warehouse", 2) < 100
