"""Which batches of traces were committed: each kind as the books have it, and nothing else."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support.books import batch, nothing_parked

from waybill.access import Decision
from waybill.ledger import (
    IntakeCommit,
    LoadCommit,
    Refusal,
    acquire_lease,
    commit_batch,
    commit_intake,
    commit_load,
    commit_refusal,
    committed,
)
from waybill.parking import ParkedGroupFilter

lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
pytestmark = pytest.mark.serves


def test_a_micro_batch_counts_once_it_is_committed(lot):
    epoch = acquire_lease(lot.tracker, "processing/events.t.w", holder="me")
    done, never = batch(epoch, (0, 0, 10)), uuid4()
    asked = [str(done.batch_id), str(never)]
    assert committed(lot.tracker, asked) == set()
    commit_batch(lot.tracker, done, nothing_parked)
    assert committed(lot.tracker, asked) == {str(done.batch_id)}


def test_pages_loads_and_refusals_count_up_to_where_the_books_stand(lot):
    for sequence in (1, 2):
        page = IntakeCommit("team:p", sequence, {}, 1, ())
        commit_intake(lot.tracker, page, nothing_parked)
    epoch = acquire_lease(lot.tracker, "loading/w", holder="me")
    load = LoadCommit("loading/w", epoch, "w", 0, 3)
    commit_load(lot.tracker, load, nothing_parked)
    commit_refusal(lot.tracker, Refusal("ab", 7, "team:p", "parked/x", ()), nothing_parked)
    counts = {"intake:team:p:1", "intake:team:p:2", "load:w:1", "load:w:3", "refused:ab:7"}
    others = {
        "intake:team:p:3", "intake:p:1", "load:w:4", "load:v:1", "refused:ab:8", "refused:ac:7",
        "", "anything", "load:w:", "load:w:x", f"load:w:{10**30}", "discard:w:1", "replay:x:1",
    }  # fmt: skip
    assert committed(lot.tracker, counts | others) == counts
    assert committed(lot.tracker, others) == committed(lot.tracker, []) == set()


def test_a_mark_of_a_replay_counts_once_its_segments_are_replayed(lot):
    lot.park([make_event(n) for n in range(3)])
    lot.park([make_event(n) for n in range(3, 6)], 2)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    first, second = [segment.id for segment in lot.parking.replay_segments(replay.id)]
    asked = [f"replay:{replay.id}:{first}", f"replay:{replay.id}:{second}"]
    assert committed(lot.tracker, asked) == set()
    lot.parking.mark_replayed(replay.id, [first])
    assert committed(lot.tracker, [*asked, f"replay:{uuid4()}:{first}"]) == {asked[0]}
    lot.parking.mark_replayed(replay.id, [second])
    lot.parking.finish_replay(replay.id)
    lot.parking.clean_up(grace_s=0)
    assert lot.sql("SELECT DISTINCT state FROM segments") == [("deleted",)]
    assert committed(lot.tracker, asked) == set(asked), "what was deleted since was sent"


def test_a_mark_counts_where_its_segment_was_cut_meanwhile(lot):
    lot.park([make_event(n) for n in range(6)])
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    [segment] = [segment.id for segment in lot.parking.replay_segments(replay.id)]
    asked = [f"replay:{replay.id}:{segment}"]
    lot.parking.cancel_replay(replay.id, who="ann")
    window = ParkedGroupFilter(
        event_name="flight", since="2013-01-01T01:00Z", until="2013-01-01T03:00Z"
    )
    lot.parking.discard(window, Decision("ann", "test data"))
    assert committed(lot.tracker, asked) == set(), "cancelled, and parked or discarded"
    lot.parking.mark_replayed(replay.id, [segment])
    assert committed(lot.tracker, asked) == set(asked)
