"""Whether what a command promises will be done: by DAGs of Airflow, and jobs of upkeep in one.

One answer for all commands. Airflow is asked by its API, with a short time-out; the jobs of upkeep
have their own records in the tracker. Nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waybill.errors import WaybillError

if TYPE_CHECKING:
    from waybill.services.airflow_client import AirflowClient
    from waybill.settings import Settings
    from waybill.upkeep import JobRecord

UPKEEP = "upkeep"
"""The DAG that runs the jobs of upkeep."""
_ANSWER_S = 3.0
_LONGEST_S = 8.0
"""After so long nothing more is asked, and what was not is not known."""
_LATE_S = 300.0
"""A run of a schedule that should have begun so long ago is late."""
_ENDED = ("success", "failed")


@dataclass(frozen=True, slots=True)
class DagWork:
    """What is done later, by others than the command that promises it."""

    dags: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Of upkeep: they need its DAG."""
    is_asked_for: bool = False
    """Runs of these DAGs were just asked for: how the last ones ended says nothing of them."""

    @property
    def all_dags(self) -> tuple[str, ...]:
        """Return the DAGs that all of it needs."""
        return (*((UPKEEP,) if self.jobs else ()), *self.dags)


@dataclass(frozen=True, slots=True)
class DagHealth:
    """How it stands with what was promised."""

    hindrances: tuple[str, ...] = ()
    """A clause for each thing that keeps it from being done, with what to do."""
    unknown: str = ""
    """Why it could not be checked, or not all of it; "": it was."""


def stream_dag(cluster: str) -> str:
    """Return the DAG that supervises a cluster's applications."""
    from waybill.clusters import DEFAULT_CLUSTER

    return "stream_default" if cluster == DEFAULT_CLUSTER else "stream_clusters"


def work_health(settings: Settings, work: DagWork) -> DagHealth:
    """Return what hinders work that DAGs and jobs of upkeep are to do; never fails.

    Cost: three requests to Airflow a DAG, and two; eight seconds at most, and those of the last
    answer. One statement where jobs are asked for.
    """
    hindrances, unknown = [], []
    try:
        hindrances = _dags_hindered(settings, work)
    except WaybillError as error:
        unknown.append(_first_line(error))
    try:
        hindrances += _jobs_hindered(settings, work.jobs, is_seen=bool(hindrances))
    except WaybillError as error:
        unknown.append(_first_line(error))
    return DagHealth(tuple(hindrances), "; ".join(unknown))


def _dags_hindered(settings: Settings, work: DagWork) -> list[str]:
    """Return what keeps DAGs from running.

    Raises:
        WaybillError: Airflow cannot be asked.
    """
    from waybill.errors import AwayError
    from waybill.services.airflow_client import AirflowClient

    found: list[str] = []
    deadline = time.monotonic() + _LONGEST_S
    with AirflowClient(settings.airflow, patience_s=0.0, timeout_s=_ANSWER_S) as client:
        for dag_id in work.all_dags:
            if time.monotonic() > deadline:
                said = f"Airflow at {settings.airflow.url} is slow to answer"
                raise AwayError(said, setting="WAYBILL_AIRFLOW__URL")
            found += _dag_hindered(client, dag_id, is_asked_for=work.is_asked_for)
        down = [part for part in client.unhealthy() if part != "triggerer"]
    found += [
        f"Airflow's {part} gives no sign of life, so no DAG runs; see `waybill status`"
        for part in down
    ]
    return found


def _dag_hindered(client: AirflowClient, dag_id: str, *, is_asked_for: bool) -> Iterator[str]:
    dag = client.listed_dag(dag_id)
    if dag is None:
        yield f"Airflow has no DAG {dag_id}: see that its folder `dags` is Waybill's"
        return
    if dag["is_paused"]:
        yield f"the DAG {dag_id} is paused: unpause it in Airflow"
        return
    if is_asked_for:
        return
    newest = client.newest_run(dag_id)
    is_scheduled = dag["timetable_summary"] is not None  # else a run says nothing of the next one
    ended = client.newest_run(dag_id, states=_ENDED) if is_scheduled else None
    # a run of upkeep takes hours, and its jobs have records of their own
    is_at_work = dag_id == UPKEEP and newest is not None and newest["state"] == "running"
    if ended is not None and ended["state"] == "failed" and not is_at_work:
        yield f"the last run of the DAG {dag_id} failed ({_when(ended['end_date'])}): see its log"
    if _is_late(dag, newest):
        due = _when(dag["next_dagrun_run_after"])
        yield f"the DAG {dag_id} is late: a run was due {due}; see that Airflow's scheduler runs"


def _is_late(dag: dict[str, Any], newest: dict[str, Any] | None) -> bool:
    """Tell whether a schedule's run should have begun some time ago, and none is under way."""
    due = dag["next_dagrun_run_after"]
    if due is None or (newest is not None and newest["state"] not in _ENDED):
        return False
    return (datetime.now(UTC) - datetime.fromisoformat(due)).total_seconds() > _LATE_S


def _jobs_hindered(settings: Settings, jobs: tuple[str, ...], *, is_seen: bool) -> list[str]:
    """Return what keeps jobs of upkeep from being done.

    Args:
        settings: all.
        jobs: their names.
        is_seen: it is known why none is done: that they are late follows from it.

    Raises:
        WaybillError: the tracker cannot be asked.
    """
    from waybill.services.upkeep import upkeep_jobs

    found = [one for one in upkeep_jobs(settings) if one.job in jobs] if jobs else []
    said = [_job_hindered(one) for one in found if not (is_seen and one.state == "late")]
    return [one for one in said if one]


def _job_hindered(record: JobRecord) -> str:
    job = record.job
    since = "it never succeeded"
    if record.succeeded_at is not None:
        since = f"it last succeeded {_when(record.succeeded_at)}"
    if record.state == "paused":
        resume = f"`waybill upkeep resume {job}`"
        return f"the upkeep job {job} is paused by {record.paused_by}: {resume} has it go on"
    if record.state == "failing":
        return f"the upkeep job {job} fails, {since}: {record.error}"
    if record.state == "late":
        return f"the upkeep job {job} is late, {since}: see `waybill upkeep list`"
    return ""


def _when(moment: datetime | str | None) -> str:
    if moment is None:
        return "at a time that is not known"
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return f"on {known.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _first_line(error: WaybillError) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
