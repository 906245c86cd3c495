"""``waybill parked``: look at what is parked, take it out, discard it, take that back.

Every command takes the same filters. With ``--json`` standard output is one JSON value.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from waybill.cli.options import Who, Why, decision, takes
from waybill.cli.words import counted
from waybill.parking import ParkedFilter

if TYPE_CHECKING:
    from waybill.inspection import ParkedEventsService
    from waybill.parking import (
        Damage,
        ParkedGroup,
        ParkedGroupFilter,
        Parking,
    )
    from waybill.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Parked events: list, show, download, discard.")

_MOST_SHOWN = 20
_MOST_KEYS = 100
"""Objects of a partition, the newest, in JSON."""

_FLAGS = {
    "event_name": ("--event-name", "-e"),
    "stage": ("--stage", "-s"),
    "error_type": ("--error-type", "-t"),
    "fingerprint": ("--fingerprint", "-f"),
}
_WINDOW = ("since", "until")
_PARKED_WINDOW = ("parked_since", "parked_until")
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AllPipelines = Annotated[
    bool, typer.Option("--all-pipelines", help="Instead of one: the pipelines of all teams.")
]
Unmasked = Annotated[
    bool, typer.Option("--personal", help="Unmask personal fields; this goes to the audit log.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _parking(settings: Settings) -> AbstractContextManager[Parking]:
    """Open the parked events."""
    from waybill.services import opened_parking

    return opened_parking(settings)


def _desk() -> AbstractContextManager[ParkedEventsService]:
    from waybill.services import opened_parked_events
    from waybill.settings import Settings

    return opened_parked_events(Settings())


def _opened() -> AbstractContextManager[Parking]:
    from waybill.settings import Settings

    return _parking(Settings())


@app.command("list")
@takes(ParkedFilter, flags=_FLAGS)
def list_partitions(
    request: ParkedFilter,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Include partitions with nothing left to decide.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the partitions that hold parked or quarantined events, with their numbers.

    Messages about events with personal fields are masked; `sample --personal` shows them.
    """
    from waybill.cli import parked_views

    with _desk() as desk:
        wanted = _filter(desk.parking, request, kept=not everything)
        found = desk.masked(desk.parking.partitions(wanted))
    if as_json:
        _print_json([partition.to_json() for partition in found])
    elif found:
        parked_views.table(found)
    else:
        parked_views.nothing(wanted, everything=everything)


@app.command()
@takes(ParkedFilter, flags=_FLAGS, without=(*_PARKED_WINDOW, "fingerprint"))
def show(
    request: ParkedFilter,
    *,
    as_json: AsJson = False,
) -> None:
    """Show partitions one by one: causes, objects, what the error means and what to do.

    Messages are masked as `list` does.
    """
    from waybill.cli import parked_views
    from waybill.events import error_type as catalogued

    with _desk() as desk:
        wanted = _filter(desk.parking, request)
        found = desk.masked(_some(desk.parking, wanted))
        shown = found if as_json else found[:_MOST_SHOWN]
        causes = desk.causes(shown)
        most = _MOST_KEYS if as_json else parked_views.MOST_KEYS + 1
        keys = {one.id: desk.parking.object_keys(one.id, limit=most) for one in shown}
    if as_json:
        _print_json(
            [
                partition.to_json()
                | {"error": asdict(catalogued(partition.error_type))}
                | {"causes": [cause.to_json() for cause in causes[partition.id]]}
                | {"objects": keys[partition.id]}
                for partition in found
            ]
        )
        return
    for partition in shown:
        parked_views.panel(partition, causes[partition.id], keys[partition.id])
    if len(found) > _MOST_SHOWN:
        typer.echo(f"and {len(found) - _MOST_SHOWN} more; narrow the filters")


@app.command()
@takes(ParkedFilter, flags=_FLAGS, without=(*_WINDOW, *_PARKED_WINDOW))
def sample(
    request: ParkedFilter,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="How many.")] = 5,
    *,
    personal: Unmasked = False,
    as_json: AsJson = False,
) -> None:
    """Show some parked events next to their errors, spread over what is parked.

    Fields that the pipeline declares as personal are masked, also where messages quote them.
    """
    from waybill.cli import parked_views
    from waybill.parking import Damage

    with _desk() as desk:
        found = _some(desk.parking, _filter(desk.parking, request, held=True))
        damage = Damage()
        events = desk.sampled(
            found,
            number,
            who=_user(),
            personal=personal,
            damage=damage,
            fingerprint=request.fingerprint,
        )
    if as_json:
        typer.echo(b"[" + b",".join(event.to_line() for event in events) + b"]")
    else:
        for event in events:
            parked_views.event(event)
    _tell_damage(damage)


