"""``waybill balance``: every digit is shown, and what is not accounted for is an alarm."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.ledger import BalanceRow, StageCounts
from waybill.reconciliation.balance_report import BalanceReport, PipelineBalance

STAGES = ("ingestion", "transformation", "mapping", "destination")
COUNTERS = ("in_first", "in_replayed", "passed", "filtered", "parked", "superseded", "duplicate")


def report(*, first: int = 123_456, in_flight: int = 0, gap: int = 0) -> BalanceReport:
    """Return books in which each counter of each stage has a number of its own."""
    numbers = iter(range(first, first + 100))
    stages = {
        stage: StageCounts(**{name: next(numbers) for name in COUNTERS}, in_flight=in_flight)
        for stage in STAGES
    }
    breaches = {"mapping": gap} if gap else {}
    group = PipelineBalance("flights", "f-1", "flight [red]", stages, breaches)
    row = BalanceRow("f-1", "flight [red]", 29_000_000, dict(stages))
    return BalanceReport(
        ingested=first,
        made=0,
        delivered=first + 1,
        superseded=first + 2,
        duplicate=first + 3,
        filtered=first + 4,
        parked=first + 5,
        replayed=first + 6,
        discarded=first + 7,
        in_flight=in_flight,
        unaccounted=abs(gap),
        pipelines=[group],
        minutes=[row],
    )


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    def show(found: BalanceReport, *words: str, columns: int = 80, code: int = 0) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(services, "balance", lambda *_, **__: found)
        run = CliRunner().invoke(app, ["balance", *words])
        assert run.exit_code == code, run.output
        return run.output

    return show


@pytest.mark.parametrize("first", [123_456, 123_456_789, 123_456_789_012])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_digit_is_cut_at_any_width(shown: Any, first: int, columns: int) -> None:
    found = report(first=first, in_flight=first)
    said = shown(found, "--minutes", columns=columns)
    assert "…" not in said
    wanted = {
        f"{getattr(counts, name):,}"
        for counts in found.pipelines[0].stages.values()
        for name in (*COUNTERS, "in_flight")
    }
    assert wanted <= set(re.findall(r"[\d,]+", said))


def test_what_ever_parked_and_what_is_parked_still_have_names_of_their_own(shown: Any) -> None:
    found = replace(report(first=13), ingested=9000, delivered=3004, duplicate=5996, parked=0)
    found = replace(found, superseded=0, filtered=0, discarded=0)
    said = shown(found)
    assert "parked (ever)" in said
    assert "9,000 taken in = 3,004 delivered + 5,996 duplicate" in " ".join(said.split())
    assert "1 parked now" in " ".join(shown(replace(found, parked=1)).split())


def test_books_with_every_column_fit_into_80(shown: Any) -> None:
    said = shown(report(first=123_456_789, in_flight=123_456))
    assert max(map(len, said.splitlines())) <= 80
    for word in (*STAGES, "replayed in", "superseded", "in flight", "unaccounted"):
        assert word in said


def test_counters_that_nothing_went_through_are_left_out(shown: Any) -> None:
    found = report()
    for counts in found.pipelines[0].stages.values():
        counts.filtered = counts.superseded = 0
    said = shown(found).split("taken in")[0]
    assert "filtered" not in said
    assert "superseded" not in said
    assert "duplicate" in said


def test_names_are_not_markup(shown: Any) -> None:
    assert "flights / flight [red]" in shown(report())


def test_a_gap_at_rest_is_an_alarm(shown: Any) -> None:
    said = shown(report(gap=-7), code=2)
    assert "7 unaccounted for" in said


def test_a_gap_is_an_alarm_also_while_events_move(shown: Any) -> None:
    assert "7 unaccounted for" in shown(report(gap=-7, in_flight=12), code=2)


def test_what_moves_what_was_explained_and_what_is_open_is_said(shown: Any) -> None:
    breach = {"id": 4, "pipeline": "flights", "event_name": "flight", "words": "1 \x1b[1mmissing"}
    found = replace(
        report(), settling={"flights": "ingestion goes on"}, accounted=3,
        verdicts={"balanced": 1200, "moving": 4}, open_breaches=[breach] * 12,
    )  # fmt: skip
    said = shown(found, columns=200)
    assert "moving: flights: ingestion goes on" in said
    assert "3 explained or closed by name" in said
    assert "minutes by stage: 1,200 in balance, 4 on the way, 0 with a breach" in said
    assert said.count("breach 4: flights / flight: 1 \\x1b[1mmissing") == 10
    assert "and 2 more: `waybill audit breaches`" in said


def test_the_pipeline_may_be_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(services, "balance", lambda _, **kw: asked.append(kw) or report())
    for words in (["flights"], ["--pipeline", "flights"], ["-p", "flights"]):
        assert CliRunner().invoke(app, ["balance", *words]).exit_code == 0
    assert [one["pipeline"] for one in asked] == ["flights"] * 3


def test_books_that_balance_say_so(shown: Any) -> None:
    assert "in balance" in shown(report(in_flight=12))


@pytest.mark.parametrize("words", [(), ("--minutes",)])
def test_what_is_quarantined_is_in_the_sum_and_never_plainly_in_balance(
    shown: Any, words: tuple[str, ...]
) -> None:
    found = replace(
        report(), ingested=5528, delivered=4706, parked=737, discarded=0, filtered=40,
        superseded=0, duplicate=0, quarantined=45,
    )  # fmt: skip
    said = " ".join(shown(found, *words).split())
    assert (
        "5,528 taken in = 4,706 delivered + 737 parked now + 45 quarantined + 40 filtered" in said
    )
    assert "in balance; 45 quarantined: `waybill parked recheck`" in said
    assert '"quarantined":45' in shown(found, "--json")
    assert "quarantined" not in shown(report(), *words)


def test_what_is_unrecoverable_is_in_the_sum_and_its_names_are_shown_where(shown: Any) -> None:
    found = replace(
        report(), ingested=100, delivered=90, parked=0, discarded=0, filtered=0, superseded=0,
        duplicate=0, quarantined=4, unrecoverable=6,
    )  # fmt: skip
    found.pipelines[0].unrecoverable["destination"] = 6
    said = " ".join(shown(found).split())
    assert "100 taken in = 90 delivered + 4 quarantined + 6 unrecoverable" in said
    assert "6 unrecoverable: `waybill parked lost` and `waybill destination lost` name them" in said
    assert "unrecoverable 0 0 0 6 unaccounted" in said
    assert '"unrecoverable":6' in shown(found, "--json")
    assert "unrecoverable" not in shown(report())


def test_what_transformations_made_is_in_the_sum(shown: Any) -> None:
    found = replace(
        report(), ingested=96, made=4, delivered=35, parked=58, discarded=0, filtered=2,
        superseded=1, duplicate=4,
    )  # fmt: skip
    words = " ".join(shown(found).split())
    assert "96 taken in + 4 made by transformations = 35 delivered + 58 parked" in words
    assert "made by" not in shown(report())


def test_nothing_yet_and_nothing_that_matches_are_told_apart(shown: Any) -> None:
    nothing = replace(report(), pipelines=[])
    assert shown(nothing) == "Nothing was taken in yet.\n"
    assert shown(nothing, "--since", "2030-01-01") == "Nothing was taken in that matches.\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"uncounted": 2000}, "+ 2,000 in the log that ingestion counts with its page ="),
        ({"uncounted": -7}, "7 on the way to the log"),
        ({"missed": 3}, "3 missing"),
        ({"missed": -2, "accounted": 2}, "+ 2 too many ="),
    ],
)
def test_both_sides_of_the_equation_are_told(
    shown: Any, changes: dict[str, int], words: str
) -> None:
    assert words in " ".join(shown(replace(report(), **changes)).split())


def test_what_was_closed_by_name_is_not_said_to_balance(shown: Any) -> None:
    said = shown(replace(report(), accounted=2))
    assert "in balance but for what was explained or closed by name" in said


def test_a_time_with_a_zone_is_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def read(*_: Any, since: Any, **__: Any) -> BalanceReport:
        asked.append(since)
        return report()

    monkeypatch.setattr(services, "balance", read)
    for given in ("2026-11-22T18:36:00+01:00", "2026-11-22T17:36:00"):
        run = CliRunner().invoke(app, ["balance", "--since", given])
        assert run.exit_code == 0, run.output
    assert asked[0] == asked[1]


def test_two_pipelines_at_once_are_refused(shown: Any) -> None:
    shown(report(), "flights", "--pipeline", "weather", code=1)
