"""What commands print: nothing of a user's is obeyed by a terminal, whoever forgets to think of it."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.control import strip_control_codes
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from tests.support import orders
from typer.testing import CliRunner

from waybill.cli import app, parked, replays, retention
from waybill.cli.output import (
    echo,
    echo_json,
    indented,
    plain,
    plain_lines,
    print_folded,
    print_json,
    print_line,
    terminal,
    user_code_printed,
)
from waybill.nearest_name import shown_name

CLI = Path(__file__).parents[3] / "include" / "waybill" / "cli"
PRINTERS = {"output.py", "safe_console.py"}
HOSTILE = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;title\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x1b\\",
    "eight_bits": "\x9b2J\x9d0;title\x9c",
    "overwritten": "not all\rwhole",
    "erased": "abc\x08\x08\x08\x7f",
    "turned_round": "\u202egnp.exe\u2066",
    "unseen": "a\u200b\u2028b\ufeff",
    "no_utf_8": "a\udcffb",
    "emoji": "at :100: of :warning:",
    "markup": "[bold red]not ours[/]",
}
EVERY = pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE)
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def is_safe(printed: str) -> bool:
    """Tell whether nothing but lines, tabs and rich's own styles would be obeyed."""
    return all(one.isprintable() or one in "\n\t" for one in STYLES.sub("", printed))


