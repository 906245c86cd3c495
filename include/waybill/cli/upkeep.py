"""``waybill upkeep list|pause|resume``: the jobs that run each minute."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, decision
from waybill.cli.output import plain, print_folded, print_json, terminal
from waybill.cli.promises import tell_hindrances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.upkeep import JobRecord

app = typer.Typer(no_args_is_help=True, help="The jobs that run each minute: list, pause, resume.")

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Of `waybill upkeep list`.")]
_COLOURS = {"ok": "green", "running": "green", "failing": "bold red", "late": "bold red"}
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List the jobs: last success, what came of it, errors. Exit code 2: one fails or is late."""
    from waybill.services import upkeep_jobs
    from waybill.settings import Settings

    settings = Settings()
    found = upkeep_jobs(settings)
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        _show(found)
        if any(one.late for one in found):
            tell_hindrances(settings, "jobs are late", dags=["upkeep"])
    if any(one.state in {"failing", "late"} for one in found):
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def pause(job: JobName, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Have a job not be started by itself; one that runs ends as usual."""
    from waybill.services import pause_job
    from waybill.settings import Settings

    _told(pause_job(Settings(), job, decision(who, why)), as_json=as_json)


@app.command()
def resume(job: JobName, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Have a job be started again: within some seconds, where the DAG upkeep runs."""
    from waybill.services import resume_job
    from waybill.settings import Settings

    settings = Settings()
    _told(resume_job(settings, job, decision(who, why)), as_json=as_json)
    if not as_json:
        tell_hindrances(settings, "the job is not started yet", dags=["upkeep"])


def problems(found: Sequence[JobRecord]) -> list[str]:
    """Return a sentence for each job that fails, is late, or is paused."""
    said = []
    for one in found:
        since = "never succeeded" if one.succeeded_at is None else f"last succeeded {_ago(one)}"
        if one.state == "paused":
            said.append(f"upkeep job {one.job} is paused by {plain(one.paused_by)}")
        elif one.state == "failing":
            said.append(f"upkeep job {one.job} fails, {since}: {plain(one.error)}")
        elif one.state == "late":
            said.append(f"upkeep job {one.job} {since}")
    return said


def _told(found: JobRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
    elif found.paused_at is not None:
        since = f"{found.paused_at:%Y-%m-%d %H:%M} UTC by {found.paused_by}"
        by_hand = f"a run of the DAG {found.job} by hand still runs it"
        print_folded([f"{found.job} is paused, since {since}; {by_hand}"])
    else:
        print_folded([f"{found.job} is not paused"])


def _show(found: Sequence[JobRecord]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("job", no_wrap=True)
    grid.add_column("state", no_wrap=True)
    grid.add_column("last success", no_wrap=True)
    grid.add_column("outcome", overflow="fold")
    for one in found:
        state = Text(one.state, _COLOURS.get(one.state, "yellow"))
        outcome = " ".join(f"{name}={value}" for name, value in one.outcome.items() if value)
        grid.add_row(one.job, state, _ago(one), Text(plain(outcome)))
    terminal().print(grid)
    print_folded(problems(found))


def _ago(one: JobRecord) -> str:
    """Return how long ago a job succeeded last, in its largest unit."""
    if one.succeeded_at is None:
        return "never"
    seconds = max(0.0, (datetime.now(UTC) - one.succeeded_at).total_seconds())
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
