"""Refresh: tracker and bucket compared both ways; only what is decided is deleted."""

import json
import struct

import pytest
import zstandard
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill
from tests.support.books import batch, nothing_parked
from tests.support.denied_deletes import denied

from waybill.errors import NotDeletedError
from waybill.ledger import (
    acquire_lease,
    commit_batch,
    end_generation,
    flip_generation,
    lock_generations,
)
from waybill.parking import new_key, new_refused_key

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots


def ledger_at(lot, offset, topic="events.a.b", partition=0):
    lot.sql(
        "INSERT INTO topic_offsets (cluster_id, topic_id, topic, partition, next_offset) "
        "VALUES ('c', 't', :topic, :partition, :offset) ON CONFLICT (cluster_id, topic_id, "
        "partition) DO UPDATE SET next_offset = :offset",
        topic=topic,
        partition=partition,
        offset=offset,
    )


def test_garbage_is_deleted_once_the_ledger_stands_beyond_it(lot):
    named = lot.park([make_event(5)], 1)
    lot.put([make_event(7)])
    assert lot.parking.refresh(grace_s=0).garbage_kept_undecided == 1
    ledger_at(lot, 7)
    assert lot.parking.refresh(grace_s=0).garbage_kept_undecided == 1
    ledger_at(lot, 8)
    report = lot.parking.refresh(grace_s=3600)
    assert (report.garbage_kept_young, report.garbage_deleted) == (1, 0)
    report = lot.parking.refresh(grace_s=0)
    assert (report.garbage_deleted, report.garbage_kept_undecided, report.missing) == (1, 0, ())
    assert lot.keys() == {named}


def test_an_object_that_a_log_or_a_destination_may_still_name_is_kept(lot):
    ledger_at(lot, 1000)
    page = lot.put([make_event(1, stage="ingestion", topic="", kafka_partition=-1)])[0]
    load = lot.put([make_event(2, stage="destination", topic="", kafka_partition=-1)])[0]
    lot.objects.put("parked/2026/01/01/alien", b"no parked object")
    lot.objects.put("parked/2026/01/01/empty", b"")
    report = lot.parking.refresh(grace_s=0)
    assert (report.garbage_deleted, report.garbage_kept_undecided) == (0, 4)
    assert {page, load} < lot.keys()


def test_objects_with_hostile_keys_or_directories_are_kept_and_hold_nothing_up(lot):
    wal, end, large = "ab" * 16, f"{'0' * 32}.jsonl.zst", 2**63
    keys = [
        f"parked/unloaded/abc/1/{end}",
        f"parked/unloaded/ff/1/{end}",
        f"parked/unloaded/770078/1/{end}",
        f"parked/unloaded/77/{large}/{end}",
        f"parked/refused/{wal}/{large}/{end}",
        f"parked/cut/{large}/{end}",
        f"parked/rewritten/{large}/{end}",
    ]
    for key in keys:
        lot.objects.put(key, b"no parked object")
    garbage, packed = lot.put([make_event(7)])
    ledger_at(lot, 8)
    places = [(["a"], 0, 1), ("a\0b", 0, 1), ("\ud800", 0, 1), ("a", "0", 1), ("a", 2**31, 1)]
    for topic, partition, offset in [*places, ("a", 0, None)]:
        place = {"topic": topic, "kafka_partition": partition, "first_offset": offset}
        keys.append(put_directory(lot, [packed.segments[0].to_json() | place]))
    keys.append(put_directory(lot, [1]))
    report = lot.parking.refresh(grace_s=0)
    assert (report.garbage_deleted, report.garbage_kept_undecided) == (1, len(keys))
    assert lot.keys() == set(keys)
    assert garbage not in keys


def put_directory(lot, listed):
    """Store an object that is nothing but a directory, of whatever it is to list."""
    listing = zstandard.compress(json.dumps({"version": 1, "segments": listed}).encode())
    key = new_key()
    lot.objects.put(key, listing + struct.pack("<I", len(listing)) + b"WBP1")
    return key