@EVERY
def test_no_way_to_print_lets_through_what_a_terminal_obeys(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    echo(words)
    echo(words, err=True)
    print_line(words)
    print_folded([words], style="bold red")
    print_json({words: [words]})
    echo_json(json.dumps([words], ensure_ascii=False))
    for console in (terminal(), terminal(err=True)):
        console.print(words, markup=False)
        console.print(Text(words, "bold"), soft_wrap=True)
        console.print(Panel(Text(words), title="a panel"))
        console.rule(Text(words))
        grid = Table("a table")
        grid.add_row(Text(words))
        console.print(grid)
    printed = capsys.readouterr()
    assert is_safe(printed.out), printed.out
    assert is_safe(printed.err), printed.err
    assert "\x1b" not in printed.out + printed.err
    written = plain_lines(words)
    assert printed.out.startswith(f"{written}\n")
    assert printed.err.startswith(f"{written}\n")


def test_styles_and_ends_of_lines_of_our_own_stay(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal().print(Text("one\ntwo\x1b[2J", "bold red"))
    printed = capsys.readouterr().out
    assert STYLES.findall(printed)
    assert STYLES.sub("", printed) == "one\ntwo\\x1b[2J\n"
    echo("one\n\ttwo")
    assert capsys.readouterr().out == "one\n\ttwo\n"


@EVERY
def test_json_has_the_same_values_whatever_is_written_out(words, capsys):
    value = {words: [words, "\U000e0001 \u202e é 😀"]}
    echo_json(json.dumps(value, ensure_ascii=False))
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "é 😀" in printed
    print_json(value)
    escaped = words.encode("utf-8", "backslashreplace").decode()
    assert json.loads(capsys.readouterr().out) == {escaped: [escaped, value[words][1]]}


@EVERY
def test_what_user_code_and_long_running_processes_log_is_not_obeyed(words, capsys):
    logger = logging.getLogger("waybill.user_code")
    with user_code_printed():
        logger.info("printed %s", words)
    assert plain_lines(f"printed {words}\n") in capsys.readouterr().err
    code = "import logging, sys; from waybill.cli.output import show_log; show_log('%(message)s')\n"
    code += f"logging.getLogger('x').info({words!a})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr.decode() == plain_lines(f"{words}\n")


def test_every_command_prints_by_the_module_that_writes_out():
    """No caller can forget it: there is no other way to print."""
    found = []
    for path in sorted(CLI.glob("*.py")):
        if path.name in PRINTERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and prints(ast.unparse(node.func)):
                found.append(f"{path.name}:{node.lineno} {ast.unparse(node.func)}")
    assert found == []


def prints(name: str) -> bool:
    own = {"print", "rich.print", "Console", "rich.console.Console", "logging.basicConfig"}
    ends = (".echo", ".secho", "stdout.write", "stderr.write", ".StreamHandler")
    return name in own or name.endswith(ends)


@pytest.mark.parametrize(
    ("name", "is_found"),
    [("typer.echo", True), ("sys.stderr.write", True), ("Console", True), ("console.print", False)],
)
def test_the_look_for_other_ways_finds_them(name, is_found):
    assert prints(name) == is_found


# Commands.


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["--wait", "0", *words])


def check_safe(done: Any) -> None:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert is_safe(done.stdout), done.stdout
    assert is_safe(done.stderr), done.stderr


@EVERY
def test_checking_a_folder_of_any_name_says_what_is_wrong_in_it(words, tmp_path):
    folder = tmp_path / words.replace("/", "") / "orders"
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text("name: orders\n")
    done = run("pipelines", "check", str(folder.parent))
    check_safe(done)
    assert done.exit_code == 1
    assert plain_lines(words.replace("/", "")) in done.stderr
    done = run("pipelines", "check", "--json", str(folder.parent))
    check_safe(done)
    said = json.loads(done.stdout)
    assert os.fsencode(said["problems"][0]["file"]).startswith(os.fsencode(folder))


@EVERY
def test_an_error_says_a_name_as_it_is(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(tmp_path))
    name = words.replace("/", "")
    done = run("pipelines", "check", name)
    check_safe(done)
    assert done.exit_code == 3
    assert f"no folder and no declared pipeline {plain(repr(shown_name(name)))}" in done.stderr


@pytest.mark.parametrize(
    "words", [HOSTILE["title"], HOSTILE["turned_round"]], ids=["title", "bidi"]
)
def test_a_deep_check_says_what_code_raises_of_a_row_without_obeying_it(
    words, tmp_path, monkeypatch
):
    house = {"warehouse": {"kind": "duckdb", "dsn": str(tmp_path / "shop.duckdb")}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(house))
    code = f"def transform(event):\n    print({words!a})\n    raise ValueError({words!a})\n"
    folder = orders.write_orders(tmp_path / "pipelines", rows=2, code=code)
    done = run("pipelines", "check", "--deep", str(folder))
    check_safe(done)
    assert done.exit_code == 1
    assert f"2 times: ValueError: {plain_lines(words)}" in " ".join(done.stderr.split())


@EVERY
def test_what_a_server_or_a_partition_says_is_not_obeyed(words, capsys):
    """Each of these printed what it was given: topics, pipelines, objects, reasons of runs."""
    topic = {"topic": words, "deleted": 1, "held": words}
    kept = {"deleted": 1, "kept": {words: words}}
    report = {"topics": [topic], "ended_topics": [words], "payloads": kept, "source_keys": kept}
    retention._print(report | {"trace_objects": 0, "rows": {words: 1}, "problems": [words]})
    damage = SimpleNamespace(listed=[SimpleNamespace(words=words)], segments=0)
    parked._tell_damage(damage)
    replays._warn(words)
    partition = SimpleNamespace(pipeline=words, event_name=words)
    settings = SimpleNamespace(airflow=SimpleNamespace(url="http://127.0.0.1"))
    replays._tell(settings, partition, f"cli__{words}", "failed", None)
    printed = capsys.readouterr()
    assert is_safe(printed.out), printed.out
    assert is_safe(printed.err), printed.err
    assert "\x1b" not in printed.out + printed.err
    assert f"1 records of {plain_lines(words)}\n" in printed.out
    assert f"replay run cli__{plain_lines(words)}: failed\n" in printed.out
    assert f"not done: {plain_lines(words)}\n" in printed.err
    shown = printed.out.rpartition("/dags/replay/runs/cli__")[2]
    assert shown == f"{plain_lines(strip_control_codes(words))}\n"  # rich leaves some out


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        ('{"a":1.10,"b":[]}', ["{", '  "a": 1.10,', '  "b": []', "}"]),
        ('[ {}, {"a" : {"b":null}} ]',
         ["[", "  {},", "  {", '    "a": {', '      "b": null', "    }", "  }", "]"]),
        ('{"a{,:}": "x\\\\\\"],"}', ["{", '  "a{,:}": "x\\\\\\"],"', "}"]),
        ("12345678901234567890123", ["12345678901234567890123"]),
        ('{"a":1,"a":2}', ["{", '  "a": 1,', '  "a": 2', "}"]),
    ],
)  # fmt: skip
def test_json_is_indented_with_each_value_as_it_is_written(document: str, lines: list[str]) -> None:
    assert list(indented(document)) == lines
    assert json.loads("".join(lines)) == json.loads(document)


@pytest.mark.parametrize("item", ["1,[]", '{"a":{"b":2,"c":[3,4]}}'])
def test_a_document_that_is_nested_deeply_is_not_many_times_as_long_as_it_is(item: str) -> None:
    document = "[" * 500 + ",".join([item] * 500) + "]" * 500 + ""
    lines = list(indented(document))
    assert json.loads("".join(lines)) == json.loads(document)
    assert sum(map(len, lines)) < 2 * len(document)
    wide = "[" * 8 + "1," * 5_000 + "1" + "]" * 8
    assert sum(map(len, indented(wide))) < 12 * len(wide)
