"""What is shown in a terminal of 80 columns keeps to them, and breaks no figure and no name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.replays import dry_run_request

from waybill.cli import COMMANDS, demo, stack
from waybill.cli.replays import show_dry_run
from waybill.ledger import StageCounts
from waybill.reconciliation.balance_report import PipelineBalance
from waybill.reconciliation.segment_sums import STAGES
from waybill.replay.dry_run import DryRunReport
from waybill.settings import Settings
from waybill.stack.embedded import ServiceStatus

KEY = "parked/2026/11/23/01a20723-e5f9-72a2-9e4b-5f87a06dc049.jsonl.zst"
WAY = "mapping/not_null_violation"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    return said


def test_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    message = "could not make a timestamp of 'NA', as the flight never left, so it never arrived"
    groups = {
        f"{n:016x}": {"message": message, "events": 100_345 + n, "tried": 200, "would_pass": 67 * n}
        for n in range(3)
    }
    report = DryRunReport(
        *("flights", "0fe460dfc505", 301_035, 600, 201, 20, {WAY: 379}, 0.33, 0.31, 0.36),
        *(10_034, {WAY: 190_345}, groups, {WAY: f"column dep_time: {message}"}),
        damaged=5,
        unreadable=[{"object_key": KEY, "events": 5, "reason": "the object is gone"}],
    )
    show_dry_run(report, dry_run_request("flights", "flight", "transformation", "null_value"))
    lines = [line.split() for line in shown(capsys).splitlines()]
    assert ["100,346", "200", "33.5", "%", "0000000000000001"] in [line[:5] for line in lines]
    assert sum(KEY in line for line in lines) == 1
    assert any({"would", "pass", "fingerprint", "message"} <= set(line) for line in lines)


def test_the_status_of_the_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ("airflow-dag-processor", "spark-processing-default", "seaweedfs")
    since = time.time() - 9_000
    lines = [
        ServiceStatus(name, 2_345_678, (18_333, 19_333, 18_080, 18_888), 2**31, since, False, "")
        for name in names
    ]
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    monkeypatch.setattr("waybill.stack.embedded.Stack.status", lambda _stack: lines)
    assert Settings().home == tmp_path
    with pytest.raises(stack.typer.Exit):
        stack.status(as_json=False)
    said = shown(capsys)
    for name in names:
        assert re.search(
            rf"^{name} +no answer +2345678 +2,048 MiB +2.5 h +18333 19333$", said, re.M
        )
    assert f"not up: {', '.join(names)}" in said


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    counts = StageCounts(in_first=336_776, passed=336_776, in_flight=336_776)
    group = PipelineBalance("flights", "f", "flight", dict.fromkeys(STAGES, counts), {"mapping": 9})
    Console().print(demo.table(demo.Figures([group], [])))
    said = shown(capsys)
    assert re.search(r"^ *flights( +336,776){4} +0 +[0-9,]+ *$", said, re.M)
    assert "flights: 9 missing; see waybill balance" in said
    code = Path(demo.__file__).read_text()
    titles = re.findall(r'\.step\("(.*)"\)', code)
    assert len(titles) == 10
    for title in titles:
        Console().rule(f"[bold]{title}[/]  [dim]{1234} s[/]", align="left")
    said = shown(capsys)
    assert all(f"{title}  1234 s" in said for title in titles)


def test_help_is_not_broken_where_the_code_was() -> None:
    """Paragraphs are one line each: the terminal's width breaks them, and nothing else."""

    def commands(name: str, command: Any) -> Iterator[tuple[str, str]]:
        yield name, command.help or ""
        for word, inner in getattr(command, "commands", {}).items():
            yield from commands(f"{name} {word}", inner)

    texts = [text for name, later in COMMANDS.items() for text in commands(name, later.load(name))]
    assert len(texts) > 70
    broken = [name for name, text in texts for part in text.split("\n\n") if "\n" in part.strip()]
    assert broken == []


def test_a_suspended_application_is_shown_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    since = time.time() - 90
    app = ServiceStatus("spark-processing-default", 4711, (), 2**20, since, False, "")
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    lines = [replace(app, suspended=(4712, 4713))]
    monkeypatch.setattr("waybill.stack.embedded.Stack.status", lambda _stack: lines)
    with pytest.raises(stack.typer.Exit):
        stack.status(as_json=False)
    said = shown(capsys)
    assert re.search(r"^spark-processing-default +suspended +4711", said, re.M)
    assert "`kill -CONT 4712 4713` resumes it" in " ".join(said.split())
    assert "not up" not in said
