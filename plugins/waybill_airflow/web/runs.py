"""Replays and dry runs: DAG runs, started through Airflow's own API as the caller.

The call goes to the same web application in the same process, with the caller's own credentials: so
Airflow checks the right to trigger, checks the parameters and writes its audit log, and the run
carries the user's name. The run's id is made from the request and from what is parked: asked twice
(a double click), it is the same run. A run that failed is cleared, which resumes its replay.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import fastapi
import httpx
from fastapi import APIRouter, HTTPException, Request, status
from starlette.concurrency import run_in_threadpool

from waybill.errors import InputError
from waybill.events import rfc3339
from waybill.ledger import SourceFilter, read_sources
from waybill.parking import ParkedGroup
from waybill.replay import refuse_held, refuse_ingestion, replay_run_id, teams_of_campaign
from waybill_airflow.airflow_internals import web_application
from waybill_airflow.operators.replay import REASON, REPLAY_DAG_ID
from waybill_airflow.web import models
from waybill_airflow.web.guard import (
    PartitionAccess,
    PartitionReplayer,
    PipelineViewer,
    Viewer,
)
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["runs"])

_TASK = "replay"
_INGEST = "ingest_"
_CREDENTIALS = ("authorization", "cookie")
_TIMEOUT_S = 60.0
_EDGES = ("since", "until", "parked_since", "parked_until")
_OPTIONS = (
    *_EDGES, "fingerprint", "max_events", "enter", "sample", "rate_per_s", "governed", "canary",
)  # fmt: skip
_REFUSED = models.problems(
    _404="There is no such partition.", _409="Nothing of it can be replayed."
)


@router.post(
    "/partitions/{partition_id}/dry-run", status_code=202, responses=_REFUSED, summary="Dry run"
)
async def dry_run(
    here: PartitionReplayer, body: models.DryRunBody, request: Request
) -> models.Started:
    """Start a run that tries the deployed version on the parked events and writes nothing.

    The same request gives the same run until something else is parked or another version deployed.
    """
    conf = _conf(here.partition, body) | {"sample": body.sample, "dry_run": True}
    return await _start(here, request, conf)


@router.post(
    "/partitions/{partition_id}/replay", status_code=202, responses=_REFUSED, summary="Replay"
)
async def replay(
    here: PartitionReplayer, body: models.ReplayBody, request: Request
) -> models.Started:
    """Start a run that sends the parked events back, in the order in which they were written.

    The same request gives the same run until that run has changed what is parked.
    """
    how = {
        "rate_per_s": body.rate_per_s,
        "governed": body.governed,
        "canary": body.canary,
        "dry_run": False,
    }
    conf = _conf(here.partition, body) | how
    return await _start(here, request, conf)


def _conf(partition: ParkedGroup, asked: models.DryRunBody | models.ReplayBody) -> dict[str, Any]:
    edges = {name: getattr(asked, name) for name in _EDGES}
    return {
        "pipeline": partition.pipeline_id,
        "event_name": partition.event_name,
        "stage": partition.stage,
        "error_type": partition.error_type,
        **{name: None if edge is None else edge.isoformat() for name, edge in edges.items()},
        "fingerprint": asked.fingerprint,
        "max_events": asked.limit,
        "enter": asked.enter,
    }


async def _start(here: PartitionAccess, request: Request, conf: dict[str, Any]) -> models.Started:
    """Start the run of a request, or find it."""
    async with _airflow(request) as client:
        await _require_unpaused(client)
        run_id = await run_in_threadpool(_prepared, here, conf)
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        answer = await client.post(f"/api/v2/dags/{REPLAY_DAG_ID}/dagRuns", json=body)
        already = answer.status_code == httpx.codes.CONFLICT
        if already:
            await _resume(client, run_id)
        else:
            _pass_on(answer)
    return models.Started(dag_id=REPLAY_DAG_ID, run_id=run_id, already=already)


def _prepared(here: PartitionAccess, conf: dict[str, Any]) -> str:
    """Return the run's id, once the request is checked and written to the audit log."""
    partition = here.partition
    newest = parked_events().replays(partition.id)[:1]
    running = bool(newest) and newest[0].state == "running" and not conf["dry_run"]
    try:
        refuse_ingestion(partition.stage, partition.error_type)
        parked_events().check_entry(partition, conf["enter"])
        if not (running or conf["dry_run"]):
            refuse_held(parked_events().parking, partition.pipeline_id)
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    if running:
        run_id = newest[0].run_id
    elif partition.parked:
        salt = [partition.parked, str(partition.last_parked_at), [str(r.id) for r in newest]]
        if conf["dry_run"]:
            salt.append(parked_events().active_version(partition.pipeline_id))
        run_id = replay_run_id(partition.id, conf, salt)
    else:
        raise HTTPException(status.HTTP_409_CONFLICT, f"nothing of {partition.name} is parked now")
    action = "ask_dry_run" if conf["dry_run"] else "ask_replay"
    options = {name: conf.get(name) for name in _OPTIONS}
    parked_events().audit(here.who, action, partition, run_id=run_id, **options)
    return run_id


def _airflow(request: Request) -> httpx.AsyncClient:
    """Return a client of this very web application, signed in as the caller."""
    given = {name: request.headers.get(name) for name in _CREDENTIALS}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=web_application()),
        base_url=str(request.base_url.replace(path="", query="", fragment="")),
        headers={name: value for name, value in given.items() if value},
        timeout=_TIMEOUT_S,
    )


