"""What commands print. Names and messages come from users: no control character gets through.

All that a command prints goes through here (``echo``, ``print_*``, ``terminal``), and here what a
terminal would obey is written out, so a caller cannot forget it. A caller writes a text out by
``plain`` itself where its width counts, or where it has to stay on one line.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from waybill.cli.safe_console import SafeConsole


_LEAST_WIDTH, _USUAL_WIDTH, _NO_WIDTH = 40, 80, 1_000_000
_WORD = re.compile(r"(?:`[^`]{1,60}`|\S)+")
"""What is not broken: a word, or a command between backticks, which is to be copied."""


_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+')
_STEP = "  "
_MOST_LEVELS = 200
"""Of lists and dicts, in what is printed as JSON; orjson writes 254."""
_WORD_BITS = 64
_MOST_STEPS = 8
"""How deep a document is set in, line by line."""
_UNIT_STEP = 1024.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def terminal(*, err: bool = False) -> SafeConsole:
    """Return what tables and colored lines are printed on: without colors, where none are wanted.

    What a terminal would obey is written out on it, in all but what rich itself adds.

    Args:
        err: standard error, not standard output.
    """
    from waybill.cli.safe_console import SafeConsole

    plainly = bool(os.environ.get("NO_COLOR"))
    return SafeConsole(
        stderr=err,
        highlight=False,
        color_system=None if plainly else "auto",
        width=screen_width(err=err) or _NO_WIDTH,
    )


def screen_width(*, err: bool = False) -> int | None:
    """Return how many columns a line may have: COLUMNS, else the terminal's.

    Returns:
        None where what is printed goes into a file or a pipe, and COLUMNS is not set: any number.
    """
    given = os.environ.get("COLUMNS", "")[:6]
    if given.isdecimal() and int(given):
        return max(_LEAST_WIDTH, int(given))
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(_LEAST_WIDTH, columns or _USUAL_WIDTH)


def words_of(text: str) -> Iterator[re.Match[str]]:
    """Yield the words of a text; a command between backticks is one."""
    return _WORD.finditer(text)


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def folded(text: str, width: int | None, set_in: str = "") -> list[str]:
    """Return the lines of a text, broken between words only: a longer word is longer than a line.

    A command between backticks is not broken.

    Args:
        text: without line breaks; what it begins with is kept.
        width: columns of a line; None: as many as it takes.
        set_in: what all lines but the first begin with.
    """
    ends = _breaks(text, width, cells(set_in))
    parts = [text[at:end] for at, end in pairwise([0, *ends, len(text)])]
    first, *rest = (part.rstrip() for part in parts) if ends else parts
    return [first, *(set_in + part for part in rest)]


def folded_text(text: Text, width: int | None, set_in: str = "") -> list[Text]:
    """Return the lines of a styled text as `folded` does."""
    from rich.text import Text

    first, *rest = text.divide(_breaks(text.plain, width, cells(set_in)))
    lines = [first, *(Text(set_in).append_text(part) for part in rest)]
    for line in lines[:-1]:
        line.rstrip()
    return lines


def _breaks(text: str, width: int | None, set_in: int) -> list[int]:
    """Return where lines but the first begin: at words that do not fit on the line before."""
    if width is None or cells(text) <= width:
        return []
    found: list[int] = []
    begins, has_word = 0, False
    for word in words_of(text):
        room = width - (set_in if found else 0)
        if has_word and cells(text[begins : word.end()]) > room:
            found.append(word.start())
            begins = word.start()
        has_word = True
    return found


def counted(number: int, noun: str) -> str:
    """Return "1 event", "2 events", "1,000 events"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def readable_size(number: float) -> str:
    """Return bytes as "512 B", "1.5 MiB"."""
    for unit in _UNITS:
        if number < _UNIT_STEP or unit == _UNITS[-1]:
            break
        number /= _UNIT_STEP
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"


