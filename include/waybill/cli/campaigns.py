"""``waybill campaigns start|list|show|pause|resume|cancel``: replays of many parked groups."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import (
    PARTITION_FLAGS,
    AllPipelines,
    AsJson,
    Reason,
    Who,
    Yes,
    ask,
    decision,
    require_scope,
    takes,
)
from waybill.cli.output import counted, echo, echo_json, print_folded, print_json, print_line
from waybill.cli.pipeline_versions import tell_all_active
from waybill.cli.promises import UNPAUSE, require_unpaused, tell_hindrances
from waybill.cli.replays import print_good, print_verdict, proposed_folder, require_dry_run
from waybill.cli.tables import Column, Styled, Table, clock, print_table
from waybill.errors import InputError
from waybill.parking import MOST_EVENTS
from waybill.replay import CampaignRequest

if TYPE_CHECKING:
    from waybill.parking import ParkedGroup
    from waybill.replay import (
        Campaign,
        CampaignForecast,
        CampaignGroup,
        CampaignResult,
        DryRunReport,
    )
    from waybill.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Replays of many parked groups, by one request.")

Id = Annotated[int, typer.Argument(min=1, max=2**63 - 1, help="The campaign.")]
_MOST_SHOWN = 20
_MOST_TOLD = 10
"""Groups that cannot be replayed as it is asked."""
_MOST_LISTED = 1000
_SHOWN_APART = ("max_unfinished", "groups_per_run")
_STATES = ("waiting", "launched", "ended", "failed", "parked_again", "left_out")
_TROUBLED = ("failed", "parked_again")
_NAMES = ("pipeline", "event_name", "stage", "error_type")
_HOUR_S, _DAY_S = 3600, 86_400
_DAG_ID = "replay_parked_partitions"
_NOT_TAKEN = ("governed", "parked_since", "parked_until", "fingerprint")
_OF_THE_COMMAND = ("proposed", "sample", "unpause")
_INTERRUPTED = 130
_NO_REASON = {
    "failed": "failed: its run left no reason (killed, or marked by hand); see the run's log",
    "gone": "gone: its run was deleted in Airflow",
}
_LOOK_S = 0.5
_BEGIN_S = 60.0


class _StartRequest(CampaignRequest):
    """A campaign, or the dry run of one."""

    proposed: Path | None = Field(
        None,
        description="With --dry-run: folder, or name, of the pipeline as it would be.",
    )
    sample: int | None = Field(
        None,
        ge=1,
        le=MOST_EVENTS,
        description="With --dry-run: try this many events of each group. Without it: all.",
    )
    unpause: bool = Field(default=False, description=UNPAUSE)


@app.command()
@takes(
    _StartRequest,
    flags={**PARTITION_FLAGS, "rate_per_s": ("--rate",), "why": ("--why", "--reason")},
    without=_NOT_TAKEN,
)
def start(
    request: _StartRequest,
    *,
    all_pipelines: AllPipelines = False,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds to wait for its end, and for what becomes of its events. Without it: "
            "until it has begun; 0: not even that.",
            show_default=False,
        ),
    ] = None,
    ungoverned: Annotated[
        bool,
        typer.Option("--ungoverned", help="Do not throttle, even if live traffic has to wait."),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Replay all parked groups that match, by runs of the DAG `replay`, a few at a time.

    The groups that are parked when it begins are its own; what parks later is for the next one.
    It goes on without this command: `waybill campaigns show` says how far it is, and what became
    of its events. With --dry-run the groups are tried here and now, and nothing is begun.

    A DAG of it that is paused stays so, and nothing is begun, without --unpause.

    Exit code 2: its run failed, or made no campaign here; with --wait also: events parked again,
    groups failed, or not all is known when the time is over; with --dry-run: some events would
    park again.
    """
    from waybill.services import current_user
    from waybill.settings import Settings

    require_scope(request.pipeline, all_pipelines=all_pipelines)
    _require_dry_run(request)
    settings = Settings()
    found = _foreseen(settings, request)
    if request.proposed is None:
        done = "tried" if request.dry_run else "replayed"
        tell_all_active(settings, found.pipelines, done)
    if request.dry_run:
        _dry_run(settings, request, as_json=as_json)
        return
    _refuse_hopeless(settings, request, found)
    if not yes:
        groups = min(found.groups, request.limit or found.groups)
        ask(
            f"Replay up to {counted(found.events, 'parked event')}, in {counted(groups, 'group')}?",
            as_json=as_json,
        )
    conf = request.model_dump(mode="json", exclude={*_NOT_TAKEN, *_OF_THE_COMMAND}) | {
        "governed": not ungoverned,
        "who": request.who or current_user(),
    }
    _begin(settings, conf, wait, unpause=request.unpause, as_json=as_json)


