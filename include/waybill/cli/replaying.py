"""``waybill parked replay``: launch a replay run in Airflow, or dry-run one here."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from waybill.parking import Partition
    from waybill.replay import ReplayOutcome
    from waybill.settings import Settings

_FOLLOW_S = 3600.0
_TIMES = ("since", "until", "parked_since", "parked_until")
_TIME = "2013-01-31, or RFC 3339; UTC without a zone"
_INTERRUPTED = 130
_Edges = tuple[datetime | None, datetime | None]


def replay(  # noqa: PLR0913, PLR0917 - a partition has four names, a replay its conditions
    pipeline: Annotated[str, typer.Argument(help="Pipeline, by name or id.")],
    event_name: Annotated[str, typer.Option("--event-name", "-e")],
    stage: Annotated[str, typer.Option("--stage", "-s")],
    error_type: Annotated[str, typer.Option("--error-type", "-t")],
    since: Annotated[str | None, typer.Option(help=f"Event time from: {_TIME}.")] = None,
    until: Annotated[str | None, typer.Option(help="Event time before; as --since.")] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Most events a second.")] = None,
    parked_since: Annotated[str | None, typer.Option(help="Parked from; as --since.")] = None,
    parked_until: Annotated[str | None, typer.Option(help="Parked before; as --since.")] = None,
    fingerprint: Annotated[str | None, typer.Option(help="Only events of this cause.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most events: the first in the order parked.")
    ] = None,
    proposed: Annotated[
        Path | None,
        typer.Option(help="With --dry-run: a folder with the pipeline as it would be deployed."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait, after the run, for what became of its events."),
    ] = 60.0,
    enter: Annotated[
        str | None,
        typer.Option(help="`transformation`: send what mapping parked as what it was made from."),
    ] = None,
    *,
    canary: Annotated[
        bool, typer.Option(help="Send 1 %, then 10 %, then all; stop when too much parks again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Say what would pass; write nothing.")] = False,
    ungoverned: Annotated[
        bool, typer.Option(help="At full speed, whatever live traffic waits for it.")
    ] = False,
    follow: Annotated[bool, typer.Option(help="Wait for the run's end.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Send a parked partition back, by an Airflow run; or dry-run it (see also `dry-run`)."""
    import orjson

    from waybill.errors import InputError
    from waybill.services import replayable
    from waybill.settings import Settings

    settings = Settings()
    window, parked = _windows((since, until), (parked_since, parked_until), fingerprint)
    partition = {
        "pipeline": pipeline,
        "event_name": event_name,
        "stage": stage,
        "error_type": error_type,
    }
    if proposed is not None and not dry_run:
        raise InputError("--proposed needs --dry-run; to replay with it, deploy it first")
    found = replayable(settings, **partition, since=window[0], until=window[1], dry_run=dry_run)
    if dry_run:
        from waybill.cli.dry_running import try_out

        try_out(
            settings,
            partition,
            (*window, *parked, fingerprint, limit),
            proposed,
            enter=enter,
            as_json=as_json,
        )
        return
    conf: dict[str, Any] = partition | {
        name: None if moment is None else moment.isoformat()
        for name, moment in zip(_TIMES, (*window, *parked), strict=True)
    }
    conf |= {"rate_per_s": rate, "fingerprint": fingerprint, "max_events": limit}
    conf |= {"canary": canary, "enter": enter, "governed": not ungoverned}
    state, run_id, reason = _launch(settings, conf, follow=follow)
    if state == "success":
        _say_waiting(wait, as_json=as_json)
    outcome = _outcome(settings, found, run_id, state, wait_s=wait)
    if as_json:
        said = {"dag_id": "replay", "run_id": run_id, "state": state, "reason": reason}
        typer.echo(orjson.dumps(said | {"outcome": outcome and outcome.to_json()}).decode())
    else:
        _tell(settings, found, run_id, state, outcome)
    if state == "failed":
        typer.echo(reason, err=True)
        raise typer.Exit(1)