@app.command()
@takes(ParkedFilter, flags=_FLAGS, without=_PARKED_WINDOW)
def download(
    request: ParkedFilter,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File: .jsonl.zst, .jsonl or .csv.")
    ],
    *,
    personal: Unmasked = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write parked events, with their errors, to a file.

    Fields that the pipeline declares as personal are masked, also where messages quote them; all
    other events, and with --personal these too, keep their own bytes. What cannot be read is named
    at the file's end and on standard error, and the exit code is 1.
    """
    from waybill.parking import Damage, export

    with _desk() as desk:
        found = _some(desk.parking, _filter(desk.parking, request, held=True))
        damage = Damage()
        events = desk.taken_out(
            found,
            who=_user(),
            personal=personal,
            since=request.since,
            until=request.until,
            damage=damage,
            fingerprint=request.fingerprint,
        )
        report = export(output, events, overwrite=force, damage=damage)
    if as_json:
        _print_json(asdict(report))
    else:
        typer.echo(f"{report.path}: {counted(report.events, 'event')}, {report.bytes:,} bytes")
    _tell_damage(damage)


def _tell_damage(damage: Damage) -> None:
    """Say on standard error what was left out, and exit with 1; nothing where nothing was."""
    for one in damage.listed:
        typer.echo(one.words, err=True)
    if damage.segments:
        raise typer.Exit(1)


def _decision(
    verb: Literal["discard", "undo_discard"], question: str, done: str, left: str
) -> Callable[..., None]:
    """Return the command that decides on what matches, or takes the decision back."""

    @takes(ParkedFilter, flags=_FLAGS)
    def decide(
        request: ParkedFilter,
        why: Why,
        who: Who = None,
        *,
        all_pipelines: AllPipelines = False,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:
        from waybill.cli import parked_views

        _require_scope(request.pipeline, all_pipelines=all_pipelines)
        with _opened() as parking:
            wanted = _filter(parking, request)
            if not yes:
                found = _some(parking, wanted)
                number = sum(p.parked if verb == "discard" else p.discarded for p in found)
                if number or as_json:
                    _ask(question.format(number), as_json=as_json)
            report = getattr(parking, verb)(wanted, decision(who, why))
        if as_json:
            _print_json(report.to_json())
        else:
            parked_views.decided(report, done, left)

    return decide


app.command("discard", help="Discard parked events; can be undone until the clean-up has run.")(
    _decision(
        "discard",
        "Discard up to {:,} parked events?",
        "discarded",
        "left {} in {} as they are: damaged where the window cuts through, or parked meanwhile",
    )
)
app.command("undo-discard", help="Undo a discard, for events that are not cleaned up yet.")(
    _decision(
        "undo_discard",
        "Park up to {:,} discarded events again?",
        "parked again",
        "came too late for {} in {}: a clean-up has claimed or deleted them, or they are damaged "
        "where the window cuts through",
    )
)


def _require_scope(pipeline: str | None, *, all_pipelines: bool) -> None:
    """Refuse to reach into every team's pipelines unless that is said.

    Raises:
        InputError: neither a pipeline nor --all-pipelines is given, or both are.
    """
    from waybill.errors import InputError

    if pipeline is None and not all_pipelines:
        raise InputError(
            "no pipeline was given: name one, or say --all-pipelines to mean those of all teams"
        )
    if pipeline is not None and all_pipelines:
        raise InputError(f"--all-pipelines contradicts pipeline {pipeline!r}: give one of them")


def _filter(
    parking: Parking, request: ParkedFilter, *, held: bool = False, kept: bool = False
) -> ParkedGroupFilter:
    parking.require_names(request.stage, request.error_type)
    name = request.pipeline
    pipeline_id = None if name is None else parking.pipeline_id(name)
    return request.partitions(pipeline_id, held=held, kept=kept)


def _some(parking: Parking, wanted: ParkedGroupFilter) -> list[ParkedGroup]:
    """Return the partitions that match.

    Raises:
        InputError: none does; names the names that were given.
    """
    from waybill.errors import InputError

    found = parking.partitions(wanted)
    if not found:
        given = ", ".join(f"{n}={v}" for n, v in wanted.to_json().items() if n != "held")
        what = "holds parked events" if wanted.held else "exists"
        raise InputError(
            f"no partition {what} for {given or 'any pipeline'}; `waybill parked list --all` "
            "shows what there is"
        )
    return found


def _ask(question: str, *, as_json: bool) -> None:
    from waybill.errors import InputError

    if as_json:
        raise InputError("--json asks no questions: add --yes")
    typer.confirm(question, abort=True)


def _user() -> str:
    from waybill.services import current_user

    return current_user()


def _print_json(value: Any) -> None:
    import orjson

    typer.echo(orjson.dumps(value))
