"""What the destination did with a replay's rows: kept with its commits, added up by the tracker."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.support.books import nothing_parked, open_books
from tests.unit.destinations.orders import Order, clean_database, commit_of

from waybill.destinations import open_destination
from waybill.ledger import LoadCommit, acquire_lease, commit_load
from waybill.settings import DestinationSettings
from waybill.storage import TrackerStore
from waybill.storage.tracker.tables import parked_partitions, replay_outcomes, replays

pytestmark = pytest.mark.serves
REPLAY, OTHER = str(uuid4()), str(uuid4())


def never_park(refused: Any) -> None:
    raise AssertionError(f"refused: {refused}")


def back(order_id: int, source: int, intake: int, replay_id: str = REPLAY, **more: Any) -> Order:
    return Order(order_id, source, intake, replayed=True, replay_id=replay_id, **more)


@pytest.mark.parametrize("form", ["of this release", "of an older one"])
def test_rows_of_a_replay_are_told_apart_from_live_ones(postgres: Any, form: str) -> None:
    dsn = clean_database(postgres)
    live = commit_of(1, [Order(1, 5, 1, "new"), Order(2, 1, 1), Order(3, 1, 1, "same")])
    late = [
        back(1, 4, 2, what="old"),
        back(2, 2, 2, what="newer"),
        back(3, 1, 1, what="same"),
        back(4, 1, 2, replay_id=OTHER),
    ]
    replayed = commit_of(2, [*late, Order(5, 1, 1)])
    expected = {
        REPLAY: {"superseded": 1, "delivered": 1, "duplicate": 1},
        OTHER: {"delivered": 1},
    }
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as destination:
        first, second = destination.load([live, replayed], never_park)
        assert (first.replays, second.replays) == ({}, expected)
        if form == "of an older one":
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("UPDATE waybill._waybill_commits SET counts = counts->'rows'")
            expected = {}
        again = destination.load([live, replayed], never_park)
    assert [outcome.replays for outcome in again] == [{}, expected]
    assert [outcome.counts for outcome in again] == [first.counts, second.counts]


def _begun(tracker: TrackerStore, replay_id: str) -> None:
    with tracker.transaction() as connection:
        names = {"pipeline_id": "p", "event_name": "e", "stage": "mapping", "error_type": "x"}
        made = parked_partitions.insert().values(**names).returning(parked_partitions.c.id)
        partition = connection.execute(made).scalar_one()
        connection.execute(
            replays.insert().values(
                id=UUID(replay_id), partition_id=partition, state="done", requested_by="ann"
            )
        )


def test_outcomes_of_several_loads_are_added_and_a_repeat_adds_nothing(postgres: Any) -> None:
    with open_books(postgres, "outcomes") as tracker:
        _begun(tracker, REPLAY)
        epoch = acquire_lease(tracker, "loading/w", holder="test")
        unknown = {OTHER: {"delivered": 3}, "no uuid": {"delivered": 1}}
        first = LoadCommit("loading/w", epoch, "w", 0, 1, {}, {REPLAY: {"delivered": 2}, **unknown})
        second = LoadCommit(
            "loading/w", epoch, "w", 1, 3, {}, {REPLAY: {"delivered": 1, "superseded": 4}}
        )
        for commit in (first, first, second, second):
            commit_load(tracker, commit, nothing_parked)
        with tracker.transaction() as connection:
            found = {
                (str(row.replay_id), row.outcome): row.events
                for row in connection.execute(replay_outcomes.select())
            }
    assert found == {(REPLAY, "delivered"): 3, (REPLAY, "superseded"): 4}
