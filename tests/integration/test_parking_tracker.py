"""Recording, listing, reading and replaying against the real tracker and store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import event as happening
from tests.integration import parking_lot
from tests.integration.parking_lot import START, make_event
from tests.support.books import batch

from waybill.access import Decision
from waybill.errors import InputError, RetryError
from waybill.ledger import acquire_lease, commit_batch
from waybill.parking import (
    CorruptSegmentError,
    ObjectDescriptor,
    ParkedGroupFilter,
    ReplayConditions,
)

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots


def begin(lot, run="run-1", who="ann", **conditions):
    return lot.parking.begin_replay(
        lot.only().id, who=who, run_id=run, conditions=ReplayConditions(**conditions)
    )


def test_what_was_parked_is_listed_with_its_numbers(lot):
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'aviation')")
    lot.park([make_event(n) for n in range(3)], 1)
    lot.park([make_event(9), make_event(4, name="other")], 2)
    flight, other = lot.parking.partitions()
    assert (flight.pipeline, flight.team, flight.event_name) == ("flights", "aviation", "flight")
    assert (flight.parked, flight.replaying, other.parked) == (4, 0, 1)
    assert flight.first_event_at == START
    assert flight.last_event_at == START + timedelta(hours=9)
    assert flight.last_message == "message 9"
    lines = [make_event(n).to_line(fingerprint="0" * 16) for n in (0, 1, 2, 9)]
    assert flight.bytes == sum(len(line) + 1 for line in lines)
    assert lot.parking.partition(flight.id) == flight
    row = flight.to_json()
    assert row["first_event_at"] == "2013-01-01T00:00:00Z"
    assert row["pipeline"] == "flights"


def test_segments_have_the_number_of_their_commit_when_another_commit_was_faster(lot):
    """The commit number is taken last; another topic's commit took the one that came next."""

    def parks(item, *, before):
        def record(connection, number):
            lot.parking.record_objects(connection, [item], scope="w", commit_number=number)
            before()
            return [item.key]

        return record

    def commit(event, topic, *, before=lambda: None):
        key, packed = lot.put([event])
        item = ObjectDescriptor(key, len(packed.body), packed.segments)
        epoch = acquire_lease(lot.tracker, f"processing/{topic}", holder="me")
        done = batch(epoch, (0, 0, 1), consumer=f"processing/{topic}", topic=topic, topic_id=topic)
        return commit_batch(lot.tracker, done, parks(item, before=before))

    faster = []
    slower = commit(
        make_event(1), "a", before=lambda: faster.append(commit(make_event(2, name="b"), "b"))
    )
    assert (faster, slower) == ([1], 2)
    query = "SELECT p.event_name, s.commit_number FROM segments s JOIN parked_partitions p ON "
    found = lot.sql(f"{query} p.id = s.partition_id ORDER BY 1")
    assert found == [("b", 1), ("flight", 2)]
    assert lot.sql("SELECT array_agg(commit_number ORDER BY 1) FROM batches") == [([1, 2],)]


def test_a_rolled_back_commit_leaves_only_garbage(lot):
    key, packed = lot.put([make_event()])
    with pytest.raises(ZeroDivisionError), lot.tracker.transaction() as connection:
        lot.parking.record(
            connection,
            key=key,
            size=1,
            segments=packed.segments,
            scope="w",
            commit_number=1,
        )
        assert lot.parking.knows(connection, key)
        1 / 0
    with lot.tracker.transaction() as connection:
        assert not lot.parking.knows(connection, key)
    assert lot.parking.partitions() == []


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (ParkedGroupFilter(), ["a", "b", "c"]),
        (ParkedGroupFilter(event_name="b"), ["b"]),
        (ParkedGroupFilter(pipeline_id="pl-1", stage="mapping"), ["c"]),
        (ParkedGroupFilter(error_type="type_error"), ["b"]),
        (ParkedGroupFilter(pipeline_id="no such"), []),
        (ParkedGroupFilter(since=START + timedelta(hours=10)), ["b", "c"]),
        (ParkedGroupFilter(until="2013-01-01T10:00"), ["a"]),
        (ParkedGroupFilter(since="2013-01-01T10:00Z", until="2013-01-01T11:00Z"), ["b"]),
        (ParkedGroupFilter(since="2013-01-01T15:00Z", until="2013-01-01T16:00Z"), []),
    ],
)
def test_filters_choose_partitions_on_every_dimension(lot, wanted, names):
    lot.park([make_event(n, name="a") for n in (1, 2)])
    lot.park([make_event(10, name="b", code="type_error")], 2)
    lot.park([make_event(12, name="c", stage="mapping")], 3)
    lot.park([make_event(20, name="c", stage="mapping")], 4)
    assert [p.event_name for p in lot.parking.partitions(wanted)] == names


