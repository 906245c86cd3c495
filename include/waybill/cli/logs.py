"""``waybill logs list|settle``: write-ahead logs, on whatever node they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.options import AsJson, Who, decision
from waybill.cli.output import counted, plain, print_json, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.ledger import LogLine

app = typer.Typer(
    no_args_is_help=True,
    help="Write-ahead logs: where they are, what they hold, who reads a source.",
)

_SHORT = 8
_MEANING = {
    "open": "a run has it, or died with it",
    "closed": "its run ended; nothing is left in it",
    "taken_over": "another log has the source; it may send something still",
    "ended": "it sends nothing more",
}


@app.command("list")
def list_(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Include closed and ended ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List write-ahead logs that are open, or were taken over."""
    from waybill.services import write_ahead_logs
    from waybill.settings import Settings

    found = write_ahead_logs(Settings(), every=everything)
    if as_json:
        print_json([one.to_json() for one in found])
    elif found:
        _print_table(found)
    else:
        typer.echo("No write-ahead log is open.")


@app.command()
def settle(
    log: Annotated[str, typer.Argument(help="The log's id, or how it begins.")],
    why: Annotated[
        str,
        typer.Option("--why", "--reason", help="The reason, for the audit log."),
    ],
    who: Who = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Close a log whose node is gone: nothing waits for it, and nothing more of it is sent.

    What it had sent is counted. A run that still uses it ends.
    """
    from waybill.services import settle_log, write_ahead_log
    from waybill.settings import Settings

    settings = Settings()
    one = write_ahead_log(settings, log)
    if not yes:
        _show(one)
        typer.confirm("End this log?", abort=True, err=True)
    number = settle_log(settings, one.wal_id, decision(who, why))
    if as_json:
        print_json({"wal_id": one.wal_id, "counted": number})
        return
    words = f"log {one.wal_id[:_SHORT]} of {one.pipeline} ended"
    typer.echo(f"{words}; counted {counted(number, 'event')} that it had sent")


def _show(one: LogLine) -> None:
    from waybill.reconciliation.checks import span

    held = counted(one.unsettled, "event")
    fate = (
        "they are read from the source again"
        if one.rereadable
        else "they cannot be had again: they are LOST unless its disk comes back"
    )
    if one.purpose == "replay":
        fate = "they are still parked, and are replayed again"
    lines = (
        f"log      {one.wal_id}",
        f"of       {one.pipeline} ({one.purpose}), topic {one.topic}",
        f"on       {one.node}: {one.path}",
        f"state    {one.state}: {_MEANING[one.state]}",
        f"seen     {span(one.unseen_s)} ago",
        f"holds    {held} when it was told last; {fate}",
    )
    for line in lines:
        typer.echo(plain(line), err=True)


def _print_table(found: Sequence[LogLine]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from waybill.reconciliation.checks import span

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("log", no_wrap=True)
    for name in ("pipeline", "for", "node"):
        table.add_column(name, overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("unsettled", justify="right", no_wrap=True)
    table.add_column("seen", no_wrap=True)
    for one in found:
        table.add_row(
            one.wal_id[:_SHORT],
            Text(plain(one.pipeline)),
            one.purpose,
            Text(plain(one.node)),
            one.state.replace("_", " "),
            f"{one.unsettled:,}",
            f"{span(one.unseen_s)} ago",
        )
    terminal().print(table)