def test_an_object_of_a_refused_message_is_garbage_once_another_holds_the_message(lot):
    wal, keys = "ab" * 16, []
    for lsn in (1, 2, 3):
        keys.append(new_refused_key(wal, lsn))
        lot.objects.put(keys[-1], b"whatever")
    lot.sql(
        "INSERT INTO refused_messages VALUES (:wal, 1, 'parked/another'), (:wal, 2, :own)",
        wal=wal,
        own=keys[1],  # committed after the bucket was listed
    )
    report = lot.parking.refresh(grace_s=0)
    assert (report.garbage_deleted, report.garbage_kept_undecided) == (1, 2)
    assert lot.keys() == set(keys[1:])


def test_an_empty_tracker_deletes_nothing(lot):
    lot.put([make_event(1)])
    lot.objects.put("staged/2026/01/01/x.wbs", b"rows")
    report = lot.parking.refresh(grace_s=0)
    assert (report.garbage_deleted, report.garbage_kept_undecided) == (0, 2)


def test_staged_garbage_is_deleted_once_every_consumer_went_past_it(lot):
    lot.objects.put("staged/2026/01/01/x.wbs", b"rows")
    lot.objects.put("elsewhere/y", b"not ours")
    lot.sql(
        "INSERT INTO consumers (name, epoch, holder, seen_at) VALUES "
        "('processing/b', 1, 'h', now() - interval '1 hour'), "
        "('loading/w', 1, 'h', now() - interval '1 hour')"
    )
    assert lot.parking.refresh(grace_s=0).garbage_kept_undecided == 1
    acquire_lease(lot.tracker, "processing/a", holder="h")
    assert lot.parking.refresh(grace_s=0).garbage_kept_undecided == 1
    epoch = acquire_lease(lot.tracker, "processing/b", holder="h")
    lot.sql("UPDATE consumers SET seen_at = now() - interval '1 hour' WHERE name LIKE '%/b'")
    assert lot.parking.refresh(grace_s=0).garbage_kept_undecided == 1
    commit_batch(lot.tracker, batch(epoch, (0, 0, 1), consumer="processing/b"), nothing_parked)
    lot.sql("UPDATE consumers SET seen_at = seen_at + interval '2 s' WHERE name LIKE '%/_'")
    assert lot.parking.refresh(grace_s=0).garbage_deleted == 1
    assert lot.objects.exists("elsewhere/y")
    lot.objects.delete(["elsewhere/y"])


def test_the_consumer_of_an_ended_generation_keeps_no_staged_garbage(lot):
    """Nobody takes that lease again; while the generation drains, its consumer may still commit."""
    topic, place = "events.t.w", ("c", "t")
    acquire_lease(lot.tracker, f"processing/{topic}", holder="h")
    with lot.tracker.transaction() as connection:
        generations = lock_generations(connection, topic, alone=True)
        second = flip_generation(connection, generations, partitions=4)
    lot.objects.put("staged/2026/01/01/x.wbs", b"rows")
    acquire_lease(lot.tracker, f"processing/{second.name}", holder="h")
    lot.sql(
        "UPDATE consumers SET seen_at = now() + CASE name WHEN :second THEN interval '2 s' "
        "ELSE interval '-1 hour' END",
        second=f"processing/{second.name}",
    )
    assert lot.parking.refresh(grace_s=0).garbage_kept_undecided == 1
    with lot.tracker.transaction() as connection:
        [first, _] = lock_generations(connection, topic, alone=True)
        assert end_generation(connection, first, place=place, ends={})
    assert lot.parking.refresh(grace_s=0).garbage_deleted == 1
    assert lot.keys() == set()


def test_a_row_whose_object_is_gone_is_an_alarm_and_stays(lot, caplog):
    gone = lot.park([make_event(1)], 1)
    kept = lot.park([make_event(2)], 2)
    lot.sql(
        "INSERT INTO staged_objects (key, destination, commit_number, rows, bytes) "
        "VALUES ('staged/gone', 'w', 1, 1, 1)"
    )
    body = lot.objects.get(gone)
    lot.objects.delete([gone])
    report = lot.parking.refresh(grace_s=0)
    assert report.missing == tuple(sorted([gone, "staged/gone"]))
    assert "2 objects are gone from the store" in caplog.text
    assert lot.states() == {"parked": 2}
    assert lot.sql("SELECT count(*) FROM parked_objects WHERE state = 'live'") == [(2,)]
    assert kept in lot.keys()
    lot.objects.put(gone, body)
    lot.sql("DELETE FROM staged_objects")
    assert lot.parking.refresh(grace_s=0).missing == ()


