"""A replay takes exactly what was asked for, whatever its conditions cut through."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill

from waybill.access import Decision
from waybill.errors import InputError
from waybill.parking import ParkedGroupFilter, ReplayConditions
from waybill.parking.fingerprints import fingerprint

lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
pytestmark = pytest.mark.serves


def begin(lot, run="r", parking=None, **conditions):
    parking = parking or lot.parking
    return parking.begin_replay(
        parking.partitions()[0].id,
        who="ann",
        run_id=run,
        conditions=ReplayConditions(**conditions),
    )


def taken(lot, replay):
    """Return the payloads of what a replay took, in the order in which they would go."""
    values = []
    for group in lot.parking.replay_slices(replay.id):
        reading = lot.parking.read_slice(group)
        assert reading.damaged == ()
        values += [event.value for _, event in reading.events]
    return values


def payloads(*numbers):
    return [b'{"n":%d}' % number for number in numbers]


def left(lot):
    return sorted(event.value for event in lot.parking.events(lot.only().id))


def park_days(lot, *, commits=3, each=4):
    for commit in range(commits):
        first = commit * each
        lot.park([make_event(n) for n in range(first, first + each)], commit + 1)


def test_a_window_on_event_time_is_exact_and_the_rest_stays_byte_for_byte(lot):
    park_days(lot)
    replay = begin(lot, since="2013-01-01T02:00Z", until="2013-01-01T09:00Z")
    assert taken(lot, replay) == payloads(2, 3, 4, 5, 6, 7, 8)
    assert replay.events == 7
    assert left(lot) == sorted(payloads(0, 1, 9, 10, 11))
    rows = lot.sql("SELECT state, count(*) FROM segments WHERE source_id IS NOT NULL GROUP BY 1")
    assert dict(rows) == {"parked": 2, "replaying": 2}


def test_events_on_both_sides_of_a_window_are_cut_out_of_one_segment(lot):
    lot.park([make_event(n) for n in (1, 8, 4, 9, 5)])
    replay = begin(lot, since="2013-01-01T04:00Z", until="2013-01-01T06:00Z")
    assert taken(lot, replay) == payloads(4, 5)
    assert left(lot) == sorted(payloads(1, 8, 9))


def test_a_window_between_a_segments_events_takes_nothing_and_cuts_nothing(lot):
    lot.park([make_event(1), make_event(8)])
    replay = begin(lot, since="2013-01-01T04:00Z", until="2013-01-01T06:00Z")
    assert (replay.events, lot.states()) == (0, {"parked": 2})


def test_a_window_on_the_time_of_parking_takes_whole_commits(lot):
    park_days(lot)
    lot.sql(
        "UPDATE segments SET parked_at = '2026-01-01Z'::timestamptz + commit_number * interval '1h'"
    )
    replay = begin(lot, parked_since="2026-01-01T02:00Z", parked_until="2026-01-01T03:00Z")
    assert taken(lot, replay) == payloads(4, 5, 6, 7)


def test_a_part_keeps_its_place_and_its_time_of_parking(lot):
    park_days(lot, commits=1)
    lot.sql("UPDATE segments SET parked_at = '2026-01-01Z'")
    begin(lot, since="2013-01-01T02:00Z")
    rows = lot.sql(
        "SELECT commit_number, kafka_partition, first_offset, scope, parked_at::date::text, "
        "first_event_at < '2013-01-01T02:00Z' FROM segments WHERE state <> 'replaced' ORDER BY 3"
    )
    same = ("warehouse", "2026-01-01")
    assert rows == [(1, 0, 0, *same, True), (1, 0, 2, *same, False)]


def test_one_fingerprint_is_taken_out_of_a_segment_that_mixes_them(lot, monkeypatch):
    words = ["no amount", "no such airline", "no amount", "no weight"]
    events = [make_event(n, message=text) for n, text in enumerate(words)]
    with monkeypatch.context() as patch:
        patch.setattr("waybill.parking.packed.MOST_FINGERPRINTS", 0)
        lot.park(events)
    assert lot.sql("SELECT fingerprint, count FROM segments") == [("", 4)]
    replay = begin(lot, fingerprint=fingerprint("no amount", "line 3"))
    assert taken(lot, replay) == payloads(0, 2)
    assert left(lot) == payloads(1, 3)


@pytest.mark.parametrize("most", [1, 4, 5, 7, 11, 12, 50])
def test_a_limit_takes_the_first_events_and_no_more(lot, most):
    park_days(lot)
    replay = begin(lot, max_events=most)
    assert taken(lot, replay) == payloads(*range(min(most, 12)))
    assert replay.events == min(most, 12)
    assert len(left(lot)) == 12 - min(most, 12)


def test_a_limit_counts_what_the_other_conditions_leave(lot):
    park_days(lot)
    replay = begin(lot, since="2013-01-01T03:00Z", until="2013-01-01T10:00Z", max_events=4)
    assert taken(lot, replay) == payloads(3, 4, 5, 6)


def test_a_limit_cuts_through_all_segments_of_a_group_in_the_order_of_their_offsets(lot):
    park_group(lot, {"even": range(0, 10, 2), "odd": range(1, 10, 2)})
    replay = begin(lot, max_events=5)
    assert taken(lot, replay) == payloads(0, 1, 2, 3, 4)
    lot.parking.cancel_replay(replay.id, who="ann")
    assert taken(lot, begin(lot, "r2")) == payloads(*range(10))


def park_group(lot, segments, number=1):
    """Park segments of one commit as one task does: one object, a frame for each."""
    for offsets in segments.values():
        lot.park([make_event(n) for n in offsets], number)


def test_segments_of_one_commit_go_out_in_the_order_of_their_offsets(lot):
    numbers = list(range(60))
    random.Random(7).shuffle(numbers)
    park_group(lot, {name: sorted(numbers[name::5]) for name in range(5)}, 1)
    park_group(lot, {"next": range(60, 70)}, 2)
    assert taken(lot, begin(lot)) == payloads(*range(70))


def test_a_task_s_frames_of_many_causes_are_one_stream(lot):
    lot.park([make_event(n, message="abcdefghijklmnopqrst"[n * 7 % 20] * 3) for n in range(60)])
    assert lot.sql("SELECT count(*) FROM segments") == [(17,)]
    assert taken(lot, begin(lot)) == payloads(*range(60))


def test_a_part_says_who_its_events_are_and_leaves_copies_out(lot):
    lot.park([make_event(n) for n in range(4)])
    ids = b"".join(bytes([n + 1]) * 8 for n in range(4))
    lot.sql("UPDATE segments SET ids = :ids, copies = '{1}', count = 3", ids=ids)
    lot.sql("UPDATE parked_partitions SET parked = 3")
    assert taken(lot, begin(lot, until="2013-01-01T03:00Z")) == payloads(0, 2)
    rows = lot.sql("SELECT state, ids, copies FROM segments WHERE state <> 'replaced' ORDER BY 1")
    assert rows == [("parked", ids[24:], None), ("replaying", ids[:8] + ids[16:24], None)]


def test_what_is_parked_after_the_begin_is_left_and_a_run_resumes_what_it_took(lot):
    park_days(lot)
    replay = begin(lot, max_events=6)
    lot.park([make_event(0)], 9)
    assert begin(lot, max_events=3) == replay
    assert lot.states() == {"replaying": 6, "replaced": 4, "parked": 7}


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_below_one_is_refused(lot, most):
    park_days(lot)
    with pytest.raises(InputError, match="at least 1 event"):
        begin(lot, max_events=most)
    assert lot.states() == {"parked": 12}


def test_a_kill_anywhere_in_a_cut_changes_no_event(lot):
    park_days(lot, commits=2)
    conditions = {"since": "2013-01-01T02:00Z", "max_events": 3}
    kill_at = 0
    while True:
        kill_at += 1
        if not run_and_kill(
            lot, lambda parking: begin(lot, parking=parking, **conditions), kill_at
        ):
            break
        lot.check()
        total = {state: n for state, n in lot.states().items() if state != "replaced"}
        assert sum(total.values()) == 8
    assert kill_at > 10
    assert taken(lot, begin(lot, **conditions)) == payloads(2, 3, 4)
    assert left(lot) == sorted(payloads(0, 1, 5, 6, 7))
    lot.parking.refresh(grace_s=0)
    named = {row[0] for row in lot.sql("SELECT object_key FROM segments")}
    assert lot.keys() == named


def test_a_part_without_a_row_is_kept_while_its_segment_may_still_be_cut(lot):
    from waybill.parking.object_keys import new_cut_key

    lot.park([make_event(1)])
    [(segment_id,)] = lot.sql("SELECT id FROM segments")
    garbage = new_cut_key(segment_id)
    lot.objects.put(garbage, b"x")
    assert lot.parking.refresh(grace_s=0).garbage_kept_undecided == 1
    replay = begin(lot)
    lot.parking.mark_replayed(replay.id, [segment_id])
    assert lot.parking.refresh(grace_s=0).garbage_deleted == 1
    assert garbage not in lot.keys()


def test_a_cut_and_a_discard_at_once_leave_each_event_in_one_place(lot):
    for number in range(12):
        lot.sql("TRUNCATE parked_partitions, parked_objects, segments, replays CASCADE")
        park_days(lot, commits=1, each=6)
        with ThreadPoolExecutor(3) as pool:
            took = pool.submit(begin, lot, f"r{number}", since="2013-01-01T03:00Z")
            flights, by = ParkedGroupFilter(event_name="flight"), Decision("b", "race")
            gone = pool.submit(lot.parking.discard, flights, by)
        states = lot.states()
        assert took.result().events == states.get("replaying", 0)
        assert gone.result().events == states.get("discarded", 0)
        states.pop("replaced", None)
        assert sum(states.values()) == 6
        lot.check()


@pytest.mark.parametrize("prefix", ["", "parked_"])
def test_a_window_that_holds_nothing_is_no_replay_and_no_dry_run(lot, prefix):
    park_days(lot)
    edges = {f"{prefix}since": "2013-01-02", f"{prefix}until": "2013-01-01"}
    with pytest.raises(InputError, match=f"{prefix}since: .* is not before {prefix}until"):
        begin(lot, **edges)
    with pytest.raises(InputError, match=f"{prefix}since: .* is not before {prefix}until"):
        lot.parking.draw(lot.only().id, ReplayConditions(**edges), n=1)
    with pytest.raises(InputError, match="fingerprint: 'zzz' is not a fingerprint"):
        begin(lot, fingerprint="zzz")
    with pytest.raises(InputError, match="fingerprint: 'zzz' is not a fingerprint"):
        lot.parking.draw(lot.only().id, ReplayConditions(fingerprint="zzz"), n=1)
    assert lot.only().parked == 12
