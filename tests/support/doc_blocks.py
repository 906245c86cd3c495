"""The fenced blocks of README.md and docs/*.md, and what their info strings say of how they run.

A block of shell, ```` ```sh ```` or ```` ```console ````, has a second word, its tag, which no page shows:

- ``quick``: runs without servers, in a folder of its own, page by page;
- ``stack``: runs against the servers of the tests;
- ``campaign``: starts the whole stack, so it runs with ``make campaigns``;
- ``syntax``: does not run here; it parses, and its commands, options and make's targets exist.

``exit=2``, after the tag, are the exit codes other than 0 of the block's commands, in order. In a ``console`` block
``$ `` begins a command and ``> `` goes on with it; the lines below are what it prints. There ``…`` stands
for anything within a line, and alone for any lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
SHELLS = ("sh", "console")
TAGS = ("quick", "stack", "campaign", "syntax")

_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n.*?^\s*\2$", re.MULTILINE | re.DOTALL)
_ENDS = frozenset(";|&()\n")
_NOISE = (
    (
        re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?Z| UTC|[+-]\d\d:\d\d)?"),
        "<time>",
    ),
    (re.compile(r" \(\d+:\d\d:\d\d\)"), ""),
    (re.compile(r"\b\d\d:\d\d(:\d\d)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"(?<=__)[0-9a-f]{8}\b|(?<![0-9a-f])[0-9a-f]{12,}(?![0-9a-f])"), "<id>"),
    (re.compile(r"\b(\d+[.,])?\d+ ?(ms|s|min|KiB|MiB|B)\b"), "<amount>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
    (re.compile(r"[─━]+"), "─"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a console block, and the lines that are shown below it."""

    command: str
    output: str


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Args:
        page: path of its page within the checkout.
        line: of its first fence.
        info: the words behind the fence.
        text: what is between the fences, without the indentation of the fences.
    """

    page: str
    line: int
    info: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def language(self) -> str:
        """The first word; empty: there is none."""
        return self.info[0] if self.info else ""

    @property
    def tag(self) -> str:
        """How it runs; empty: nothing is said."""
        return self.info[1] if len(self.info) > 1 else ""

    @property
    def codes(self) -> list[int]:
        """Exit codes other than 0 that are expected."""
        return [
            int(code)
            for word in self.info[2:]
            for code in word.removeprefix("exit=").split(",")
            if word.startswith("exit=")
        ]

    def steps(self) -> list[Step]:
        """Return the commands of a console block with their output."""
        found: list[tuple[list[str], list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1][0].append(line[2:])
            elif found:
                found[-1][1].append(line)
            else:
                raise ValueError(f"{self}: begins with output: {line}")
        return [Step("\n".join(typed), "\n".join(shown)) for typed, shown in found]

    @property
    def script(self) -> str:
        """What is typed, as a shell script."""
        if self.language != "console":
            return self.text
        return "".join(f"{step.command}\n" for step in self.steps())


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    yield from blocks_in(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))


def blocks_in(text: str, page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a text that is called ``page``."""
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, tuple(found[2].split()), dedent(found[3]))


def shell_blocks(tag: str) -> dict[str, list[Block]]:
    """Return the blocks of a tag, by page, in order; pages without one are left out."""
    found = {str(page.relative_to(ROOT)): [] for page in PAGES}  # type: dict[str, list[Block]]
    for page in PAGES:
        for block in blocks(page):
            if block.language in SHELLS and block.tag == tag:
                found[block.page].append(block)
    return {page: those for page, those in found.items() if those}


def calls(script: str, program: str) -> Iterator[list[str]]:
    """Yield the words behind each call of a program in a script.

    Documents that a command reads (``<<END``) and what is in ``"$(…)"`` are not looked into.
    """
    for line in _logical_lines(_HEREDOC.sub(r"\3", script)):
        for words in _commands(line):
            names = [Path(word).name if word.endswith(f"/{program}") else word for word in words]
            if program in names:
                yield words[names.index(program) + 1 :]


def _logical_lines(script: str) -> Iterator[str]:
    """Yield lines, those joined that a backslash or an open quote holds together."""
    held = ""
    for line in script.replace("\\\n", " ").splitlines():
        held += line
        try:
            shlex.split(held, comments=True)
        except ValueError:
            held += "\n"
            continue
        yield held
        held = ""
    if held:
        raise ValueError(f"a quote is not closed: {held}")


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    skips = False
    for token in lexer:
        if skips:
            skips = False
        elif set(token) <= _ENDS:
            yield words
            words = []
        elif set(token) & set("<>") and set(token) <= set("<>&|()"):
            if words and words[-1] in {"1", "2"}:
                words.pop()
            skips = True
        else:
            words.append(token)
    yield words


def differences(shown: str, printed: str, folder: Path) -> list[str]:
    """Compare what a page shows with what a command printed; return what is wrong, line by line.

    Ids, times, sizes, durations, ports and the width of columns are not compared; ``folder``, where it ran, is
    ``~/waybill`` in the page, and whether a path begins there or with it makes no difference.
    """
    wanted = _lines(shown.replace("~/waybill/", ""))
    got = _lines(printed.replace(f"{folder}/", "").replace(str(folder), "~/waybill"))
    if _matches(wanted, got):
        return []
    return ["shown:", *(f"  {line}" for line in wanted), "printed:", *(f"  {line}" for line in got)]


def _lines(text: str) -> list[str]:
    return [line for one in text.splitlines() if (line := _without_noise(one))]


def _without_noise(line: str) -> str:
    for pattern, word in _NOISE:
        line = pattern.sub(word, line)
    return line.strip()


def _matches(wanted: Sequence[str], got: Sequence[str]) -> bool:
    """Tell whether lines are as wanted, where ``…`` alone stands for any number of them."""
    pattern = "".join(_pattern(line) for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in got)) is not None


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:[^\n]*\n)*?"
    return r"[^\n]*?".join(map(re.escape, line.split("…"))) + r"\n"