def _windows(
    event: tuple[str | None, str | None],
    parked: tuple[str | None, str | None],
    fingerprint: str | None,
) -> tuple[_Edges, _Edges]:
    """Return the edges of both windows in UTC.

    Raises:
        InputError: one is no time, a window holds nothing, or the fingerprint is none.
    """
    from waybill.parking import ReplayConditions

    asked = ReplayConditions(*event, *parked, fingerprint)
    asked.check()
    return asked.window, asked.parked_window


def _launch(settings: Settings, conf: dict[str, Any], *, follow: bool) -> tuple[str, str, str]:
    """Start the run and return (its state, its id, why it failed: empty if it did not)."""
    from waybill.cli.airflow_client import AirflowClient

    with AirflowClient(settings.airflow, _warn) as client:
        client.unpause("replay")
        run_id = f"cli__{conf['pipeline']}__{conf['error_type']}__{time.time_ns() // 1_000_000}"
        client.trigger("replay", run_id, conf)
        if not follow:
            return "queued", run_id, ""
        try:
            state = client.follow("replay", run_id, limit_s=_FOLLOW_S, told=_warn)
        except KeyboardInterrupt:
            typer.echo(f"\nno longer waiting; Airflow goes on with run {run_id}", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        reason = client.left("replay", run_id, "replay", "reason") if state == "failed" else ""
    return state, run_id, str(reason or "")


def _outcome(
    settings: Settings, partition: Partition, run_id: str, state: str, *, wait_s: float
) -> ReplayOutcome | None:
    """Return what became of what a run has sent; ``None``: it goes on, or it had not begun."""
    from waybill.errors import InputError
    from waybill.services import replay_outcome

    if state not in {"success", "failed"}:
        return None
    try:
        return replay_outcome(
            settings, partition, run_id, wait_s=wait_s if state == "success" else 0.0
        )
    except InputError:
        if state == "success":
            raise
        return None


def _warn(words: str) -> None:
    typer.echo(words, err=True)


def _say_waiting(wait_s: float, *, as_json: bool) -> None:
    if wait_s and not as_json:
        typer.echo(f"sent; waiting up to {wait_s:.0f} s for what becomes of the events", err=True)


def _tell(
    settings: Settings,
    partition: Partition,
    run_id: str,
    state: str,
    outcome: ReplayOutcome | None,
) -> None:
    from rich.console import Console

    from waybill.cli.parked_views import plain

    console = Console(highlight=False)
    typer.echo(f"replay run {run_id}: {state}")
    if outcome is not None:
        for line in _outcome_lines(outcome):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    names = f"{partition.pipeline} --event-name {partition.event_name}"
    looks = [f"run: {settings.airflow.url}/dags/replay/runs/{run_id}"]
    if outcome is not None:
        looks.append(f"parked: waybill parked list {plain(names)}; the books: waybill balance")
    for line in looks:
        console.print(f"  {line}", markup=False, soft_wrap=True, style="dim")


def _outcome_lines(outcome: ReplayOutcome) -> list[str]:
    again = outcome.sent - outcome.passed - outcome.in_flight
    so_far = " so far" if outcome.waits_for else ""
    if not outcome.events:
        return ["nothing was left to send: another run has taken or sent these events"]
    lines = [
        f"{outcome.sent:,} of {outcome.events:,} events sent back: {outcome.passed:,} passed"
        f"{so_far}, {again:,} parked again{so_far}, {outcome.in_flight:,} in flight"
    ]
    if outcome.loaded:
        rows = ", ".join(f"{number:,} {name}" for name, number in sorted(outcome.loaded.items()))
        lines.append(f"rows at the destination{so_far}: {rows}")
    ways = sorted(outcome.parked_again.items(), key=lambda way: (-way[1], way[0]))
    lines += [f"{number:,} parked again: {way}" for way, number in ways]
    if outcome.waits_for == "processing":
        lines.append("still in flight: processing has not read all of them; see `waybill status`")
    elif outcome.waits_for == "loading":
        lines.append(
            "still in flight: not all that passed is loaded; the destination may park some"
        )
    return lines
