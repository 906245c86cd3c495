"""The books of each replay: what came in, and what its marks name, whatever the wire says."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import batch, nothing_parked, open_books

from waybill.deployment import DeployedOnTopic
from waybill.ledger import acquire_lease, add_entries, commit_batch, count_entries
from waybill.ledger.replay_entries import read_unmarked
from waybill.processing import Counts
from waybill.processing.spark.tasks import TopicPlan
from waybill.processing.spark.topic_consumer import TopicBatch, TopicConsumer
from waybill.storage import TrackerStore
from waybill.storage.log import LogEnd

pytestmark = pytest.mark.serves
ONE, TWO, DONE = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
ENTRY = ("order", "mapping")


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "entries") as books:
        with books.transaction() as connection:
            for number, stage in ((1, "mapping"), (2, "ingestion"), (3, "destination")):
                connection.execute(
                    text("INSERT INTO parked_partitions VALUES (:n, 'p', 'order', :stage, 'x')"),
                    {"n": number, "stage": stage},
                )
            for replay, number, state, events, sent in (
                (ONE, 1, "cancelled", 10, 4),
                (TWO, 2, "running", 5, 0),
                (DONE, 3, "done", 5, 5),
            ):
                connection.execute(
                    text(
                        "INSERT INTO replays (id, partition_id, state, requested_by, events, sent) "
                        "VALUES (:id, :partition, :state, 'ann', :events, :sent)"
                    ),
                    {
                        "id": replay,
                        "partition": number,
                        "state": state,
                        "events": events,
                        "sent": sent,
                    },
                )
        yield books


def unmarked(tracker: TrackerStore, **in_log: Any) -> dict[Any, int]:
    with tracker.transaction() as connection:
        found = read_unmarked(connection, in_log.get("in_log", {}))
    return {key: number for key, number in found.items() if number}


def test_a_batch_counts_what_came_of_each_replay_that_is_known(tracker: TrackerStore) -> None:
    """Anybody may write any replay id on the wire."""
    rows = [
        [ONE, *ENTRY, 6], [ONE.upper(), *ENTRY, 1], ["{" + ONE + "}", *ENTRY, 1],
        [DONE, "order", "destination", 9], [str(uuid.uuid4()), *ENTRY, 7], ["none", *ENTRY, 7],
    ]  # fmt: skip
    descriptors = [
        {
            "staged": None,
            "ranges": [[0, 0, 0, 1, 1_000, "d0"]],
            "replayed": rows[:3],
            "took_s": 0.1,
        },
        {
            "staged": None,
            "ranges": [[0, 1, 1, 1, 2_000, "d1"]],
            "replayed": rows[3:],
            "took_s": 0.1,
        },
    ]
    plan, deployed = TopicPlan(str(uuid.uuid4()), {}), DeployedOnTopic({}, {}, frozenset())
    share = TopicBatch({0: (0, 2)}, plan, deployed, descriptors, Counts())
    given = consumer(tracker)._commit_of(share, took_ms=1)
    commit_batch(tracker, given, nothing_parked)
    with tracker.transaction() as connection:
        add_entries(connection, "marked", {(ONE, *ENTRY): 4})
    assert unmarked(tracker) == {("p", "order", "mapping"): 4}


def consumer(tracker: TrackerStore) -> TopicConsumer:
    made = object.__new__(TopicConsumer)
    made.name, made.destination = "processing/events.t.w", "w"
    made._holes, made._ends = {}, {0: LogEnd(2, 0)}
    made._epoch = acquire_lease(tracker, made.name, holder="me")
    made.topic = type("Topic", (), {"name": "events.t.w", "cluster_id": "c", "topic_id": "t"})()  # type: ignore[assignment]
    return made


def test_it_is_at_most_what_a_replay_had_left_and_never_below_zero(tracker: TrackerStore) -> None:
    in_log = {(ONE, *ENTRY): 100, (TWO, "order", "transformation"): 2, (DONE, *ENTRY): 1}
    assert unmarked(tracker, in_log=in_log) == {
        ("p", "order", "mapping"): 6,
        ("p", "order", "ingestion"): 2,
    }
    with tracker.transaction() as connection:
        add_entries(connection, "marked", {(ONE, *ENTRY): 3})
    assert unmarked(tracker) == {}


def test_a_batch_that_is_rolled_back_counts_nothing(tracker: TrackerStore) -> None:
    def dies(*_: Any) -> None:
        raise RuntimeError("the process dies")

    epoch = acquire_lease(tracker, "processing/events.t.w", holder="me")
    came = count_entries([(ONE, *ENTRY, 2), (ONE, *ENTRY, 1)])
    assert came == Counter({(ONE, *ENTRY): 3})
    with pytest.raises(RuntimeError):
        commit_batch(tracker, batch(epoch, (0, 0, 3), replayed=came), dies)
    assert unmarked(tracker) == {}
    commit_batch(tracker, batch(epoch, (0, 0, 3), replayed=came), nothing_parked)
    assert unmarked(tracker) == {("p", "order", "mapping"): 3}
