"""``waybill parked auto-replay``: mark a partition to replay when its cause changes."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.cli.options import Who, decision, takes
from waybill.parking import ParkedGroupRequest


@takes(
    ParkedGroupRequest,
    flags={
        "event_name": ("--event-name", "-e"),
        "stage": ("--stage", "-s"),
        "error_type": ("--error-type", "-t"),
    },
)
def auto_replay(
    request: ParkedGroupRequest,
    on: Annotated[
        str,
        typer.Option(
            help="version: a new version of the pipeline is active; destination: it answers again "
            "after it was away; any: either."
        ),
    ] = "any",
    who: Who = None,
    *,
    off: Annotated[bool, typer.Option("--off", help="Stop replaying it automatically.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a partition automatically, canary first, once what made it park has changed."""
    import orjson

    from waybill.services import set_auto_replay
    from waybill.settings import Settings

    mark = set_auto_replay(
        Settings(),
        decision(who),
        request,
        on_change=None if off else on,
    )
    if as_json:
        typer.echo(orjson.dumps(None if mark is None else mark.to_json()).decode())
        return
    name = "/".join(request.names.values())
    if mark is None:
        typer.echo(f"{name} is replayed by hand only")
        return
    changes = {
        "version": "a new version of the pipeline is active",
        "destination": "its destination answers again after it was away",
        "any": "a new version of the pipeline is active, or its destination answers again",
    }
    typer.echo(
        f"{name} is replayed by itself when {changes[mark.on_change]} (looked at every minute by "
        "the DAG auto_replay, which must not be paused)"
    )
