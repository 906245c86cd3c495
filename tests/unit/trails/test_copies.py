"""Of an event that was taken in more than once each stop has the number of its copy, or none."""

from __future__ import annotations

import timeit

from tests.support.memory_traces import made

from waybill.tracing import Trace
from waybill.trails.copies import copies_of
from waybill.trails.trail import in_legs

FIRST = made("e", "ingestion", "accepted", 0, kafka_offset=5)
SECOND = made("e", "ingestion", "accepted", 70, kafka_offset=9)


def at(offset: int, phase: str, outcome: str, after_s: float, **more: object) -> Trace:
    """Return a trace at a record of Kafka."""
    given = {"topic": "t", "kafka_partition": 0, "kafka_offset": offset, "attempt": 0} | more
    return made("e", phase, outcome, after_s, **given)


def numbers(*stops: Trace, commits: dict[str, int] | None = None) -> dict[Trace, int]:
    """Return the number of each stop that is of one copy."""
    way = in_legs(stops)
    found = copies_of(way, commits or {})
    of_stop = {stop: found.get(id(stop), ()) for _, stop in way}
    return {stop: copies[0] for stop, copies in of_stop.items() if len(copies) == 1}


def test_an_event_that_was_taken_in_once_has_no_numbers() -> None:
    assert numbers(FIRST, at(3, "mapping", "passed", 1)) == {}


def test_copies_that_overtake_each_other_in_time_are_told_by_their_records_and_commits() -> None:
    slow = at(3, "mapping", "passed", 90, batch="a")
    quick = at(4, "mapping", "passed", 80, batch="b")
    own = {"object_key": "wh"}
    late = made("e", "destination", "duplicate", 99, commit_number=7, kafka_offset=1, **own)
    early = made("e", "destination", "delivered", 85, commit_number=8, kafka_offset=1, **own)
    found = numbers(FIRST, SECOND, slow, quick, late, early, commits={"a": 7, "b": 8})
    assert found == {FIRST: 1, SECOND: 2, slow: 1, quick: 2, late: 1, early: 2}


def test_a_copy_that_is_on_its_way_is_the_one_that_came_last() -> None:
    mapped = at(3, "mapping", "passed", 1)
    assert numbers(FIRST, SECOND, mapped) == {FIRST: 1, SECOND: 2, mapped: 1}


def test_a_record_that_may_be_of_any_copy_has_no_number() -> None:
    parked = at(4, "mapping", "parked", 71, error_type="x", object_key="parked/x")
    assert numbers(FIRST, SECOND, parked) == {FIRST: 1, SECOND: 2}


def test_generations_of_a_topic_follow_each_other_by_number() -> None:
    before = at(8, "mapping", "passed", 90, topic="events.t.w-g9")
    after = at(1, "mapping", "passed", 91, topic="events.t.w-g10")
    assert numbers(FIRST, SECOND, before, after) == {FIRST: 1, SECOND: 2, before: 1, after: 2}


def test_of_two_copies_the_one_that_parked_is_the_one_that_is_replayed() -> None:
    passed = at(3, "mapping", "passed", 1)
    loaded = made("e", "destination", "delivered", 2, object_key="wh", kafka_offset=0)
    parked = at(4, "mapping", "parked", 71, error_type="x", object_key="parked/x")
    back = made("e", "replay", "replayed", 80, replay_id="r", object_key="parked/x")
    again = at(9, "mapping", "passed", 81, attempt=1)
    copy = made("e", "destination", "duplicate", 82, object_key="wh", replay_id="r", kafka_offset=0)
    found = numbers(FIRST, SECOND, passed, loaded, parked, back, again, copy)
    assert [found[one] for one in (passed, loaded)] == [1, 1]
    assert [found[one] for one in (parked, back, again, copy)] == [2, 2, 2, 2]


def test_what_cannot_be_told_has_no_number() -> None:
    """Three records of two takings in: traces are missing. One of two copies came back: which?"""
    three = [at(offset, "mapping", "passed", offset) for offset in (3, 4, 5)]
    assert numbers(FIRST, SECOND, *three) == {FIRST: 1, SECOND: 2}
    own = {"error_type": "x", "object_key": "parked/x"}
    parked = [at(offset, "mapping", "parked", 71, **own) for offset in (3, 4)]
    back = made("e", "replay", "replayed", 80, replay_id="r", object_key="parked/x")
    one = at(9, "mapping", "passed", 81, attempt=1)
    found = numbers(FIRST, SECOND, *parked, back, one)
    assert one not in found


def test_copies_that_all_parked_and_went_back_cost_in_proportion_to_their_number() -> None:
    def spent(copies: int) -> float:
        stops = []
        for number in range(copies):
            own = {"object_key": f"parked/{number}"}
            refused = {"batch": f"refused:log:{number}", **own}
            stops += [
                made("e", "ingestion", "accepted", number, kafka_offset=number),
                made("e", "ingestion", "parked", number + 0.5, error_type="x", **refused),
                made("e", "replay", "replayed", 9e5 + number, replay_id="r", **own),
            ]
        way = in_legs(stops)
        found = copies_of(way, {})
        assert {found[id(stop)] for stop in stops[:3]} == {(1,)}
        return min(timeit.repeat(lambda: copies_of(way, {}), number=1, repeat=3))

    assert spent(4000) < 30 * spent(500), "it was quadratic: more than 60 times"
