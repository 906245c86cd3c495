"""Notices are written with what they tell of, and digests from counters, in the real tracker."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import event, text
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support.books import open_books
from tests.support.told import Kept, declare

from waybill.access import Decision
from waybill.notices import send_notices, write_notice
from waybill.notices.digests import write_digests
from waybill.parking import ObjectDescriptor, ParkedGroupFilter, SegmentDescriptor
from waybill.parking.recording import record_objects
from waybill.settings import NoticeSettings

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots


def told(lot, kind="first"):
    return [
        row[0] for row in lot.sql("SELECT detail FROM notices WHERE kind = :k ORDER BY id", k=kind)
    ]


# First of a kind ---------------------------------------------------------------------------------


def test_what_parks_where_nothing_was_parked_is_told_with_its_numbers(lot):
    lot.park([make_event(n) for n in range(3)], 1)
    assert told(lot) == [
        {
            "event_name": "flight",
            "stage": "transformation",
            "error_type": "null_value",
            "message": "message 2",
            "count": 3,
        }
    ]
    assert lot.sql("SELECT pipeline_id, partition_id FROM notices") == [("pl-1", lot.only().id)]


def test_more_of_the_same_is_not_told_again(lot):
    lot.park([make_event(1)], 1)
    lot.park([make_event(2), make_event(3)], 2)
    lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    lot.park([make_event(4)], 3)  # nothing is parked, but all of it is replaying
    assert len(told(lot)) == 1


def test_what_was_empty_in_between_is_told_again(lot):
    lot.park([make_event(1)], 1)
    lot.parking.discard(ParkedGroupFilter(stage="transformation"), Decision("ann", "test"))
    lot.park([make_event(2), make_event(3)], 2)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    sent = [segment.id for segment in lot.parking.replay_segments(replay.id)]
    lot.parking.mark_replayed(replay.id, sent)
    lot.park([make_event(4)], 3)
    assert [detail["count"] for detail in told(lot)] == [1, 2, 1]


def test_each_new_partition_of_a_commit_is_told_and_the_old_one_is_not(lot):
    lot.park([make_event(1)], 1)
    lot.park([make_event(2), make_event(3, name="bag"), make_event(4, code="type_error")], 2)
    names = [(row["event_name"], row["error_type"]) for row in told(lot)]
    assert sorted(names[1:]) == [("bag", "null_value"), ("flight", "type_error")]
    assert len(names) == 3


def test_a_commit_that_is_rolled_back_tells_nothing(lot):
    key, packed = lot.put([make_event()])
    given = {"key": key, "size": 1, "segments": packed.segments, "scope": "w"}
    with pytest.raises(ZeroDivisionError), lot.tracker.transaction() as connection:
        lot.parking.record(connection, **given, commit_number=1)
        1 / 0
    assert told(lot) == []


def many(count):
    at = "2026-01-01T00:00:00Z"
    segments = [
        SegmentDescriptor(
            pipeline_id="pl-1",
            event_name=f"event {n:06}",
            stage="mapping",
            error_type="type_mismatch",
            position=n,
            length=1,
            count=1,
            bytes=1,
            sha256="ab",
            first_event_at=at,
            last_event_at=at,
            kafka_partition=0,
            first_offset=n,
            last_message="no",
        )
        for n in range(count)
    ]
    return [ObjectDescriptor("parked/one", count, tuple(segments))]


def test_many_new_partitions_are_one_statement_and_one_message(postgres):
    """The owner of 20,000 new partitions gets one message: 20 named, the rest counted."""
    statements = []
    objects = many(20_000)  # not in the transaction: an idle one is ended
    with open_books(postgres, "notices_many") as tracker:
        with tracker.transaction() as connection:

            @event.listens_for(connection, "before_cursor_execute")
            def count(_connection, _cursor, statement, *_):
                if "INTO notices" in statement:
                    statements.append(statement)

            record_objects(connection, objects, scope="w", commit_number=1)
        assert len(statements) == 1
        sink = Kept()
        report = send_notices(tracker, NoticeSettings(), [sink])
        assert (report.messages, report.notices) == (1, 20_000)
        [message] = sink.taken
        assert len(message.named) == 20
        assert message.more == 19_980
        assert "and 19,980 more" in message.text
        assert "20,000 new kinds of parked events" in message.subject
        assert len(message.text) < 10_000
        with tracker.transaction() as connection:
            left = connection.execute(text("SELECT count(*) FROM notices WHERE sent_at IS NULL"))
            assert left.scalar() == 0
        assert send_notices(tracker, NoticeSettings(), [sink]).messages == 0


# Other writers -----------------------------------------------------------------------------------


def test_no_detail_however_hostile_makes_writing_fail(lot):
    nested: list = []
    for _ in range(2000):
        nested = [nested]
    detail = {
        "nul": "a\x00b",
        "surrogate": "\ud800",
        "nan": float("nan"),
        "bytes": b"\xff\x00",
        "nested": nested,
        "long": "x" * 100_000,
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "key\x00\udfff": {"inner": ("\x00",)},
        "big": 2**100,
    }
    with lot.tracker.transaction() as connection:
        write_notice(connection, kind="hold", pipeline_id="p\x00", **detail)
    [found] = told(lot, "hold")
    assert found["nul"] == "a\\0b"
    assert found["surrogate"] == "\\ud800"
    assert found["nan"] == "nan"
    assert len(found["long"]) == 2000
    assert found["when"].startswith("2026-01-01")
    assert found["key\\0\\udfff"] == {"inner": ["\\0"]}
    assert found["big"] == 2**100
    sink = Kept()
    send_notices(lot.tracker, NoticeSettings(), [sink])
    assert "nul: a\\0b" in sink.taken[0].text


# Digests -----------------------------------------------------------------------------------------


def look(lot, *, due=True):
    """Write digests as if an interval had passed; returns the details of the new ones."""
    before = len(told(lot, "digest"))
    if due:
        lot.sql("UPDATE notice_digests SET digested_at = digested_at - interval '2 hours'")
    count = write_digests(lot.tracker, interval_s=3600)
    found = told(lot, "digest")[before:]
    assert count == len(found)
    return found


def test_the_first_digest_comes_an_interval_after_the_first_look(lot):
    lot.park([make_event(1), make_event(2)], 1)
    assert look(lot) == []
    assert look(lot, due=False) == []
    [digest] = look(lot)
    assert (digest["parked"], digest["new"], digest["kinds"]) == (2, 2, 1)
    assert look(lot, due=False) == []


def test_a_digest_says_what_is_new_since_the_last_whatever_moved(lot):
    lot.park([make_event(n) for n in range(3)], 1)
    lot.park([make_event(n, name="bag") for n in range(2)], 2)
    assert look(lot) == []
    assert look(lot)[0]["new"] == 5
    lot.parking.discard(ParkedGroupFilter(event_name="bag"), Decision("ann", "test"))
    lot.park([make_event(n) for n in range(4)], 3)
    replay = lot.parking.begin_replay(
        lot.parking.find(
            "pl-1", event_name="flight", stage="transformation", error_type="null_value"
        ).id,
        who="ann",
        run_id="r",
    )
    first = lot.parking.replay_segments(replay.id)[0]
    lot.parking.mark_replayed(replay.id, [first.id])
    [digest] = look(lot)
    rows = {row["event_name"]: (row["new"], row["parked"]) for row in digest["partitions"]}
    assert rows == {"flight": (4, 4), "bag": (0, 0)}
    assert (digest["new"], digest["parked"]) == (4, 4)


def test_the_oldest_is_of_what_is_parked_now(lot):
    lot.park([make_event(1)], 1)
    lot.park([make_event(2)], 2)
    lot.sql("UPDATE segments SET parked_at = '2020-01-01' WHERE commit_number = 1")
    lot.sql("UPDATE segments SET parked_at = '2021-01-01' WHERE commit_number = 2")
    look(lot)
    assert look(lot)[0]["partitions"][0]["oldest"] == "2020-01-01 00:00 UTC"
    lot.sql("UPDATE segments SET state = 'discarded' WHERE commit_number = 1")
    lot.sql("UPDATE parked_partitions SET parked = 1, discarded = 1, bytes = bytes / 2")
    assert look(lot)[0]["partitions"][0]["oldest"] == "2021-01-01 00:00 UTC"


def test_a_digest_without_news_comes_while_something_is_parked_and_then_once_more(lot):
    lot.park([make_event(1)], 1)
    look(lot)
    assert look(lot)[0]["new"] == 1
    [again] = look(lot)
    assert (again["new"], again["parked"]) == (0, 1)
    lot.parking.discard(ParkedGroupFilter(event_name="flight"), Decision("ann", "test"))
    assert look(lot)[0]["parked"] == 0
    assert look(lot) == []
    lot.park([make_event(2)], 2)
    assert look(lot)[0]["new"] == 1


def test_a_digest_names_ten_partitions_and_counts_the_rest(lot):
    events = [make_event(n, name=f"e{k:02}") for k in range(13) for n in range(k + 1)]
    lot.park(events, 1)
    look(lot)
    [digest] = look(lot)
    assert [row["new"] for row in digest["partitions"]] == list(range(13, 3, -1))
    assert (digest["kinds"], digest["new"]) == (13, len(events))


def test_senders_at_once_write_each_digest_once(lot):
    for k in range(8):
        lot.park([make_event(1, pipeline_id=f"pl-{k}")], k + 1)
    look(lot)
    lot.sql("UPDATE notice_digests SET digested_at = digested_at - interval '2 hours'")
    counts = []

    def write():
        counts.append(write_digests(lot.tracker, interval_s=3600))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 8
    assert lot.sql(
        "SELECT count(DISTINCT pipeline_id), count(*) FROM notices WHERE kind='digest'"
    ) == [(8, 8)]


def test_what_a_digest_says_tells_the_cause_and_what_to_do(lot):
    declare(lot, "pl-1", "ann", "flights")
    lot.park([make_event(1)], 1)
    look(lot)
    look(lot)
    sink = Kept()
    send_notices(lot.tracker, NoticeSettings(), [sink])
    [message] = sink.taken
    assert "1 digest, 1 new kind of parked events in flights" in message.subject
    assert "digest of flights: 1 event is parked; 1 came since the last digest" in message.text
    assert "The code met a null it did not expect." in message.text
    assert "dry-run it on the parked events" in message.text
    assert "it said: message 1" in message.text
