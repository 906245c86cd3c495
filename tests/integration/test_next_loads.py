"""Which commits are loaded next, over the tracker's commits and its clock; and the thread for it."""

from __future__ import annotations

import threading

import pytest
from tests.servers import wait_for
from tests.support.loads import opened_loads, some
from tests.unit.destinations.orders import Order, clean_database

from waybill.errors import AwayError, StopError, WaybillError
from waybill.ledger import tell_staged
from waybill.ledger.positions import StagedSum, commit_age_s, staged_after, staged_sums
from waybill.loading import Patience, next_load
from waybill.loading.delivery import DeliveryParts, deliver
from waybill.loading.sizes import LoadSizes
from waybill.loading.spark import consumers
from waybill.loading.spark.consumers import LoadingConsumer, Pauses
from waybill.loading.spark.staged_listener import StagedListener

pytestmark = pytest.mark.serves


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


class Next:
    """Takes what is to be loaded next, as if it had been loaded."""

    def __init__(self, loads, **sizes):
        self._loads, self._sizes = loads, LoadSizes(**sizes)
        self.after = 0

    def take(self):
        """Return the commits that have rows; None: nothing is due."""
        found = next_load(self._loads.tracker, "warehouse", self._sizes, after=self.after)
        if found is None:
            return None
        assert found.after == self.after
        self.after = found.until
        return [reference.commit_number for reference in found.references]


def age(loads, seconds):
    loads.sql("UPDATE batches SET committed_at = committed_at - :s * interval '1 s'", s=seconds)


def test_commits_are_taken_up_to_the_caps_and_none_is_left_out(loads):
    for first in range(0, 12, 4):
        loads.stage(some(first, 4))
    loads.stage([])
    following = Next(loads, max_rows=8)
    assert [following.take() for _ in range(3)] == [[1, 2], [3], None]
    assert following.after == 4


def bomb(first):
    """Return rows that are 5 MB in memory, and a few KB in the object store."""
    return [Order(number, 1, number, what="a" * 50_000) for number in range(first, first + 100)]


def test_rows_that_compress_well_count_as_what_they_take_in_memory(loads):
    for first in (0, 100, 200):
        loads.stage(bomb(first))
    assert loads.sql("SELECT sum(bytes) FROM staged_objects")[0][0] < 100_000
    following = Next(loads, max_bytes=8_000_000)
    assert [following.take() for _ in range(3)] == [[1], [2], [3]]


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


def test_a_load_is_due_when_its_first_commit_is_old_by_the_trackers_clock(loads):
    following = Next(loads, min_rows=100, max_wait_s=900)
    loads.stage(some(1, 5))
    assert following.take() is None
    age(loads, 890)
    assert following.take() is None
    loads.stage(some(6, 5))
    age(loads, 11)
    assert following.take() == [1, 2]
    loads.stage(some(11, 5))
    assert following.take() is None, "the next one waits for itself"


def test_a_load_is_due_when_there_is_enough(loads):
    following = Next(loads, min_rows=10, max_wait_s=900)
    loads.stage(some(1, 5))
    assert following.take() is None
    loads.stage(some(6, 5))
    assert following.take() == [1, 2]


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


AWAY = AwayError("the tracker did not answer", setting="WAYBILL_TRACKER__DSN")


def away(*_, **__):
    raise AWAY


HOURS = Pauses(3_600.0, 7_200.0)
"""It is told of commits, or it never loads them."""


class Started:
    """A consumer of the loads' destination, at work."""

    def __init__(self, loads, *, pauses=HOURS, listener=None):
        self._patience = Patience(loads.loader(), park_after_s=None, wait=threading.Event().wait)
        wake = None if listener is None else listener.wake_of("warehouse")
        self.consumer = LoadingConsumer(
            loads.tracker,
            self._patience._loader,
            self._patience,
            sizes=LoadSizes(),
            pauses=pauses,
            staged=wake,
        )

    def __enter__(self):
        self.consumer.start()
        return self.consumer

    def __exit__(self, *_):
        wait_for(self.consumer.end)
        self.consumer.close()


def test_a_consumer_is_told_of_commits_and_loads_them(loads):
    with StagedListener(loads.tracker) as listener, Started(loads, listener=listener) as consumer:
        for number in (1, 2, 3):
            loads.stage(some(10 * number, 5))
            tell_staged(loads.tracker, {"elsewhere", "warehouse"})
            wait_for(lambda until=number: loads.position == until)
        assert consumer.is_running
        assert (consumer.problem, consumer.error) == ("", None)
    assert not consumer.is_running


def test_commits_of_before_and_of_while_nobody_listened_are_loaded(loads):
    loads.stage(some(10, 5))
    with StagedListener(loads.tracker) as listener, Started(loads, listener=listener):
        wait_for(lambda: loads.position == 1)
        loads.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query = 'LISTEN waybill_staged' AND datname = current_database()"
        )
        loads.stage(some(20, 5))
        tell_staged(loads.tracker, {"warehouse"})
        wait_for(lambda: loads.position == 2)


def test_who_commits_goes_on_where_nobody_can_be_told(loads, monkeypatch):
    monkeypatch.setattr(loads.tracker, "transaction", away)
    tell_staged(loads.tracker, {"warehouse"})


def test_a_consumer_that_is_told_nothing_looks_by_itself(loads):
    with Started(loads, pauses=Pauses(0.1, 0.1)):
        loads.stage(some(10, 5))
        wait_for(lambda: loads.position == 1)


def test_a_consumer_outlives_a_tracker_that_is_away_and_says_so_meanwhile(loads, monkeypatch):
    loads.stage(some(10, 5))
    monkeypatch.setattr(consumers, "next_load", away)
    with Started(loads) as consumer:
        wait_for(lambda: str(AWAY) in consumer.problem)
        monkeypatch.undo()
        wait_for(lambda: loads.position == 1)
        assert consumer.problem == ""


def test_a_tracker_that_is_back_is_no_problem_of_the_load_that_follows(loads, monkeypatch):
    loads.stage(some(10, 5))
    monkeypatch.setattr(consumers, "next_load", away)
    with Started(loads) as consumer:
        wait_for(lambda: str(AWAY) in consumer.problem)
        goes_on, real = threading.Event(), consumer._patience.deliver

        def deliver(*given, **named):
            assert goes_on.wait(300)
            real(*given, **named)

        monkeypatch.undo()
        monkeypatch.setattr(consumer._patience, "deliver", deliver)
        wait_for(lambda: not consumer.problem)
        assert loads.position == 0
        goes_on.set()
        wait_for(lambda: loads.position == 1)


@pytest.mark.parametrize("error", [StopError("column x is gone"), KeyError("x")])
def test_a_consumer_keeps_what_it_ended_with(loads, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(consumers, "next_load", fail)
    with Started(loads) as consumer:
        wait_for(lambda: not consumer.is_running)
    kept = error if isinstance(error, WaybillError) else WaybillError("KeyError: 'x'")
    assert (type(consumer.error), str(consumer.error)) == (type(kept), str(kept))
