"""``waybill audit``: one round by hand, the breaches there are, and closing one by name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import PIPELINE_FLAGS, AsJson, Who, Why, decision
from waybill.cli.output import counted, echo, print_json, print_line
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import Column, Styled, Table, clock, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.reconciliation import Breach

app = typer.Typer(
    no_args_is_help=True, help="Breaches that the auditor found: run a round, list, show, close."
)

Number = Annotated[
    int, typer.Argument(help="The breach's number.", metavar="ID", min=1, max=2**63 - 1)
]
_SHOWN = 20


@app.command()
def run(*, as_json: AsJson = False) -> None:
    """Run one round now, as upkeep does each minute. Exit code 2 if it opened any."""
    from waybill.services import run_audit
    from waybill.settings import Settings

    report = run_audit(Settings())
    if as_json:
        print_json(report)
    elif not report["number"]:
        echo("Another round is at work; this one did nothing.")
    else:
        _show_round(report)
    if report["opened"]:
        raise typer.Exit(ExitCode.FOUND)


@app.command("breaches")
def breaches_(
    *,
    pipeline: Annotated[
        str | None, typer.Option(*PIPELINE_FLAGS, help="Only this one, by name or id.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Only those seen from this time on (UTC).")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include those that ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """List breaches, the newest first. Exit code 2 if one is open."""
    from waybill.services import breaches
    from waybill.settings import Settings

    moment = None if since is None else since.replace(tzinfo=since.tzinfo or UTC)
    states = None if everything else ("open",)
    settings = Settings()
    found = breaches(settings, pipeline=pipeline, states=states, since=moment)
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        print_table(_breach_table(found, everything=everything))
        tell_hindrances(settings, "nobody looks for breaches now", jobs=["audit"])
    if any(one.state == "open" for one in found):
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def show(breach_id: Number, *, as_json: AsJson = False) -> None:
    """Show one breach: what is wrong, since when, which events."""
    from waybill.services import breach
    from waybill.settings import Settings

    found = breach(Settings(), breach_id)
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)


@app.command()
def close(breach_id: Number, why: Why, who: Who = None, *, as_json: AsJson = False) -> None:
    """Close an open breach: it is known, and dealt with or accepted."""
    from waybill.services import close_breach
    from waybill.settings import Settings

    done = close_breach(Settings(), breach_id, decision(who, why))
    if as_json:
        print_json(done.to_json())
    else:
        print_line(f"breach {done.id} closed by {done.ended_by}: {done.reason}")


def _show_round(report: dict[str, Any]) -> None:
    print_line(
        f"round {report['number']}: {counted(report['looked_at'], 'minute')} checked, "
        f"{report['balanced']:,} in balance, {report['moving']:,} on the way, "
        f"{report['breaches']:,} with a breach; "
        f"{_breaches(report['explained'])} explained, {report['seconds']} s"
    )
    for words in report["opened"]:
        print_line(f"  new: {words}")
    for named in (report["naming"] or {}).get("named", []):
        ids = f"{len(named['missing']):,} missing, {len(named['doubled']):,} doubled"
        print_line(f"  named: {named['stage']} of {named['event_name']}: {ids}")
    if problem := report.get("naming_problem"):
        print_line(f"  not named: {problem}")


def _breaches(number: int) -> str:
    return f"{number:,} {'breach' if number == 1 else 'breaches'}"


def _breach_table(found: Sequence[Breach], *, everything: bool = False) -> Table:
    style = {"open": "bold red"}
    return Table(
        (
            Column("id", "number"),
            Column("state"),
            Column("pipeline"),
            Column("event", spare=1),
            Column("stage", spare=2),
            Column("kind", spare=3),
            Column("what", "words", least=40),
        ),
        [
            (
                str(one.id),
                Styled(one.state, style.get(one.state, "")),
                one.pipeline,
                one.key.event_name or None,
                one.key.stage or None,
                one.key.kind,
                one.words,
            )
            for one in found
        ],
        "There was no breach." if everything else "No breach is open.",
    )


def _show(one: Breach) -> None:
    print_line(f"breach {one.id}, {one.state}: {one.pipeline} / {_place(one)}")
    print_line(f"  {one.words}")
    print_line(f"  first seen {_time(one.first_seen_at)}, last {_time(one.last_seen_at)}")
    for name, ids in (("missing", one.missing), ("doubled", one.doubled)):
        for event_id in ids[:_SHOWN]:
            print_line(f"  {name}: {event_id}   (waybill trail {event_id})")
        if len(ids) > _SHOWN:
            print_line(f"  {name}: and {len(ids) - _SHOWN:,} more: --json shows them")
    if one.named_at is None and one.state == "open" and one.key.minute:
        print_line("  its events are named once the traces of its minute are in")
    if one.ended_at is not None:
        print_line(f"  {one.state} {_time(one.ended_at)} by {one.ended_by}: {one.reason}")


def _place(one: Breach) -> str:
    names = [one.key.event_name, one.key.stage, one.key.kind]
    return " / ".join(name for name in names if name)


def _time(moment: datetime) -> str:
    return f"{clock(moment)} UTC"
