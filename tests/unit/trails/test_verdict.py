"""The last stop and the tracker say where an event is; legs are in the order of the way."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.memory_traces import START, made

from waybill.trails.tracker_facts import Known, ParkedNow, ReplayRow, StagedRow, place_of
from waybill.trails.trail import in_legs
from waybill.trails.verdict import verdict_of

TAKEN = made("e", "ingestion", "accepted", topic="events.a.b")
PARKED = made(
    "e", "mapping", "parked", 1, error_type="cast_failed", object_key="parked/x", attempt=0
)
BACK = made("e", "replay", "replayed", 60, replay_id="r1", topic="events.a.b")
MAPPED = made("e", "mapping", "passed", 61, object_key="staged/x", attempt=1)
LOADED = made("e", "destination", "delivered", 62, object_key="warehouse", replay_id="r1")


def known(now: ParkedNow | None = None, staged: StagedRow | None = None) -> Known:
    found = Known(replays={"r1": ReplayRow("r1", "run-1", "done", "anna")})
    if now is not None:
        found.parked[place_of(PARKED)] = now
    if staged is not None:
        found.staged["staged/x"] = staged
    return found


@pytest.mark.parametrize(
    ("stops", "rows", "state", "words"),
    [
        ([TAKEN], known(), "in flight", "taken in at 2026-01-01 12:00:00 UTC, in topic events.a.b"),
        ([TAKEN, PARKED], known(ParkedNow(7, "parked")), "parked",
         "parked since 2026-01-01 12:00:01 UTC at mapping: cast_failed; not replayed yet"),
        ([TAKEN, PARKED], known(ParkedNow(7, "replaying", "r1")), "replaying",
         "a replay by anna in Airflow takes it back now"),
        ([TAKEN, PARKED], known(ParkedNow(7, "replayed", "r1", at=START)), "in flight",
         "replayed by anna in Airflow at 2026-01-01 12:00:00 UTC; traces of its way since are not in yet"),
        ([TAKEN, PARKED], known(ParkedNow(7, "discarded", "", "bob", "test data", START)),
         "discarded", "discarded by bob at 2026-01-01 12:00:00 UTC: test data"),
        ([TAKEN, PARKED], known(ParkedNow(7, "deleted after a discard", "", "bob")),
         "discarded", "cleaned up since"),
        ([TAKEN, PARKED], known(ParkedNow(7, "quarantined")), "quarantined", "recheck"),
        ([TAKEN, PARKED], known(ParkedNow(7, "copy")), "duplicate", "parked at mapping"),
        ([TAKEN, PARKED], known(), "parked", "no row"),
        ([TAKEN, PARKED, BACK], known(), "in flight", "sent back in a replay by anna in Airflow"),
        ([TAKEN, PARKED, BACK, MAPPED], known(), "in flight", "staged at 2026-01-01 12:01:01 UTC, not loaded yet"),
        ([TAKEN, MAPPED], known(staged=StagedRow("wh", 9, "loaded", START)), "in flight",
         "commit 9 was loaded into wh at 2026-01-01 12:00:00 UTC"),
        ([TAKEN, PARKED, BACK, MAPPED, LOADED], known(), "delivered",
         "delivered to warehouse at 2026-01-01 12:01:02 UTC after 1 min 2 s"),
        ([TAKEN, made("e", "destination", "deleted", 9, object_key="warehouse")], known(), "delivered",
         "a delete: its row was deleted from warehouse, or marked as deleted, at 2026-01-01 12:00:09 UTC after"),
        ([TAKEN, LOADED, made("e", "destination", "duplicate", 90, object_key="warehouse")], known(),
         "delivered", "a copy that came at 2026-01-01 12:01:30 UTC changed nothing"),
        ([TAKEN, made("e", "destination", "superseded", 9, object_key="wh")], known(), "superseded", "newer"),
        ([TAKEN, made("e", "transformation", "filtered", 9)], known(), "filtered", "by the transformation"),
        ([TAKEN, made("e", "transformation", "passed", 9)], known(), "split", "made other events"),
        ([], known(), "unknown", "not committed"),
    ],
)  # fmt: skip
def test_the_verdict_says_where_the_event_is(stops, rows, state, words) -> None:
    found = verdict_of(stops, rows)
    assert (found.state, words in found.said) == (state, True), found.said


def test_a_replay_begins_a_leg_and_comes_first_in_it_though_its_clock_is_late() -> None:
    late = made("e", "replay", "replayed", 63, replay_id="r1")
    way = in_legs([TAKEN, PARKED, MAPPED, LOADED, late])
    assert [(leg, stop.phase) for leg, stop in way] == [
        (0, "ingestion"), (0, "mapping"), (1, "replay"), (1, "mapping"), (1, "destination"),
    ]  # fmt: skip
    assert verdict_of([stop for _, stop in way], known()).state == "delivered"


def test_stops_of_near_times_are_in_the_order_of_the_stages() -> None:
    loaded = made("e", "destination", "delivered", 5.00, object_key="warehouse")
    mapped = made("e", "mapping", "passed", 5.03, object_key="staged/x")
    passed = made("e", "transformation", "passed", 5.06)
    assert [one for _, one in in_legs([TAKEN, loaded, mapped, passed])] == [
        TAKEN, passed, mapped, loaded,
    ]  # fmt: skip
    later = made("e", "transformation", "passed", 5.2)
    assert [one for _, one in in_legs([TAKEN, loaded, later])] == [TAKEN, loaded, later]


def test_several_attempts_are_several_legs() -> None:
    again = made("e", "mapping", "parked", 70, error_type="cast_failed", attempt=1, object_key="p2")
    second = made("e", "replay", "replayed", 80, replay_id="r2")
    passed = made("e", "mapping", "passed", 81, attempt=2, object_key="s2")
    way = in_legs([TAKEN, PARKED, BACK, again, second, passed])
    assert [leg for leg, _ in way] == [0, 0, 1, 1, 2, 2]


def test_a_replay_that_went_on_after_a_death_is_one_leg() -> None:
    twice = made("e", "replay", "replayed", 75, replay_id="r1", batch="replay:r1:5")
    way = in_legs([TAKEN, PARKED, BACK, twice, MAPPED])
    assert {leg for leg, _ in way} == {0, 1}


def test_of_a_load_that_was_tried_again_the_last_trace_counts() -> None:
    place = {"batch": "load:wh:3", "kafka_offset": 5, "object_key": "wh"}
    first = made("e", "destination", "delivered", 5, **place)
    again = made("e", "destination", "superseded", 9, **place)
    other = made("e", "destination", "superseded", 7, **{**place, "kafka_offset": 6})
    way = [stop for _, stop in in_legs([TAKEN, first, again, other])]
    assert way == [TAKEN, other, again]


def test_a_taking_in_that_was_written_late_is_still_the_first_stop() -> None:
    early = made("e", "transformation", "passed", -0.5, attempt=0)
    assert [stop.phase for _, stop in in_legs([early, TAKEN])] == ["ingestion", "transformation"]
    assert START - timedelta(seconds=0.5) == verdict_of([TAKEN, early], known()).first_at


def test_an_event_that_was_taken_in_twice_shows_which_way_belongs_to_which() -> None:
    mapped = made("e", "mapping", "passed", 2, object_key="staged/x")
    again = made("e", "ingestion", "accepted", 70, topic="events.a.b")
    copy = made("e", "destination", "duplicate", 72, object_key="warehouse")
    way = [stop for _, stop in in_legs([again, copy, mapped, TAKEN])]
    assert way == [TAKEN, mapped, again, copy]
