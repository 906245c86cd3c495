"""One look of every table: each that commands print, with realistic and with hostile values."""

from __future__ import annotations

import ast
import fcntl
import importlib
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.support.tables import MADE, Made, facts, parked_groups

from waybill.cli import parked
from waybill.cli.output import folded, plain, print_folded
from waybill.cli.tables import (
    Cell,
    Column,
    Styled,
    Table,
    ago,
    clock,
    print_facts,
    print_table,
    table_lines,
)

CLI = Path(__file__).parents[3] / "include" / "waybill" / "cli"
NAMES: tuple[Cell, ...] = (
    "e" * 200,
    "東京" * 50,
    "e\u0301" * 40,
    "a\x1b[31mred\nnext\ttab\u202egnp",
    "with blanks  and more",
    "[bold]no markup[/]",
    "👩\u200d👩\u200d👧",
    "\ud800",
    "",
    None,
)
SHORT: tuple[Cell, ...] = (
    "東京",
    "e\u0301te\u0301",
    "\x1b[2J",
    "\u202e",
    "a name with blanks, more and more of them",
    "👩",
    "",
    None,
)
NUMBERS: tuple[Cell, ...] = (0, 10**18, -1, None, "12.5 %", Styled(7, "red"))
TEXTS: tuple[Cell, ...] = (
    "words " * 90,
    "w" * 300,
    "短い文 " * 30,
    "\x1b]0;title\x07 and \x9b31m and \r\n",
    "",
    None,
    "`a command of many words, which is to be copied` and " * 3,
    f"an id {'0' * 64} within words that go on and on until there is no room any more",
)
IDS = [f"{number} {made.command}" for number, made in enumerate(MADE)]


def text(cell: Cell) -> str:
    """Return a cell's text as it has to be somewhere, whole."""
    value = cell.value if isinstance(cell, Styled) else cell
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return clock(value)
    return f"{value:,}" if isinstance(value, int) else plain(str(value))


def hostile(table: Table, names: tuple[Cell, ...] = NAMES) -> Table:
    """Return a table's definition with other rows: each value meets each width of the others."""
    pools = {"name": names, "number": NUMBERS, "text": TEXTS, "words": TEXTS}
    rows = [
        [
            pools[column.kind][(n + at) % len(pools[column.kind])]
            for at, column in enumerate(table.columns)
        ]
        for n in range(12)
    ]
    return replace(table, rows=rows, title=f"{table.title} {'t' * 200} \x1b[2J")


def long_named(table: Table) -> Table:
    """Return a table's definition with one row, whose names are as long as a terminal allows."""
    pools = {
        "name": "n" * 60,
        "number": 336_776,
        "text": "some words " * 9,
        "words": "more words " * 9,
    }
    return replace(table, rows=[[pools[column.kind] for column in table.columns]])


def check(table: Table, width: int) -> list[str]:
    """Assert what holds for each table at each width; return its lines."""
    lines = [line.plain for line in table_lines(table, width)]
    whole = {
        text(row[at])
        for row in table.rows
        for at, column in enumerate(table.columns)
        if column.kind in ("name", "number")
    }
    known = {
        word
        for said in (
            *(text(cell) for row in table.rows for cell in row),
            *(plain(column.head) for column in table.columns),
            *(f"{plain(column.head)}:" for column in table.columns),
            *(f"{plain(column.head)}," for column in table.columns),
            *(f"{plain(column.head)};" for column in table.columns),
            plain(table.title),
            f"not in {width} columns: --json has all",
            f"… {len(table.rows) - table.most_blocks:,} more: {table.more}",
        )
        for word in said.split()
    }
    for line in lines:
        assert all(char.isprintable() for char in line), "a terminal is sent no commands"
        lone = line.strip()
        assert cell_len(line) <= width or lone in whole or lone in known, (
            "only a name or a word that is longer than the terminal is longer than it, on a line "
            "of its own"
        )
        for word in line.split():
            cut = word.removesuffix("…")
            assert (
                word in known
                or set(word) == {"─"}
                or not cut
                or (cut != word and any(one.startswith(cut) for one in known))
            ), f"{word!r} is a part of a word"
    left = left_out(lines)
    body = "\n".join(lines)
    for at, column in enumerate(table.columns):
        if column.kind in ("name", "number") and plain(column.head) not in left:
            for row in table.rows:
                assert text(row[at]) in body, f"{column.head} is whole, on one line"
    return lines


def left_out(lines: Sequence[str]) -> set[str]:
    """Return the heads that the last lines name."""
    said = " ".join(lines).rpartition("not in ")[2].partition("; --json has all")
    return set(said[0].partition(" columns: ")[2].split(", ")) if said[1] else set()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("made", MADE, ids=IDS)
def test_a_table_keeps_to_the_terminal_and_breaks_no_name(made: Made, width: int) -> None:
    check(made.table, width)
    check(long_named(made.table), width)
    check(hostile(made.table), width)
    check(hostile(made.table, SHORT), width)