def test_a_window_is_a_time(lot):
    with pytest.raises(InputError, match=r"since: 'yesterday' is not a time"):
        lot.parking.partitions(ParkedGroupFilter(since="yesterday"))


@pytest.mark.parametrize(
    "name", ["", "\x00", "\ud800", "../../x", "é" * 300, "x" * 100_000, "a\\b", "%", "'; --", "😀"]
)
def test_hostile_names_are_parked_found_and_read_back(lot, name):
    event = make_event(name=name, pipeline_id=name or "p", message=name, event_at=name)
    key = lot.park([event, make_event(1)])
    [partition] = lot.parking.partitions(ParkedGroupFilter(event_name=name))
    assert partition.parked == 1
    found = lot.parking.find(
        event.pipeline_id, event_name=name, stage=event.stage, error_type=event.error_type
    )
    assert found == partition
    [back] = lot.parking.events(partition.id)
    assert back.value == event.value
    assert name[:100] in back.event_name
    assert not name or name not in key


def test_a_partition_that_is_not_there_is_named_with_the_nearest(lot):
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'aviation')")
    lot.park([make_event()])
    names = {"event_name": "flight", "stage": "transformation", "error_type": "null_value"}
    assert lot.parking.find("flights", **names) == lot.parking.find("pl-1", **names)
    for pipeline, changes, words in (
        ("fligths", {}, "pipeline 'fligths'; did you mean 'flights'"),
        ("flights", {"event_name": "fligt"}, "of flights for event name 'fligt'; did you mean"),
        ("flights", {"stage": "x"}, "stage 'x'; there are: 'transformation'"),
        ("flights", {"error_type": "nul_value"}, "did you mean 'null_value'"),
    ):
        with pytest.raises(InputError, match=words):
            lot.parking.find(pipeline, **(names | changes))
    with pytest.raises(InputError, match="did you mean 'flights'"):
        lot.parking.pipeline_id("flight")


def test_a_name_that_is_the_id_of_another_pipeline_is_refused_and_names_no_group(lot):
    """Deploys refuse this; it may be older than that."""
    lot.sql(
        "INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'aviation'),"
        " ('pl-2', 'pl-1', 'aviation')"
    )
    lot.park([make_event(pipeline_id="pl-1")])
    names = {"event_name": "flight", "stage": "transformation", "error_type": "null_value"}
    assert lot.parking.find("pl-1", **names).pipeline_id == "pl-1", (
        "the other one has no such group"
    )
    lot.park([make_event(2, pipeline_id="pl-2")])
    for find in (
        lambda: lot.parking.find("pl-1", **names),
        lambda: lot.parking.find_exactly("pl-1", **names),
        lambda: lot.parking.pipeline_id("pl-1"),
    ):
        with pytest.raises(InputError, match="'pl-1' is the id of one .* another, 'pl-2'"):
            find()
    assert lot.parking.find("flights", **names).pipeline_id == "pl-1"
    assert lot.parking.find("pl-2", **names).pipeline_id == "pl-2"


def test_events_come_in_the_order_in_which_they_were_written(lot):
    lot.park([make_event(n) for n in (30, 31)], 3)
    lot.park([make_event(n, kafka_partition=1) for n in (5, 6)], 2)
    lot.park([make_event(n, kafka_partition=0) for n in (20, 21)], 2)
    lot.park([make_event(n) for n in (9, 8)], 1)
    offsets = [e.kafka_offset for e in lot.parking.events(lot.only().id)]
    assert offsets == [9, 8, 20, 21, 5, 6, 30, 31]


def test_events_of_a_window_are_exact_and_limited(lot):
    lot.park([make_event(n) for n in range(10)], 1)
    lot.park([make_event(n) for n in range(10, 20)], 2)
    chosen = lot.parking.events(
        lot.only().id, since=START + timedelta(hours=5), until="2013-01-01T12:00Z"
    )
    assert [e.kafka_offset for e in chosen] == list(range(5, 12))
    limited = lot.parking.events(lot.only().id, limit=12)
    assert [e.kafka_offset for e in limited] == list(range(12))


def test_events_cross_pages_of_segments(lot):
    events = [make_event(n, code=f"c{n % 2}", value=b"x") for n in range(1400)]
    objects = []
    for n in range(700):
        key, packed = lot.put(events[2 * n : 2 * n + 2])
        objects.append(ObjectDescriptor(key, len(packed.body), packed.segments))
    with lot.tracker.transaction() as connection:
        lot.parking.record_objects(connection, objects, scope="w", commit_number=1)
    first = lot.parking.partitions()[0]
    assert [e.kafka_offset for e in lot.parking.events(first.id)] == list(range(0, 1400, 2))


