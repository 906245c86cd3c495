"""Write-ahead logs in the tracker: one has a source, versions rise, what is lost is told, by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import open_books
from typer.testing import CliRunner

from waybill.cli import app
from waybill.errors import InputError
from waybill.ledger import (
    FencedError,
    IntakeCommit,
    IntakeWatermark,
    LogIdentity,
    LogProgress,
    ask_reread,
    begin_position,
    claim_source,
    close_source,
    commit_intake,
    end_log,
    open_source,
    read_logs,
    read_position,
    read_watermarks,
    register_log,
    replaced_logs,
    settle_log,
    tell_log,
    tell_progress,
)
from waybill.reconciliation.checks.stranded import look
from waybill.settings import Settings, TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "logs") as books:
        yield books


def log(number: int, **changes: Any) -> LogIdentity:
    made = LogIdentity(f"{number:032x}", "p", "ingestion", "ingest-p", f"n{number}", "/wal", "t")
    return replace(made, **changes)


def claimed(tracker: TrackerStore, number: int) -> Any:
    return claim_source(tracker, log(number), ends={"t": {0: 5, 1: 7}})


def states(tracker: TrackerStore) -> dict[int, str]:
    return {int(one.wal_id, 16): one.state for one in read_logs(tracker, every=True)}


def page(lease: Any, sequence: int) -> IntakeCommit:
    progress = LogProgress(lease, 1000 + sequence, 0, sequence, {0: 10 * sequence})
    return IntakeCommit("p", sequence, {"row": sequence}, 1, [], progress=progress)


def test_of_two_runs_the_one_that_claimed_last_commits(tracker: TrackerStore) -> None:
    first = claimed(tracker, 1)
    assert commit_intake(tracker, page(first, 1), lambda *_: None)
    second = claimed(tracker, 2)
    assert second.last_version == 1001
    assert states(tracker) == {1: "taken_over", 2: "open"}
    for refused in (
        lambda: commit_intake(tracker, page(first, 2), lambda *_: None),
        lambda: tell_progress(tracker, LogProgress(first, 5000, 0)),
        lambda: close_source(tracker, first, last_version=5000, minute=9, left=None),
    ):
        with pytest.raises(FencedError, match="waybill logs list"):
            refused()
    assert read_position(tracker, "p").sequence == 1
    assert commit_intake(tracker, page(second, 2), lambda *_: None)
    (gone,) = replaced_logs(tracker, "p")
    assert (gone.committed_lsn, gone.offsets) == (1, {0: 10, 1: 7})
    assert claimed(tracker, 1) is None, "its log must not be sent any more"
    close_source(tracker, second, last_version=900, minute=9, left=None)
    assert claimed(tracker, 3).last_version == 1001, "no version is given twice"
    assert states(tracker) == {1: "taken_over", 2: "closed", 3: "open"}


def watermark(tracker: TrackerStore) -> IntakeWatermark:
    with tracker.transaction() as connection:
        return read_watermarks(connection)["p"]


def test_a_fenced_run_changes_nothing_of_the_watermark_nor_of_where_the_next_begins(
    tracker: TrackerStore,
) -> None:
    first = claimed(tracker, 1)
    assert open_source(tracker, LogProgress(first, 0, 0), minute=100) is None
    assert commit_intake(tracker, page(first, 1), lambda *_: None)
    with tracker.transaction() as connection:
        assert ask_reread(connection, "p")
    second = claimed(tracker, 2)
    assert open_source(tracker, LogProgress(second, 0, 0), minute=103) == 100
    before = watermark(tracker)
    late = LogProgress(first, 0, 0)
    for refused in (
        lambda: open_source(tracker, late, minute=90),
        lambda: tell_progress(tracker, late, waiting=7),
        lambda: begin_position(tracker, late),
        lambda: close_source(tracker, first, last_version=0, minute=200, left=3),
    ):
        with pytest.raises(FencedError, match="waybill logs list"):
            refused()
    assert watermark(tracker) == before
    assert (before.open, before.open_from_minute) == (True, 100)
    assert begin_position(tracker, LogProgress(second, 0, 0)).cursor is None, "asked for, once"
    tell_progress(tracker, LogProgress(second, 0, 0), waiting=4)
    assert (watermark(tracker).waiting, watermark(tracker).open) == (4, True)
    close_source(tracker, second, last_version=0, minute=104, left=3)
    closed = watermark(tracker)
    assert (closed.open, closed.waiting, closed.source["left"]) == (False, 0, 3)


def test_the_same_log_is_claimed_again_and_its_dead_run_is_fenced(tracker: TrackerStore) -> None:
    first, again = claimed(tracker, 1), claimed(tracker, 1)
    assert again.epoch > first.epoch
    with pytest.raises(FencedError):
        tell_progress(tracker, LogProgress(first, 1, 0))
    tell_progress(tracker, LogProgress(again, 1, 0))


def test_many_claims_at_once_leave_one_log_open(tracker: TrackerStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        leases = list(pool.map(lambda number: claimed(tracker, number), range(1, 13)))
    assert len({lease.epoch for lease in leases}) == 12
    last = max(leases, key=lambda lease: lease.epoch)
    assert [n for n, state in states(tracker).items() if state == "open"] == [int(last.wal_id, 16)]


def test_events_on_a_node_that_is_gone_are_told_until_somebody_settles_them(
    tracker: TrackerStore,
) -> None:
    collector = log(9, rereadable=False, node="edge-7")
    register_log(tracker, collector)
    tell_log(tracker, collector.wal_id, unsettled=12)
    lease = claimed(tracker, 1)
    tell_progress(tracker, LogProgress(lease, 1, 3))
    assert states(tracker) == {1: "open", 9: "open"}, "what is had only once is not taken over"
    assert look(read_logs(tracker), 600) == []
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE write_ahead_logs SET seen_at = now() - interval '1 hour'"))
    (found,) = look(read_logs(tracker), 600)
    assert (found.kind, found.detail["unsettled"]) == ("stranded", 15)
    assert "12 events wait in write-ahead log 00000000 on edge-7" in found.words
    assert "cannot be had again" in found.words
    assert "the next run, on any node, reads them again" in found.words
    settle_log(tracker, collector.wal_id, who="ann", reason="the disk burnt")
    assert not register_log(tracker, collector), "it must not be sent any more"
    assert states(tracker)[9] == "ended"
    claimed(tracker, 2)
    assert look(read_logs(tracker), 600) == []
    with pytest.raises(InputError, match="is ended already"):
        settle_log(tracker, collector.wal_id, who="ann", reason="again")
    with tracker.transaction() as connection:
        rows = connection.execute(text("SELECT who, action, detail FROM audit_log ORDER BY id"))
        done = [(row.who, row.action, row.detail["unsettled"]) for row in rows]
    assert done == [("ann", "settle_log", 12), ("waybill", "take_over_log", 3)]


def test_how_a_log_ended_is_known_when_its_disk_comes_back_after_years(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(_env_file=None, tracker=TrackerSettings(dsn=tracker.dsn))
    monkeypatch.setattr("waybill.settings.Settings", lambda: settings)
    others = [log(2, rereadable=False), log(3, purpose="replay")]
    assert claimed(tracker, 1)
    assert claim_source(tracker, others[0], ends={}, empty=False)
    assert register_log(tracker, others[1])
    assert claimed(tracker, 4), "it takes log 1 over"
    end_log(tracker, log(1).wal_id)
    clean = claimed(tracker, 5)
    close_source(tracker, clean, last_version=1, minute=9, left=None)
    pass_time(tracker, "40 days")
    tell = ["logs", "settle", others[0].wal_id, "--why", "its node is gone"]
    asked = CliRunner().invoke(app, tell, input="n\n")
    said = " ".join(asked.output.split())
    assert "LOST for good. Should its disk come back, they are moved aside unsent" in said
    for one in others:
        settle_log(tracker, one.wal_id, who="ann", reason="its node is gone")
    assert claimed(tracker, 6), "it forgets logs"
    assert states(tracker) == {1: "ended", 2: "ended", 3: "ended", 4: "taken_over", 6: "open"}
    pass_time(tracker, "3 years")
    assert claimed(tracker, 6)
    for one in (log(1), others[0]):
        assert claim_source(tracker, one, ends={}, empty=False) is None, "it is never sent"
    assert register_log(tracker, others[1], empty=False) is None
    assert claimed(tracker, 4) is None
    assert states(tracker)[6] == "open"


def pass_time(tracker: TrackerStore, span: str) -> None:
    changed = f"seen_at = seen_at - interval '{span}', ended_at = ended_at - interval '{span}'"
    with tracker.transaction() as connection:
        connection.execute(text(f"UPDATE write_ahead_logs SET {changed}"))


def test_the_command_line_lists_and_settles_logs(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = Settings(_env_file=None, tracker=TrackerSettings(dsn=tracker.dsn))
    monkeypatch.setattr("waybill.settings.Settings", lambda: settings)
    run = CliRunner().invoke
    assert "No write-ahead log" in run(app, ["logs", "list"]).output
    bad = log(
        7, purpose="replay", node="node-with-a-rather-long-name.\x1b[31mexample", rereadable=False
    )
    register_log(tracker, bad)
    tell_log(tracker, bad.wal_id, unsettled=1200)
    text_ = run(app, ["logs", "list"]).output
    assert "1,200" in text_
    assert max(map(len, text_.splitlines())) <= 80
    assert "\x1b[31m" not in text_
    asked = run(app, ["logs", "settle", bad.wal_id, "--why", "gone"], input="n\n")
    assert asked.exit_code == 1
    assert "1,200 events when it was told last; they are still parked" in " ".join(
        asked.output.split()
    )
    assert states(tracker) == {7: "open"}
    done = run(app, ["logs", "settle", bad.wal_id, "--why", "gone", "--yes", "--json"])
    assert json.loads(done.output) == {"wal_id": bad.wal_id, "counted": 0}
    assert run(app, ["logs", "list", "--json"]).output == "[]\n"
    (one,) = json.loads(run(app, ["logs", "list", "--all", "--json"]).output)
    assert (one["state"], one["reason"]) == ("ended", "gone")
    wrong = run(app, ["logs", "settle", "%", "--why", "x", "--yes"])
    assert wrong.exit_code == 3