def test_an_object_recorded_after_the_listing_is_neither_garbage_nor_missing(lot, monkeypatch):
    listing = lot.objects.list
    ledger_at(lot, 100)

    def listed_then_recorded(prefix):
        yield from listing(prefix)
        if prefix == "parked/":
            lot.park([make_event(9)], 9)

    monkeypatch.setattr(lot.objects, "list", listed_then_recorded)
    report = lot.parking.refresh(grace_s=0)
    assert (report.missing, report.garbage_deleted) == ((), 0)


def test_wrong_aggregates_are_reported_and_corrected(lot):
    lot.park([make_event(1), make_event(2, name="other")], 1)
    lot.sql("UPDATE parked_partitions SET parked = 7, bytes = 0 WHERE event_name = 'flight'")
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 1
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 0
    lot.check()
    [(detail,)] = lot.sql("SELECT detail FROM audit_log WHERE action = 'correct_aggregates'")
    assert detail["parked"] == [7, 1]


def test_objects_that_the_store_keeps_hold_nothing_else_up(lot, monkeypatch):
    monkeypatch.setattr("waybill.parking.refreshing._BATCH", 2)
    ledger_at(lot, 100)
    strays = sorted(lot.put([make_event(n)])[0] for n in range(5))
    gone = lot.park([make_event(50)], 1)
    lot.objects.delete([gone])
    for number in range(3):
        stage(lot, f"staged/{number}", "loaded", 7200)
    lot.sql("UPDATE parked_partitions SET parked = 7")
    kept = {strays[0], strays[3], "staged/0"}
    with (
        denied(lot.objects, *kept),
        pytest.raises(NotDeletedError, match=r"AccessDenied Access Denied\.") as caught,
    ):
        lot.parking.refresh(grace_s=0, staged_kept_s=0)
    assert caught.value.reasons.keys() == kept
    assert lot.keys() == kept
    assert lot.sql("SELECT DISTINCT state FROM staged_objects") == [("deleted",)]
    done = lot.sql("SELECT action FROM audit_log WHERE who = 'refresh_tracker' ORDER BY id")
    assert done == [("object_missing",), ("correct_aggregates",)]
    report = lot.parking.refresh(grace_s=0, staged_kept_s=0)
    assert (report.garbage_deleted, report.missing) == (3, (gone,))
    lot.sql("DELETE FROM segments")
    lot.sql("DELETE FROM parked_partitions")


def stage(lot, key, state, loaded_s_ago=None, number=1):
    lot.objects.put(key, b"rows")
    lot.sql(
        "INSERT INTO staged_objects (key, destination, commit_number, rows, bytes, state, "
        "loaded_at) VALUES (:key, 'w', :number, 1, 4, :state, now() - make_interval(secs => :ago))",
        key=key,
        number=number,
        state=state,
        ago=loaded_s_ago,
    )


def test_staged_objects_are_deleted_a_grace_after_they_were_loaded(lot):
    stage(lot, "staged/old", "loaded", 7200)
    stage(lot, "staged/new", "loaded", 60)
    stage(lot, "staged/waiting", "staged")
    report = lot.parking.refresh(grace_s=3600, staged_kept_s=3600)
    assert (report.staged_deleted, report.missing) == (1, ())
    assert lot.keys() == {"staged/new", "staged/waiting"}


def test_what_an_open_rewind_is_to_load_again_stays_until_no_pipeline_goes_there(lot):
    for number in range(1, 6):
        stage(lot, f"staged/{number}", "loaded", 7200, number)
    for name in ("orders", "flights"):
        lot.sql("INSERT INTO pipelines (id, name, team) VALUES (:name, :name, 'a')", name=name)
        lot.sql(
            "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, "
            "deployed_by) VALUES (:name, 1, 'v', '{\"destination\": \"w\"}', 'ann')",
            name=name,
        )
    lot.sql(
        "INSERT INTO destination_rewinds (destination, commits, done_to, reloaded_at) VALUES "
        "('w', '[[1, 1]]', 0, now()), ('other', '[[1, 9]]', 0, NULL), "
        "('w', '[[2, 3], [5, 5]]', 2, NULL)"
    )

    def refreshed():
        report = lot.parking.refresh(grace_s=0, staged_kept_s=3600)
        return report.staged_deleted, lot.keys()

    assert refreshed() == (3, {"staged/3", "staged/5"})
    for name, left in (("orders", {"staged/3", "staged/5"}), ("flights", set())):
        lot.sql(
            "INSERT INTO undeployments (pipeline_id, asked_by, drop_tables, done_at) "
            "VALUES (:name, 'ann', true, now())",
            name=name,
        )
        assert refreshed()[1] == left


