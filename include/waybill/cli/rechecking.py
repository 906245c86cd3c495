"""``waybill parked recheck``: park damaged segments again whose bytes are right again."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.cli.deciding import Who, decision
from waybill.cli.words import counted


def recheck(
    pipeline: Annotated[
        str | None, typer.Argument(help="Pipeline, by name or id; none: all.", show_default=False)
    ] = None,
    who: Who = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Look at quarantined events again; those whose files are mended are parked again."""
    import orjson  # noqa: PLC0415

    from waybill.settings import Settings  # noqa: PLC0415
    from waybill.wiring import recheck_quarantine  # noqa: PLC0415

    report = recheck_quarantine(Settings(), decision(who), pipeline=pipeline)
    if as_json:
        typer.echo(orjson.dumps(report.to_json()).decode())
    else:
        typer.echo(f"{counted(report.events, 'event')} parked again")
        for reason, number in sorted(report.reasons.items()):
            typer.echo(f"still quarantined: {counted(number, 'segment')}: {reason}")
    if report.left_segments:
        raise typer.Exit(1)