def test_a_sample_is_spread_over_segments_and_inside_them(lot):
    for number in range(10):
        lot.park([make_event(100 * number + n) for n in range(20)], number)
    hundreds = [e.kafka_offset // 100 for e in lot.parking.sample(lot.only().id, 5)]
    assert hundreds == [0, 2, 4, 6, 8]
    offsets = [e.kafka_offset for e in lot.parking.sample(lot.only().id, 40)]
    assert len(set(offsets)) == 40
    assert {o % 100 for o in offsets} == {0, 5, 10, 15}
    assert len(lot.parking.sample(lot.only().id, 10_000)) == 200


def test_a_damaged_segment_is_named(lot):
    key = lot.park([make_event()])
    body = bytearray(lot.objects.get(key))
    body[10] ^= 1
    lot.objects.put(key, bytes(body))
    with pytest.raises(CorruptSegmentError, match=key):
        list(lot.parking.events(lot.only().id))


def test_a_segment_whose_object_is_gone_is_an_alarm_not_an_empty_answer(lot):
    key = lot.park([make_event()])
    lot.objects.delete([key])
    with pytest.raises(CorruptSegmentError, match="gone"):
        list(lot.parking.events(lot.only().id))
    lot.sql("DELETE FROM segments")
    lot.sql("DELETE FROM parked_partitions")


def test_a_replay_takes_marks_and_ends(lot):
    for number in (1, 2, 3):
        lot.park([make_event(10 * number + n) for n in range(4)], number)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="run-1", rate_per_s=50)
    assert (replay.state, replay.events, replay.sent) == ("running", 12, 0)
    assert (lot.only().parked, lot.only().replaying) == (0, 12)
    segments = lot.parking.replay_segments(replay.id)
    assert [s.commit_number for s in segments] == [1, 2, 3]
    assert [e.kafka_offset for e in lot.parking.read(segments[1])] == [20, 21, 22, 23]
    assert lot.parking.mark_replayed(replay.id, [segments[0].id])
    assert lot.parking.mark_replayed(replay.id, [segments[0].id])
    assert (lot.only().replaying, lot.only().replayed) == (8, 4)
    with pytest.raises(RetryError, match="2 segments still to send"):
        lot.parking.finish_replay(replay.id)
    assert lot.parking.mark_replayed(replay.id, [s.id for s in segments])
    done = lot.parking.finish_replay(replay.id)
    assert (done.state, done.sent) == ("done", 12)
    assert lot.parking.finish_replay(replay.id) == done
    assert (lot.only().replayed, lot.only().bytes) == (12, 0)
    assert lot.sql("SELECT who, action FROM audit_log ORDER BY id") == [
        ("ann", "begin_replay"),
        ("ann", "finish_replay"),
    ]


def test_events_parked_during_a_replay_wait_for_the_next(lot):
    lot.park([make_event(1)], 1)
    replay = begin(lot)
    lot.park([make_event(2)], 2)
    assert len(lot.parking.replay_segments(replay.id)) == 1
    assert (lot.only().parked, lot.only().replaying) == (1, 1)
    with pytest.raises(RetryError, match=r"by run 'run-1' .*asked for by 'ann'"):
        begin(lot, "run-2")


def test_the_same_run_resumes_its_replay_and_after_its_end_finds_it_done(lot):
    lot.park([make_event(1)], 1)
    replay = begin(lot)
    assert begin(lot) == replay
    [segment] = lot.parking.replay_segments(replay.id)
    lot.parking.mark_replayed(replay.id, [segment.id])
    lot.parking.finish_replay(replay.id)
    lot.park([make_event(2)], 2)
    again = begin(lot)
    assert (again.id, again.state) == (replay.id, "done")
    assert lot.only().parked == 1
    assert begin(lot, "run-2").id != replay.id


def test_a_window_takes_the_events_in_it(lot):
    lot.park([make_event(n) for n in range(5)], 1)
    lot.park([make_event(n) for n in range(5, 10)], 2)
    lot.park([make_event(n) for n in range(10, 15)], 3)
    replay = begin(lot, since="2013-01-01T07:00Z", until="2013-01-01T10:00Z")
    assert [(s.commit_number, s.count) for s in lot.parking.replay_segments(replay.id)] == [(2, 3)]
    assert lot.states() == {"parked": 12, "replaying": 3, "replaced": 5}


