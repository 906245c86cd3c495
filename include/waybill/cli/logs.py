"""``waybill logs list|settle``: write-ahead logs, on whatever node they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.options import AsJson, Who, ask, decision
from waybill.cli.output import counted, print_folded, print_json
from waybill.cli.tables import Cell, Column, Table, print_facts, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.ledger import LogLine

app = typer.Typer(
    no_args_is_help=True,
    help="Write-ahead logs: where they are, what they hold, who reads a source.",
)

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
    else:
        print_table(_log_table(found, everything=everything))
        print_folded([one.reason for one in found if one.state == "open" and one.reason])


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

    That is final, also where its disk comes back. What it had sent is counted. A run that still
    uses it ends.
    """
    from waybill.services import settle_log, write_ahead_log
    from waybill.settings import Settings

    settings = Settings()
    one = write_ahead_log(settings, log)
    if not yes:
        _show(one)
        ask("End this log?", as_json=as_json)
    number = settle_log(settings, one.wal_id, decision(who, why))
    if as_json:
        print_json({"wal_id": one.wal_id, "counted": number})
        return
    words = f"log {one.wal_id} of {one.pipeline} ended"
    print_folded([f"{words}; counted {counted(number, 'event')} that it had sent"])


def _show(one: LogLine) -> None:
    from waybill.reconciliation.checks import span

    held = counted(one.unsettled, "event")
    fate = (
        "they are read from the source again"
        if one.rereadable
        else "they cannot be had again: those that it has not sent are LOST for good. Should its "
        "disk come back, they are moved aside unsent"
    )
    if one.purpose == "replay":
        fate = "they are still parked, and are replayed again"
    facts: list[tuple[str, Cell]] = [
        ("log", one.wal_id),
        ("of", f"{one.pipeline} ({one.purpose}), topic {one.topic}"),
        ("on", f"{one.node}: {one.path}"),
        ("state", f"{one.state}: {_MEANING[one.state]}"),
        ("seen", f"{span(one.unseen_s)} ago"),
        ("holds", f"{held} when it was told last; {fate}"),
    ]
    if one.reason:
        facts.append(("why", one.reason))
    print_facts(facts, err=True)


def _log_table(found: Sequence[LogLine], *, everything: bool = False) -> Table:
    from waybill.reconciliation.checks import span

    return Table(
        (
            Column("log"),
            Column("pipeline"),
            Column("for", spare=3),
            Column("node", spare=1),
            Column("state"),
            Column("unsettled", "number"),
            Column("seen", spare=2),
        ),
        [
            (
                one.wal_id,
                one.pipeline,
                one.purpose,
                one.node,
                one.state.replace("_", " "),
                one.unsettled,
                f"{span(one.unseen_s)} ago",
            )
            for one in found
        ],
        "There was no write-ahead log." if everything else "No write-ahead log is open.",
    )
