"""Objects that are gone: ``waybill parked recheck|lost``, ``destination lost|settle-lost``."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.command import DEPLOYED, DESTINATION
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, ask, decision
from waybill.cli.output import counted, echo, plain, print_folded, print_json, print_line
from waybill.cli.promises import tell_hindrances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.recovery import LostIds, LostParked


_NOBODY_REBUILDS = "nobody makes them again"
Recover = Annotated[bool, typer.Option("--recover", help="Rebuild them from Kafka first.")]
Ids = Annotated[
    bool, typer.Option("--ids", help="Name the events, from their traces; takes longer.")
]


def recheck(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar=DEPLOYED, help="Pipeline, by name or id; none: all.", show_default=False
        ),
    ] = None,
    who: Who = None,
    *,
    object_key: Annotated[
        str | None, typer.Option("--object", help="Read this whole object and report its state.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check quarantined events again; those whose files are restored are parked again.

    Names the files of other parked events that are gone. Exit code 2 if something is not right.
    """
    from waybill.services import recheck_quarantine
    from waybill.settings import Settings

    report = recheck_quarantine(Settings(), decision(who), pipeline=pipeline, object_key=object_key)
    if as_json:
        print_json(report.to_json())
    else:
        echo(f"{counted(report.events, 'event')} parked again")
        for reason, number in sorted(report.reasons.items()):
            parts = "1 part of a file" if number == 1 else f"{number:,} parts of files"
            print_folded([f"still quarantined: {parts}: {reason}"])
        for one in report.objects:
            echo(plain(one.words))
        if object_key is None and report.objects:
            echo("`watch` quarantines them, and makes them again from Kafka if it can")
    if report.left_segments or any(one.state != "present" for one in report.objects):
        raise typer.Exit(ExitCode.FOUND)


def lost_parked_events(
    *,
    recover: Recover = False,
    ids: Ids = False,
    as_json: AsJson = False,
) -> None:
    """List events whose files are missing or damaged. Upkeep rebuilds them each minute."""
    from waybill.services import (
        lost_parked,
        lost_parked_ids,
        recover_lost_parked,
    )
    from waybill.settings import Settings

    settings = Settings()
    done = recover_lost_parked(settings, again=True) if recover else None
    found = lost_parked(settings)
    named = lost_parked_ids(settings, found) if ids else []
    unrecoverable = sum(one.unrecoverable for one in found)
    if as_json:
        recovery = {} if done is None else {"recovery": done.to_json()}
        lines = _with_ids([one.to_json() for one in found], named)
        listed = {"lost": lines, "unrecoverable": unrecoverable}
        print_json({**recovery, **listed})
        return
    if done is not None:
        echo(f"{counted(done.recovered + done.mended, 'event')} parked again")
    for place, one in enumerate(found):
        _show(one)
        _show_ids(named[place : place + 1])
    if found:
        events = counted(sum(one.events for one in found), "event")
        echo(f"{events} quarantined, {unrecoverable:,} unrecoverable")
        tell_hindrances(settings, _NOBODY_REBUILDS, jobs=["watch"])
    else:
        echo("No parked event is lost.")


def lost_staged(
    name: Annotated[
        str | None, typer.Argument(metavar=DESTINATION, help="Of one destination; else of all.")
    ] = None,
    *,
    recover: Recover = False,
    ids: Ids = False,
    as_json: AsJson = False,
) -> None:
    """List missing or damaged staged objects. Upkeep rebuilds them each minute."""
    from waybill.services import (
        lost_object_ids,
        lost_objects,
        recover_lost_objects,
    )
    from waybill.settings import Settings

    settings = Settings()
    done = recover_lost_objects(settings, again=True) if recover else None
    found = lost_objects(settings, name)
    named = lost_object_ids(settings, found) if ids else []
    if as_json:
        recovered = {} if done is None else {"recovery": done.to_json()}
        print_json({**recovered, "lost": _with_ids([one.to_json() for one in found], named)})
        return
    if done is not None:
        print_line(f"{counted(done.recovered, 'object')} made again, {counted(done.rows, 'row')}")
    for number, one in enumerate(found):
        place = f"{one.destination}, commit {one.commit_number:,}"
        ends = (
            one.not_recovered
            or "the next run of `watch` makes it again, unless its topic is stopped"
        )
        print_line(f"{place}: {counted(one.rows, 'row')}")
        for line in (one.key, one.problem, ends):
            print_line(f"  {line}")
        _show_ids(named[number : number + 1])
    if found:
        rows = counted(sum(one.rows for one in found), "row")
        print_line(f"{rows} lost, {sum(one.unrecoverable for one in found):,} unrecoverable")
        tell_hindrances(settings, _NOBODY_REBUILDS, jobs=["watch"])
    else:
        print_line("No staged object is lost.")


def settle_lost(
    name: Annotated[str, typer.Argument(metavar=DESTINATION, help="The destination's name.")],
    why: Reason,
    who: Who = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give up lost staged objects: their rows arrived another way, or are not needed."""
    from waybill.services import lost_objects, settle_lost_objects
    from waybill.settings import Settings

    settings = Settings()
    if not yes and not as_json:
        found = lost_objects(settings, name)
        rows = counted(sum(one.rows for one in found), "row")
        ask(f"Give up {counted(len(found), 'object')} with {rows}?")
    done = settle_lost_objects(settings, name, decision(who, why))
    if as_json:
        print_json([one.to_json() for one in done])
        return
    print_line(f"{name}: {counted(len(done), 'object')} given up")


def _with_ids(lines: list[dict[str, Any]], named: Sequence[LostIds]) -> list[dict[str, Any]]:
    """Return JSON with the ids of each line, where they were asked for."""
    if not named:
        return lines
    return [line | its.to_json() for line, its in zip(lines, named, strict=True)]


def _show_ids(named: Sequence[LostIds]) -> None:
    """Write the ids of one object, where they were asked for."""
    for its in named:
        known = len(its.ids)
        if its.exact:
            echo("  ids:")
        elif known > its.events:
            echo(f"  ids: {its.events:,} of these {known:,}; others of the file went on before")
        else:
            echo(f"  ids: {known:,} of {its.events:,}; the traces do not have the others")
        for event_id in its.ids:
            echo(plain(f"    {event_id}"))


def _show(one: LostParked) -> None:
    """Write what is lost of one object and partition."""
    names = (one.pipeline_id, one.event_name, one.stage, one.error_type)
    place = f"from offset {one.first_offset:,} of Kafka partition {one.kafka_partition}"
    waits = "the next run of `watch` makes it again, unless its topic is stopped"
    named = " / ".join(name or "-" for name in names)
    echo(plain(f"{named}: {counted(one.events, 'event')}"))
    commit = f"commit {one.commit_number:,}, {place}"
    for words in (one.object_key, commit, *wrap(one.problem or waits, 78)):
        echo(plain(f"  {words}"))