@pytest.mark.parametrize("made", MADE, ids=IDS)
def test_into_a_pipe_a_row_is_a_line_and_nothing_is_left_out(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for table in (made.table, replace(hostile(made.table), title="")):
        shown = [[text(cell) for cell in row] for row in table.rows]
        if any("\\ud800" in cell for row in shown for cell in row):
            assert all("\ud800" not in cell for row in shown for cell in row)
        print_table(table)
        lines = capsys.readouterr().out.splitlines()
        lines = lines[bool(table.title) :]
        assert len(lines) == 2 + len(table.rows)
        assert not any("…" in line or "\x1b" in line for line in lines)
        for line, row in zip(lines[2:], shown, strict=True):
            assert all(cell in line for cell in row)


@pytest.mark.parametrize("made", MADE, ids=IDS)
def test_a_table_without_rows_is_a_sentence(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_table(replace(made.table, rows=[]))
    said = capsys.readouterr().out
    assert len(made.table.empty.split()) >= 3
    assert " ".join(made.table.empty.split()) in " ".join(said.split())
    assert "─" not in said


@pytest.mark.parametrize("made", MADE, ids=IDS)
def test_heads_say_times_and_spare_columns_are_dropped_in_one_order(made: Made) -> None:
    table = made.table
    for at, column in enumerate(table.columns):
        if any(isinstance(row[at], datetime) for row in table.rows):
            assert column.head.endswith("(UTC)")
    ranks = [column.spare for column in table.columns if column.spare]
    assert len(ranks) == len(set(ranks)), "which one goes first is said"
    assert any(not column.spare for column in table.columns)


def test_a_table_costs_in_proportion_to_its_rows() -> None:
    table = next(made for made in MADE if made.command == "parked list").table

    def cpu_s(count: int) -> float:
        rows = [table.rows[n % len(table.rows)] for n in range(count)]
        began = time.process_time()
        assert sum(1 for _ in table_lines(replace(table, rows=rows), 120)) >= count
        return time.process_time() - began

    cpu_s(100)  # what is made once
    assert cpu_s(10_000) < 4 * 10 * cpu_s(1_000), "looked at by pairs it would be a hundred times"


def makers() -> Iterator[str]:
    """Yield each function of the command line that makes a table."""
    for path in sorted(CLI.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef)
                and ast.unparse(node.returns or node.args) == "Table"
            ):
                yield f"waybill.cli.{path.stem}.{node.name}"


def test_every_function_that_makes_a_table_is_looked_at() -> None:
    looked_at = {f"{made.make.__module__}.{made.make.__name__}" for made in MADE}
    assert set(makers()) == looked_at


def test_tables_are_drawn_by_one_module_only() -> None:
    for path in sorted(CLI.glob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
        }
        drawing = {"rich.table", "rich.box", "rich.panel", "rich.columns", "rich.measure"}
        assert not imported & drawing, path.name
        if path.stem != "tables":
            called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not called & {"ljust", "rjust", "center"}, path.name


@pytest.mark.parametrize("width", [80, 120])
def test_a_fact_a_line_keeps_to_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for title, told in facts():
        print_facts(told, title)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(cell_len, lines)) <= width
    path = "/a folder with blanks/" + "x" * 200
    print_facts([("path", path), ("words", "some words " * 20), ("\x1b[2J", "")], whole=("path",))
    lines = capsys.readouterr().out.splitlines()
    assert path in lines
    assert all(line == path or cell_len(line) <= width for line in lines)
    assert "\\x1b[2J:" in lines


def test_a_real_terminal_has_its_own_width(tmp_path: Path) -> None:
    code = (
        "from waybill.cli.tables import Column, Table, print_table\n"
        "row = ['flights', 'a message that is longer than what is left of the terminal']\n"
        "print_table(Table([Column('pipeline'), Column('said', 'text')], [row], 'none'))\n"
    )
    for columns, whole in ((50, False), (90, True)):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        given = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        run = subprocess.run(
            [sys.executable, "-c", code],
            stdout=theirs,
            stdin=theirs,
            env={**given, "TERM": "xterm", "NO_COLOR": "1"},
            timeout=600,
            check=True,
        )
        os.close(theirs)
        said = os.read(ours, 65_536).decode()
        os.close(ours)
        assert run.returncode == 0
        assert "\x1b" not in said
        lines = said.split("\r\n")
        assert max(map(cell_len, lines)) <= columns
        assert ("left of the terminal" in said) is whole
        assert ("…" in said) is not whole


def test_columns_stand_below_one_another_whatever_is_in_them() -> None:
    names = [str(plain(str(one))) for one in SHORT]
    table = Table(
        [Column("name"), Column("events", "number"), Column("what", "text")],
        [[name, 10**at, "短い文" * 40] for at, name in enumerate(names)],
        "none",
    )
    lines = [line.plain for line in table_lines(table, 90)]
    at = cell_len(lines[0].partition("what")[0])
    for line in lines[2:]:
        before = line.partition("短")[0]
        assert cell_len(before) == at
        assert before.endswith("0  ") or before.endswith(" 1  ")
        assert cell_len(line) <= 90
    assert cell_len(lines[-1]) >= 89


