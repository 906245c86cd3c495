"""What the tracker is told of each segment: its cause, its last message, who its events are."""

from dataclasses import replace

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event

from waybill.parking import Packer, fingerprint, identify, new_key

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots


def identity(n):
    return identify(f"id{n}", source_version=n, intake_version=n, minute=1)


def park(lot, events, *, known=True, copies=()):
    packer = Packer()
    for event in events:
        packer.add(event, identity(event.kafka_offset) if known else None)
    packed = packer.finish()
    key = new_key()
    lot.objects.put(key, packed.body)
    with lot.tracker.transaction() as connection:
        lot.parking.record(
            connection, key=key, size=len(packed.body),
            segments=[replace(s, count=s.count - len(copies), copies=copies)
                      for s in packed.segments],
            scope="w", commit_number=1,
        )  # fmt: skip


def test_each_cause_of_a_partition_is_a_segment_that_says_it(lot):
    park(lot, [make_event(n, where=f"column{n % 2}") for n in range(4)])
    rows = lot.sql("SELECT fingerprint, last_message, ids, count, copies FROM segments ORDER BY id")
    assert rows == [
        (
            fingerprint("message 0", f"column{side}"),
            f"message {2 + side}",
            identity(side).digest + identity(2 + side).digest,
            2,
            None,
        )
        for side in (0, 1)
    ]
    assert lot.only().parked == 4


def test_events_without_ids_are_parked_without_them(lot):
    park(lot, [make_event(0)], known=False)
    assert lot.sql("SELECT ids FROM segments") == [(None,)]


def test_lines_that_are_copies_are_neither_counted_nor_given(lot):
    park(lot, [make_event(n) for n in range(5)], copies=(1, 4))
    assert lot.sql("SELECT copies, count FROM segments") == [([1, 4], 3)]
    partition = lot.only()
    assert partition.parked == 3
    assert [e.kafka_offset for e in lot.parking.events(partition.id)] == [0, 2, 3]
    assert [e.kafka_offset for e in lot.parking.sample(partition.id, 3)] == [0, 2, 3]
