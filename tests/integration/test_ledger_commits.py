"""The commits of batches: whole or not at all, from exactly where things stood, once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from tests.support.books import (
    batch,
    counts,
    everything,
    joined,
    nothing_parked,
    open_books,
    staged,
)
from tests.support.lost_commits import answer_lost, commits_changed, kill_backend, killed_before

from waybill.errors import RetryError, StopError
from waybill.ledger import (
    BatchCommit,
    FencedError,
    OffsetRange,
    OffsetsMovedError,
    acquire_lease,
    commit_batch,
    committed,
    last_commit_number,
    staged_after,
    topic_positions,
)
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
CONSUMER = "processing/events.t.w"


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "commits") as books:
        yield books


def positions(tracker: TrackerStore) -> dict[int, int]:
    return topic_positions(tracker, cluster_id="c1", topic_id="t1", topic="events.t.w")


def test_a_batch_moves_its_offsets_and_leaves_all_that_it_is(tracker: TrackerStore) -> None:
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    parked: list[int] = []
    commit = batch(
        epoch, (1, 0, 4), (0, 0, 10), counts=counts("mapping", passed=14), staged=staged("a", "b")
    )
    assert commit_batch(tracker, commit, lambda _, number: parked.append(number)) == 1
    assert parked == [1]
    assert positions(tracker) == {0: 10, 1: 4}
    assert last_commit_number(tracker, "w") == 1
    assert [(s.commit_number, s.key) for s in staged_after(tracker, "w", after=0)] == [
        (1, "a"),
        (1, "b"),
    ]
    assert committed(tracker, [str(commit.batch_id)]) == {str(commit.batch_id)}
    rows = everything(tracker)
    assert rows["batches"][0]["offsets"] == [
        ["events.t.w", 1, 0, 4, 4],
        ["events.t.w", 0, 0, 10, 10],
    ]
    assert [row["reference"] for row in rows["ledger"]] == [str(commit.batch_id)]


def refusals(epoch: int) -> dict[str, tuple[BatchCommit, type[Exception]]]:
    return {
        "behind": (batch(epoch, (0, 5, 20)), OffsetsMovedError),
        "ahead": (batch(epoch, (0, 11, 20)), OffsetsMovedError),
        "again": (batch(epoch, (0, 0, 10)), OffsetsMovedError),
        "one of two": (batch(epoch, (1, 0, 5), (0, 0, 10)), OffsetsMovedError),
        "new partition not from 0": (batch(epoch, (2, 3, 5)), OffsetsMovedError),
        "a hole": (batch(epoch, (0, 10, 20), ranges=[OffsetRange(0, 10, 20, 9)]), StopError),
        "an older epoch": (batch(epoch - 1, (0, 10, 20)), FencedError),
        "a newer epoch": (batch(epoch + 1, (0, 10, 20)), FencedError),
        "nobody's lease": (batch(epoch, (0, 10, 20), consumer="processing/other"), FencedError),
    }


@pytest.mark.parametrize("way", refusals(2))
def test_a_batch_that_does_not_start_where_things_stand_leaves_nothing(
    tracker: TrackerStore, way: str
) -> None:
    acquire_lease(tracker, CONSUMER, holder="before")
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    commit_batch(tracker, batch(epoch, (0, 0, 10)), nothing_parked)
    before = everything(tracker)
    commit, error = refusals(epoch)[way]
    with pytest.raises(error) as caught:
        commit_batch(tracker, commit, nothing_parked)
    assert type(caught.value) is error
    assert everything(tracker) == before


def test_a_failure_while_parking_rolls_all_back_and_the_number_is_used_next(
    tracker: TrackerStore,
) -> None:
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    before = everything(tracker)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    commit = batch(epoch, (0, 0, 10), counts=counts("mapping", passed=1), staged=staged("a"))
    with pytest.raises(ZeroDivisionError):
        commit_batch(tracker, commit, fail)
    assert everything(tracker) == before
    assert commit_batch(tracker, commit, nothing_parked) == 1


def test_a_frozen_consumer_that_wakes_up_after_another_took_over_is_refused(
    tracker: TrackerStore,
) -> None:
    frozen = acquire_lease(tracker, CONSUMER, holder="frozen")
    other = acquire_lease(tracker, CONSUMER, holder="other")
    assert other == frozen + 1
    with pytest.raises(FencedError):
        commit_batch(tracker, batch(frozen, (0, 0, 10)), nothing_parked)
    assert commit_batch(tracker, batch(other, (0, 0, 10)), nothing_parked) == 1


def test_a_take_over_waits_for_a_commit_under_way_and_then_stands_behind_it(
    tracker: TrackerStore,
) -> None:
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    inside, taken = threading.Event(), []

    def take_over() -> None:
        inside.wait(120)
        taken.append(acquire_lease(tracker, CONSUMER, holder="other"))

    thread = threading.Thread(target=take_over)
    thread.start()

    def slowly(*_: Any) -> None:
        inside.set()
        time.sleep(0.3)
        assert taken == []

    assert commit_batch(tracker, batch(epoch, (0, 0, 10)), slowly) == 1
    thread.join(120)
    assert taken == [epoch + 1]
    assert positions(tracker) == {0: 10}


def line_cut_while_committing(
    connection: psycopg.Connection[Any], really: Callable[[], None]
) -> None:
    """COMMIT reaches the server, which takes its time; meanwhile the line is cut."""
    line = socket.socket(fileno=connection.fileno())
    timer = threading.Timer(0.3, line.shutdown, [socket.SHUT_RDWR])
    timer.start()
    try:
        really()
    finally:
        timer.join()
        line.detach()


@pytest.mark.parametrize("fault", [answer_lost, killed_before])
def test_a_batch_whose_answer_was_lost_is_committed_exactly_once(
    tracker: TrackerStore, fault: Any
) -> None:
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    recorded: list[int] = []
    commit = batch(epoch, (0, 0, 10), counts=counts("mapping", passed=10), staged=staged("a"))
    with commits_changed(tracker, fault):
        assert commit_batch(tracker, commit, lambda _, number: recorded.append(number)) == 1
    assert recorded == ([1] if fault is answer_lost else [1, 1])
    assert positions(tracker) == {0: 10}
    assert last_commit_number(tracker, "w") == 1
    assert len(everything(tracker)["ledger"]) == 1
    assert commit_batch(tracker, batch(epoch, (0, 10, 11)), nothing_parked) == 2


def test_a_commit_still_under_way_when_it_is_read_back_is_found_in_the_end(
    tracker: TrackerStore,
) -> None:
    """The hardest case: the first look finds nothing, the second try waits behind the first."""
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON batches "
                "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slowly()"
            )
        )
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    with commits_changed(tracker, line_cut_while_committing):
        assert commit_batch(tracker, batch(epoch, (0, 0, 10)), nothing_parked) == 1
    assert positions(tracker) == {0: 10}
    assert len(everything(tracker)["batches"]) == 1


def test_somebody_elses_move_is_not_taken_for_ones_own(tracker: TrackerStore) -> None:
    epoch = acquire_lease(tracker, CONSUMER, holder="me")

    def moved_meanwhile(connection: psycopg.Connection[Any], really: Callable[[], None]) -> None:
        kill_backend(connection)
        commit_batch(tracker, batch(epoch, (0, 0, 7)), nothing_parked)
        really()

    with commits_changed(tracker, moved_meanwhile), pytest.raises(OffsetsMovedError):
        commit_batch(tracker, batch(epoch, (0, 0, 10)), nothing_parked)
    assert positions(tracker) == {0: 7}


def test_a_tracker_that_stays_away_is_a_retry_after_all_tries(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waybill.ledger import commit as module

    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    waits: list[float] = []
    own_time = SimpleNamespace(sleep=waits.append)  # other threads sleep too
    monkeypatch.setattr(module, "time", own_time)
    tries: list[int] = []

    def away(*_: Any) -> None:
        tries.append(1)
        raise RetryError("away")

    with pytest.raises(RetryError, match="away"):
        commit_batch(tracker, batch(epoch, (0, 0, 10)), away)
    assert len(tries) == 5
    assert waits == sorted(waits)
    assert sum(waits) == pytest.approx(3.0)
    assert everything(tracker)["batches"] == []


def commit_singles(tracker: TrackerStore, name: str, number: int) -> None:
    """Commit single events of a topic of its own."""
    epoch = acquire_lease(tracker, f"processing/{name}", holder="x")
    for n in range(number):
        own = {"consumer": f"processing/{name}", "topic": name, "topic_id": name}
        commit_batch(tracker, batch(epoch, (0, n, n + 1), **own), nothing_parked)


def numbers_seen(tracker: TrackerStore, committing: list[Future[None]]) -> list[list[int]]:
    """Look at the commit numbers again and again until all have committed, and once more."""
    looks: list[list[int]] = []
    going = True
    while going:
        going = not all(future.done() for future in committing)
        with tracker.transaction() as connection:
            rows = connection.execute(text("SELECT commit_number FROM batches ORDER BY 1"))
            looks.append([row[0] for row in rows])
    return looks


def test_commit_numbers_are_dense_and_seen_in_order_under_eight_committers(postgres: Any) -> None:
    committers, each = 8, 8
    with (
        open_books(postgres, "eight", pool_size=12) as tracker,
        ThreadPoolExecutor(committers) as pool,
    ):
        names = [f"topic{n}" for n in range(committers)]
        futures = [pool.submit(commit_singles, tracker, name, each) for name in names]
        looks = numbers_seen(tracker, futures)
        for future in futures:
            future.result()
    assert len(looks[-1]) == committers * each
    assert len({len(look) for look in looks}) > 3, "nobody looked while they committed"
    for numbers in looks:
        assert numbers == list(range(1, len(numbers) + 1)), "a number was seen before a lower one"


def test_a_topic_that_was_made_again_stops_its_consumer(tracker: TrackerStore) -> None:
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    commit_batch(tracker, batch(epoch, (0, 0, 10)), nothing_parked)
    for changed in ({"topic_id": "t2"}, {"cluster_id": "c2"}):
        with pytest.raises(StopError, match="deleted and created again"):
            topic_positions(
                tracker, **{"cluster_id": "c1", "topic_id": "t1", "topic": "events.t.w", **changed}
            )


def test_counts_of_a_batch_that_was_written_before_are_refused(tracker: TrackerStore) -> None:
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    commit = batch(epoch, (0, 0, 1), counts=joined(counts("mapping", passed=1)))
    commit_batch(tracker, commit, nothing_parked)
    from dataclasses import replace

    again = replace(commit, ranges=[OffsetRange(0, 1, 2, 1)])
    with pytest.raises(Exception, match="uq_ledger_reference_pipeline_id"):
        commit_batch(tracker, again, nothing_parked)
    assert positions(tracker) == {0: 1}
