"""``waybill destination list|check|park|unpark|settle``: where events are loaded to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.command import DESTINATION
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, ask, decision
from waybill.cli.output import counted, echo, print_json, print_line
from waybill.cli.tables import Column, Styled, Table, clock, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.destinations import Finding
    from waybill.loading import DestinationLine, Waiting

app = typer.Typer(
    no_args_is_help=True, help="Destinations: how far they are, what waits, whether they respond."
)

Name = Annotated[str, typer.Argument(metavar=DESTINATION, help="The destination's name.")]


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List destinations: what is loaded, what waits, and why it waits."""
    from waybill.services import destinations
    from waybill.settings import Settings

    found = destinations(Settings())
    if as_json:
        print_json([one.to_json() for one in found])
        return
    print_table(_destination_table(found))
    for one in found:
        for line in _troubles(one):
            print_line(line)


@app.command()
def check(
    name: Name,
    *,
    schema: Annotated[
        str | None,
        typer.Option(help="Schema for the test table; by default that of its pipelines."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test what loads need: connect; create, fill and drop a table. Exit code 2 if a step fails."""
    from waybill.services import check_destination
    from waybill.settings import Settings

    found = check_destination(Settings(), name, schema)
    ok = all(one.ok for one in found)
    if as_json:
        steps = [{"step": one.step, "ok": one.ok, "words": one.words} for one in found]
        print_json({"destination": name, "ok": ok, "steps": steps})
    else:
        print_table(_step_table(found))
        echo(f"{name}: {'can be loaded' if ok else 'cannot be loaded as it is'}")
    if not ok:
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def park(name: Name, why: Reason, who: Who = None, *, as_json: AsJson = False) -> None:
    """Park what waits for a destination, and what follows, until it accepts a load again."""
    from waybill.services import park_destination
    from waybill.settings import Settings

    done = park_destination(Settings(), name, decision(who, why))
    if as_json:
        print_json(done.to_json())
        return
    print_line(
        f"{name}: what waits is parked from now on, as {done.code}, until it takes a load again; "
        "`waybill destination unpark` undoes this"
    )


@app.command()
def unpark(name: Name, why: Reason, who: Who = None, *, as_json: AsJson = False) -> None:
    """Stop parking for a destination: new events wait again. Parked events stay parked."""
    from waybill.services import unpark_destination
    from waybill.settings import Settings

    done = unpark_destination(Settings(), name, decision(who, why))
    if as_json:
        print_json(done.to_json())
        return
    print_line(
        f"{name}: new events wait again; replay what was parked with `waybill parked replay`"
    )


@app.command()
def settle(
    name: Name,
    why: Reason,
    who: Who = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Close the alarm for rows that a destination lost: dealt with, or given up."""
    from waybill.services import rewound_destinations, settle_destination
    from waybill.settings import Settings

    settings = Settings()
    if not yes and not as_json:
        for one in rewound_destinations(settings, name):
            print_line(f"{name}: {one.words}")
        ask("Close the alarm? This loads nothing")
    done = settle_destination(settings, name, decision(who, why))
    if as_json:
        print_json([one.to_json() for one in done])
        return
    rows = sum(one.lost_rows for one in done)
    print_line(f"{name}: {counted(len(done), 'alarm')} settled, of {counted(rows, 'row')}")


def waits(one: Waiting) -> str:
    """Return one line: since when a destination is waited for, and what is done about it."""
    from waybill.reconciliation.checks import span

    words = f"waits since {clock(one.since)} UTC ({span(one.waited_s)})"
    if one.parked_from is not None:
        return f"{words}; parked from commit {one.parked_from:,} on"
    return f"{words}; to be parked" if one.asked_at is not None else words


def _troubles(one: DestinationLine) -> list[str]:
    back = [line for rewind in one.rewinds for line in ("", f"{one.name}: {rewind.words}")]
    return [*back, *_waits(one)]


def _waits(one: DestinationLine) -> list[str]:
    found = one.waiting
    if found is None:
        if one.kind:
            return []
        return ["", f"{one.name}: not configured; set WAYBILL_DESTINATIONS, start loading again"]
    tries = f"{found.attempts:,} {'try' if found.attempts == 1 else 'tries'}"
    lines = ["", f"{one.name}: {waits(found)}", f"  {tries}, {found.code}: {found.error}"]
    if found.asked_at is not None:
        moment = f"{clock(found.asked_at)} UTC"
        lines.append(f"  parking ordered by {found.asked_by} at {moment}: {found.reason}")
    return lines


def _destination_table(found: Sequence[DestinationLine]) -> Table:
    return Table(
        (
            Column("destination"),
            Column("kind", "words", spare=1, least=14),
            *(Column(head, "number") for head in ("loaded to", "of", "rows waiting")),
            Column("state"),
        ),
        [
            (
                one.name,
                f"{one.kind} (experimental)" if one.experimental else one.kind or None,
                one.loaded,
                one.last_commit,
                one.rows,
                _state(one),
            )
            for one in found
        ],
        "No destination: neither WAYBILL_DESTINATIONS nor a deployed pipeline names one",
    )


def _state(one: DestinationLine) -> str:
    if one.rewinds:
        running = any(rewind.reloaded_at is None for rewind in one.rewinds)
        return "loads again" if running else "rows missing"
    if one.waiting is not None:
        return "parks" if one.waiting.parked_from is not None else "waits"
    if not one.kind:
        return "not configured"
    return "up to date" if not one.behind else f"{counted(one.behind, 'commit')} behind"


def _step_table(found: Sequence[Finding]) -> Table:
    ok, failed = Styled("ok", "green"), Styled("failed", "red")
    return Table(
        (Column("result"), Column("step"), Column("found", "words")),
        [(ok if one.ok else failed, one.step, one.words) for one in found],
        "no step was tried",
    )
