"""Logs of the collector in the tracker: beside each other, each page counted once, one watermark."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import open_books
from typer.testing import CliRunner

from waybill.cli import app
from waybill.errors import StopError
from waybill.ledger import (
    CollectedPage,
    FencedError,
    HeldRecords,
    LogIdentity,
    LogMinute,
    LogProgress,
    SourceLease,
    claim_source,
    close_collector_log,
    commit_collected,
    flip_generation,
    lock_generations,
    open_collector_log,
    read_logs,
    read_watermarks,
    settle_log,
)
from waybill.reconciliation.checks.stranded import look
from waybill.settings import Settings, TrackerSettings
from waybill.storage import TrackerStore
from waybill.storage.tracker import COUNT_COLUMNS

pytestmark = pytest.mark.serves


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "collector") as books:
        yield books


def opened(tracker: TrackerStore, number: int, minute: int) -> SourceLease:
    name = f"collector-{number}-p"
    log = LogIdentity(f"{number:032x}", "p", "ingestion", name, "n", "/wal", "t", rereadable=False)
    lease = claim_source(tracker, log, ends={})
    assert lease is not None
    open_collector_log(tracker, LogProgress(lease, 1, 0), minute=minute)
    return lease


def page(lease: SourceLease, lsn: int, events: int = 1) -> CollectedPage:
    row = [0] * len(COUNT_COLUMNS)
    row[COUNT_COLUMNS.index("in_first")] = events
    return CollectedPage(
        lsn, f"intake:p:{lease.wal_id}:{lsn}", [("p", [["e", "ingestion", 5, row]])]
    )


def commit(tracker: TrackerStore, lease: SourceLease, pages: list[Any], minute: LogMinute) -> int:
    return commit_collected(tracker, pages, LogProgress(lease, 10, 3), minute)


def counted(tracker: TrackerStore) -> list[str]:
    with tracker.transaction() as connection:
        return sorted(connection.execute(text("SELECT reference FROM ledger")).scalars())


def watermark(tracker: TrackerStore) -> tuple[bool, int, int]:
    with tracker.transaction() as connection:
        found = read_watermarks(connection)["p"]
    return found.open, found.open_from_minute, found.waiting


def test_a_commit_that_is_tried_again_with_more_pages_writes_the_new_ones_only(
    tracker: TrackerStore,
) -> None:
    lease = opened(tracker, 1, 5)
    first, second, third = page(lease, 4), page(lease, 9), page(lease, 12)
    minute = LogMinute(6, 6, 0)
    assert commit(tracker, lease, [first, second], minute) == 9
    assert commit(tracker, lease, [first, second, third], minute) == 12
    assert commit(tracker, lease, [first, second, third], minute) == 12
    assert commit(tracker, lease, [], minute) == 12
    assert counted(tracker) == sorted(one.reference for one in (first, second, third))
    [log] = read_logs(tracker)
    assert (log.unsettled, log.rereadable) == (3, False)


def test_the_watermark_is_the_least_of_the_open_logs_and_closed_with_the_last(
    tracker: TrackerStore,
) -> None:
    one, other = opened(tracker, 1, 5), opened(tracker, 2, 7)
    assert [log.state for log in read_logs(tracker)] == ["open", "open"]
    assert watermark(tracker) == (True, 5, 0)
    commit(tracker, one, [page(one, 1)], LogMinute(9, 9, 4))
    assert watermark(tracker) == (True, 7, 4)
    commit(tracker, other, [], LogMinute(8, 9, 2))
    assert watermark(tracker) == (True, 8, 6)
    close_collector_log(tracker, LogProgress(one, 1, 0), minute=10)
    assert watermark(tracker) == (True, 8, 2)
    close_collector_log(tracker, LogProgress(other, 1, 0), minute=11)
    assert watermark(tracker) == (False, 11, 0)


def test_a_log_that_died_holds_the_watermark_until_it_is_opened_or_settled(
    tracker: TrackerStore,
) -> None:
    opened(tracker, 1, 5)
    again = opened(tracker, 1, 9)  # the dead process's minute stays
    assert watermark(tracker) == (True, 5, 0)
    living = opened(tracker, 2, 9)
    settle_log(tracker, again.wal_id, who="test", reason="its disk is gone")
    assert watermark(tracker) == (True, 9, 0)
    with pytest.raises(FencedError):
        commit(tracker, again, [page(again, 3)], LogMinute(9, 9, 0))
    commit(tracker, living, [page(living, 3)], LogMinute(9, 9, 0))
    assert counted(tracker) == [page(living, 3).reference]


def test_logs_that_commit_at_once_never_raise_the_watermark_above_one_of_them(
    tracker: TrackerStore,
) -> None:
    leases = [opened(tracker, number, 1) for number in range(1, 4)]

    def work(lease: SourceLease) -> None:
        for minute in range(2, 30):
            commit(tracker, lease, [page(lease, minute)], LogMinute(minute, minute, 0))
            is_open, least, _ = watermark(tracker)
            assert is_open
            assert least <= minute

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, leases))
    assert watermark(tracker) == (True, 29, 0)
    assert len(counted(tracker)) == 3 * 28


def unknown(tracker: TrackerStore, number: int, held: HeldRecords) -> SourceLease | None:
    """Claim for a log that the tracker has no row of."""
    log = LogIdentity(
        f"{number:032x}", "p", "ingestion", "c", "n", "/wal", "events.t.w", rereadable=False
    )
    return claim_source(tracker, log, ends={}, empty=False, held=replace(held, committed_lsn=7))


def grow(tracker: TrackerStore) -> None:
    with tracker.transaction() as connection:
        flip_generation(
            connection, lock_generations(connection, "events.t.w", alone=True), partitions=4
        )


def written_down(tracker: TrackerStore) -> list[tuple[str, int]]:
    with tracker.transaction() as connection:
        told = connection.execute(text("SELECT count(*) FROM notices")).scalar_one()
        actions = connection.execute(text("SELECT action FROM audit_log ORDER BY id")).scalars()
        return [(action, told) for action in actions]


def test_a_log_that_a_restored_tracker_lacks_goes_on_with_the_generation_of_its_records(
    tracker: TrackerStore,
) -> None:
    grow(tracker)
    for number, name in enumerate(("events.t.w", "events-g2.t.w"), 1):
        lease = unknown(tracker, number, HeldRecords(3, name))
        assert lease is not None
        assert lease.topic == name, "the one that drains too, which has not ended"
    assert unknown(tracker, 3, HeldRecords()) is None, "it holds nothing that has to be sent"
    assert written_down(tracker) == []


def test_a_log_for_a_generation_that_a_restored_tracker_lacks_is_held_and_told_once(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldRecords(1234, "events-g2.t.w")
    for number in (1, 2):
        for _ in range(2):
            with pytest.raises(StopError, match="1,234 events that cannot be had again"):
                unknown(tracker, number, held)
    assert written_down(tracker) == [("hold_log", 2), ("hold_log", 2)]
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE write_ahead_logs SET seen_at = now() - interval '1 hour'"))
    logs = read_logs(tracker)
    assert [(log.state, log.unsettled) for log in logs] == [("open", 1234)] * 2
    [finding] = look(logs, 600)
    assert "`waybill topics grow events.t.w`" in finding.words
    settings = Settings(_env_file=None, tracker=TrackerSettings(dsn=tracker.dsn))
    monkeypatch.setattr("waybill.settings.Settings", lambda: settings)
    listed = " ".join(CliRunner().invoke(app, ["logs", "list"]).output.split())
    assert f"log {1:032x} on n holds 1,234 events that cannot be had again" in listed
    settle_log(tracker, f"{2:032x}", who="ann", reason="nobody wants them")
    assert unknown(tracker, 2, held) is None, "now it is moved aside"
    grow(tracker)
    lease = unknown(tracker, 1, held)
    assert lease is not None
    assert lease.topic == "events-g2.t.w"
    [log] = read_logs(tracker)
    assert log.reason == ""
    assert open_collector_log(tracker, LogProgress(lease, 1, 0), minute=5).committed_lsn == 7
