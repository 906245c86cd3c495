"""``waybill parked replay``: launch a replay run in Airflow, or dry-run one here."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.options import takes
from waybill.replay import ReplayRequest

if TYPE_CHECKING:
    from waybill.parking import ParkedGroup
    from waybill.replay import ReplayOutcome
    from waybill.settings import Settings

_FOLLOW_S = 3600.0
_INTERRUPTED = 130


@takes(
    ReplayRequest,
    flags={
        "event_name": ("--event-name", "-e"),
        "stage": ("--stage", "-s"),
        "error_type": ("--error-type", "-t"),
        "rate_per_s": ("--rate",),
        "max_events": ("--limit",),
    },
    without=("governed", "sample"),
)
def replay(
    request: ReplayRequest,
    *,
    proposed: Annotated[
        Path | None,
        typer.Option(help="With --dry-run: a folder with the pipeline as it would be deployed."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait, after the run, for what became of its events."),
    ] = 60.0,
    ungoverned: Annotated[
        bool, typer.Option(help="Do not throttle, even if live traffic has to wait.")
    ] = False,
    follow: Annotated[bool, typer.Option(help="Wait for the run's end.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a parked partition by an Airflow run, or dry-run it (see also `dry-run`)."""
    import orjson

    from waybill.errors import InputError
    from waybill.services import replayable
    from waybill.settings import Settings

    settings = Settings()
    request.conditions.check()
    if proposed is not None and not request.dry_run:
        raise InputError("--proposed needs --dry-run; to replay with it, deploy it first")
    found = replayable(settings, request)
    if request.dry_run:
        from waybill.cli.dry_runs import report_dry_run

        report_dry_run(settings, request.as_dry_run(proposed=proposed), as_json=as_json)
        return
    conf = request.model_dump(mode="json", exclude={"dry_run", "sample"})
    conf["governed"] = not ungoverned
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
    settings: Settings, partition: ParkedGroup, run_id: str, state: str, *, wait_s: float
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
    partition: ParkedGroup,
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
    names = f"{quote(partition.pipeline)} --event-name {quote(partition.event_name)}"
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
