"""``waybill parked recheck|lost``: parked events whose files are damaged or gone."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.options import Who, decision
from waybill.cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.recovery import LostIds, LostParked


def recheck(
    pipeline: Annotated[
        str | None, typer.Argument(help="Pipeline, by name or id; none: all.", show_default=False)
    ] = None,
    who: Who = None,
    *,
    object_key: Annotated[
        str | None, typer.Option("--object", help="Read this whole object and report its state.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check quarantined events again; those whose files are restored are parked again.

    Names the files of other parked events that are gone. Exit code 1 if something is not right.
    """
    import orjson

    from waybill.cli.parked_views import plain
    from waybill.services import recheck_quarantine
    from waybill.settings import Settings

    report = recheck_quarantine(Settings(), decision(who), pipeline=pipeline, object_key=object_key)
    if as_json:
        typer.echo(orjson.dumps(report.to_json()).decode())
    else:
        typer.echo(f"{counted(report.events, 'event')} parked again")
        for reason, number in sorted(report.reasons.items()):
            typer.echo(f"still quarantined: {counted(number, 'segment')}: {reason}")
        for one in report.objects:
            typer.echo(plain(one.words))
        if object_key is None and report.objects:
            typer.echo("`watch` quarantines them, and makes them again from Kafka if it can")
    if report.left_segments or any(one.state != "present" for one in report.objects):
        raise typer.Exit(1)


def lost(
    *,
    recover: Annotated[
        bool, typer.Option("--recover", help="Rebuild them from Kafka first.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Name the events, from their traces; takes longer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List events whose files are missing or damaged. The DAG `watch` rebuilds them each minute."""
    import orjson

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
        lines = with_ids([one.to_json() for one in found], named)
        listed = {"lost": lines, "unrecoverable": unrecoverable}
        typer.echo(orjson.dumps({**recovery, **listed}).decode())
        return
    if done is not None:
        typer.echo(f"{counted(done.recovered + done.mended, 'event')} parked again")
    for place, one in enumerate(found):
        _show(one)
        show_ids(named[place : place + 1])
    if found:
        events = counted(sum(one.events for one in found), "event")
        typer.echo(f"{events} quarantined, {unrecoverable:,} unrecoverable")
    else:
        typer.echo("No parked event is lost")


def with_ids(lines: list[dict[str, Any]], named: Sequence[LostIds]) -> list[dict[str, Any]]:
    """Return JSON with the ids of each line, where they were asked for."""
    if not named:
        return lines
    return [line | its.to_json() for line, its in zip(lines, named, strict=True)]


def show_ids(named: Sequence[LostIds]) -> None:
    """Write the ids of one object, where they were asked for."""
    from waybill.cli.parked_views import plain

    for its in named:
        known = len(its.ids)
        if its.exact:
            typer.echo("  ids:")
        elif known > its.events:
            typer.echo(
                f"  ids: {its.events:,} of these {known:,}; others of the file went on before"
            )
        else:
            typer.echo(f"  ids: {known:,} of {its.events:,}; the traces do not have the others")
        for event_id in its.ids:
            typer.echo(plain(f"    {event_id}"))


def _show(one: LostParked) -> None:
    """Write what is lost of one object and partition."""
    from waybill.cli.parked_views import plain

    names = (one.pipeline_id, one.event_name, one.stage, one.error_type)
    place = f"from offset {one.first_offset:,} of Kafka partition {one.kafka_partition}"
    waits = "made again by the next watch, once its topic is not stopped"
    named = " / ".join(name or "-" for name in names)
    typer.echo(plain(f"{named}: {counted(one.events, 'event')}"))
    commit = f"commit {one.commit_number:,}, {place}"
    for words in (one.object_key, commit, *wrap(one.problem or waits, 78)):
        typer.echo(plain(f"  {words}"))
