"""``waybill pipelines holds|hold|release``: pipelines whose events wait, and letting them go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.options import Who, Why, decision

if TYPE_CHECKING:
    from waybill.parking import Hold

Name = Annotated[str, typer.Argument(help="The pipeline, by name or id.")]
_SEND_BACK = frozenset({"probe_held_pipelines", "replay"})
"""DAGs: the first finds what waits after a release, the other sends it."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def holds(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Include those that are over.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipelines that are held, and why.

    Messages about events of pipelines with personal fields are masked.
    """
    from waybill.services import opened_parked_events
    from waybill.settings import Settings

    with opened_parked_events(Settings()) as desk:
        found = desk.masked_holds(desk.parking.holds(active=not everything))
    if as_json:
        _print_json([hold.to_json() for hold in found])
        return
    for one in found:
        _show(one)
    if not found:
        typer.echo("No pipeline is held.")


def hold(name: Name, why: Why, who: Who = None, *, as_json: AsJson = False) -> None:
    """Hold a pipeline: its events wait, as they came, until somebody releases it."""
    _change("hold", name, who, why, as_json=as_json)


def release(name: Name, why: Why, who: Who = None, *, as_json: AsJson = False) -> None:
    """Let a held pipeline go on; what waits is replayed by the DAG probe_held_pipelines."""
    _change("release", name, who, why, as_json=as_json)


def _change(verb: str, name: str, who: str | None, why: str, *, as_json: bool) -> None:
    from waybill.services import opened_parked_events
    from waybill.settings import Settings

    with opened_parked_events(Settings()) as desk:
        changed: Hold = getattr(desk.parking, verb)(name, decision(who, why))
        [done] = desk.masked_holds([changed])
    if as_json:
        _print_json(done.to_json())
    elif verb == "hold":
        typer.echo(f"{done.pipeline}: held from its next batch on")
    else:
        typer.echo(f"{done.pipeline}: released; {_goes_back()}")


def _goes_back() -> str:
    """Return when what waits goes back, by whether the DAGs that do it are on."""
    from waybill.cli.airflow_client import AirflowClient
    from waybill.errors import WaybillError
    from waybill.settings import Settings

    try:
        with AirflowClient(Settings().airflow, patience_s=0.0) as client:
            paused = sorted(_SEND_BACK.intersection(client.paused_upkeep()))
    except WaybillError as error:
        return f"what waits goes back once the DAG probe_held_pipelines has run ({error})"
    if paused:
        return f"what waits stays until you unpause in Airflow: {', '.join(paused)}"
    return "what waits goes back within a minute or two"


def _show(one: Hold) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    lines = [f"{one.pipeline}: held since {one.held_at:%Y-%m-%d %H:%M} by {one.held_by}"]
    lines += _why(one)
    if one.last_probe is not None:
        lines.append(f"  probe {one.probes}: {_probed(one.last_probe)}")
    if one.released_at is not None:
        lines.append(f"  released {one.released_at:%Y-%m-%d %H:%M} by {one.released_by}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _why(one: Hold) -> list[str]:
    cause = one.cause
    if not one.is_storm:
        return [f"  {cause['why']}", "  released only by hand: waybill pipelines release"]
    place = f" at {cause['place']}" if cause["place"] else ""
    return [
        f"  {cause['failed']:,} of {cause['events']:,} events would have been parked: "
        f"{cause['stage']}/{cause['error_type']}{place}",
        f"  {cause['message']}",
    ]


def _probed(said: dict[str, Any]) -> str:
    numbers = f"{said['would_pass']:,} of {said['events']:,} pass" if "events" in said else ""
    return ", ".join(part for part in (said["outcome"], numbers, said["version"]) if part)


def _print_json(value: Any) -> None:
    import orjson

    typer.echo(orjson.dumps(value).decode())
