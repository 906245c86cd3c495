"""``waybill campaigns start|list|show|pause|resume|cancel``: replays of many parked groups."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Annotated

import typer

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
from waybill.cli.output import counted, echo, print_folded, print_json, print_line
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import Column, Styled, Table, clock, print_table
from waybill.replay import CampaignRequest

if TYPE_CHECKING:
    from waybill.replay import Campaign, CampaignGroup
    from waybill.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Replays of many parked groups, by one request.")

Id = Annotated[int, typer.Argument(min=1, max=2**63 - 1, help="The campaign.")]
_MOST_SHOWN = 20
_SHOWN_APART = ("max_unfinished", "groups_per_run")
_STATES = ("waiting", "launched", "ended", "failed", "left_out")
_HOUR_S, _DAY_S = 3600, 86_400
_DAG_ID = "replay_parked_partitions"
_NOT_TAKEN = ("governed", "parked_since", "parked_until", "fingerprint")
_INTERRUPTED = 130
_LOOK_S = 0.5


@app.command()
@takes(
    CampaignRequest,
    flags={**PARTITION_FLAGS, "rate_per_s": ("--rate",), "why": ("--why", "--reason")},
    without=_NOT_TAKEN,
)
def start(
    request: CampaignRequest,
    *,
    all_pipelines: AllPipelines = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until it has begun and has an id.")
    ] = 60.0,
    ungoverned: Annotated[
        bool, typer.Option(help="Do not throttle, even if live traffic has to wait.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Replay all parked groups that match, by runs of the DAG `replay`, a few at a time.

    The groups that are parked when it begins are its own; what parks later is for the next one.
    It goes on without this command: `waybill campaigns show` says how far it is.
    """
    from waybill.errors import InputError
    from waybill.replay import left_out_words
    from waybill.services import foresee_campaign
    from waybill.settings import Settings

    require_scope(request.pipeline, all_pipelines=all_pipelines)
    settings = Settings()
    found = foresee_campaign(settings, request)
    left_out = left_out_words(found.left_out)
    if not found.groups:
        raise InputError("\n".join(["nothing that matches can be replayed", *left_out]))
    print_folded(left_out, err=True)
    if not (yes or request.dry_run):
        groups = min(found.groups, request.limit or found.groups)
        ask(
            f"Replay up to {counted(found.events, 'parked event')}, in {counted(groups, 'group')}?",
            as_json=as_json,
        )
    conf = request.model_dump(mode="json", exclude=set(_NOT_TAKEN)) | {"governed": not ungoverned}
    run_id = f"cli__{time.time_ns() // 1_000_000}__{secrets.token_hex(4)}"
    campaign, state = _begun(settings, run_id, conf, wait_s=wait)
    if as_json:
        id_ = None if campaign is None else campaign.id
        print_json({"id": id_, "dag_id": _DAG_ID, "run_id": run_id, "state": state})
    else:
        _tell_begun(settings, campaign, run_id, state)
    if campaign is None and state == "failed":
        url = f"{settings.airflow.url}/dags/{_DAG_ID}/runs/{run_id}"
        echo(f"the campaign did not begin: its run failed; see its log: {url}", err=True)
        raise typer.Exit(ExitCode.FOUND)


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
    elif state != "failed":
        print_folded([f"run {run_id} is {state}; `waybill campaigns list` shows it once it begins"])
        dags = [_DAG_ID, "replay"]
        tell_hindrances(settings, "the campaign waits", dags=dags, is_asked_for=True)


def _begun(
    settings: Settings, run_id: str, conf: dict[str, object], *, wait_s: float
) -> tuple[Campaign | None, str]:
    """Start the run, and return (its campaign, None where it has not begun; the run's state)."""
    from waybill.services import campaign_of_run
    from waybill.services.airflow_client import END_STATES, AirflowClient

    with AirflowClient(settings.airflow, lambda words: echo(words, err=True)) as client:
        for dag_id in (_DAG_ID, "replay"):
            client.unpause(dag_id)
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
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most campaigns.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List campaigns, the newest first: how far they are, and how long they will take."""
    from waybill.services import replay_campaigns
    from waybill.settings import Settings

    found = replay_campaigns(Settings(), limit=limit)
    if as_json:
        print_json([campaign.to_json() for campaign in found])
    else:
        print_table(_campaign_table(found))


@app.command()
def show(
    campaign_id: Id,
    *,
    groups: Annotated[
        str | None, typer.Option(help=f"Groups to list: {', '.join(_STATES)}. Default: failed.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most groups.")] = _MOST_SHOWN,
    as_json: AsJson = False,
) -> None:
    """Show one campaign: what was asked for, progress, what was left out and why, failures."""
    from waybill.errors import InputError
    from waybill.services import campaign_groups, replay_campaign
    from waybill.settings import Settings

    state = groups or "failed"
    if state not in _STATES:
        raise InputError(f"--groups: {state!r} is none of {', '.join(_STATES)}")
    settings = Settings()
    found = replay_campaign(settings, campaign_id)
    rows = campaign_groups(settings, campaign_id, state=state, limit=limit)
    if as_json:
        print_json(found.to_json() | {"listed": [row.to_json() for row in rows]})
        return
    print_folded(_lines(found))
    print_line(f"  {settings.airflow.url}/dags/replay_parked_partitions/runs/{found.run_id}")
    if rows or groups:
        print_folded([""])
        print_table(_group_table(rows, state))


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


def _campaign_table(found: list[Campaign]) -> Table:
    return Table(
        (
            Column("id", "number"),
            Column("state"),
            Column("asked by"),
            Column("groups", "number"),
            Column("launched", "number", spare=1),
            Column("ended", "number"),
            Column("failed", "number"),
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
                f"{one.rate_per_min:.1f}",
                _duration(one.eta_s) or None,
            )
            for one in found
        ],
        "there is no campaign; begin one: waybill campaigns start PIPELINE",
    )


def _lines(found: Campaign) -> list[str]:
    from waybill.replay import left_out_words, proposal_words

    asked = [
        name if value is True else f"{name} {value}"
        for name, value in found.request.items()
        if value not in (None, False) and name not in _SHOWN_APART
    ]
    changed = f" by {found.changed_by}, {clock(found.changed_at)}" if found.changed_by else ""
    lines = [
        f"campaign {found.id}: {found.state}{changed}",
        f"  asked by {found.asked_by}, {clock(found.asked_at)} (UTC)",
        f"  request: {', '.join(asked)}",
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


def _group_table(rows: list[CampaignGroup], state: str) -> Table:
    shown = []
    for row in rows:
        report = row.report or {}
        why = str(report.get("error") or report.get("problem") or "")
        outcome = f"{row.outcome}: {why}" if why else row.outcome
        names = (row.pipeline, row.event_name or "(empty)", row.stage, row.error_type)
        shown.append((*names, outcome or None, row.run_id or None))
    return Table(
        (
            *(Column(name) for name in ("pipeline", "event", "stage", "error type")),
            Column("outcome", "words"),
            Column("run", spare=1),
        ),
        shown,
        f"no group of it is {state.replace('_', ' ')}; --groups lists those in another state",
        f"groups: {state.replace('_', ' ')}",
    )


def _duration(seconds: float | None) -> str:
    """Return a time to wait, in its largest unit."""
    if seconds is None:
        return ""
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} d"
    return f"{seconds / _HOUR_S:.1f} h" if seconds >= _HOUR_S else f"{seconds / 60:.0f} min"
