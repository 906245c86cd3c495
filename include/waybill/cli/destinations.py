"""``waybill destination list|check|add|set|remove|park|…``: where events are loaded to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.command import DESTINATION
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, Why, ask, decision, takes
from waybill.cli.output import counted, echo, plain, print_folded, print_json, print_line
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import Column, Styled, Table, clock, print_table
from waybill.services import DestinationRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from waybill.destinations import Finding
    from waybill.loading import DestinationLine, Waiting
    from waybill.services import DestinationChange

app = typer.Typer(
    no_args_is_help=True, help="Destinations: how far they are, what waits, whether they respond."
)

Name = Annotated[str, typer.Argument(metavar=DESTINATION, help="The destination's name.")]

Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="What a kind needs beside its address."),
]
Values = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Another setting: max_rows, max_wait_s, …"),
]


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
@takes(DestinationRequest, argument="name", without={"options", "values"})
def add(
    request: DestinationRequest,
    option: Options = None,
    set_: Values = None,
    who: Who = None,
    why: Why = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Add a destination to the embedded stack: tried, kept, and its applications start anew."""
    from waybill.services import add_destination
    from waybill.settings import Settings

    given = {
        "kind": request.kind or "postgres",
        "dsn": _address(request.dsn or "-", as_json=as_json),
    }
    asked = _asked(request, option, set_, given)
    _tell(add_destination(Settings(), asked, decision(who, why)), "added", as_json=as_json)


@app.command("set")
@takes(DestinationRequest, argument="name", without={"options", "values"})
def set_destination(
    request: DestinationRequest,
    option: Options = None,
    set_: Values = None,
    who: Who = None,
    why: Why = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Change a destination of the embedded stack; its applications start anew with it."""
    from waybill.services import change_destination
    from waybill.settings import Settings

    given = {"dsn": request.dsn and _address(request.dsn, as_json=as_json)}
    asked = _asked(request, option, set_, given)
    _tell(change_destination(Settings(), asked, decision(who, why)), "changed", as_json=as_json)


@app.command()
def remove(name: Name, why: Reason, who: Who = None, *, as_json: AsJson = False) -> None:
    """Remove a destination that no pipeline names from the embedded stack; its tables stay."""
    from waybill.services import remove_destination
    from waybill.settings import Settings

    _tell(remove_destination(Settings(), name, decision(who, why)), "removed", as_json=as_json)


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


def _asked(
    request: DestinationRequest,
    options: list[str] | None,
    values: list[str] | None,
    given: Mapping[str, str | None],
) -> DestinationRequest:
    lists = {"options": options or [], "values": values or []}
    return request.model_copy(update={**given, **lists})


def _address(given: str, *, as_json: bool) -> str:
    """Return an address as it was given, or as standard input has it.

    Raises:
        InputError: nothing came; or a person would have to be asked with --json.
    """
    import sys

    from waybill.errors import InputError

    if given != "-":
        return given
    if not sys.stdin.isatty():
        asked = sys.stdin.read().strip()
    elif as_json:
        raise InputError("--json asks no questions: give --dsn, or pipe the address in")
    else:
        asked = typer.prompt("Its address (dsn; it is not shown)", hide_input=True, err=True)
    if not asked:
        raise InputError("no address: give --dsn, or the address on standard input")
    return asked


def _tell(change: DestinationChange, done: str, *, as_json: bool) -> None:
    from waybill.services import stream_dag
    from waybill.settings import Settings

    name = plain(change.name)
    if as_json:
        print_json(change.to_json())
    else:
        if change.findings:
            print_table(_step_table(change.findings))
        if change.is_done:
            print_folded([f"{name}: {done}; so it is for commands and Airflow's tasks from now on"])
            print_folded(_restart_lines(change))
        else:
            echo(f"{name}: cannot be loaded as it is; nothing was changed")
    if not change.is_done:
        raise typer.Exit(ExitCode.FOUND)
    if change.restarted:
        dags = sorted({stream_dag(cluster) for cluster in change.restarted})
        tell_hindrances(Settings(), "the applications do not start anew", dags=dags)


def _restart_lines(change: DestinationChange) -> list[str]:
    if not change.restarted:
        return ["no application runs; so it is for those that start from now on"]
    return [
        f"{' and '.join(kinds)} of cluster {plain(cluster)} start anew with that, within a minute:"
        f" `waybill clusters show {plain(cluster)}`"
        for cluster, kinds in change.restarted.items()
    ]


def _troubles(one: DestinationLine) -> list[str]:
    back = [line for rewind in one.rewinds for line in ("", f"{one.name}: {rewind.words}")]
    return [*back, *_waits(one)]


def _waits(one: DestinationLine) -> list[str]:
    found = one.waiting
    if found is None:
        if one.kind:
            return []
        return ["", f"{one.name}: not configured; `waybill destination add` adds it"]
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
