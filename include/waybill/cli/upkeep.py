"""``waybill upkeep list|pause|resume``: the jobs that run each minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, decision
from waybill.cli.output import plain, print_folded, print_json
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import Column, Styled, Table, ago, clock, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from waybill.upkeep import JobRecord

app = typer.Typer(no_args_is_help=True, help="The jobs that run each minute: list, pause, resume.")

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Of `waybill upkeep list`.")]
_WORDS = {
    ("audit", "number"): "round {}",
    ("audit", "looked_at"): "minutes checked",
    ("audit", "balanced"): "in balance",
    ("audit", "moving"): "on the way",
    ("audit", "breaches"): "with a breach",
    ("audit", "opened"): "breaches opened",
    ("audit", "named"): "breaches with their events named",
    ("tell_owners", "messages"): "messages sent",
    ("tell_owners", "failed"): "messages not taken",
    ("coordinate", "version"): "version {} of the assignment",
    ("coordinate", "growths"): "topics grown",
    ("coordinate", "problems"): "problems",
    ("coordinate", "said"): "problem",
    ("measure_delays", "waiting"): "tasks waiting",
    ("measure_delays", "running"): "tasks running",
    ("measure_delays", "p95_s"): "95 % waited at most {} s",
    ("measure_delays", "oldest_s"): "the longest {} s",
    ("probe_held_pipelines", "held"): "pipelines held",
    ("probe_held_pipelines", "to_replay"): "groups to replay",
    ("scale_nodes", "version"): "version {} of the node counts",
    ("scale_nodes", "removed"): "nodes removed",
    ("seal_audit_log", "seals"): "seals made",
    ("seal_audit_log", "entries"): "entries sealed",
    ("auto_replay", "due"): "replays due",
}
"""Of the numbers of a job's outcome; others are called by their names."""
_COUNTED = {
    plural: (plural.replace(many, single, 1).replace("their", "its"), plural)
    for many, single, plurals in (
        ("minutes", "minute", ("minutes checked",)),
        ("breaches", "breach", ("breaches opened", "breaches with their events named")),
        ("messages", "message", ("messages", "messages sent", "messages not taken")),
        ("topics", "topic", ("topics grown",)),
        ("tasks", "task", ("tasks waiting", "tasks running")),
        ("pipelines", "pipeline", ("pipelines held",)),
        ("groups", "group", ("groups to replay",)),
        ("nodes", "node", ("nodes removed",)),
        ("replays", "replay", ("replays due",)),
        ("seals", "seal", ("seals made",)),
        ("entries", "entry", ("entries sealed",)),
        ("s", "", ("notices", "moves", "problems", "probes")),
    )
    for plural in plurals
}
"""Words of a number -> (of one, of more)."""
_COLOURS = {"ok": "green", "running": "green", "failing": "bold red", "late": "bold red"}


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
        print_table(_job_table(found), problems(found))
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
        last = ago(one.succeeded_at)
        since = "never succeeded" if one.succeeded_at is None else f"last succeeded {last}"
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
        since = f"{clock(found.paused_at)} UTC by {found.paused_by}"
        by_hand = f"a run of the DAG {found.job} by hand still runs it"
        print_folded([f"{found.job} is paused, since {since}; {by_hand}"])
    else:
        print_folded([f"{found.job} is not paused"])


def _job_table(found: Sequence[JobRecord]) -> Table:
    return Table(
        (Column("job"), Column("state"), Column("last success"), Column("outcome", "words")),
        [
            (
                one.job,
                Styled(one.state, _COLOURS.get(one.state, "yellow")),
                ago(one.succeeded_at),
                ", ".join(_outcome(one)) or None,
            )
            for one in found
        ],
        "no job of upkeep has run yet: the DAG upkeep starts them",
    )


def _outcome(one: JobRecord) -> Iterator[str]:
    known = [name for job, name in _WORDS if job == one.job and name in one.outcome]
    for name in dict.fromkeys((*known, *one.outcome)):
        value = one.outcome[name]
        words = _WORDS.get((one.job, name), name.replace("_", " "))
        if value is True:
            yield words
        elif isinstance(value, int | float) and value:
            yield _number(value, words)
        elif isinstance(value, list):
            yield from (f"{words}: {one}" for one in value)
        elif value:
            yield f"{words}: {value}"


def _number(value: float, words: str) -> str:
    """Return a number with what it is of: "1 notice", "2 notices", "round 4"."""
    if "{}" in words:
        return words.format(f"{value:,}")
    if words in _COUNTED:
        singular, plural = _COUNTED[words]
        return f"{value:,} {singular if value == 1 else plural}"
    return f"{value:,} {words}"