def _begin(
    settings: Settings,
    conf: dict[str, object],
    wait: float | None,
    *,
    unpause: bool,
    as_json: bool,
) -> None:
    """Start the run, say which campaign it is, and wait as long as is asked."""
    run_id = f"cli__{time.time_ns() // 1_000_000}__{secrets.token_hex(4)}"
    until_s = time.monotonic() + (wait or 0)
    wait_s = _BEGIN_S if wait is None else wait
    campaign, state = _begun(settings, run_id, conf, wait_s=wait_s, unpause=unpause)
    problem = _problem(campaign, state)
    if as_json and (problem or not (wait and campaign)):
        id_ = None if campaign is None else campaign.id
        print_json({"id": id_, "dag_id": _DAG_ID, "run_id": run_id, "state": state})
    elif not (as_json or problem):
        _tell_begun(settings, campaign, run_id, state)
    if problem:
        echo(f"{problem}: {settings.airflow.url}/dags/{_DAG_ID}/runs/{run_id}", err=True)
    if problem or (wait and campaign is None):
        raise typer.Exit(ExitCode.FOUND)
    if wait and campaign:
        left_s = max(0.0, until_s - time.monotonic())
        _show(settings, campaign.id, _TROUBLED, _MOST_SHOWN, wait_s=left_s, as_json=as_json)


def _problem(campaign: Campaign | None, state: str) -> str:
    """Return why a campaign does not go on by itself; empty: it does, or is yet to begin."""
    if state == "failed" and campaign is None:
        return "the campaign did not begin: its run failed; see its log"
    if state == "failed" and campaign is not None:
        return (
            f"campaign {campaign.id} was made, and its run failed: nothing more of it is launched "
            f"until the run is cleared in Airflow; `waybill campaigns show {campaign.id}` says how "
            "far it is, and the log of the run why it failed"
        )
    if state == "success" and campaign is None:
        return (
            "its run is said to have succeeded, and no campaign of that run is in this tracker: "
            "somebody marked the run by hand, or the tasks of Airflow have another tracker than "
            "this command (WAYBILL_TRACKER__DSN); see the run"
        )
    return ""


def _require_dry_run(request: _StartRequest) -> None:
    require_dry_run(request.proposed, is_dry_run=request.dry_run)
    if request.sample is not None and not request.dry_run:
        raise InputError("--sample needs --dry-run: a replay takes all; --limit takes some groups")
    if request.proposed is not None and request.pipeline is None:
        raise InputError("--proposed is the folder of one pipeline: name that pipeline")


def _foreseen(settings: Settings, request: CampaignRequest) -> CampaignForecast:
    """Return what the campaign would have, and say what is left out.

    Raises:
        InputError: that is nothing.
    """
    from waybill.replay import left_out_words
    from waybill.services import foresee_campaign

    found = foresee_campaign(settings, request)
    left_out = left_out_words(found.left_out)
    if not found.groups:
        raise InputError("\n".join(["nothing that matches can be replayed", *left_out]))
    print_folded(left_out, err=True)
    return found


def _refuse_hopeless(
    settings: Settings, request: CampaignRequest, forecast: CampaignForecast
) -> None:
    """Say which groups cannot be replayed as it is asked.

    Raises:
        InputError: none can.
    """
    from waybill.services import entry_problems

    problems = entry_problems(settings, request)
    named = list(islice(problems.items(), _MOST_TOLD))
    lines = [f"{name}: {why}" for name, why in named]
    more = len(problems) - len(named)
    rest = [f"and {counted(more, 'group')} more"] if more else []
    if problems and len(problems) >= min(forecast.groups, request.limit or forecast.groups):
        heading = "no group can be replayed so; nothing was begun"
        raise InputError("\n".join([heading, *lines, *rest]))
    will_fail = [f"will fail: {line}" for line in (*lines, *rest)]
    print_folded(will_fail, err=True, style="yellow")


