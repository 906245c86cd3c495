"""What became of an event that parked: told from the rows of its segment, however these moved."""

from __future__ import annotations

from functools import partial

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support.memory_traces import made

from waybill.access import Decision
from waybill.parking import ParkedGroupFilter
from waybill.parking.locations import whereabouts
from waybill.parking.selection import select_segments, to_segment
from waybill.trails.tracker_facts import read_known
from waybill.trails.verdict import verdict_of

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
FLIGHTS = ParkedGroupFilter(event_name="flight")
ANNA = Decision("anna", "test data")


def stop(key, n=0):
    return made(
        "e", "transformation", "parked", object_key=key, error_type="null_value",
        kafka_partition=0, kafka_offset=n, attempt=0,
    )  # fmt: skip


def known(lot, *stops):
    return read_known(lot.tracker, stops, partial(whereabouts, lot.tracker, lot.objects))


def now(lot, key, n=0):
    found = known(lot, stop(key, n)).parked_now(stop(key, n))
    assert found is not None
    return found


def verdict(lot, key):
    return verdict_of([stop(key)], known(lot, stop(key)))


def mark_all(lot, replay):
    with lot.tracker.transaction() as connection:
        rows = connection.execute(select_segments()).all()
    lot.parking.mark_replayed(replay.id, [to_segment(row).id for row in rows])


def test_what_is_parked_still_is_said_with_its_partition(lot):
    key = lot.park([make_event()])
    found = now(lot, key)
    assert (found.state, found.partition_id, found.replay_id) == ("parked", lot.only().id, "")


def test_a_replay_is_named_while_it_runs_and_afterwards(lot):
    key = lot.park([make_event()])
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="run-1")
    assert (now(lot, key).state, now(lot, key).replay_id) == ("replaying", str(replay.id))
    assert "a replay by ann in Airflow takes it back" in verdict(lot, key).said
    mark_all(lot, replay)
    lot.parking.finish_replay(replay.id)
    assert now(lot, key).state == "replayed"
    assert known(lot, stop(key)).replays[str(replay.id)].run_id == "run-1"
    assert "replayed by ann" in verdict(lot, key).said
    lot.parking.clean_up(grace_s=0)
    assert (now(lot, key).state, now(lot, key).replay_id) == (
        "deleted after a replay", str(replay.id),
    )  # fmt: skip


@pytest.mark.parametrize("many", [0, 10_000])
def test_who_discarded_it_and_why_is_said_by_row_and_by_mark(lot, monkeypatch, many):
    monkeypatch.setattr("waybill.parking.discards.MANY", many)
    key = lot.park([make_event()])
    lot.park([make_event(name="other")], 2)
    lot.parking.discard(ParkedGroupFilter(event_name="other"), Decision("bob", "no"))
    lot.parking.discard(FLIGHTS, ANNA)
    lot.parking.discard(ParkedGroupFilter(event_name="nothing"), Decision("bob", "no"))
    found = now(lot, key)
    assert (found.state, found.by, found.why) == ("discarded", "anna", "test data")
    assert verdict(lot, key).state == "discarded"
    lot.parking.clean_up(grace_s=0)
    found = now(lot, key)
    assert (found.state, found.by) == ("deleted after a discard", "anna")


def test_what_was_put_back_is_parked_again_by_nobody(lot):
    key = lot.park([make_event()])
    lot.parking.discard(FLIGHTS, ANNA)
    lot.parking.undo_discard(FLIGHTS, Decision("bob", "needed"))
    assert (now(lot, key).state, now(lot, key).by) == ("parked", "")


def test_an_answer_for_very_many_looks_for_some_seconds_and_says_what_it_did_not_ask(
    lot, monkeypatch
):
    monkeypatch.setattr("waybill.trails.tracker_facts.LOOK_S", -1.0)
    key = lot.park([make_event()])
    found = verdict_of([stop(key)], known(lot, stop(key)))
    assert (found.state, "not looked up" in found.said) == ("parked", True)


def test_of_another_partition_nothing_is_said(lot):
    key = lot.park([make_event()])
    other = made("e", "mapping", "parked", object_key=key, error_type="null_value")
    assert known(lot, other).parked_now(other) is None