def shortened(text: str, longest: int) -> str:
    """Return a text on one line, cut where it is longer than so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def plain(text: str) -> str:
    """Return a text with what is not printable written out: no terminal command gets through."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def indented(document: str) -> Iterator[str]:
    """Yield the lines of a JSON document, a line a field; each value as it is written there.

    What is nested deeper than `_MOST_STEPS` stays on one line: else the blanks before it would be
    many times what a hostile document has.
    """
    depth, line, is_opened = 0, "", False
    for part in _JSON_PART.findall(document):
        is_closed, is_deep = part in "}]", depth > _MOST_STEPS
        depth -= is_closed
        if is_closed != is_opened and not is_deep:
            yield line
            line = _STEP * depth
        line += ": " if part == ":" else part
        is_opened = part in "{["
        depth += is_opened
        if part == "," and not is_deep:
            yield line
            line = _STEP * depth
    yield line


def encodable(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 does not have, written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def plain_lines(text: str) -> str:
    """Return a text as ``plain`` does, but for its line ends and tabs, which stay."""
    return text if text.isprintable() else text.translate(_written_out(text, plain))


def plain_json(document: str) -> str:
    r"""Return JSON of the same values, with what is not printable as ``\u202e``."""
    if document.isprintable():
        return document
    return document.translate(_written_out(document, lambda one: json.dumps(one)[1:-1]))


def _written_out(text: str, how: Callable[[str], str]) -> dict[int, str]:
    return {ord(one): how(one) for one in set(text) if not (one.isprintable() or one in "\n\t")}


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines as they are, but for what a terminal would obey, which is written out."""
    typer.echo(plain_lines(text), err=err)


def echo_json(document: str | bytes, *, nl: bool = True) -> None:
    """Print JSON that is written already, or a part of it: in UTF-8, whatever the locale.

    Args:
        document: it; lone surrogates are escaped as JSON allows.
        nl: end the line.
    """
    text = document if isinstance(document, str) else document.decode()
    typer.echo(plain_json(text).encode(), nl=nl)


def print_line(text: str) -> None:
    """Print one line, folded as `print_folded` does."""
    print_folded([text])


def print_folded(lines: Iterable[str], *, err: bool = False, style: str = "") -> None:
    """Print lines, each folded to the terminal's width; what goes on is set in.

    Args:
        lines: may have control characters, which are written out.
        err: on standard error.
        style: rich's name of one.
    """
    width = screen_width(err=err)
    parts = [
        part
        for line in map(plain, lines)
        for part in folded(line, width, " " * (len(line) - len(line.lstrip()) + 2))
    ]
    if not style:
        for part in parts:
            echo(part, err=err)
        return
    from rich.text import Text

    console = terminal(err=err)
    for part in parts:
        console.print(Text(part, style), soft_wrap=True)


class _SafeLines(logging.Formatter):
    """Lines of a log, without what a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of one record."""
        return plain_lines(super().format(record))


def show_log(line: str) -> None:
    """Show what a process that goes on logs, on standard error.

    Args:
        line: how one looks, as logging has it.
    """
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(_SafeLines(line))
    logging.basicConfig(level=logging.INFO, handlers=[shown])


@contextmanager
def user_code_printed() -> Iterator[None]:
    """Show on standard error what user code prints; its process gives it to the log."""
    logger = logging.getLogger("waybill.user_code")
    shown, level = logging.StreamHandler(sys.stderr), logger.level
    shown.setFormatter(_SafeLines())
    logger.addHandler(shown)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(shown)


def print_json(value: Any) -> None:
    """Print one line of JSON; what it does not take of a value is as of `encodable_json`."""
    import orjson

    try:
        document = orjson.dumps(value, default=str)
    except TypeError:
        document = orjson.dumps(encodable_json(value), default=str)
    echo_json(document)


def encodable_json(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """Return a value that JSON takes: no value of a source makes this fail.

    Lone surrogates are written out. Names that are no text, and integers of more than 64 bits,
    become text; sets become lists.

    Args:
        value: lists and dicts of anything.
        levels: of lists and dicts; what lies below is ``…``.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, int):
        return value if value.bit_length() < _WORD_BITS else _integer_text(value)
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return value
    if not levels:
        return "…"
    if isinstance(value, dict):
        below = (
            (encodable_json(name), encodable_json(one, levels - 1)) for name, one in value.items()
        )
        return {str(name): one for name, one in below}
    return [encodable_json(one, levels - 1) for one in value]


def _integer_text(value: int) -> str:
    """Return an integer as text; of one that Python does not write out, its size."""
    try:
        return str(value)
    except ValueError:
        return f"an integer of {value.bit_length():,} bits"
