"""``waybill files``: what the books say, while their owner writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waybill.cli import app
from waybill.tracing.files import BOOKS, FileManager, FileRecord, Shipment
from waybill.tracing.files.manager import asks

NOON_US = 1_790_000_400_000_000


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    """A spool whose owner lives: ten files, a second apart; three shipped, one failed."""
    with FileManager(tmp_path / BOOKS) as files:
        files.add(
            FileRecord(f"f{n}", NOON_US + n * 1_000_000, size_bytes=1000 + n) for n in range(10)
        )
        files.begin(Shipment("s1", NOON_US, ("f0", "f1", "f2"), ("bin/one", "bin/two")))
        files.finish("s1")
        files.update("f3", state="failed", error="damaged [page 3]")
        yield tmp_path


def run(*words: str) -> str:
    answer = CliRunner().invoke(app, ["files", *words], env={"COLUMNS": "200"})
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def listed(*words: str) -> list[str]:
    return [record["id"] for record in json.loads(run("list", "--json", *words))]


def test_files_are_listed_by_time_and_state(spool: Path) -> None:
    place = ("--spool", str(spool))
    assert listed(*place) == [f"f{n}" for n in range(10)]
    assert listed(*place, "--state", "shipped") == ["f0", "f1", "f2"]
    window = ("--since", "2026-09-21T14:20:04", "--until", "2026-09-21T14:20:06")
    assert listed(*place, *window) == ["f4", "f5", "f6"]
    assert listed(*place, "--since", "2030-01-01") == []


def test_people_see_the_newest_and_that_there_are_more(spool: Path) -> None:
    shown = run("list", "--spool", str(spool), "--limit", "7")
    assert [f"f{n} " in shown for n in (2, 3, 9)] == [False, True, True]
    assert "damaged [page 3]" in shown
    assert "--limit shows more than 7" in shown
    assert "shipped 3 (3,003 bytes)" in shown


def test_in_80_columns_a_column_without_a_value_goes_before_the_time(tmp_path: Path) -> None:
    name = "1795872404949345-22807-1795872402680-0657a2cb1f86"
    with FileManager(tmp_path / BOOKS) as files:
        files.add([FileRecord(name, NOON_US, state="shipped", size_bytes=86_579)])
        words = ["files", "list", "--spool", str(tmp_path)]
        shown = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).stdout
        head = next(line for line in shown.splitlines() if "bytes" in line)
        assert head.split() == ["created", "id", "state", "bytes"]
        assert name in shown
        files.update(name, state="failed", error="damaged")
        shown = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).stdout
        assert "damaged" not in head
        assert "damaged" in run("list", "--spool", str(tmp_path))


def test_one_file_is_shown_with_its_objects(spool: Path) -> None:
    shown = run("show", "f1", "--spool", str(spool))
    for words in ("shipped since 20", "1,001", "s1, 3 files", "bin/one", "bin/two"):
        assert words in shown
    found = json.loads(run("show", "f1", "--spool", str(spool), "--json"))
    assert found["shipment"]["keys"] == ["bin/one", "bin/two"]


def test_a_retry_is_asked_of_the_owner_with_name_and_reason(spool: Path) -> None:
    words = ("--spool", str(spool), "--who", "ann", "--why", "copied back")
    assert "files show f3" in run("retry", "f3", *words)
    (ask,) = asks(spool)
    assert (ask.file_id, ask.note) == ("f3", "ann: copied back")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["show", "f77"], "no file f77 is known"),
        (["retry", "f0", "--who", "ann", "--why", "x"], "is shipped, not failed"),
        (["list", "--state", "sent"], "there are open, closed"),
    ],
)
def test_what_cannot_be_is_said(spool: Path, command: list[str], reason: str) -> None:
    answer = CliRunner().invoke(app, ["files", *command, "--spool", str(spool)])
    assert answer.exit_code == (3 if command[0] == "show" else 1)
    assert reason in answer.output
