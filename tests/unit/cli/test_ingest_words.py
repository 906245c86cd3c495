"""What ``waybill ingest --wait`` says while a run goes, and at its end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from waybill.cli import ingest
from waybill.errors import InputError
from waybill.ingestion import IngestRequest


class Seen(NamedTuple):
    rows: int
    unsettled: int = 0
    is_held: bool = False
    failed_at: datetime | None = None
    error: str = ""


def lines_of(states: list[tuple[str, int]], start: int, capsys: pytest.CaptureFixture[str]) -> str:
    looks = iter([Seen(rows) for _, rows in states])
    sayer = ingest._Sayer(lambda: next(looks), Seen(start), to_stderr=False)
    for state, _ in states:
        sayer._state = ""  # as if some seconds had gone
        sayer(state)
    return capsys.readouterr().out


def test_rows_of_earlier_runs_are_not_this_ones(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines_of([("queued", 6_000), ("running", 6_000), ("running", 7_000)], 6_000, capsys)
    assert [line.split("  ")[1:3] for line in said.splitlines()] == [
        ["queued", "0 rows"],
        ["running", "0 rows"],
        ["running", "1,000 rows"],
    ]


def test_what_a_run_reads_that_ends_first_is_not_this_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = lines_of([("queued", 6_500), ("queued", 7_000), ("running", 7_200)], 6_000, capsys)
    assert [line.split("  ")[2] for line in said.splitlines()] == ["0 rows", "0 rows", "200 rows"]


def test_a_source_that_is_read_from_its_beginning_counts_from_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = lines_of([("running", 6_000), ("running", 500), ("running", 9_000)], 6_000, capsys)
    assert [line.split("  ")[2] for line in said.splitlines()] == [
        "0 rows",
        "500 rows",
        "9,000 rows",
    ]


def test_a_try_that_failed_is_said_once_with_its_error_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_SAY_S", 0.0)
    before, at = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    earlier = Seen(0, failed_at=before, error="of a run before")
    failed = Seen(0, failed_at=at, error="api.example refuses\nconnections\x1b[2J" + "x" * 500)
    looks = iter([earlier, earlier, failed, failed])
    sayer = ingest._Sayer(lambda: next(looks), earlier, to_stderr=False)
    for state in ("queued", "running", "running", "running"):
        sayer(state)
    said = " ".join(capsys.readouterr().out.split())
    assert "of a run before" not in said
    assert said.count("a try failed at 2026-01-02 03:04 UTC: api.example refuses connections") == 1
    assert "\x1b" not in said
    assert "x" * 300 not in said


@pytest.mark.parametrize("compares", [True, False])
def test_while_no_row_comes_it_says_once_that_keys_are_compared(
    compares: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_SAY_S", 0.0)
    looks = iter([Seen(rows) for rows in (0, 0, 5, 5, 5)])
    sayer = ingest._Sayer(lambda: next(looks), Seen(0), to_stderr=False, compares=compares)
    for state in ("queued", "running", "running", "running", "running"):
        sayer(state)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("a run reads the keys of the whole table once") == int(compares)


def test_the_end_says_where_rows_parked_and_what_tells_of_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = {"read": 3_000, "accepted": 2_999, "parked": 1, "seconds": 3.95}
    ended = {"pipeline": "loans", "state": "success", "reason": None}
    ingest._say_ended({**ended, "report": report}, as_json=False)
    said = capsys.readouterr().out
    assert "done: 3,000 rows read, 2,999 events taken in, 1 parked at ingestion, in 3.95 s" in said
    assert "`waybill balance loans`" in said
    ingest._say_ended({**ended, "report": {**report, "accepted": 0}}, as_json=False)
    assert "balance" not in capsys.readouterr().out


def test_the_end_says_which_files_wait_for_the_next_run(capsys: pytest.CaptureFixture[str]) -> None:
    report = {"read": 0, "accepted": 0, "parked": 0, "seconds": 1.0, "waiting": "1 file waits"}
    ended = {"pipeline": "rides", "state": "success", "reason": None, "report": report}
    ingest._say_ended(ended, as_json=False)
    assert "1 file waits" in capsys.readouterr().out


def test_a_missing_reason_is_asked_for_by_its_option() -> None:
    with pytest.raises(InputError, match="why: a reason must be given .*--why"):
        IngestRequest.of({"full": True})