@dataclass(slots=True)
class _DryRunSum:
    """What a dry run of several groups says in all; of samples, estimates."""

    groups: int = 0
    not_tried: int = 0
    """Groups that could not be tried."""
    events: int = 0
    would_pass: int = 0
    would_filter: int = 0
    would_park_again: int = 0
    unreadable: int = 0
    newly_broken: int = 0
    """Recent good events that the proposed version would park."""
    is_estimate: bool = False
    is_incomplete: bool = False

    def add(self, report: DryRunReport | InputError) -> None:
        self.groups += 1
        if isinstance(report, InputError):
            self.not_tried += 1
            return
        passes = round(report.pass_rate * report.events)
        self.events += report.events
        self.would_pass += passes
        self.would_filter += report.expected_filter
        self.would_park_again += max(0, report.events - passes - report.expected_filter)
        self.unreadable += report.damaged
        self.newly_broken += report.good.newly_broken
        self.is_estimate |= report.tried < report.events
        self.is_incomplete |= report.misses

    @property
    def is_fine(self) -> bool:
        troubles = self.not_tried, self.would_park_again, self.newly_broken, self.is_incomplete
        return not any(troubles)

    def lines(self) -> list[str]:
        about = "about " if self.is_estimate else ""
        line = (
            f"in all: {about}{self.would_pass:,} of {counted(self.events, 'event')} in "
            f"{counted(self.groups, 'group')} would pass, {about}{self.would_park_again:,} would "
            "park again"
        )
        if self.would_filter:
            line += f", {about}{self.would_filter:,} would be filtered on purpose"
        if self.unreadable:
            line += f", {self.unreadable:,} could not be read"
        lines = [line]
        if self.not_tried:
            lines.append(f"{counted(self.not_tried, 'group')} could not be tried")
        if self.newly_broken:
            lines.append(f"{counted(self.newly_broken, 'recent good event')} newly broken")
        return lines


def _dry_run(settings: Settings, request: _StartRequest, *, as_json: bool) -> None:
    """Try each group, and print what would become of its events; exit 2 where some park again."""
    from waybill.services import dry_run_campaign

    proposed = None if request.proposed is None else proposed_folder(request.proposed)
    summed = _DryRunSum()
    before = '{"groups":['
    for group, report in dry_run_campaign(
        settings, request, proposed=proposed, sample=request.sample
    ):
        summed.add(report)
        if as_json:  # a group at a time: all of them may be more than the memory takes
            echo_json(before, nl=False)
            print_json(_tried_json(group, report))
            before = ","
        else:
            _print_tried(group, report)
    if as_json:
        echo_json(f'{before.rstrip(",")}],"sum":', nl=False)
        print_json(asdict(summed))
        echo_json("}")
    else:
        print_folded(["", *summed.lines()], style="bold green" if summed.is_fine else "bold yellow")
        print_folded(["nothing was written"], style="dim")
    if not summed.is_fine:
        raise typer.Exit(ExitCode.FOUND)


def _tried_json(group: ParkedGroup, report: DryRunReport | InputError) -> dict[str, Any]:
    own: dict[str, Any] = {name: getattr(group, name) for name in _NAMES}
    if isinstance(report, InputError):
        return own | {"error": str(report), "report": None}
    return own | {"error": "", "report": report.to_json()}


def _print_tried(group: ParkedGroup, report: DryRunReport | InputError) -> None:
    if isinstance(report, InputError):
        print_folded([f"{group.name}: cannot be tried: {report}"], style="bold red")
        return
    print_verdict(report, group)
    print_good(report.good)


def _tell_begun(settings: Settings, campaign: Campaign | None, run_id: str, state: str) -> None:
    """Say which campaign it is and how to follow it, or what it waits for."""
    if campaign is not None:
        print_folded(
            [
                f"campaign {campaign.id} has begun: {_progress(campaign)}",
                f"  follow it: `waybill campaigns show {campaign.id}`; `pause`, `resume` and "
                "`cancel` take the same number",
            ]
        )
    else:
        print_folded([f"run {run_id} is {state}; `waybill campaigns list` shows it once it begins"])
        dags = [_DAG_ID, "replay"]
        tell_hindrances(settings, "the campaign waits", dags=dags, is_asked_for=True)


