"""Tables: one look for all that commands list.

A table is data: columns that say what gives way where a terminal is narrow, and rows. It keeps to
the terminal's width, or to COLUMNS: free text is shortened, then spare columns are left out, and
where that is not enough each row is a block of lines, ``name: value``. Names, ids, paths, states,
times and numbers are always whole and on one line: in a block, a name longer than the terminal has
a line of its own, which the terminal breaks and a copy has whole. Into a file or a pipe nothing is
shortened or left out: a row is a line.

Names and texts come from users: control characters are written out, and nothing is read as markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from waybill.cli.output import (
    cells,
    folded,
    plain,
    print_folded,
    screen_width,
    terminal,
    words_of,
)

if TYPE_CHECKING:
    from rich.text import Text

Kind = Literal["name", "number", "text", "words"]
_GAP = 2
_NOTHING = "-"
_LEAST_TEXT, _LEAST_WORDS = 16, 24
"""Columns that free text gets at least; with fewer, a block shows more of it."""
_INDENT = 2
_WIDEST_LABEL = 24
_AT_ONCE = 500
"""Lines that are printed by one call: each call has its cost."""
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    ``kind``: ``name``, whole and on one line; ``number``, the same, to the right; ``text``, is
    shortened with an ellipsis; ``words``, is broken between words over as many lines as it takes.
    """

    head: str
    kind: Kind = "name"
    spare: int = 0
    """Left out where there is no room for all: the highest first, before all others those that no
    row has a value in; 0: never."""
    least: int = 0
    """Columns of a terminal that free text gets at least, if it takes that many; 0: the usual."""


class Styled(NamedTuple):
    """The value of a cell, with rich's name of a style."""

    value: object
    style: str


Cell = object
"""None is "-", an int has thousands separated, a time is UTC's to the minute, all else its text."""


@dataclass(frozen=True, slots=True)
class Table:
    """What is listed, whatever the width."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    empty: str
    """What is said where there is no row: that there is none, and what to do next."""
    title: str = ""
    most_blocks: int = 0
    """Rows that are shown where each is a block of lines; 0: all."""
    more: str = ""
    """The option that shows the others."""


class _Shown(NamedTuple):
    text: str
    style: str


_Fact = tuple[str, _Shown, Kind]


def clock(moment: datetime | None) -> str:
    """Return a time as tables have it: UTC, to the minute; "" for None."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def ago(moment: datetime | None) -> str:
    """Return how long ago something was, in its largest unit; "never" for None."""
    if moment is None:
        return "never"
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def kind_of(values: Iterable[object]) -> Kind:
    """Return how a column of a user's data is shown: whole, and numbers to the right."""
    from decimal import Decimal

    there = [value for value in values if value is not None]
    numbers = (int, float, Decimal)
    is_number = all(isinstance(one, numbers) and not isinstance(one, bool) for one in there)
    return "number" if there and is_number else "name"


def print_table(table: Table, notes: Iterable[str] = ()) -> None:
    """Print a table, or that it has no row, and below it notes, folded to the width."""
    width = screen_width()
    notes = list(notes)
    if table.rows:
        _print(table_lines(table, width, ascii_only=terminal().options.ascii_only))
    else:
        print_folded([*([table.title] if table.title else []), table.empty])
    if notes:
        print_folded(["", *notes] if table.rows else notes)


def print_facts(
    facts: Iterable[tuple[str, Cell]],
    title: str = "",
    *,
    whole: Collection[str] = (),
    err: bool = False,
) -> None:
    """Print one thing, a fact a line: ``name: value``, with a bold title above.

    Args:
        facts: name and value; a value is broken between words.
        title: names the thing.
        whole: names of facts that are not broken: paths may have blanks.
        err: on standard error.
    """
    from rich.text import Text

    width = screen_width(err=err)
    if title:
        _print((Text(line, "bold") for line in folded(plain(title), width)), err=err)
    named: list[_Fact] = [
        (plain(name), _shown(value), "name" if name in whole else "words") for name, value in facts
    ]
    _print(_block(named, width), err=err)


def table_lines(table: Table, width: int | None, *, ascii_only: bool = False) -> Iterator[Text]:
    """Yield the lines of a table that has rows.

    Args:
        table: it.
        width: columns of the terminal; None: as many as it takes.
        ascii_only: draw with what ASCII has.
    """
    from rich.text import Text

    if table.title:
        yield from (Text(line, "bold") for line in folded(plain(table.title), width))
    heads = [_Shown(plain(column.head), "bold") for column in table.columns]
    rows = [[_shown(cell) for cell in row] for row in table.rows]
    widths = _widths(table.columns, heads, rows, width)
    if widths is None:
        kinds = [column.kind for column in table.columns]
        shown = rows[: table.most_blocks or None]
        for number, row in enumerate(shown):
            if number:
                yield Text()
            names = (head.text for head in heads)
            yield from _block(list(zip(names, row, kinds, strict=True)), width)
        if unshown := len(rows) - len(shown):
            yield Text()
            yield Text(f"{'...' if ascii_only else '…'} {unshown:,} more: {table.more}", "dim")
        return
    yield from _row(table.columns, widths, heads, "...")
    yield Text(("-" if ascii_only else "─") * (sum(widths.values()) + _GAP * (len(widths) - 1)))
    for row in rows:
        yield from _row(table.columns, widths, row, "..." if ascii_only else "…")
    left = [head.text for place, head in enumerate(heads) if place not in widths]
    if left:
        words = f"not in {width} columns: {', '.join(left)}; --json has all"
        yield from (Text(line, "dim") for line in folded(words, width))


