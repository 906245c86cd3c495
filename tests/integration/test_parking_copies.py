"""A copy of an event that is parked is not parked again: the rule of ``waybill.parking.copies``."""

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event

from waybill.ledger.balance import read_balance
from waybill.ledger.commit import write_copies, write_counts
from waybill.parking import ANY_REPLAY, ObjectDescriptor, Packer, identify, new_key
from waybill.processing import Counts

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
MINUTE = 100


def identity(n, replay=None):
    return identify(
        f"id{n}", source_version=1, intake_version=n, minute=MINUTE + n % 3, replay_id=replay
    )


def packed(lot, events, replay=None):
    packer = Packer()
    for event in events:
        packer.add(event, identity(event.kafka_offset, replay))
    done = packer.finish()
    key = new_key()
    lot.objects.put(key, done.body)
    return ObjectDescriptor(key, len(done.body), done.segments)


def commit(lot, number, *objects):
    """Record objects and their counts as processing does; returns how many were copies."""
    counts = Counts()
    for item in objects:
        for segment in item.segments:
            for minute, replay_id, run in segment.origins:
                key = (segment.pipeline_id, segment.event_name, segment.stage, minute)
                counts.add(key, "in_replayed" if replay_id else "in_first", run)
                counts.add(key, "parked", run)
    with lot.tracker.transaction() as connection:
        write_counts(connection, f"batch-{number}", list(counts.by_pipeline()))
        copies = lot.parking.record_once(connection, objects, scope="w", commit_number=number)
        write_copies(connection, f"batch-{number}", copies)
    return sum(copies.values())


def park(lot, number, ids, replay=None, **changes):
    events = [make_event(n, **changes) for n in ids]
    return commit(lot, number, packed(lot, events, replay))


def books(lot):
    """Return (parked, duplicate) of all minutes; nothing may be left over, segments must agree."""
    rows, parked = read_balance(lot.tracker)
    stages = [row.stage("transformation") for row in rows]
    assert [stage.left_over() for stage in stages] == [0] * len(stages)
    total = sum(stage.parked for stage in stages)
    assert total == sum(item.recorded for item in parked.values())
    return total, sum(stage.duplicate for stage in stages)


def held(lot):
    states = ("parked", "replaying")
    return sorted(
        event.kafka_offset
        for partition in lot.parking.partitions()
        for event in lot.parking.events(partition.id, states=states)
    )


def begin(lot, run):
    return str(lot.parking.begin_replay(lot.only().id, who="ann", run_id=run).id)


def sent(lot, replay_id):
    lot.parking.mark_replayed(
        replay_id, [segment.id for segment in lot.parking.replay_segments(replay_id)]
    )


def test_a_copy_of_what_is_parked_is_a_duplicate_at_its_own_minute(lot):
    assert park(lot, 1, [1, 2, 3]) == 0
    assert park(lot, 2, [2, 3, 4]) == 2
    assert held(lot) == [1, 2, 3, 4]
    assert books(lot) == (4, 2)
    assert lot.sql("SELECT copies, count FROM segments ORDER BY id") == [(None, 3), ([0, 1], 1)]
    rows, _ = read_balance(lot.tracker)
    duplicates = {row.minute: row.stage("transformation").duplicate for row in rows}
    assert duplicates == {MINUTE: 1, MINUTE + 1: 0, MINUTE + 2: 1}


def test_a_copy_in_the_same_commit_is_found_across_tasks_and_in_one_frame(lot):
    first = packed(lot, [make_event(1), make_event(2), make_event(1)])
    other = packed(lot, [make_event(2), make_event(5)])
    assert commit(lot, 1, first, other) == 2
    assert held(lot) == [1, 2, 5]
    assert books(lot) == (3, 2)


def test_the_same_event_in_another_partition_is_no_copy(lot):
    park(lot, 1, [1])
    assert park(lot, 2, [1], code="type_error") == 0
    assert park(lot, 3, [1], stage="mapping") == 0


def test_an_object_of_copies_only_is_not_recorded_and_goes_with_the_next_refresh(lot):
    park(lot, 1, [1, 2])
    assert park(lot, 2, [2, 1]) == 2
    assert books(lot) == (2, 2)
    assert lot.sql("SELECT count(*) FROM segments") == [(1,)]
    assert len(lot.keys()) == 2
    report = lot.parking.refresh(grace_s=0)
    assert (report.garbage_deleted, report.missing, report.aggregates_corrected) == (1, (), 0)
    assert len(lot.keys()) == 1
    assert held(lot) == [1, 2]


