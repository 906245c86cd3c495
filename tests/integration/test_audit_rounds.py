"""The auditor's rounds: what is lost or doubled is found, what only moves is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.audited import PIPELINE, Way
from tests.support.books import open_books

from waybill.access import Decision
from waybill.reconciliation import Breach, close_breach, read_breaches

pytestmark = pytest.mark.serves
BALANCED = dict.fromkeys(("ingestion", "transformation", "mapping", "destination"), "balanced")


@pytest.fixture
def way(postgres: Any, kafka: Any, tmp_path: Path) -> Iterator[Way]:
    with open_books(postgres, "rounds") as tracker:
        yield Way(tracker, kafka, tmp_path)


def taken(way: Way, number: int, minute: int = 0) -> None:
    """Take events in, as a run does that ends well."""
    way.begin(minute)
    way.send(*(way.event(n, minute) for n in range(number)))
    way.page(number, minute, open_from=minute)
    way.end(minute)


def breaches(way: Way, *states: str) -> list[tuple[str, str, int, str]]:
    found: list[Breach] = read_breaches(way.tracker, states=states or None)
    return sorted((b.key.stage, b.key.kind, b.gap, b.state) for b in found)


def test_a_minute_moves_and_comes_into_balance(way: Way) -> None:
    taken(way, 5)
    report = way.audit()
    assert (report.moving, report.breaches, report.opened) == (1, 0, [])
    assert way.why()["ingestion"] == ""
    assert way.query("SELECT stages->'transformation'->>'why' FROM audit_minutes") == [
        ("5 are on their way to it",)
    ]
    way.process()
    assert way.audit().moving == 1
    way.load()
    assert way.audit().balanced == 1
    assert way.verdicts() == BALANCED
    assert way.query("SELECT count(*) FROM audit_minutes") == [(0,)]
    assert way.audit().looked_at == 0
    assert not breaches(way)


def test_an_event_lost_on_the_way_to_kafka_is_a_breach(way: Way) -> None:
    way.begin()
    way.send(*(way.event(n) for n in range(4)))
    way.page(5, open_from=0)
    way.end()
    report = way.audit()
    assert breaches(way) == [("transformation", "on_the_way", 1, "open")]
    assert way.verdicts() == {"ingestion": "balanced", "transformation": "breach"}
    assert report.opened == [
        "1 event missing between ingestion and transformation of 2025-02-19 21:20 UTC: ingestion "
        "passed on 5, 0 came in and 4 are in flight"
    ]
    way.process()
    way.load()
    assert way.audit().opened == []
    assert way.verdicts()["transformation"] == "breach"
    assert way.query("SELECT count(*) FROM notices WHERE kind = 'breach'") == [(1,)]


def test_an_event_lost_between_log_and_count_is_found_once_the_ledger_passed_it(way: Way) -> None:
    taken(way, 5)
    assert way.audit(log_records=4).moving == 1
    assert (
        "processing lags: 5 records"
        in way.query("SELECT stages->'transformation'->>'why' FROM audit_minutes")[0][0]
    )
    way.process(swallow={"e3"})
    way.send(*(way.event(n, 1) for n in range(10, 20)))
    way.audit(log_records=4)
    assert breaches(way) == [("transformation", "on_the_way", 1, "open")]


def test_nobody_counts_the_swallowed_of_a_minute_that_did_not_change(way: Way) -> None:
    way.begin()
    way.send(way.event(1), way.event(2, 1))
    way.page(1)
    way.page(1, 1, open_from=1)
    way.end(1)
    assert way.audit().moving == 2
    way.process(swallow={"e1"})
    way.audit()
    assert [b.key.minute for b in read_breaches(way.tracker)] == [29_000_000]


def test_an_event_that_nobody_took_in_is_one_too_many(way: Way) -> None:
    taken(way, 2)
    way.send(way.event(9))
    way.audit()
    assert breaches(way) == [("transformation", "on_the_way", -1, "open")]


def test_rows_lost_by_loading_are_found(way: Way) -> None:
    taken(way, 3)
    way.process()
    way.audit()
    assert not breaches(way)
    way.load(lose=True)
    way.audit()
    assert breaches(way) == [("destination", "on_the_way", 3, "open")]


def test_a_page_not_counted_yet_is_no_breach(way: Way) -> None:
    """Also of a run that was killed between the log and the tracker; the next one counts it."""
    way.begin()
    way.send(*(way.event(n) for n in range(4)))
    way.process()
    way.audit()
    assert way.verdicts() == {} or "breach" not in way.verdicts().values()
    assert not breaches(way)
    assert (
        "ingestion goes on, or died"
        in way.query("SELECT stages->'transformation'->>'why' FROM audit_minutes")[0][0]
    )
    way.begin(7)
    way.page(4, open_from=7)
    way.audit()
    assert not breaches(way)
    way.load()
    way.audit()
    assert way.verdicts() == BALANCED


def test_what_kafka_has_not_acknowledged_is_no_breach_however_long(way: Way) -> None:
    way.begin()
    way.page(6, open_from=0, waiting=6)
    for _ in range(2):
        way.audit()
        assert not breaches(way)
    [(why,)] = way.query("SELECT stages->'transformation'->>'why' FROM audit_minutes")
    assert why.startswith("6 events were in ingestion's write-ahead log and not acknowledged")
    way.page(1, 61, open_from=61)
    way.send(*(way.event(n) for n in range(5)))
    way.audit()
    assert breaches(way) == [("transformation", "on_the_way", 1, "open")]


def test_loading_that_stands_still_is_no_breach(way: Way) -> None:
    taken(way, 3)
    way.process()
    report = way.audit(unloaded_batches=0)
    assert (report.moving, report.breaches) == (1, 0)
    assert way.query("SELECT stages->'destination'->>'why' FROM audit_minutes") == [
        ("loading lags: 1 batches wait",)
    ]


def test_a_breach_that_mends_itself_is_explained_and_told_once(way: Way) -> None:
    way.begin()
    way.page(3, open_from=1)
    way.audit()
    assert breaches(way) == [("transformation", "on_the_way", 3, "open")]
    way.send(*(way.event(n) for n in range(3)))
    way.process()
    way.load()
    assert way.audit().explained == 1
    assert breaches(way) == [("transformation", "on_the_way", 3, "explained")]
    assert way.verdicts() == BALANCED
    assert way.query("SELECT count(*) FROM notices WHERE kind = 'breach'") == [(2,)]


def test_what_is_closed_by_name_stays_closed_and_the_minute_is_through(way: Way) -> None:
    way.begin()
    way.page(3, open_from=1)
    way.audit()
    [found] = read_breaches(way.tracker)
    close_breach(way.tracker, found.id, Decision("anna", "sent by hand"))
    way.audit()
    way.audit()
    assert [b.state for b in read_breaches(way.tracker)] == ["closed"]
    assert "breach" not in way.verdicts().values()
    assert way.query("SELECT count(*) FROM audit_minutes WHERE state = 'breach'") == [(0,)]


def test_many_breaches_of_one_cause_are_one_notice(way: Way) -> None:
    way.begin()
    for minute in range(30):
        way.page(3, minute, open_from=minute + 1)
    assert len(way.audit().opened) == 30
    [(what,)] = way.query("SELECT detail->>'what' FROM notices WHERE kind = 'breach'")
    assert "; and 29 more like it, from 2025-02-19 21:20 UTC to 2025-02-19 21:49 UTC" in what


def test_counts_and_segments_that_differ_are_found_and_settled(way: Way) -> None:
    way.begin()
    way.page(3, open_from=1, passed=2, out=2, parked=1)
    way.send(way.event(1), way.event(2))
    way.audit()
    assert breaches(way) == [("ingestion", "parked", 1, "open")]
    way.query(
        "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, parked) "
        "VALUES (:p, 'order', 'ingestion', 'source_row_malformed', 1)",
        p=PIPELINE,
    )
    way.audit()
    assert breaches(way) == [("ingestion", "parked", 1, "explained")]
    way.query("UPDATE parked_partitions SET parked = 0, replayed = 1")
    way.audit()
    assert ("transformation", "replays", 1, "open") in breaches(way)


def test_offset_ranges_that_do_not_meet_are_found(way: Way) -> None:
    taken(way, 4)
    way.process(most=2)
    way.audit()
    way.process()
    way.query("UPDATE batches SET offsets = jsonb_set(offsets, '{0,2}', '1') "
              "WHERE commit_number = 2")  # fmt: skip
    way.audit()
    [found] = read_breaches(way.tracker)
    assert found.key.kind == "offsets"
    assert f"more than one batch has the offsets 1 to 2 of {way.topic.name}/0" in found.words
    assert f"commit 2 saw 2 records in the offsets 1 to 4 of {way.topic.name}/0" in found.words


def test_a_batch_that_is_gone_from_the_ledger_leaves_a_hole(way: Way) -> None:
    taken(way, 6)
    for _ in range(3):
        way.process(most=2)
    way.query("DELETE FROM batches WHERE commit_number = 2")
    way.audit()
    [found] = [b for b in read_breaches(way.tracker) if b.key.kind == "offsets"]
    assert (found.gap, found.words.split(" (")[0]) == (
        2,
        f"no batch has the offsets 2 to 4 of {way.topic.name}/0",
    )
    way.audit()
    assert [b.state for b in read_breaches(way.tracker) if b.key.kind == "offsets"] == ["open"]


def test_records_the_source_counts_and_nobody_took_in_are_a_breach(way: Way) -> None:
    way.begin()
    way.send(*(way.event(n) for n in range(3)))
    way.page(3, open_from=0, counted=(4, 3))
    way.end(left=0)
    way.audit()
    assert breaches(way) == [("ingestion", "source_count", 1, "open")]


def test_a_second_round_at_once_does_nothing(way: Way) -> None:
    taken(way, 1)
    with way.tracker.transaction() as connection:
        from waybill.reconciliation.queue import take_turn

        assert take_turn(connection)
        assert way.audit().number == 0
    assert way.audit().number > 0