def _print(lines: Iterable[Text], *, err: bool = False) -> None:
    from rich.text import Text

    console, lines = terminal(err=err), iter(lines)
    while some := list(islice(lines, _AT_ONCE)):
        console.print(Text("\n").join(some), soft_wrap=True)


def _shown(value: Cell) -> _Shown:
    value, style = value if isinstance(value, Styled) else (value, "")
    if value is None:
        return _Shown(_NOTHING, style or "dim")
    if isinstance(value, datetime):
        return _Shown(clock(value), style)
    if isinstance(value, bool):
        return _Shown("yes" if value else "no", style)
    if isinstance(value, int):
        return _Shown(f"{value:,}", style)
    return _Shown(plain(str(value)), style)


def _widths(
    columns: Sequence[Column],
    heads: Sequence[_Shown],
    rows: Sequence[Sequence[_Shown]],
    width: int | None,
) -> dict[int, int] | None:
    """Return the widths of the columns that are shown, by place; None: rows have to be blocks."""
    natural, least = {}, {}
    for place, column in enumerate(columns):
        head = cells(heads[place].text)
        natural[place] = max([head, *(cells(row[place].text) for row in rows)])
        least[place] = natural[place]
        if width is not None and column.kind in ("text", "words"):
            least[place] = min(natural[place], _least(column, head, place, rows))
    if width is None:
        return natural
    shown = list(natural)
    worth = {place: _worth(columns[place], place, rows) for place in shown}
    while sum(least[place] for place in shown) + _GAP * (len(shown) - 1) > width:
        spare = min(shown, key=lambda place: worth[place])
        if not columns[spare].spare:
            return None
        shown.remove(spare)
    return _with_the_rest(shown, natural, least, width)


def _worth(column: Column, place: int, rows: Sequence[Sequence[_Shown]]) -> tuple[bool, int]:
    """Return what is least for the column that goes first: one that no row has a value in."""
    has_value = any(row[place].text not in {"", _NOTHING} for row in rows)
    return has_value or not column.spare, -column.spare


def _least(column: Column, head: int, place: int, rows: Sequence[Sequence[_Shown]]) -> int:
    if column.kind == "text":
        return max(head, column.least or _LEAST_TEXT)
    words = (cells(word[0]) for row in rows for word in words_of(row[place].text))
    return max(head, column.least or _LEAST_WORDS, max(words, default=0))


def _with_the_rest(
    shown: Sequence[int], natural: Mapping[int, int], least: Mapping[int, int], width: int
) -> dict[int, int]:
    """Return the least widths with what is left of the terminal's, shared out evenly."""
    given = {place: least[place] for place in shown}
    left = width - sum(given.values()) - _GAP * (len(shown) - 1)
    wanting = sorted(shown, key=lambda place: natural[place] - least[place])
    for number, place in enumerate(wanting):
        more = min(natural[place] - least[place], left // (len(wanting) - number))
        given[place] += more
        left -= more
    return given


def _row(
    columns: Sequence[Column], widths: Mapping[int, int], row: Sequence[_Shown], mark: str
) -> Iterator[Text]:
    """Yield the lines of one row."""
    from rich.text import Text

    parts = {
        place: folded(row[place].text, width)
        if columns[place].kind == "words"
        else [_shortened(row[place].text, width, mark)]
        for place, width in widths.items()
    }
    for number in range(max(map(len, parts.values()), default=0)):
        line, room = Text(), 0
        for place, width in widths.items():
            part = parts[place][number] if number < len(parts[place]) else ""
            wide = cells(part)
            before = width - wide if columns[place].kind == "number" else 0
            if part:
                line.append(" " * (room + before)).append(part, row[place].style)
                room = width - wide - before + _GAP
            else:
                room += width + _GAP
        yield line


def _shortened(text: str, width: int, mark: str) -> str:
    """Return a text that takes so many columns at most; cut between words, if the first fits."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    room = width - len(mark)
    first = folded(text, room)[0]
    return f"{first if cells(first) <= room else set_cell_size(first, room).rstrip()}{mark}"


def _block(facts: Sequence[_Fact], width: int | None) -> Iterator[Text]:
    """Yield the lines ``name: value``."""
    from rich.text import Text

    widest = max((cells(name) for name, _, _ in facts), default=0)
    at = min(widest, _WIDEST_LABEL) + 2
    for name, (text, style), kind in facts:
        label = f"{name}:" if name else ""
        room = None if width is None else width - at
        lines = folded(text, room) if kind in ("text", "words") else [text]
        beside = cells(label) < at and all(room is None or cells(one) <= room for one in lines)
        if beside:
            first = Text(f"{label}{' ' * (at - cells(label))}").append(lines[0], style)
            first.rstrip()
            yield first
            yield from (Text(" " * at).append(line, style) for line in lines[1:])
            continue
        yield Text(label)
        room = None if width is None else width - _INDENT
        for line in folded(text, room) if kind in ("text", "words") else [text]:
            fits = room is None or cells(line) <= room
            yield Text(" " * _INDENT if fits else "").append(line, style)