def _begun(
    settings: Settings, run_id: str, conf: dict[str, object], *, wait_s: float, unpause: bool
) -> tuple[Campaign | None, str]:
    """Start the run, and return (its campaign, None where it has not begun; the run's state)."""
    from waybill.services import campaign_of_run
    from waybill.services.airflow_client import END_STATES, AirflowClient

    with AirflowClient(settings.airflow, lambda words: echo(words, err=True)) as client:
        require_unpaused(client, (_DAG_ID, "replay"), unpause=unpause)
        client.trigger(_DAG_ID, run_id, conf)
        deadline = time.monotonic() + wait_s
        try:
            while True:
                state = client.run_state(_DAG_ID, run_id)
                found = campaign_of_run(settings, run_id)
                if found is not None or state in END_STATES or time.monotonic() >= deadline:
                    return found, state
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            echo(f"\nno longer waiting; Airflow goes on with run {run_id}", err=True)
            raise typer.Exit(_INTERRUPTED) from None


@app.command("list")
def list_(
    *,
    limit: Annotated[int, typer.Option(min=1, max=_MOST_LISTED, help="Most campaigns.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List campaigns, the newest first: how far they are, what parked again, the time left."""
    from waybill.services import campaign_results, replay_campaigns
    from waybill.settings import Settings

    settings = Settings()
    found = replay_campaigns(settings, limit=limit)
    results = campaign_results(settings, [campaign.id for campaign in found])
    if as_json:
        print_json([one.to_json() | {"result": results[one.id].to_json()} for one in found])
    else:
        print_table(_campaign_table(found, results))


@app.command()
def show(
    campaign_id: Id,
    *,
    groups: Annotated[
        str | None,
        typer.Option(
            help=f"Groups to list: {', '.join(_STATES)}. Default: failed and parked_again."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=_MOST_LISTED, help="Most groups.")] = _MOST_SHOWN,
    wait: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for its end, and for what becomes of its events."
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Show one campaign: what was asked for, progress, what became of its events, failures.

    Exit code 2, with --wait: events parked again (of a dry run: would), groups failed, or not all
    is known when the time is over.
    """
    from waybill.settings import Settings

    if groups is not None and groups not in _STATES:
        raise InputError(f"--groups: {groups!r} is none of {', '.join(_STATES)}")
    states = _TROUBLED if groups is None else (groups,)
    _show(Settings(), campaign_id, states, limit, wait_s=wait or None, as_json=as_json)


def _show(
    settings: Settings,
    campaign_id: int,
    states: Sequence[str],
    limit: int,
    *,
    wait_s: float | None,
    as_json: bool,
) -> None:
    """Print a campaign and its groups in these states; with ``wait_s`` once all is known."""
    from waybill.services import campaign_groups, campaign_results, replay_campaign

    is_known = _awaited(settings, campaign_id, wait_s) if wait_s is not None else None
    found = replay_campaign(settings, campaign_id)
    result = campaign_results(settings, [campaign_id])[campaign_id]
    rows = [
        row
        for state in states
        for row in campaign_groups(settings, campaign_id, state=state, limit=limit)
    ][:limit]
    if as_json:
        listed = [row.to_json() for row in rows]
        own = {"result": result.to_json(), "known": is_known, "listed": listed}
        print_json(found.to_json() | own)
    else:
        print_folded(_lines(found, result))
        print_line(f"  {settings.airflow.url}/dags/replay_parked_partitions/runs/{found.run_id}")
        if rows or len(states) == 1:
            print_folded([""])
            print_table(_group_table(rows, states))
        if is_known is False:
            print_folded(["not all is known yet: the time to wait is over"], style="bold yellow")
    if is_known is not None and (found.failed or result.word or not is_known):
        raise typer.Exit(ExitCode.FOUND)


def _awaited(settings: Settings, campaign_id: int, wait_s: float) -> bool:
    from waybill.services import await_campaign

    try:
        return await_campaign(settings, campaign_id, wait_s=wait_s)
    except KeyboardInterrupt:
        echo(f"\nno longer waiting; campaign {campaign_id} goes on", err=True)
        raise typer.Exit(_INTERRUPTED) from None


@app.command()
def pause(campaign_id: Id, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Launch no more of its runs until it is resumed; those that were launched go on."""
    from waybill.services import pause_campaign
    from waybill.settings import Settings

    _told(pause_campaign(Settings(), campaign_id, decision(who, why)), as_json=as_json)


@app.command()
def resume(campaign_id: Id, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Launch its runs again."""
    from waybill.services import resume_campaign
    from waybill.settings import Settings

    settings = Settings()
    _told(resume_campaign(settings, campaign_id, decision(who, why)), as_json=as_json)
    if not as_json:
        dags = ["replay_parked_partitions", "replay"]
        tell_hindrances(settings, "its runs are not launched, or wait", dags=dags)


@app.command()
def cancel(campaign_id: Id, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Launch no more of its runs, for good; those that were launched go on to their ends."""
    from waybill.services import cancel_campaign
    from waybill.settings import Settings

    _told(cancel_campaign(Settings(), campaign_id, decision(who, why)), as_json=as_json)


def _told(found: Campaign, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
        return
    unit = "run" if found.groups_per_run == 1 else "launched group"
    goes_on = f"; {counted(found.unfinished, unit)} of it not ended" if found.unfinished else ""
    print_folded([f"campaign {found.id} is {found.state}: {_progress(found)}{goes_on}"])


def _campaign_table(found: list[Campaign], results: Mapping[int, CampaignResult]) -> Table:
    return Table(
        (
            Column("id", "number"),
            Column("state"),
            Column("asked by"),
            Column("groups", "number"),
            Column("launched", "number", spare=1),
            Column("ended", "number"),
            Column("failed", "number"),
            Column("parked again", "number"),
            Column("a minute", "number", spare=2),
            Column("left", "number"),
        ),
        [
            (
                str(one.id),
                one.state,
                one.asked_by,
                one.groups,
                one.launched,
                one.ended,
                Styled(one.failed, "bold red" if one.failed else ""),
                _again_cell(results[one.id]),
                f"{one.rate_per_min:.1f}",
                _duration(one.eta_s) or None,
            )
            for one in found
        ],
        "there is no campaign; begin one: waybill campaigns start PIPELINE",
    )


def _again_cell(result: CampaignResult) -> Styled:
    """Return how many events parked again; of a dry run, how many would."""
    if result.tried:
        return Styled(f"{result.would_park_again:,} would", "yellow" if result.word else "")
    return Styled(result.again, "bold red" if result.again else "")


def _result_lines(found: Campaign, result: CampaignResult) -> list[str]:
    """Return what became of a campaign's events; nothing where none was sent or tried."""
    if result.tried:
        line = (
            f"  dry run: {result.would_pass:,} of {counted(result.tried, 'event')} would pass, "
            f"{result.would_park_again:,} would park again"
        )
        filtered = f", {result.would_filter:,} would be filtered" if result.would_filter else ""
        return [line + filtered]
    if not result.sent:
        return []
    lines = [f"  {counted(result.sent, 'event')} sent back: {', '.join(_ends(result))}"]
    if result.again:
        name = found.request.get("pipeline")
        where = f"waybill parked list {quote(str(name))}" if name else "waybill parked list"
        lines.append(f"  parked again: {_by_stage(result)}; see `{where}`")
    return lines


def _ends(result: CampaignResult) -> list[str]:
    """Return what is known of events that were sent; what is 0 is left out but for two."""
    known = (
        (result.delivered, "delivered", True),
        (result.again, "parked again", True),
        (result.superseded, "superseded", False),
        (result.duplicate, "duplicate", False),
        (result.held, "held", False),
    )
    unknown = result.sent - sum(number for number, *_ in known)
    ends = [f"{number:,} {name}" for number, name, always in known if number or always]
    return ends + ([f"{unknown:,} on the way, or filtered"] if unknown > 0 else [])


def _by_stage(result: CampaignResult) -> str:
    stages = sorted(result.parked_again.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} at {stage}" for stage, number in stages)


def _verdict(found: Campaign, result: CampaignResult) -> str:
    """Return what went wrong so far, for the line that names the campaign's state."""
    words = {"parked_again": "events parked again", "would_park_again": "events would park again"}
    troubles = [f"{counted(found.failed, 'group')} failed"] if found.failed else []
    troubles += [words[result.word]] if result.word else []
    return f"; {', '.join(troubles)}" if troubles else ""


def _lines(found: Campaign, result: CampaignResult) -> list[str]:
    from waybill.replay import left_out_words, proposal_words

    asked = [
        name if value is True else f"{name} {value}"
        for name, value in found.request.items()
        if value not in (None, False) and name not in _SHOWN_APART
    ]
    changed = f" by {found.changed_by}, {clock(found.changed_at)}" if found.changed_by else ""
    lines = [
        f"campaign {found.id}: {found.state}{changed}{_verdict(found, result)}",
        f"  asked by {found.asked_by}, {clock(found.asked_at)} (UTC)",
        f"  asked for: {', '.join(asked)}",
        f"  {_progress(found)}",
    ]
    if found.groups_per_run > 1:
        lines.append(f"  a run replays up to {found.groups_per_run:,} groups, one after the other")
    if found.ended_at is None:
        unfinished = f"{found.unfinished:,} of at most {found.max_unfinished} runs unfinished"
        if found.groups_per_run > 1:
            launched = counted(found.unfinished, "launched group")
            unfinished = f"{launched} unfinished, in at most {found.max_unfinished} runs"
        lines.append(
            f"  {unfinished}; "
            f"{found.rate_per_min:.1f} groups a minute, {_duration(found.eta_s) or '?'} left"
        )
        lines += [f"  {words}" for words in [proposal_words(found)] if words]
    else:
        lines.append(f"  ended {clock(found.ended_at)}; {found.rate_per_min:.1f} groups a minute")
    lines += _result_lines(found, result)
    lines += [f"  {words}" for words in left_out_words(found.left_out)]
    looked = f", at work on it last {clock(found.looked_at)}" if found.looked_at else ""
    return [*lines, f"  its run{looked}:"]


def _progress(found: Campaign) -> str:
    cancelled = found.groups - found.launched if found.state == "cancelled" else 0
    parts = [
        f"{counted(found.groups, 'group')}: {found.waiting:,} waiting",
        f"{found.launched:,} launched",
        f"{found.ended:,} ended",
        f"{found.failed:,} of these failed",
    ]
    return ", ".join(parts + ([f"{cancelled:,} cancelled"] if cancelled else []))


def _outcome(row: CampaignGroup) -> str:
    """Return how a group ended: why it failed, or how many events parked again, and where.

    Of one that has not ended: why its last try failed.
    """
    report = row.report or {}
    if why := str(report.get("error") or report.get("problem") or ""):
        return f"{row.outcome or 'its last try failed'}: {why}"
    result = row.result
    if result.tried:
        return f"{result.would_park_again:,} of {counted(result.tried, 'event')} would park again"
    if row.outcome_now == "parked_again":
        sent = counted(result.sent, "event")
        return f"{result.again:,} of {sent} parked again: {_by_stage(result)}"
    return _NO_REASON.get(row.outcome, row.outcome)


def _group_table(rows: Sequence[CampaignGroup], states: Sequence[str]) -> Table:
    state = ", ".join(one.replace("_", " ") for one in states)
    shown = []
    for row in rows:
        outcome = _outcome(row)
        names = (row.pipeline, row.event_name or "(empty)", row.stage, row.error_type)
        shown.append((*names, outcome or None, row.run_id or None))
    return Table(
        (
            *(Column(name) for name in ("pipeline", "event", "stage", "error type")),
            Column("outcome", "words"),
            Column("run", spare=1),
        ),
        shown,
        f"no group of it is {state}; --groups lists those in another state",
        f"groups: {state}",
    )


def _duration(seconds: float | None) -> str:
    """Return a time to wait, in its largest unit."""
    if seconds is None:
        return ""
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} d"
    return f"{seconds / _HOUR_S:.1f} h" if seconds >= _HOUR_S else f"{seconds / 60:.0f} min"
