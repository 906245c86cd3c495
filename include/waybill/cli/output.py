"""What commands print. Names and messages come from users: no control character gets through."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def terminal(*, err: bool = False) -> Console:
    """Return what tables and colored lines are printed on: without colors, where none are wanted.

    Args:
        err: standard error, not standard output.
    """
    from rich.console import Console

    plainly = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=err, highlight=False, color_system=None if plainly else "auto")


def counted(number: int, noun: str) -> str:
    """Return "1 event", "2 events", "1,000 events"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain(text: str) -> str:
    """Return a text with what is not printable written out: no terminal command gets through."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_line(text: str) -> None:
    """Print one line, with what is not printable written out."""
    typer.echo(plain(text))


def print_folded(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, each folded to the terminal's width; what goes on is set in."""
    width = max(40, shutil.get_terminal_size().columns)
    for line in map(plain, lines):
        set_in = " " * (len(line) - len(line.lstrip()) + 2)
        for part in wrap(line, width, subsequent_indent=set_in):
            typer.echo(part, err=err)


@contextmanager
def user_code_printed() -> Iterator[None]:
    """Show on standard error what user code prints; its process gives it to the log."""
    logger = logging.getLogger("waybill.user_code")
    shown, level = logging.StreamHandler(sys.stderr), logger.level
    logger.addHandler(shown)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(shown)


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    import orjson

    typer.echo(orjson.dumps(value, default=str))  # bytes: in UTF-8, whatever the locale
