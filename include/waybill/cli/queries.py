"""``waybill sql`` and ``waybill connect``: a destination asked by hand.

Values come from sources: control characters are shown, not sent to a terminal.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.command import DESTINATION, tell_taken
from waybill.cli.options import AsJson
from waybill.cli.output import counted, encodable, plain, print_folded, print_json
from waybill.cli.tables import Column, Styled, Table, kind_of, print_table

if TYPE_CHECKING:
    from waybill.destinations import QueryResult

_LARGEST = 2**63
_OWN = "_waybill_"
"""What the names of columns that Waybill adds to a table begin with."""


def sql(
    statement: Annotated[str, typer.Argument(metavar="STATEMENT", help="One SELECT.")],
    *,
    destination: Annotated[
        str | None,
        typer.Option("--destination", "-d", help="Where; left out: `warehouse`, or the only one."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="Rows at most.")
    ] = 1_000,
    timeout: Annotated[
        float,
        typer.Option(min=1.0, max=86_400.0, help="Seconds after which the statement is ended."),
    ] = 300.0,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run one statement that reads at a destination, and show its rows. Nothing can be written.

    PostgreSQL and DuckDB; with the rights of the destination's own user.
    """
    from waybill.destinations import ReadQuery
    from waybill.errors import InputError
    from waybill.services import query_destination
    from waybill.settings import Settings

    if as_csv and as_json:
        raise InputError("give --csv or --json, not both")
    settings = Settings()
    name = destination or _default(list(settings.destinations))
    result = query_destination(settings, name, ReadQuery(statement, limit, timeout))
    if as_json:
        rows = [[_json(value) for value in row] for row in result.rows]
        print_json({"columns": result.columns, "rows": rows, "more": result.is_cut})
        return
    if as_csv:
        _print_csv(result)
    else:
        if result.columns:
            print_table(_row_table(result))
        if result.rows or not result.columns:
            print_folded([_rows_in_words(result)])
    if result.is_cut:
        print_folded([f"there are more rows than {limit:,}; --limit shows more"], err=True)


def connect(
    name: Annotated[
        str,
        typer.Argument(metavar=DESTINATION, help="The destination; left out: the only one."),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Open a destination's shell: psql; DuckDB's, or Python's where that is not installed.

    Passwords go by the environment. With --json it says what would be started, without secrets.
    """
    from waybill.services import destination_shell
    from waybill.settings import Settings

    shell = destination_shell(Settings(), name)
    if as_json:
        print_json(
            {
                "program": shell.program,
                "arguments": shell.arguments,
                "environment": sorted(shell.environment),
                "note": shell.note,
            }
        )
        return
    if shell.note:
        print_folded([shell.note], err=True)
    sys.stdout.flush()
    os.execve(  # noqa: S606 - no shell reads it
        shell.program, [shell.program, *shell.arguments], {**os.environ, **shell.environment}
    )


def _default(names: list[str]) -> str:
    """Return the destination that is meant where none is given, and say so on standard error.

    Raises:
        InputError: there is none, or more than one and none is called `warehouse`.
    """
    from waybill.errors import InputError

    if "warehouse" in names or len(names) == 1:
        name = "warehouse" if "warehouse" in names else names[0]
        tell_taken("destination", name, "the only one" if len(names) == 1 else "the default")
        return name
    there = f"there are {', '.join(sorted(names))}" if names else "WAYBILL_DESTINATIONS names none"
    raise InputError(f"--destination: say which; {there}")


def _json(value: Any) -> Any:
    """Return a value of SQL as JSON has it; what JSON has no form for is text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value < _LARGEST else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _json(one) for key, one in value.items()}
    return _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"\\x{bytes(value).hex()}"
    if isinstance(value, list | tuple | dict):
        return encodable(json.dumps(_json(value), ensure_ascii=False))
    return encodable(str(value))


def _print_csv(result: QueryResult) -> None:
    """Print CSV: values as they are into a file or a pipe, and safely on a terminal."""
    shown = plain if sys.stdout.isatty() else encodable
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([shown(name) for name in result.columns])
    writer.writerows([shown(_text(value)) for value in row] for row in result.rows)


def _rows_in_words(result: QueryResult) -> str:
    words = counted(len(result.rows), "row")
    without = "" if result.columns else " without columns"
    return f"{words}{without}{', and more' * result.is_cut}"


def _row_table(result: QueryResult) -> Table:
    """Return the rows as a table; values are whole, also where each has a line.

    Waybill's own columns are the last; where a terminal has no room, they are left out first.
    """
    own = [name.startswith(_OWN) for name in result.columns]
    order = sorted(range(len(own)), key=own.__getitem__)
    columns = [
        Column(
            result.columns[place],
            kind_of(row[place] for row in result.rows),
            spare=0 if all(own) else own[place] * (place + 1),
        )
        for place in order
    ]
    null = Styled("null", "dim")
    return Table(
        columns,
        [
            [null if row[place] is None else _text(row[place]) for place in order]
            for row in result.rows
        ],
        f"0 rows; the columns are {', '.join(result.columns)}",
    )
