"""Trimming segments, replays, payloads and traces: numbers stay, what is needed stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill

from waybill.access import Decision
from waybill.parking import ParkedGroupFilter
from waybill.retention import trim_payloads, trim_rows
from waybill.tracing import expire_traces
from waybill.tracing.layout import LAYOUT_KEY, Hour, Layout, object_key

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
KEPT_S = 90 * 86_400.0
NUMBERS = "SELECT parked, replaying, replayed, discarded, quarantined, first_event_at, " \
    "last_event_at FROM parked_partitions ORDER BY id"  # fmt: skip


def over(lot):
    """Park, replay, discard, park again, and clean up; all of it 100 days ago."""
    lot.park([make_event(n) for n in range(4)])
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    lot.parking.mark_replayed(replay.id, [s.id for s in lot.parking.replay_segments(replay.id)])
    lot.parking.finish_replay(replay.id)
    lot.park([make_event(n) for n in range(4, 9)], 2)
    lot.parking.discard(ParkedGroupFilter(event_name="flight"), Decision("ann", "test data"))
    lot.park([make_event(20)], 3)
    lot.parking.clean_up(grace_s=0)
    for table, column in (
        ("segments", "changed_at"), ("parked_objects", "committed_at"), ("replays", "finished_at"),
    ):  # fmt: skip
        lot.sql(f"UPDATE {table} SET {column} = {column} - interval '100 days'")
    return replay


def count(lot, table):
    return lot.sql(f"SELECT count(*)::int FROM {table}")[0][0]


def test_segments_go_and_their_numbers_stay(lot):
    over(lot)
    before = lot.sql(NUMBERS)
    gone = trim_rows(lot.tracker, kept_s=KEPT_S)
    assert (gone["segments"], gone["replays"]) == (2, 1)
    assert [count(lot, t) for t in ("segments", "parked_objects", "replays")] == [1, 1, 0]
    assert lot.sql(NUMBERS) == before
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 0
    assert lot.sql(NUMBERS) == before
    assert sum(trim_rows(lot.tracker, kept_s=KEPT_S).values()) == 0
    lot.sql("UPDATE parked_partitions SET replayed = replayed + 7")
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 1
    assert lot.sql(NUMBERS) == before


def test_a_kill_anywhere_leaves_numbers_that_are_right(lot):
    over(lot)
    before = lot.sql(NUMBERS)
    point = 1
    while run_and_kill(lot, lambda parking: trim_rows(parking._tracker, kept_s=KEPT_S), point):
        lot.check()
        assert lot.sql(NUMBERS) == before
        point += 2
    assert point > 10
    assert count(lot, "segments") == 1


def test_replays_that_the_books_still_ask_for_stay(lot):
    replay = over(lot)
    lot.sql("INSERT INTO replay_entries VALUES (:id, 'flight', 'transformation', 3, 4)",
            id=replay.id)  # fmt: skip
    assert trim_rows(lot.tracker, kept_s=KEPT_S)["replays"] == 0
    lot.sql("UPDATE replay_entries SET came_in = 4")
    lot.sql("UPDATE replays SET state = 'cancelled'")
    assert trim_rows(lot.tracker, kept_s=KEPT_S)["replays"] == 0
    lot.sql("UPDATE replays SET state = 'done'")
    assert trim_rows(lot.tracker, kept_s=KEPT_S)["replays"] == 1


def payloads(lot):
    return {info.key.rpartition("/")[2] for info in lot.objects.list("payloads/pl-1/")}


def test_payloads_go_but_for_those_that_parked_events_name(lot):
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'a')")
    for name in ("gone", "parked", "foreign/kept"):
        lot.objects.put(f"payloads/pl-1/{name}", b"{}")
    lot.park([make_event(1, value=b'{"id":"x","dataref":"payloads/pl-1/parked"}')])
    assert trim_payloads(lot.tracker, lot.objects, kept_s=3600).deleted == 0
    lot.sql("INSERT INTO intake_watermarks (pipeline_id, open, open_from_minute) "
            "VALUES ('pl-1', true, 1000)")  # fmt: skip
    assert trim_payloads(lot.tracker, lot.objects, kept_s=-3600).deleted == 0
    lot.sql("UPDATE intake_watermarks SET open = false")
    report = trim_payloads(lot.tracker, lot.objects, kept_s=-3600, apply=False)
    assert (report.deleted, report.parked, len(payloads(lot))) == (2, 1, 3)
    assert trim_payloads(lot.tracker, lot.objects, kept_s=-3600).deleted == 2
    assert payloads(lot) == {"parked"}
    assert trim_payloads(lot.tracker, lot.objects, kept_s=-3600).deleted == 0
    lot.sql("UPDATE segments SET sha256 = 'damaged'")
    kept = trim_payloads(lot.tracker, lot.objects, kept_s=-3600).kept
    assert "cannot be read" in kept["pl-1"]
    lot.sql("UPDATE segments SET sha256 = :right", right="")
    lot.objects.delete(["payloads/pl-1/parked"])


def test_payloads_of_a_pipeline_with_a_replay_under_way_stay(lot):
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'a')")
    lot.objects.put("payloads/pl-1/old", b"{}")
    lot.park([make_event(1)])
    lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    report = trim_payloads(lot.tracker, lot.objects, kept_s=-3600)
    assert (report.deleted, report.kept) == (0, {"pl-1": "a replay is running, or ended recently"})
    lot.objects.delete(["payloads/pl-1/old"])


def test_traces_go_by_the_hour(lot):
    now = datetime.now(UTC)
    old, new = Hour.of(now - timedelta(days=100)), Hour.of(now - timedelta(days=10))
    busy = Hour.of(now - timedelta(days=101))
    keys = [object_key(bucket, hour, "n1") for bucket in (0, 2) for hour in (old, new, busy)]
    notes = [f"traces/_compacted/{hour.path}/r1.json" for hour in (old, new)]
    lot.objects.put(LAYOUT_KEY, Layout(2).encode())
    for key in [*keys, *notes]:
        lot.objects.put(key, b"x")
    manifest = (
        b'{"hour":"%s","run":"r2","state":"writing","replaces":[],"abandoned":[],'
        b'"changed_us":0,"beat_us":0}' % busy.path.encode()
    )
    lot.objects.put(f"traces/_compactions/{busy.path}.json", manifest)
    before = now - timedelta(days=90)
    assert expire_traces(lot.objects, before, apply=False) == 3
    assert expire_traces(lot.objects, before) == 3
    left = {info.key for info in lot.objects.list("traces/")} - {LAYOUT_KEY}
    assert {k for k in left if "_compactions" not in k} == {
        *(k for k in keys if old.path not in k), notes[1]
    }  # fmt: skip
    assert expire_traces(lot.objects, before) == 0
    lot.objects.delete(sorted({*left, LAYOUT_KEY}))
