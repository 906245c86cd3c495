"""Each block of shell in README.md and docs/*.md says how it runs; those that need no server run here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.doc_blocks import (
    PAGES,
    ROOT,
    SHELLS,
    TAGS,
    Block,
    blocks,
    blocks_in,
    calls,
    differences,
    shell_blocks,
)
from tests.support.doc_shell import DocShell

from waybill.cli import COMMANDS, app

NO_SHELLS = {"text", "python", "yaml", "json", "sql", "toml"}
TYPED = re.compile(r"^(\$ |waybill |curl |make |docker |psql |export )", re.MULTILINE)
QUICK = shell_blocks("quick")
WORD = re.compile(r"[a-z][a-z-]*")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def wrongly_tagged(found: Sequence[Block]) -> list[str]:
    wrong = []
    for block in found:
        if block.language in SHELLS:
            if block.tag not in TAGS:
                wrong.append(f"{block}: its tag is {block.tag!r}, none of {', '.join(TAGS)}")
        elif block.language not in NO_SHELLS:
            wrong.append(f"{block}: is {block.language!r}, neither a shell nor known")
        elif block.language == "text" and TYPED.search(block.text):
            wrong.append(f"{block}: is text, and has what is typed")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language_and_each_of_shell_a_tag(page: Path) -> None:
    assert wrongly_tagged(list(blocks(page))) == []


def test_a_block_without_a_tag_is_found_also_where_it_is_indented() -> None:
    page = (
        "```sh\nls\n```\n\n1. one\n\n   ```console fast\n   $ ls\n   ```\n```\nx\n```\n```bash quick\n"
        "ls\n```\n```text\nwaybill up\n```\n```sh quick\nls\n```\n```python\n1\n```\n"
    )
    wrong = wrongly_tagged(list(blocks_in(page, "page")))
    assert [one.partition(": ")[0] for one in wrong] == [
        "page:1", "page:7", "page:10", "page:13", "page:16"
    ]  # fmt: skip


SHELL_BLOCKS = [block for tag in TAGS for found in shell_blocks(tag).values() for block in found]


def test_every_shell_block_parses() -> None:
    wrong = {str(block): said for block in SHELL_BLOCKS if (said := syntax_error(block.script))}
    assert wrong == {}


def syntax_error(script: str) -> str:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    return done.stderr


def test_every_command_of_a_shell_block_parses() -> None:
    wrong = {}
    for block in SHELL_BLOCKS:
        for words in calls(block.script, "waybill"):
            if said := wrong_words(words):
                wrong[f"{block}: waybill {' '.join(words)}"] = said
    assert wrong == {}


@cache
def root_parameters() -> Any:
    import typer

    return typer.main.get_command(app)


def wrong_words(words: Sequence[str]) -> str:
    """Return what is wrong with the words behind ``waybill``; empty: they parse."""
    rest, command, path = list(words), root_parameters(), []
    while (inner := getattr(command, "commands", None)) is not None:
        if not path:
            rest = without_root_options(command, rest)
        name = rest.pop(0) if rest else ""
        if name not in inner and name not in (COMMANDS if not path else ()):
            return f"no command {name!r}"
        command = COMMANDS[name].load(name) if not path else inner[name]
        path.append(name)
    return wrong_parameters(command, rest)


def without_root_options(command: Any, words: list[str]) -> list[str]:
    flags = {flag: one for one in command.params for flag in one.opts}
    while words and words[0] in flags:
        words = words[1 if flags[words[0]].is_flag else 2 :]
    return words


def wrong_parameters(command: Any, words: list[str]) -> str:
    from typer._click import Context  # its parser is what the command line uses
    from typer.exceptions import TyperException

    if "--help" in words:
        return ""
    context = Context(command, info_name=command.name)
    try:
        values, rest, _ = command.make_parser(context).parse_args(args=list(words))
        for one in command.params:
            if one.required and values.get(one.name) is None:
                return f"{one.name} is missing"
            if one.param_type_name == "option" and isinstance(given := values.get(one.name), str):
                one.process_value(context, given)
    except TyperException as error:
        return str(error.message)
    return f"{rest[0]!r} is too much" if rest else ""


def test_wrong_words_are_found() -> None:
    assert wrong_words(["parkd", "list"]) == "no command 'parkd'"
    assert wrong_words(["parked", "lst"]) == "no command 'lst'"
    assert "--al" in wrong_words(["parked", "list", "--al"])
    assert "--why" in wrong_words(["pipelines", "rollback", "flights", "3", "--why"])
    assert "is too much" in wrong_words(["pipelines", "show", "flights", "weather"])
    assert wrong_words(["balance", "--since", "--minutes"]) != ""
    assert wrong_words(["parked", "sample", "flights", "-n", "three"]) != ""
    assert wrong_words(["pipelines", "undeploy", "flights"]) == "why is missing"
    assert wrong_words(["--wait", "0", "parked", "list", "flights", "--all"]) == ""


def test_calls_are_found_wherever_a_script_has_them() -> None:
    script = (
        "cat > file <<'END' | cat\nwaybill down\nEND\n"
        "until waybill balance issues 2>/dev/null | grep -q '; waybill x'; do sleep 5; done  # waybill y\n"
        "A=1 .venv/bin/waybill up \\\n  --collector > log; (waybill status) && echo waybill-x\n"
        "psql -c 'one\nwaybill two'\ndocker compose exec worker waybill parked list\n"
    )
    assert list(calls(script, "waybill")) == [
        ["balance", "issues"],
        ["up", "--collector"],
        ["status"],
        ["parked", "list"],
    ]


def test_every_target_that_a_shell_block_makes_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    made = {
        word
        for block in SHELL_BLOCKS
        for words in calls(block.script, "make")
        for word in words
        if WORD.fullmatch(word)
    }
    assert made
    assert made - targets == set()


def test_what_is_shown_is_compared_but_for_what_differs_each_time(tmp_path: Path) -> None:
    shown = "run cli__2026-11-27T14:00:01__0a1b2c3d of ~/waybill/x\n\nA-1   12.50\n…\nended … after 3 s\n"
    printed = (
        f"run cli__2027-01-01T00:00:00__ffffffff of {tmp_path}/x\nA-1 12.50\none\ntwo\n"
        "ended well after 5.5 s\n"
    )
    assert differences(shown, printed, tmp_path) == []
    for changed in ("12.51", "12.5"):
        assert differences(shown, printed.replace("12.50", changed), tmp_path) != []
    assert differences(shown, printed + "more\n", tmp_path) != []
    assert differences(shown.replace("…\nended", "ended"), printed, tmp_path) != []


@pytest.mark.parametrize("page", QUICK)
def test_quick_blocks_do_what_the_page_shows(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "waybill"
    (folder / "include" / "pipelines").mkdir(parents=True)
    with DocShell(folder, tmp_path / "shell", {}) as shell:
        for block in QUICK[page]:
            shell.run(block)


def quick(text: str, info: str = "console quick") -> Block:
    return Block("page", 1, tuple(info.split()), text)


def test_a_block_that_prints_or_ends_otherwise_is_found(tmp_path: Path) -> None:
    with DocShell(tmp_path, tmp_path / "shell", {"A": "1"}) as shell:
        shell.run(quick("$ B=$A$A; cd /\n$ echo $B > /dev/stderr\n11\n$ printf 'a\\nb'\na\nb\n"))
        shell.run(quick("$ echo $B\n11\n"))
        with pytest.raises(AssertionError, match="printed:\n  11"):
            shell.run(quick("$ echo $B\n12\n"))
        with pytest.raises(AssertionError, match=r"exit codes \[1\], not \[\]"):
            shell.run(quick("false\ntrue\n", "sh quick"))
        shell.run(quick("false\ntrue\n", "sh quick exit=1"))
        with pytest.raises(AssertionError, match=r"exit codes \[\], not \[1\]"):
            shell.run(quick("true\n", "sh quick exit=1"))
    with DocShell(tmp_path, tmp_path / "slow", {}, limit_s=2.0) as shell:
        with pytest.raises(AssertionError, match="is not over"):
            shell.run(quick("sleep 600\n", "sh quick"))


def test_commands_have_the_shells_folder_variables_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "one" / "include" / "pipelines").mkdir(parents=True)
    with DocShell(tmp_path, tmp_path / "shell", {}) as shell:
        shell.run(quick("cd one && export WAYBILL_PIPELINES_DIR=other && mkdir other", "sh quick"))
        shell.run(quick("waybill new x --yes > /dev/null && test -e other/x", "sh quick"))
        shell.run(quick("$ waybill new x --yes 2>&1 | grep -c 'there already'\n1\n"))
        shell.run(quick("waybill new x --yes 2> said || test -s said", "sh quick"))
        with pytest.raises(AssertionError, match="for blocks tagged campaign"):
            shell.run(quick("waybill up", "sh quick"))
