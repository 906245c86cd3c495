"""Discard and clean-up: nothing that somebody may still want is ever deleted."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill
from tests.support.denied_deletes import denied

from waybill.access import Decision
from waybill.errors import InputError, NotDeletedError, RetryError
from waybill.parking import ParkedGroupFilter, Parking

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots

FLIGHTS = ParkedGroupFilter(event_name="flight")
BY = Decision("ann", "test data")


def replay_all(lot, run="run"):
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id=run)
    ids = [s.id for s in lot.parking.replay_segments(replay.id)]
    lot.parking.mark_replayed(replay.id, ids)
    lot.parking.finish_replay(replay.id)


# --- discard ---------------------------------------------------------------------------------


def test_a_discard_takes_only_what_is_parked_and_is_written_down(lot):
    lot.park([make_event(1)], 1)
    replay_all(lot)
    lot.park([make_event(2), make_event(3), make_event(4, name="other")], 2)
    report = lot.parking.discard(FLIGHTS, BY)
    assert (report.partitions, report.segments, report.events) == (1, 1, 2)
    assert lot.states() == {"replayed": 1, "discarded": 2, "parked": 1}
    assert lot.parking.discard(FLIGHTS, BY).events == 0
    [(who, action, detail)] = lot.sql(
        "SELECT who, action, detail FROM audit_log WHERE action = 'discard' ORDER BY id LIMIT 1"
    )
    assert (who, action) == ("ann", "discard")
    assert detail["why"] == "test data"
    assert detail["filter"] == {"event_name": "flight"}
    assert detail["report"]["events"] == 2


def test_a_filter_that_names_nothing_discards_nothing(lot):
    lot.park([make_event(1)], 1)
    for call in (lot.parking.discard, lot.parking.undo_discard):
        with pytest.raises(InputError, match="no filter was given"):
            call(ParkedGroupFilter(), BY)
        with pytest.raises(InputError, match="no filter was given"):
            call(ParkedGroupFilter(held=True), BY)


def test_a_discard_is_undone_until_the_clean_up_has_run(lot):
    lot.park([make_event(1)], 1)
    kept = lot.park([make_event(2), make_event(3, name="other")], 2)
    lot.parking.discard(FLIGHTS, BY)
    assert lot.parking.undo_discard(FLIGHTS, BY).events == 2
    assert lot.states() == {"parked": 3}
    lot.parking.discard(FLIGHTS, BY)
    assert lot.parking.clean_up(grace_s=0).objects == 1
    report = lot.parking.undo_discard(FLIGHTS, BY)
    assert (report.events, report.left_events) == (1, 1)
    assert lot.states() == {"deleted": 1, "parked": 2}
    assert lot.keys() == {kept}


def test_discard_and_replay_at_once_give_each_segment_one_fate(lot):
    for round_number in range(8):
        for number in range(6):
            lot.park([make_event(number)], number)
        gate = threading.Barrier(2)

        def replays(round_number=round_number, gate=gate):
            gate.wait()
            replay = lot.parking.begin_replay(
                lot.only().id, who="ann", run_id=f"run-{round_number}"
            )
            for segment in lot.parking.replay_segments(replay.id):
                lot.parking.mark_replayed(replay.id, [segment.id])
            lot.parking.finish_replay(replay.id)

        def discards(gate=gate):
            gate.wait()
            for _ in range(4):
                lot.parking.discard(FLIGHTS, BY)
                lot.parking.undo_discard(FLIGHTS, BY)
            lot.parking.discard(FLIGHTS, BY)

        run_both(replays, discards)
        lot.check()
    assert sum(lot.states().values()) == 48
    assert set(lot.states()) <= {"replayed", "discarded"}


def run_both(*calls):
    errors = []

    def guarded(call):
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# --- clean-up --------------------------------------------------------------------------------


def test_an_object_is_deleted_when_its_last_segment_is_dead_past_the_grace(lot):
    key = lot.park([make_event(1), make_event(2, name="other")], 1)
    lot.parking.discard(FLIGHTS, BY)
    assert lot.parking.clean_up(grace_s=0).objects == 0
    lot.parking.discard(ParkedGroupFilter(event_name="other"), BY)
    assert lot.parking.clean_up(grace_s=3600).objects == 0
    assert lot.keys() == {key}
    later = datetime.now(UTC) + timedelta(hours=2)
    size = lot.sql("SELECT bytes FROM parked_objects")[0][0]
    report = lot.parking.clean_up(grace_s=3600, now=later)
    assert (report.objects, report.segments, report.bytes) == (1, 2, size)
    assert lot.keys() == set()
    assert lot.states() == {"deleted": 2}
    assert lot.parking.clean_up(grace_s=0).objects == 0


def test_history_survives_the_clean_up(lot):
    lot.park([make_event(1)], 1)
    replay_all(lot)
    lot.park([make_event(2), make_event(3)], 2)
    lot.parking.discard(FLIGHTS, BY)
    lot.parking.clean_up(grace_s=0)
    assert lot.states() == {"deleted": 3}
    partition = lot.only()
    assert (partition.parked, partition.replayed, partition.discarded) == (0, 1, 2)
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 0


def test_a_running_replay_keeps_its_objects(lot):
    lot.park([make_event(1), make_event(2, name="other")], 1)
    lot.parking.discard(ParkedGroupFilter(event_name="other"), BY)
    [flight] = lot.parking.partitions(FLIGHTS)
    replay = lot.parking.begin_replay(flight.id, who="ann", run_id="r")
    assert lot.parking.clean_up(grace_s=0).objects == 0
    [segment] = lot.parking.replay_segments(replay.id)
    assert len(list(lot.parking.read(segment))) == 1


def test_a_reader_that_a_clean_up_overtakes_leaves_out_what_was_decided(lot):
    for number in range(3):
        lot.park([make_event(number)], number)
    events = lot.parking.events(lot.only().id)
    assert next(events).kafka_offset == 0
    lot.parking.discard(FLIGHTS, BY)
    lot.parking.clean_up(grace_s=0)
    assert list(events) == []


def test_undo_and_clean_up_at_once_never_lose_a_parked_event(lot):
    for number in range(40):
        lot.park([make_event(number)], number)
        lot.parking.discard(FLIGHTS, BY)
        gate = threading.Barrier(2)

        def cleans(gate=gate):
            gate.wait()
            lot.parking.clean_up(grace_s=0)

        def undoes(gate=gate):
            gate.wait()
            lot.parking.undo_discard(FLIGHTS, BY)

        run_both(cleans, undoes)
        lot.check()
        list(lot.parking.events(lot.only().id))


def test_an_undo_that_holds_an_object_keeps_the_clean_up_off(lot, monkeypatch):
    lot.park([make_event(1)], 1)
    lot.parking.discard(FLIGHTS, BY)
    held, go = threading.Event(), threading.Event()
    move = Parking.undo_discard.__globals__["discards"].move

    def slow(*args, **kwargs):
        moved = move(*args, **kwargs)
        held.set()
        assert go.wait(120)
        return moved

    monkeypatch.setattr("waybill.parking.discards.move", slow)
    thread = threading.Thread(target=lambda: lot.parking.undo_discard(FLIGHTS, BY))
    thread.start()
    assert held.wait(120)
    assert lot.parking.clean_up(grace_s=0).objects == 0
    go.set()
    thread.join()
    assert lot.parking.clean_up(grace_s=0).objects == 0
    assert len(list(lot.parking.events(lot.only().id))) == 1


def test_an_object_that_a_clean_up_claimed_is_not_brought_back(lot, monkeypatch):
    lot.park([make_event(1)], 1)
    lot.parking.discard(FLIGHTS, BY)

    def away(_):
        raise RetryError("store is away")

    monkeypatch.setattr(lot.objects, "delete", away)
    with pytest.raises(RetryError):
        lot.parking.clean_up(grace_s=0)
    report = lot.parking.undo_discard(FLIGHTS, BY)
    assert (report.events, report.left_segments, report.left_events) == (0, 1, 1)
    monkeypatch.undo()
    assert lot.parking.clean_up(grace_s=1e9).objects == 1


def test_an_object_that_the_store_keeps_holds_no_other_up(lot, monkeypatch):
    monkeypatch.setattr("waybill.parking.cleanup.BATCH", 2)
    keys = sorted(lot.park([make_event(n)], n) for n in range(5))
    lot.parking.discard(FLIGHTS, BY)
    with denied(lot.objects, keys[0], keys[3]):
        with pytest.raises(NotDeletedError, match="could not delete 'parked/") as caught:
            lot.parking.clean_up(grace_s=0)
        assert caught.value.reasons.keys() == {keys[0], keys[3]}
        assert lot.keys() == {keys[0], keys[3]}
        assert lot.states() == {"deleted": 3, "discarded": 2}
        later = lot.park([make_event(9)], 9)
        lot.parking.discard(FLIGHTS, BY)
        with pytest.raises(NotDeletedError):
            lot.parking.clean_up(grace_s=0)
        assert later not in lot.keys(), "those that are left come first"
    assert lot.parking.clean_up(grace_s=0).objects == 2
    assert lot.keys() == set()


@parking_lot.KILL_STEPS
def test_a_clean_up_killed_at_any_point_is_finished_by_the_next(lot, step):
    """Points: before, at the end of, and after each transaction; around each deletion."""
    killed_at = 0
    for kill_at in range(1, 100, step):
        lot.sql("TRUNCATE parked_partitions, parked_objects, segments, replays CASCADE")
        lot.park([make_event(n) for n in (1, 2)], 1)
        lot.park([make_event(3)], 2)
        lot.parking.discard(FLIGHTS, BY)
        kept = lot.park([make_event(4)], 3)
        if not run_and_kill(lot, lambda parking: parking.clean_up(grace_s=0), kill_at):
            break
        killed_at = kill_at
        _gone_only_where_claimed(lot, kept)
        lot.parking.clean_up(grace_s=0)
        assert lot.keys() == {kept}
        assert lot.states() == {"deleted": 3, "parked": 1}
        assert (lot.only().discarded, lot.only().parked) == (3, 1)
        lot.check()
        lot.objects.delete([kept])
    assert 27 - step < killed_at <= 27  # eight transactions and one deletion, three points each


def _gone_only_where_claimed(lot, kept):
    live = {key for (key,) in lot.sql("SELECT key FROM parked_objects WHERE state = 'live'")}
    assert live <= lot.keys()
    assert kept in live
    undone = lot.parking.undo_discard(FLIGHTS, BY)
    assert undone.segments == len(live) - 1
    list(lot.parking.events(lot.only().id))  # all that is parked can be read
    lot.parking.discard(ParkedGroupFilter(until="2013-01-01T03:30Z"), BY)