async def _require_unpaused(client: httpx.AsyncClient) -> None:
    """Refuse while the DAG is paused: to unpause it begins the runs of others that wait there."""
    answer = await client.get(f"/api/v2/dags/{REPLAY_DAG_ID}")
    _pass_on(answer)
    if answer.json()["is_paused"]:
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            f"the DAG {REPLAY_DAG_ID} is paused, so nothing was begun; runs that wait there begin"
            " when it is unpaused in Airflow",
        )


async def _resume(client: httpx.AsyncClient, run_id: str) -> None:
    """Clear a run that failed: it goes on where it stood."""
    path = _run_path(REPLAY_DAG_ID, run_id)
    answer = await client.get(path)
    _pass_on(answer)
    if answer.json()["state"] == "failed":
        body = {"dry_run": False, "only_failed": False}
        _pass_on(await client.post(f"{path}/clear", json=body))


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"


def _pass_on(answer: httpx.Response) -> None:
    """Give Airflow's refusal to the caller, in Airflow's words.

    :raises HTTPException: Airflow's own status; 502 for an answer that is none.
    """
    if not answer.is_error:
        return
    if answer.is_server_error:
        raise HTTPException(status.HTTP_502_BAD_GATEWAY, f"Airflow failed: {answer.text[:500]}")
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:500]
    raise HTTPException(answer.status_code, f"Airflow refused: {detail}")


@router.get(
    "/runs/{dag_id}/{run_id}",
    responses=models.problems(_404="There is no such run."),
    summary="Follow a run",
)
async def run(
    access: Viewer,
    request: Request,
    dag_id: Annotated[str, fastapi.Path(max_length=250, description="`replay`.")],
    run_id: Annotated[
        str,
        fastapi.Path(max_length=250, pattern=r"^[^\x00]*$", description="As the start gave it."),
    ],
) -> models.Run:
    """Return the state of a replay or dry run, its progress, and its report once there is one.

    A report's messages hold no personal values: they were masked when it was made. A run of several
    groups has none: its campaign has one for each.
    """
    if dag_id != REPLAY_DAG_ID:
        raise _no_run(dag_id, run_id)
    path = _run_path(dag_id, run_id)
    async with _airflow(request) as client:
        answer = await client.get(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise _no_run(dag_id, run_id)
        _pass_on(answer)
        found = answer.json()
        conf = found.get("conf") or {}
        partition = await run_in_threadpool(_partition_of, conf)
        if partition is None:
            raise _no_run(dag_id, run_id)
        campaign = conf.get("campaign")
        of_campaign = await run_in_threadpool(_teams_of, campaign) if campaign else ()
        if not all(access.may("view", team) for team in {partition.team, *of_campaign}):
            raise _no_run(dag_id, run_id)
        report = None if campaign else await _left(client, path, "return_value")
        reason = await _left(client, path, REASON) if found["state"] == "failed" else None
        replay, became = await run_in_threadpool(parked_events().of_run, partition.id, run_id)
    return models.Run(
        state=found["state"],
        started_at=found["start_date"],
        finished_at=found["end_date"],
        report=report,
        reason=reason,
        became=became,
        progress=replay and models.Progress(events=replay.events, sent=replay.sent),
    )


@router.get(
    "/pipelines/{pipeline_id}/last-run",
    responses=models.problems(_404="No such pipeline is deployed, or it has no DAG."),
    summary="The last run of a pipeline's source, in Airflow",
)
async def last_run(here: PipelineViewer, request: Request) -> models.LastRun:
    """Return the run of Airflow in which a pipeline's source was read last.

    That is the run whose task had begun last when the source's run began: a source is read by one
    task at a time. Airflow says it to those only who may see its runs.
    """
    name, started_at = await run_in_threadpool(_last_begun, here.pipeline_id)
    dag_id = f"{_INGEST}{name}"
    asked = {"order_by": "-start_date", "limit": "1"}
    if started_at is not None:
        asked["start_date_lte"] = started_at
    async with _airflow(request) as client:
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/~/taskInstances"
        answer = await client.get(path, params=asked)
    _pass_on(answer)
    found = answer.json()["task_instances"] if started_at is not None else []
    return models.LastRun(dag_id=dag_id, run_id=found[0]["dag_run_id"] if found else None)


def _last_begun(pipeline_id: str) -> tuple[str, str | None]:
    """Return a pipeline's name, and when the last run of its source began."""
    page = read_sources(parked_events().tracker, SourceFilter(name=pipeline_id))
    for line in page.sources:
        if line.pipeline_id == pipeline_id:
            begun = line.started_at
            return line.pipeline, None if begun is None else rfc3339(begun)
    raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no pipeline {pipeline_id[:80]!r}")


async def _left(client: httpx.AsyncClient, path: str, key: str) -> Any:
    """Return what a run's task left under a key; None: nothing."""
    value = await client.get(f"{path}/taskInstances/{_TASK}/xcomEntries/{key}")
    return value.json()["value"] if value.status_code == httpx.codes.OK else None


def _no_run(dag_id: str, run_id: str) -> HTTPException:
    return HTTPException(
        status.HTTP_404_NOT_FOUND, f"there is no replay or dry run {run_id!r} of {dag_id!r}"
    )


def _partition_of(conf: dict[str, Any]) -> ParkedGroup | None:
    """Return the partition that a run is about."""
    names = {name: str(conf.get(name)) for name in ("event_name", "stage", "error_type")}
    return parked_events().parking.find_exactly(str(conf.get("pipeline")), **names)


def _teams_of(campaign: object) -> tuple[str, ...]:
    """Return whose groups a run has that replays several."""
    return teams_of_campaign(parked_events().tracker, str(campaign))