def test_what_parks_again_takes_the_place_of_its_original_and_is_no_copy_of_it(lot):
    park(lot, 1, [1, 2])
    replay = begin(lot, "run-1")
    assert park(lot, 2, [1, 2], replay) == 0
    sent(lot, replay)
    lot.parking.finish_replay(replay)
    assert held(lot) == [1, 2]
    assert books(lot) == (4, 0)
    assert (lot.only().parked, lot.only().replayed) == (2, 2)


def test_a_second_copy_of_a_replayed_event_is_one(lot):
    park(lot, 1, [1, 2])
    replay = begin(lot, "run-1")
    park(lot, 2, [1], replay)
    assert park(lot, 3, [1, 2], replay) == 1
    sent(lot, replay)
    assert held(lot) == [1, 2]
    assert books(lot) == (4, 1)


def test_a_late_copy_while_a_later_replay_has_the_event_is_one(lot):
    park(lot, 1, [1])
    first = begin(lot, "run-1")
    park(lot, 2, [1], first)
    sent(lot, first)
    lot.parking.finish_replay(first)
    second = begin(lot, "run-2")
    assert park(lot, 3, [1], first) == 1
    assert park(lot, 4, [1], second) == 0
    sent(lot, second)
    assert held(lot) == [1]


def test_a_recovered_copy_while_the_original_is_replayed_is_one_and_the_replay_brings_it(lot):
    park(lot, 1, [1])
    replay = begin(lot, "run-1")
    assert commit(lot, 2, packed(lot, [make_event(1)]), packed(lot, [make_event(1)], replay)) == 1
    sent(lot, replay)
    assert held(lot) == [1]


def test_the_segment_of_a_cancelled_replay_is_no_reason_to_drop_what_it_sent(lot):
    park(lot, 1, [1])
    replay = begin(lot, "run-1")
    lot.parking.cancel_replay(replay, who="ann")
    assert park(lot, 2, [1], replay) == 0
    sent(lot, replay)  # it was whole in the producer's log
    assert held(lot) == [1]


def test_where_the_replay_is_not_known_no_segment_of_any_replay_counts(lot):
    park(lot, 1, [1])
    replay = begin(lot, "run-1")
    assert park(lot, 2, [1], ANY_REPLAY) == 0
    assert park(lot, 3, [1], ANY_REPLAY) == 1
    sent(lot, replay)
    assert held(lot) == [1]


@pytest.mark.parametrize("state", ["discarded", "quarantined", "replaced"])
def test_what_nobody_can_bring_back_stands_for_no_event(lot, state):
    park(lot, 1, [1])
    lot.sql("UPDATE segments SET state = :state", state=state)
    assert park(lot, 2, [1]) == 0
    lot.sql("UPDATE segments SET state = 'parked'")
    lot.sql("UPDATE parked_partitions SET parked = 2")


def test_a_line_that_is_a_copy_itself_stands_for_no_event(lot):
    park(lot, 1, [1])
    park(lot, 2, [1, 2])
    [first] = [s.id for s in segments_of(lot) if s.commit_number == 1]
    replay = begin(lot, "run-1")
    sent(lot, replay)
    lot.sql("UPDATE segments SET state = 'parked' WHERE id <> :id", id=first)
    lot.sql("UPDATE parked_partitions SET parked = 1, replayed = 1, bytes = "
            "(SELECT bytes FROM segments WHERE id <> :id)", id=first)  # fmt: skip
    assert park(lot, 3, [1, 2]) == 1
    assert held(lot) == [1, 2]


def segments_of(lot):
    from waybill.parking.reading import segments_in_order
    from waybill.storage.tracker.tables import segments

    return list(segments_in_order(lot.tracker, segments.c.id > 0))


def test_a_commit_that_rolls_back_changes_neither_books_nor_segments(lot):
    park(lot, 1, [1])
    copy = packed(lot, [make_event(1), make_event(2)])
    with pytest.raises(ZeroDivisionError), lot.tracker.transaction() as connection:
        copies = lot.parking.record_once(connection, [copy], scope="w", commit_number=2)
        write_copies(connection, "batch-2", copies)
        raise ZeroDivisionError
    assert books(lot) == (1, 0)
    assert commit(lot, 2, copy) == 1
    assert books(lot) == (2, 1)
