"""What became of a parked event, as a trail asks: every move that leaves no trace is known."""

from __future__ import annotations

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support.parked_orders import order

from waybill.access import Decision
from waybill.events import encode
from waybill.parking import ObjectDescriptor, Packer, ParkedGroupFilter, discards, identify, new_key
from waybill.parking.locations import COPY, ParkedPlace, whereabouts

lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
pytestmark = pytest.mark.serves
ALL = ParkedGroupFilter(event_name="flight")
ANN, BOB = Decision("ann", "test data"), Decision("bob", "no, it was not")


def event(number):
    return make_event(number, value=encode(order(number, "team")))


def where(lot, key, number, **changes):
    given = {
        "event_id": order(number, "team").id,
        "pipeline_id": "pl-1",
        "event_name": "flight",
        "stage": "transformation",
        "error_type": "null_value",
        "object_key": key,
    }
    return whereabouts(lot.tracker, lot.objects, ParkedPlace(**given | changes))


def told(found):
    return found.state, [(one.action, one.who, one.why) for one in found.decisions]


def hours(since, until):
    edges = [f"2013-01-01T{hour:02}:00Z" for hour in (since, until)]
    return ParkedGroupFilter(event_name="flight", since=edges[0], until=edges[1])


DISCARDED, UNDONE = ("discard", "ann", "test data"), ("undo_discard", "bob", "no, it was not")


@pytest.mark.parametrize("many", [10_000, 1], ids=["by rows", "by marks"])
def test_a_discard_its_undoing_and_the_clean_up_are_known(lot, monkeypatch, many):
    monkeypatch.setattr(discards, "MANY", many)
    key = lot.park([event(n) for n in range(3)])
    assert told(where(lot, key, 1)) == ("parked", [])
    lot.parking.discard(ALL, ANN)
    found = where(lot, key, 1)
    assert told(found) == ("discarded", [DISCARDED])
    assert found.since <= found.decisions[0].at
    assert (found.partition_id, found.object_key) == (lot.only().id, key)
    lot.parking.undo_discard(ALL, BOB)
    assert told(where(lot, key, 1)) == ("parked", [DISCARDED, UNDONE])
    lot.parking.discard(ALL, ANN)
    lot.parking.clean_up(grace_s=0)
    found = where(lot, key, 1)
    assert told(found) == ("deleted", [DISCARDED, UNDONE, DISCARDED])
    assert found.replay_id is None


def test_a_window_that_cuts_a_file_says_what_became_of_each_event(lot):
    key = lot.park([event(n) for n in range(6)])
    lot.parking.discard(hours(1, 3), ANN)
    assert [told(where(lot, key, n))[0] for n in range(6)] == [
        "parked", "discarded", "discarded", "parked", "parked", "parked",
    ]  # fmt: skip
    assert told(where(lot, key, 0)) == ("parked", []), "nobody decided about this one"
    lot.parking.undo_discard(hours(2, 3), BOB)
    assert told(where(lot, key, 1)) == ("discarded", [DISCARDED])
    assert told(where(lot, key, 2)) == ("parked", [DISCARDED, UNDONE])
    assert where(lot, key, 2).object_key != key, "it was cut out into a file of its own"


def test_a_replay_and_what_is_decided_after_it(lot):
    key = lot.park([event(n) for n in range(3)])
    lot.parking.discard(ALL, ANN)
    lot.parking.undo_discard(ALL, BOB)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    assert told(where(lot, key, 1)) == ("replaying", [DISCARDED, UNDONE])
    lot.parking.mark_replayed(replay.id, [s.id for s in lot.parking.replay_segments(replay.id)])
    lot.parking.finish_replay(replay.id)
    lot.park([event(n) for n in range(10, 12)], 2)
    lot.parking.discard(ALL, ANN)
    found = where(lot, key, 1)
    assert told(found) == ("replayed", [DISCARDED, UNDONE]), "the last was about others"
    assert found.replay_id == str(replay.id)
    lot.parking.clean_up(grace_s=0)
    found = where(lot, key, 1)
    assert (found.state, found.replay_id) == ("deleted", str(replay.id))


def test_decisions_about_other_partitions_are_not_its_own(lot):
    key = lot.park([event(1)])
    lot.park([make_event(1, code="other")], 2)
    lot.parking.discard(ParkedGroupFilter(event_name="flight", error_type="other"), ANN)
    assert told(where(lot, key, 1)) == ("parked", [])
    assert where(lot, "parked/nowhere", 1) is None


def test_a_copy_is_told_from_its_original(lot):
    first = commit(lot, 1, [1, 2])
    second = commit(lot, 2, [1, 3])
    assert [where(lot, first, n).state for n in (1, 2)] == ["parked", "parked"]
    assert [where(lot, second, n).state for n in (1, 3)] == [COPY, "parked"]
    lot.parking.discard(ALL, ANN)
    assert told(where(lot, second, 3)) == ("discarded", [DISCARDED])
    assert told(where(lot, second, 1)) == (COPY, [])


def test_a_file_of_nothing_but_copies(lot):
    commit(lot, 1, [1, 2])
    second = commit(lot, 2, [1, 2])
    found = where(lot, second, 1)
    assert (told(found), found.partition_id) == ((COPY, []), lot.only().id)


def commit(lot, number, numbers):
    """Park events once, as processing does; returns the object's key."""
    packer, key = Packer(), new_key()
    for one in numbers:
        who = identify(f"{one:032x}", source_version=0, intake_version=one, minute=1)
        packer.add(event(one), who)
    body, segments = packer.finish()
    lot.objects.put(key, body)
    with lot.tracker.transaction() as connection:
        packed = ObjectDescriptor(key, len(body), segments)
        lot.parking.record_once(connection, [packed], scope="w", commit_number=number)
    return key
