"""``waybill parked replay|auto-replay|dry-run``: parked events are sent back, or tried.

Messages and values come from users: they are never read as markup, and control characters are
shown, not sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field
from rich.console import Console
from rich.text import Text

from waybill.cli.command import tell_taken
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import PARTITION_FLAGS, AsJson, Who, decision, takes
from waybill.cli.output import (
    counted,
    echo,
    folded_text,
    plain,
    print_folded,
    print_json,
    screen_width,
    terminal,
)
from waybill.cli.pipeline_versions import deployed_meanwhile, tell_active
from waybill.cli.promises import UNPAUSE, require_unpaused, tell_hindrances
from waybill.cli.tables import Column, Styled, Table, print_table
from waybill.errors import InputError
from waybill.nearest_name import shown_name
from waybill.parking import ParkedGroupRequest
from waybill.replay import DryRunRequest, ReplayRequest

if TYPE_CHECKING:
    from waybill.deployment import DeployedVersion
    from waybill.parking import ParkedGroup
    from waybill.replay import DryRunReport, GoodReport, Remedy, ReplayOutcome
    from waybill.settings import Settings
_FOLLOW_S = 3600.0
_GROUP_NAMES = ("event_name", "stage", "error_type")
_INTERRUPTED = 130
_MOST_CHOICES = 10
_MOST_GROUPS = 12
_MESSAGE_CHARS = 200
_VALUE_CHARS = 60
_ALL, _NONE = 1.0, 0.0
_SEVERAL = 2
_WAY_OUT = (
    "what to do: each minute the job `watch` makes what is gone again from Kafka, and what a "
    "replay found damaged; `waybill parked lost` says what stays lost; restore those files, then "
    "`waybill parked recheck`"
)


def _names_of_group(values: Mapping[str, Any], **_own: Any) -> dict[str, Any]:
    """Return the fields of a request; a name that was left out is the only one there is.

    Args:
        values: what was given of the fields.

    Raises:
        InputError: no group holds events, or a name may be one of several; says which there are.
    """
    given = {name: value for name, value in values.items() if value is not None}
    missing = [name for name in _GROUP_NAMES if name not in given]
    if not missing:
        return given
    groups = _held_groups(given)
    choices = {name: sorted({getattr(one, name) for one in groups}) for name in missing}
    if questions := [_question(name, found) for name, found in choices.items() if len(found) > 1]:
        raise InputError("\n".join(questions))
    for name, (choice,) in choices.items():
        given[name] = choice
        tell_taken(name.replace("_", " "), choice)
    return given


def _question(name: str, choices: Sequence[str]) -> str:
    """Ask for a name of which there are several."""
    shown = [shown_name(one) or "(empty)" for one in choices]
    last = shown[-1]
    if len(shown) > _MOST_CHOICES:
        shown, last = shown[:_MOST_CHOICES], f"one of {len(shown) - _MOST_CHOICES:,} more"
    else:
        del shown[-1]
    option = PARTITION_FLAGS[name][0]
    return f"which {name.replace('_', ' ')}? {', '.join(shown)} or {last}: give {option}"


def _held_groups(given: Mapping[str, Any]) -> list[ParkedGroup]:
    """Return the groups of a pipeline that hold events and have the names that were given.

    Raises:
        InputError: there is none.
    """
    from waybill.parking import ParkedGroupFilter
    from waybill.services import opened_parking
    from waybill.settings import Settings

    names = {name: given[name] for name in _GROUP_NAMES if name in given}
    with opened_parking(Settings()) as parking:
        parking.require_names(names.get("stage"), names.get("error_type"))
        pipeline_id = parking.pipeline_id(given["pipeline"])
        found = parking.partitions(ParkedGroupFilter(pipeline_id=pipeline_id, held=True, **names))
    if not found:
        raise InputError(
            f"nothing of {shown_name(given['pipeline'])} is parked that matches; `waybill parked"
            " list --all` shows what there is"
        )
    return found


class _ReplayCommand(ReplayRequest):
    """A replay of a group, or its dry run."""

    proposed: Path | None = Field(
        None,
        description="With --dry-run: folder, or name, of the pipeline as it would be.",
    )
    unpause: bool = Field(default=False, description=UNPAUSE)


@takes(
    _ReplayCommand,
    flags={
        **PARTITION_FLAGS,
        "rate_per_s": ("--rate",),
        "max_events": ("--limit",),
    },
    without=("governed", "sample"),
    complete=_names_of_group,
)
def replay(
    request: _ReplayCommand,
    *,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait, after the run, for what became of its events."),
    ] = 60.0,
    ungoverned: Annotated[
        bool,
        typer.Option("--ungoverned", help="Do not throttle, even if live traffic has to wait."),
    ] = False,
    follow: Annotated[bool, typer.Option(help="Wait for the run's end.")] = True,
    as_json: AsJson = False,
) -> None:
    """Replay a parked group by an Airflow run, or dry-run it (see also `dry-run`).

    Many groups, or all of a pipeline: `waybill campaigns start`.

    The DAG `replay`, if it is paused, stays so, and nothing is sent, without --unpause.

    Exit code 0: all events passed, or were filtered. 2: some were parked again, were lost, or are
    still on their way after --wait; with --wait 0, or --no-follow, nobody waits for that. 2 also
    where nothing was left to send: another run had taken or sent these events.
    """
    from waybill.services import replayable
    from waybill.settings import Settings

    settings = Settings()
    request.conditions.check()
    require_dry_run(request.proposed, is_dry_run=request.dry_run)
    if request.dry_run:
        report_dry_run(settings, request.as_dry_run(proposed=request.proposed), as_json=as_json)
        return
    found = replayable(settings, request)
    active = tell_active(settings, found.pipeline_id, "replayed")
    _tell_entry(settings, found, request)
    conf = request.model_dump(mode="json", exclude={"dry_run", "sample", "proposed", "unpause"})
    conf["governed"] = not ungoverned
    state, run_id, reason = _launch(settings, conf, follow=follow, unpause=request.unpause)
    if not (follow or as_json):
        tell_hindrances(settings, "the run waits", dags=["replay"], is_asked_for=True)
    if state == "success":
        _say_waiting(wait, as_json=as_json)
    outcome = _outcome(settings, found, run_id, state, wait_s=wait)
    newer = deployed_meanwhile(found.pipeline_id, active)
    if as_json:
        versions = {**_version(active), "deployed_meanwhile": newer and _version(newer)}
        said = {"dag_id": "replay", "run_id": run_id, "state": state, "reason": reason}
        print_json(said | versions | {"outcome": outcome and outcome.to_json()})
    else:
        _tell(settings, found, run_id, state, outcome)
    if state == "failed":
        echo(reason, err=True)
    if state == "failed" or (outcome is not None and _has_not_all_passed(outcome, wait)):
        raise typer.Exit(ExitCode.FOUND)


def _tell_entry(settings: Settings, group: ParkedGroup, request: ReplayRequest) -> None:
    """Say on standard error where the transformation may run again though nobody asked for it."""
    from waybill.services import opened_parked_events

    if request.enter or group.stage != "mapping":
        return
    with opened_parked_events(settings) as service:
        if not service.can_enter_earlier(group):
            return
    line = (
        "where all of these events carry what they were made from, that is sent, and the "
        "transformation runs on it again; --enter mapping sends them as they parked"
    )
    print_folded([line], err=True)


def _version(found: DeployedVersion | None) -> dict[str, object]:
    return {"version": found and found.version, "number": found and found.number}


def _has_not_all_passed(outcome: ReplayOutcome, waited_s: float) -> bool:
    """Tell whether events were parked again, lost or not there, or go on though waited for."""
    if not outcome.events or outcome.passed + outcome.in_flight < outcome.events:
        return True
    return bool(waited_s and outcome.waits_for)


def _launch(
    settings: Settings, conf: dict[str, Any], *, follow: bool, unpause: bool
) -> tuple[str, str, str]:
    """Start the run and return (its state, its id, why it failed: empty if it did not)."""
    from waybill.services.airflow_client import AirflowClient

    with AirflowClient(settings.airflow, _warn) as client:
        require_unpaused(client, ["replay"], unpause=unpause)
        run_id = f"cli__{conf['pipeline']}__{conf['error_type']}__{time.time_ns() // 1_000_000}"
        client.trigger("replay", run_id, conf)
        if not follow:
            return "queued", run_id, ""
        try:
            state = client.follow("replay", run_id, limit_s=_FOLLOW_S, told=_warn)
        except KeyboardInterrupt:
            echo(f"\nno longer waiting; Airflow goes on with run {run_id}", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        reason = client.left("replay", run_id, "replay", "reason") if state == "failed" else ""
    return state, run_id, str(reason or "")


def _outcome(
    settings: Settings, partition: ParkedGroup, run_id: str, state: str, *, wait_s: float
) -> ReplayOutcome | None:
    """Return what became of what a run has sent; ``None``: it goes on, or it had not begun."""
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
    echo(words, err=True)


def _say_waiting(wait_s: float, *, as_json: bool) -> None:
    if wait_s and not as_json:
        echo(f"sent; waiting up to {wait_s:.0f} s to see what becomes of the events", err=True)


def _tell(
    settings: Settings,
    partition: ParkedGroup,
    run_id: str,
    state: str,
    outcome: ReplayOutcome | None,
) -> None:
    console = terminal()
    echo(f"replay run {run_id}: {state}")
    if outcome is not None:
        for line in _outcome_lines(outcome):
            print_folded([f"  {line}"])
    names = f"{quote(partition.pipeline)} --event-name {quote(partition.event_name)}"
    looks = [f"run: {settings.airflow.url}/dags/replay/runs/{run_id}"]
    if outcome is not None:
        looks += [f"parked: waybill parked list {plain(names)}", "the books: waybill balance"]
    for line in looks:
        console.print(f"  {line}", markup=False, soft_wrap=True, style="dim")


def _outcome_lines(outcome: ReplayOutcome) -> list[str]:
    again = outcome.sent - outcome.passed - outcome.in_flight
    so_far = " so far" if outcome.waits_for else ""
    if not outcome.events:
        return ["nothing left to send: another run has taken or sent these events"]
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


@takes(
    ParkedGroupRequest,
    flags=PARTITION_FLAGS,
    complete=_names_of_group,
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
    as_json: AsJson = False,
) -> None:
    """Replay a parked group automatically, canary first, once what made it park has changed."""
    from waybill.services import set_auto_replay
    from waybill.settings import Settings

    settings = Settings()
    mark = set_auto_replay(
        settings,
        decision(who),
        request,
        on_change=None if off else on,
    )
    if as_json:
        print_json(None if mark is None else mark.to_json())
        return
    name = "/".join(request.names.values())
    if mark is None:
        echo(f"{name} is replayed by hand only")
        return
    changes = {
        "version": "a new version of the pipeline is active",
        "destination": "its destination answers again after it was away",
        "any": "a new version of the pipeline is active, or its destination answers again",
    }
    echo(
        f"{name} is replayed automatically when {changes[mark.on_change]} (checked every minute by "
        "the job auto_replay of the DAG upkeep, which must not be paused)"
    )
    tell_hindrances(settings, "it is not replayed yet", dags=["replay"], jobs=["auto_replay"])


@takes(
    DryRunRequest,
    flags={
        **PARTITION_FLAGS,
        "max_events": ("--limit",),
    },
    complete=_names_of_group,
)
def dry_run(
    request: DryRunRequest,
    *,
    as_json: AsJson = False,
) -> None:
    """Say how many parked events would pass, and what a new version would break."""
    from waybill.settings import Settings

    report_dry_run(Settings(), request, as_json=as_json)


def report_dry_run(settings: Settings, request: DryRunRequest, *, as_json: bool) -> None:
    """Run it and print the report; exit 2 where parked files could not be read."""
    from waybill.replay import find_replayable
    from waybill.services import opened_parking, run_dry_run

    if request.proposed is None:
        with opened_parking(settings) as parking:
            pipeline_id = find_replayable(parking, request).pipeline_id
        tell_active(settings, pipeline_id, "tried")
    else:
        request = request.model_copy(update={"proposed": proposed_folder(request.proposed)})
    report = run_dry_run(settings, request)
    if as_json:
        print_json(report.to_json())
    else:
        show_dry_run(report, request)
    if report.misses:
        raise typer.Exit(ExitCode.FOUND)


_GOOD_ONES = (
    "good: those that the active version does not park, of the newest in Kafka that have this event"
    " name, 500 at most without --good"
)


def show_dry_run(report: DryRunReport, request: DryRunRequest) -> None:
    """Print a report: the verdict, the ways to fail, the groups, the good events."""
    console = terminal()
    print_verdict(report, request)
    if len(report.by_fingerprint) > 1:
        _print_groups(report)
    print_good(report.good)
    console.print(Text("nothing was written", "dim"))


def print_verdict(report: DryRunReport, request: DryRunRequest | ParkedGroup) -> None:
    """Print how many events of a group would pass, and why the others would not."""
    console = terminal()
    _say(console, _verdict(report, request))
    for line in _ends(report, request.stage):
        _say(console, Text(line), indent=2)
    _print_remedies(console, report.remedies)


def order_of(remedies: Sequence[Remedy]) -> str:
    """Return which of several ways to try first; "" where there is one, or none."""
    if len(remedies) < _SEVERAL:
        return ""
    if remedies[0].discards:
        return "way 1 discards what is parked, once it was read again; way 2 discards nothing"
    return "try way 1 first: it is the mild one and discards nothing"


def _print_remedies(console: Console, remedies: Sequence[Remedy]) -> None:
    """Print each way to have the events delivered, the mildest first, with its commands."""
    if order := order_of(remedies):
        _say(console, Text(f"what to do: {order}"), indent=2)
    for number, remedy in enumerate(remedies, 1):
        name = f"way {number}" if len(remedies) > 1 else "what to do"
        _say(console, Text(f"{name}: {plain(remedy.advice)}"), indent=2)
        for command in remedy.commands:
            echo(f"    {plain(command)}")


def print_good(good: GoodReport) -> None:
    """Print what a version does to recent good events; nothing where none were tried."""
    if good.tried or good.examples:
        _good(terminal(), good)


def proposed_folder(given: Path) -> Path:
    """Return the folder of the version to try, that was given by its path or its name.

    Raises:
        NotFoundError: there is none; says which there are.
    """
    from waybill.cli.pipelines import folder_named

    return folder_named(given)


def require_dry_run(proposed: Path | None, *, is_dry_run: bool) -> None:
    """Refuse to replay with a folder.

    Raises:
        InputError: a folder is proposed, and not for a dry run.
    """
    if proposed is not None and not is_dry_run:
        raise InputError("--proposed needs --dry-run; to replay with it, deploy it first")


def _verdict(report: DryRunReport, request: DryRunRequest | ParkedGroup) -> Text:
    over = f"{request.event_name} {request.stage}/{request.error_type}"
    name = f"{report.pipeline} version {report.version} over {over}: "
    if not report.events and report.misses:
        return Text.assemble((plain(name), ""), ("none of it can be read", "bold red"))
    if not report.events:
        return Text(plain(f"{name}nothing that was asked for is parked"))
    style = "bold green" if report.would_pass == report.tried else "bold yellow"
    if report.tried == report.events:
        words = f"{report.would_pass:,} of {report.events:,} would pass"
        return Text.assemble((plain(name), ""), (words, style))
    words = f"{_percent(report.pass_rate)} of {report.events:,} would pass"
    detail = (
        f" ({_percent(report.low)} to {_percent(report.high)} with 95 % confidence; "
        f"{report.tried:,} tried)"
    )
    return Text.assemble((plain(name), ""), (words, style), (detail, "dim"))


def _ends(report: DryRunReport, stage: str) -> Iterator[str]:
    about = "" if report.tried == report.events else "about "
    if report.would_filter:
        yield f"{about}{report.expected_filter:,} would be filtered on purpose"
    for way, number in sorted(report.expected_fail.items(), key=lambda item: (-item[1], item[0])):
        message = plain(report.examples[way])[:_MESSAGE_CHARS]
        yield f"{about}{number:,} would fail: {way} — {message}"
    for one in report.unreadable:
        lost = counted(one["events"], "event")
        yield f"{lost} of {one['object_key']} could not be read: {one['reason']}"
    if report.quarantined:
        apart = counted(report.quarantined, "event")
        yield f"{apart} of this group in quarantine: their files are damaged or gone"
    if report.damaged or report.quarantined:
        yield _WAY_OUT
    if stage == "destination" and report.would_pass:
        yield "the destination was not asked: it may refuse some of these again"


def _print_groups(report: DryRunReport) -> None:
    left = len(report.by_fingerprint) - _MOST_GROUPS
    print_folded([""])
    print_table(_group_table(report))
    if left > 0:
        words = f"{counted(left, 'smaller group')} not shown; --json has all"
        print_folded([words], style="dim")
    print_folded([""])


def _group_table(report: DryRunReport) -> Table:
    """Return a line a group of one fingerprint: its numbers, and its message."""
    rows = []
    for fingerprint, row in list(report.by_fingerprint.items())[:_MOST_GROUPS]:
        share = row["would_pass"] / row["tried"]
        style = {_ALL: "green", _NONE: "red"}.get(share, "yellow")
        message = row["message"][:_MESSAGE_CHARS]
        passes = Styled(_percent(share), style)
        rows.append((row["events"], row["tried"], passes, fingerprint, message))
    return Table(
        (
            *(Column(head, "number") for head in ("events", "tried", "would pass")),
            Column("fingerprint"),
            Column("message", "words"),
        ),
        rows,
        "nothing was tried",
    )


def _good(console: Console, good: GoodReport) -> None:
    numbers = (
        (f"{good.same:,} the same", ""),
        (f"{good.changed:,} with other output", "yellow" if good.changed else ""),
        (f"{good.newly_broken:,} newly broken", "bold red" if good.newly_broken else ""),
    )
    line = Text(f"of {counted(good.tried, 'recent good event')}: ")
    for place, (words, style) in enumerate(numbers):
        line.append(", " if place else "").append(words, style)
    _say(console, line)
    _say(console, Text(_GOOD_ONES, "dim"), indent=2)
    for way, number in sorted(good.ways.items(), key=lambda item: (-item[1], item[0])):
        _say(console, Text(f"{number:,} newly broken: {way}"), indent=2)
    for kind in ("newly_broken", "changed"):
        found = next((one for one in good.examples if one["kind"] == kind), None)
        for words in _example(found) if found else ():
            _say(console, Text(words.lstrip()), indent=4 if words.startswith(" ") else 2)


def _say(console: Console, words: Text, indent: int = 0) -> None:
    """Print a sentence, broken between words; what is broken off stands two columns further in."""
    line = Text(" " * indent).append_text(words)
    for part in folded_text(line, screen_width(), " " * (indent + 2)):
        console.print(part, soft_wrap=True)


def _example(found: dict[str, Any]) -> Iterator[str]:
    yield f"for example event {plain(found['event_id'])}:"
    if found["kind"] == "newly_broken":
        yield f"  {found['way']} — {plain(found['message'])[:_MESSAGE_CHARS]}"
    for column, (before, after) in found.get("columns", {}).items():
        yield f"  {plain(column)}: {_value(before)} → {_value(after)}"


def _value(value: object) -> str:
    text = plain(value) if isinstance(value, str) else "null" if value is None else str(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"


def _percent(share: float) -> str:
    """Return a share in per cent; what is not quite all, or none, is not called so."""
    percent = share * 100
    shown = round(percent, 1)
    if shown in {0.0, 100.0} and shown != percent:
        return "< 0.1 %" if not shown else "> 99.9 %"
    return f"{shown:g} %"