def test_cancelling_puts_the_rest_back_and_loses_nothing(lot):
    for number in (1, 2, 3):
        lot.park([make_event(number)], number)
    replay = begin(lot)
    first, second, _ = lot.parking.replay_segments(replay.id)
    lot.parking.mark_replayed(replay.id, [first.id])
    cancelled = lot.parking.cancel_replay(replay.id, who="bob")
    assert (cancelled.state, cancelled.sent) == ("cancelled", 1)
    assert lot.parking.cancel_replay(replay.id, who="bob") == cancelled
    assert lot.states() == {"parked": 2, "replayed": 1}
    with pytest.raises(InputError, match="was cancelled after 1 of 3 events"):
        begin(lot)
    with pytest.raises(InputError, match="was cancelled"):
        lot.parking.finish_replay(replay.id)
    # what was whole in the producer's log before the cancel is on its way: not twice
    assert lot.parking.mark_replayed(replay.id, [second.id]) is False
    assert lot.states() == {"parked": 1, "replayed": 2}
    assert begin(lot, "run-2").events == 1


def test_a_late_mark_of_a_cancelled_replay_leaves_what_others_took_or_discarded(lot):
    lot.park([make_event(1)], 1)
    lot.park([make_event(2)], 2)
    replay = begin(lot)
    ids = [s.id for s in lot.parking.replay_segments(replay.id)]
    lot.parking.cancel_replay(replay.id, who="bob")
    window = ParkedGroupFilter(event_name="flight", until="2013-01-01T01:30Z")
    assert lot.parking.discard(window, Decision("bob", "test")).events == 1
    begin(lot, "run-2")
    assert lot.parking.mark_replayed(replay.id, ids) is False
    assert lot.states() == {"discarded": 1, "replaying": 1}


def test_one_of_many_that_begin_at_once_wins(lot):
    lot.park([make_event(1)], 1)
    gate = threading.Barrier(8)

    def start(n):
        gate.wait()
        try:
            return begin(lot, f"run-{n}").run_id
        except RetryError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(start, range(8)))
    [winner] = [answer for answer in answers if isinstance(answer, str)]
    losers = [str(answer) for answer in answers if not isinstance(answer, str)]
    assert len(losers) == 7
    assert all(repr(winner) in words for words in losers)
    assert lot.sql("SELECT count(*) FROM replays") == [(1,)]


def test_the_same_run_that_begins_many_times_at_once_has_one_replay(lot):
    lot.park([make_event(1)], 1)
    gate = threading.Barrier(8)

    def start(_):
        gate.wait()
        return begin(lot).id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(8)))) == 1


@pytest.mark.parametrize("who", ["", "  ", "\x00"])
def test_nobody_replays_or_discards_without_a_name(lot, who):
    lot.park([make_event(1)], 1)
    with pytest.raises(InputError, match="`who` must not be empty"):
        begin(lot, who=who)
    with pytest.raises(InputError, match="`who` must not be empty"):
        lot.parking.discard(ParkedGroupFilter(stage="mapping"), Decision(who, "x"))
    with pytest.raises(InputError, match="`why` must not be empty"):
        lot.parking.discard(ParkedGroupFilter(stage="mapping"), Decision("ann", who))
    with pytest.raises(InputError, match="`run_id` must not be empty"):
        begin(lot, "")


def test_what_is_not_there_is_said(lot):
    with pytest.raises(InputError, match="no parked group 99"):
        lot.parking.partition(99)
    with pytest.raises(InputError, match="no parked group 99"):
        lot.parking.begin_replay(99, who="ann", run_id="r")


def test_commits_that_share_partitions_in_other_orders_do_not_block_each_other(lot):
    names = [f"e{n}" for n in range(40)]

    def commit(n):
        order = names if n % 2 else names[::-1]
        lot.park([make_event(n, name=name) for name in order], n)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(commit, range(40)))
    assert {p.parked for p in lot.parking.partitions()} == {40}


def test_a_commit_of_many_segments_is_few_statements(lot):
    events = [make_event(n, name=f"e{n % 2000}", value=b"{}") for n in range(6000)]
    key, packed = lot.put(events)
    statements = []

    def note(_connection, _cursor, statement, parameters, _context, many):
        statements.extend([statement] * (len(parameters) if many else 1))

    with lot.tracker.transaction() as connection:
        happening.listen(connection, "before_cursor_execute", note)
        lot.parking.record(
            connection,
            key=key,
            size=len(packed.body),
            segments=packed.segments,
            scope="w",
            commit_number=1,
        )
    assert 0 < len(statements) <= 5, statements
    assert len(lot.parking.partitions()) == 2000
    assert len(lot.parking.partitions(limit=7)) == 7


def test_where_a_replay_enters_is_what_was_decided_first(lot):
    """A try that was frozen wakes up beside its retry: both send what is in the row."""
    lot.park([make_event(1)], 1)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    assert replay.entry == ""
    assert lot.parking.decide_entry(replay.id, "transformation") == "transformation"
    assert lot.parking.decide_entry(replay.id, "as_parked") == "transformation"
    again = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    assert again.entry == "transformation"
