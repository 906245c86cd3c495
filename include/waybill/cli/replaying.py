"""``waybill parked replay``: launch a replay run in Airflow, or dry-run one here."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from waybill.operations.dry_run import DryRunReport
    from waybill.settings import Settings

_FOLLOW_S = 3600.0


def replay(  # noqa: PLR0913, PLR0917 - a partition has four names, a replay its conditions
    pipeline: Annotated[str, typer.Argument(help="Pipeline, by name or id.")],
    event_name: Annotated[str, typer.Option("--event-name", "-e")],
    stage: Annotated[str, typer.Option("--stage", "-s")],
    error_type: Annotated[str, typer.Option("--error-type", "-t")],
    since: Annotated[datetime | None, typer.Option(help="Event time from (UTC).")] = None,
    until: Annotated[datetime | None, typer.Option(help="Event time before (UTC).")] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Most events a second.")] = None,
    proposed: Annotated[
        Path | None,
        typer.Option(help="With --dry-run: a folder with the pipeline as it would be deployed."),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option(help="Say what would pass; write nothing.")] = False,
    follow: Annotated[bool, typer.Option(help="Wait for the run's end.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Send a parked partition back, by an Airflow run; or dry-run it."""
    from waybill.errors import InputError  # noqa: PLC0415
    from waybill.settings import Settings  # noqa: PLC0415

    settings = Settings()
    window = [None if m is None else m.replace(tzinfo=UTC) for m in (since, until)]
    partition = {
        "pipeline": pipeline,
        "event_name": event_name,
        "stage": stage,
        "error_type": error_type,
    }
    if proposed is not None and not dry_run:
        raise InputError("--proposed needs --dry-run; to replay with it, deploy it first")
    if dry_run:
        _dry_run(settings, partition, window, proposed, as_json=as_json)
        return
    conf: dict[str, Any] = dict(partition)
    conf |= {
        name: None if moment is None else moment.isoformat()
        for name, moment in zip(("since", "until"), window, strict=True)
    }
    conf["rate_per_s"] = rate
    _launch(settings, conf, follow=follow, as_json=as_json)


def _dry_run(
    settings: Settings,
    partition: dict[str, str],
    window: list[datetime | None],
    proposed: Path | None,
    *,
    as_json: bool,
) -> None:
    import orjson  # noqa: PLC0415

    from waybill.wiring import run_dry_run  # noqa: PLC0415

    report = run_dry_run(
        settings,
        pipeline=partition["pipeline"],
        event_name=partition["event_name"],
        stage=partition["stage"],
        error_type=partition["error_type"],
        proposed=proposed,
        since=window[0],
        until=window[1],
    )
    if as_json:
        typer.echo(orjson.dumps(report.to_json()).decode())
        return
    _show(report, partition)


def _show(report: DryRunReport, partition: dict[str, str]) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False)
    style = "green" if report.would_pass == report.events else "yellow"
    console.print(
        f"[bold]{report.pipeline}[/] version {report.version} over {partition['stage']}/"
        f"{partition['error_type']}: [bold {style}]{report.would_pass:,} of {report.events:,} "
        "would pass[/]"
    )
    if report.would_filter:
        console.print(f"  {report.would_filter:,} would be filtered on purpose")
    for way, number in sorted(report.would_fail.items(), key=lambda item: -item[1]):
        console.print(f"  {number:,} would fail: {way} — {report.examples[way]}", markup=False)
    console.print("[dim]nothing was written[/]")


def _launch(settings: Settings, conf: dict[str, Any], *, follow: bool, as_json: bool) -> None:
    import orjson  # noqa: PLC0415

    from waybill.cli.airflow_client import AirflowClient  # noqa: PLC0415

    with AirflowClient(settings.airflow) as client:
        client.unpause("replay")
        run_id = f"cli__{conf['pipeline']}__{conf['error_type']}__{time.time_ns() // 1_000_000}"
        client.trigger("replay", run_id, conf)
        state = client.follow("replay", run_id, limit_s=_FOLLOW_S) if follow else "queued"
    if as_json:
        typer.echo(orjson.dumps({"dag_id": "replay", "run_id": run_id, "state": state}).decode())
    else:
        typer.echo(f"replay run {run_id}: {state}")
    if state == "failed":
        raise typer.Exit(1)