@parking_lot.KILL_STEPS
def test_a_refresh_killed_at_any_point_is_finished_by_the_next(lot, step):
    ledger_at(lot, 100)
    killed_at = 0
    for kill_at in range(1, 200, step):
        lot.sql("TRUNCATE staged_objects, parked_partitions, parked_objects, segments CASCADE")
        for n in range(3):
            stage(lot, f"staged/{n}", "loaded", 7200)
        lot.put([make_event(1)])
        lot.put([make_event(2)])
        kept = lot.park([make_event(3)], 1)
        lot.sql("UPDATE parked_partitions SET parked = 7")
        if not run_and_kill(
            lot, lambda parking: parking.refresh(grace_s=0, staged_kept_s=0), kill_at
        ):
            break
        killed_at = kill_at
        lot.parking.refresh(grace_s=0, staged_kept_s=0)
        assert lot.keys() == {kept}
        assert lot.sql("SELECT DISTINCT state FROM staged_objects") == [("deleted",)]
        lot.check()
        lot.objects.delete([kept])
    assert killed_at > 25


def test_each_owner_is_told_once_of_an_object_that_is_gone(lot):
    gone = lot.park([make_event(1), make_event(2, name="other"), make_event(3, pipeline_id="pl-2")])
    lot.objects.delete([gone])
    for _ in range(2):
        assert lot.parking.refresh(grace_s=0).missing == (gone,)
        assert lot.sql(
            "SELECT kind, pipeline_id, detail ->> 'object_key', (detail ->> 'segments')::int, "
            "(detail ->> 'events_held')::int, sent_at FROM notices WHERE kind = 'missing' "
            "ORDER BY pipeline_id"
        ) == [("missing", "pl-1", gone, 2, 2, None), ("missing", "pl-2", gone, 1, 1, None)]
        assert lot.sql("SELECT who, target FROM audit_log WHERE action = 'object_missing'") == [
            ("refresh_tracker", gone)
        ]
    lot.sql("DELETE FROM segments")
    lot.sql("DELETE FROM parked_partitions")


def test_more_than_a_page_is_compared_and_only_some_missing_are_named(lot, monkeypatch):
    monkeypatch.setattr("waybill.parking.refreshing._BATCH", 2)
    monkeypatch.setattr("waybill.parking.refreshing._MOST_NAMED", 3)
    keys = sorted(lot.park([make_event(n)], n) for n in range(5))
    strays = [lot.put([make_event(n)])[0] for n in range(5)]
    lot.sql(
        "INSERT INTO topic_offsets (cluster_id, topic_id, partition, topic, next_offset) "
        "VALUES ('c', 't', 0, 'events.a.b', 100)"
    )
    lot.objects.delete(keys)
    report = lot.parking.refresh(grace_s=0)
    assert (report.missing, report.missing_more) == (tuple(keys[:3]), 2)
    assert report.garbage_deleted == len(strays)
    assert lot.keys() == set()
    lot.sql("DELETE FROM segments")
    lot.sql("DELETE FROM parked_partitions")


def test_an_object_that_a_commit_names_while_it_is_decided_stays(lot, monkeypatch):
    key, packed = lot.put([make_event(1)])
    garbage, _ = lot.put([make_event(2)])

    def committed_meanwhile(_tracker, _objects, item):
        if item.key == key:
            with lot.tracker.transaction() as connection:
                lot.parking.record(
                    connection,
                    key=key,
                    size=len(packed.body),
                    segments=packed.segments,
                    scope="warehouse",
                    commit_number=1,
                )
        return True

    monkeypatch.setattr("waybill.parking.refreshing._is_decided", committed_meanwhile)
    assert lot.parking.refresh(grace_s=0).garbage_deleted == 1
    assert lot.keys() == {key}
    assert garbage != key
    assert len(list(lot.parking.events(lot.only().id))) == 1