def test_columns_of_least_worth_go_first_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("id"), Column("first", spare=2), Column("second", spare=1)]
    table = Table(columns, [["i" * 60, "f" * 12, "s" * 12]], "none")
    lines = [line.plain for line in table_lines(table, 80)]
    assert lines[0] == f"{'id':<62}second"
    assert lines[2] == f"{'i' * 60}  {'s' * 12}"
    assert lines[3] == "not in 80 columns: first; --json has all"
    lines = [line.plain for line in table_lines(table, 70)]
    assert lines[0] == "id"
    assert lines[3] == "not in 70 columns: first, second; --json has all"
    blocks = [line.plain for line in table_lines(table, 50)]
    assert blocks == ["id:", "i" * 60, f"first:  {'f' * 12}", f"second: {'s' * 12}"]


def test_a_column_without_a_value_goes_before_all_others() -> None:
    columns = [Column("id"), Column("time", spare=2), Column("why", "text", spare=1)]
    rows: list[list[Cell]] = [["i" * 60, "t" * 14, None], ["j" * 60, "t" * 14, ""]]
    lines = [line.plain for line in table_lines(Table(columns, rows, "none"), 80)]
    assert lines[0].split() == ["id", "time"]
    assert lines[-1] == "not in 80 columns: why; --json has all"


def test_parked_groups_in_80_columns_have_their_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = {"pipeline": "readings", "event_name": "readings", "stage": "ingestion"}
    group = replace(
        parked_groups()[1],
        **names,
        error_type="source_version_invalid",
        quarantined=0,
        discarded=2,
        last_message="version: expected a time; found 'not a time'",
    )
    print_table(parked._group_table([group]), parked._group_notes([group]))
    said = capsys.readouterr().out
    assert said.split("\n")[0].split()[-2:] == ["last", "message"]
    assert "version:" in said
    whole = " ".join(said.split())
    assert "not in 80 columns: replayed (ever), discarded (ever)," in whole
    assert "Events of these groups were replayed 12 times before; what parked again is" in whole


def test_a_table_for_an_ascii_terminal_is_drawn_in_ascii() -> None:
    table = Table([Column("said", "text")], [["some words that are longer than that"]], "none")
    lines = [line.plain for line in table_lines(table, 20, ascii_only=True)]
    assert lines == ["said", "-" * 20, "some words that..."]


@pytest.mark.parametrize("columns", ["0", "-80", "wide", "9" * 5_000, "²", ""])
def test_a_width_that_is_none_is_not_taken(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_folded(["words " * 60])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_notes_follow_a_table_and_are_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    key = "parked/2026/11/23/01a20723-e5f9-72a2-9e4b-5f87a06dc049"
    table = Table([Column("id")], [["7"]], "none")
    print_table(table, [f"flights: the object {key} is gone: restore it"])
    assert capsys.readouterr().out.splitlines() == [
        "id",
        "──",
        "7",
        "",
        "flights: the object",
        f"  {key}",
        "  is gone: restore it",
    ]
    print_table(replace(table, rows=[]), ["so be it"])
    assert capsys.readouterr().out == "none\nso be it\n"


@pytest.mark.parametrize(
    ("text_", "width", "lines"),
    [
        ("a-b-c d", 3, ["a-b-c", "d"]),
        ("  set in and on", 10, ["  set in", "and on"]),
        ("東京 東京", 5, ["東京", "東京"]),
        ("   ", 2, ["   "]),
        ("say `a b c` now", 6, ["say", "`a b c`", "now"]),
        ("an open ` is a word", 9, ["an open `", "is a word"]),
        ("", 2, [""]),
        ("any width", None, ["any width"]),
    ],
)
def test_lines_are_broken_between_words_only(
    text_: str, width: int | None, lines: Sequence[str]
) -> None:
    assert folded(text_, width) == lines


def test_sentences_are_one_line_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_folded(["words " * 60], style="bold")
    assert capsys.readouterr().out.splitlines() == ["words " * 60]


def test_times_have_one_format() -> None:
    zone = timezone(timedelta(hours=2))
    assert clock(datetime(2026, 11, 27, 1, 2, 59, 999, zone)) == "2026-11-26 23:02"
    now = datetime.now(UTC)
    ages = [ago(now - timedelta(seconds=s)) for s in (0, 119, 121, 7_300, 172_900)]
    assert ages == ["0 s ago", "119 s ago", "2 min ago", "2 h ago", "2 d ago"]
    assert ago(None) == "never"


def test_the_command_line_imports_no_drawing_before_a_table_is_printed() -> None:
    code = "import sys; import waybill.cli.tables; print('rich' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    importlib.import_module("waybill.cli.tables")
