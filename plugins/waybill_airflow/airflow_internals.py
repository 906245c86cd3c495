"""All that Waybill touches of Airflow and its providers beyond their public interface.

=================================  =============================================================
what                               what breaks when Airflow moves it
=================================  =============================================================
``core_api.security``: `get_user`  our pages: nobody can be told from anybody, so they do not start
and its two schemes
``api_fastapi.app.cached_app``     replays and dry runs from the page, and the state of their runs
requests to parse a file, the DAG  a deployed pipeline has its DAG with the next parse of its file,
of a file beside it, the auth      in minutes, not seconds (Airflow's own route is only for files
manager                            that have DAGs already)
rows of ``task_instance`` and of   teams have no fair shares of the slots of ingestion: Airflow's
``slot_pool``, the auth manager    own order holds, and no run gives its slot to another team
``SparkSubmitHook._connection``    applications by a connection of Spark: none starts; those that
                                   run go on
``…._build_spark_submit_command``  the same, in client mode
``SparkSubmitOperator._backend``   killing an application on YARN or Kubernetes; it ends by itself
and two ids of its hook            when it next reads its row
``sdk.execution_time``: messages   campaigns, upkeep: no replay is started or asked for; the SDK has
to the supervisor, the task        no public way to start several runs from one task, nor from a
instance's static methods          thread of it (its lock holds for threads)
=================================  =============================================================

`tests/dags/test_airflow_internals.py` holds each against the Airflow that is installed, and that no
other module does so. Imports are late: workers need not what the API server does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    from fastapi import FastAPI, Request


async def user_of(request: Request) -> BaseUser:
    """Return who a request of the API server is from, by its cookie or its bearer token.

    :raises fastapi.HTTPException: 401 without a token, 403 with one that is none.
    """
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user, oauth2_scheme

    return await get_user(request, await oauth2_scheme(request), await bearer_scheme(request))


def web_application() -> FastAPI:
    """Return the API server's own application, in its process."""
    from airflow.api_fastapi.app import cached_app

    # The same argument as the server's own: another would build a second application.
    application: FastAPI = cached_app(apps=os.environ.get("AIRFLOW_API_APPS", "all"))
    return application


def may_change_dag(user: BaseUser, dag_id: str) -> bool:
    """Tell whether Airflow lets a user change a DAG, be it there or not; in the API server."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails

    details = DagDetails(id=dag_id)
    allowed: bool = get_auth_manager().is_authorized_dag(method="PUT", details=details, user=user)
    return allowed


def may_change_pool(user: BaseUser, pool: str) -> bool:
    """Tell whether Airflow lets a user change a pool; in the API server."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import PoolDetails

    details = PoolDetails(name=pool)
    allowed: bool = get_auth_manager().is_authorized_pool(method="PUT", details=details, user=user)
    return allowed


class PooledTask(NamedTuple):
    """A task that has a slot of a pool, or waits for nothing but one."""

    id: str
    dag_id: str
    pool: str
    since_s: float
    """When it got the slot, or began to wait for it: seconds since the epoch."""
    state: str
    """running; queued: it has its slot, and does not run yet; scheduled: it waits for one."""
    weight: int
    """Its priority."""

    @property
    def waits(self) -> bool:
        """Whether it waits for a slot."""
        return self.state == "scheduled"


def pooled_tasks(pools: Collection[str]) -> tuple[dict[str, int], list[PooledTask]]:
    """Return the slots of pools by name, and the tasks that have or await them; in the API server.

    Of a paused DAG, or a run that does not go, no task waits. Cost: two statements.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.pool import Pool
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import and_, func, or_, select

    goes = and_(DagRun.state == "running", ~DagModel.is_paused)
    tasks = (
        select(
            TaskInstance.id,
            TaskInstance.dag_id,
            TaskInstance.pool,
            TaskInstance.state,
            func.coalesce(
                TaskInstance.queued_dttm, TaskInstance.scheduled_dttm, TaskInstance.start_date
            ).label("had_at"),
            func.coalesce(TaskInstance.scheduled_dttm, TaskInstance.queued_dttm).label(
                "waits_since"
            ),
            TaskInstance.priority_weight,
        )
        .join(TaskInstance.dag_run)
        .join(TaskInstance.dag_model)
        .where(TaskInstance.pool.in_(pools))
        .where(
            or_(
                TaskInstance.state.in_(["queued", "running"]),
                and_(TaskInstance.state == "scheduled", goes),
            )
        )
    )
    with create_session(scoped=False) as session:
        slots = session.execute(select(Pool.pool, Pool.slots).where(Pool.pool.in_(pools))).all()
        rows = session.execute(tasks).all()
    return dict(tuple(row) for row in slots), [_pooled(row) for row in rows]


def _pooled(row: Any) -> PooledTask:
    state = str(row.state)
    at = row.waits_since if state == "scheduled" else row.had_at
    since_s = 0.0 if at is None else at.timestamp()
    return PooledTask(str(row.id), row.dag_id, row.pool, since_s, state, row.priority_weight or 1)


def set_weight(ids: Sequence[str], weight: int) -> None:
    """Give tasks that wait for a slot another priority; in the API server."""
    from uuid import UUID

    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    if not ids:
        return
    which = (TaskInstance.id.in_([UUID(one) for one in ids]), TaskInstance.state == "scheduled")
    with create_session(scoped=False) as session:
        session.execute(
            update(TaskInstance)
            .where(*which)
            .values(priority_weight=weight)
            .execution_options(synchronize_session=False)
        )


def request_parse(file: str, *, beside: str) -> bool:
    """Have the DAG processor parse a file next, whether or not it has DAGs; in the API server.

    One that is asked for already is not asked for twice. Cost: two statements.

    :param file: its name.
    :param beside: a DAG whose file lies in the same folder.
    :return: False: Airflow does not know that DAG yet.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagbag import DagPriorityParsingRequest
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import IntegrityError

    columns = (DagModel.bundle_name, DagModel.relative_fileloc)
    with suppress(IntegrityError), create_session(scoped=False) as session:
        known = session.execute(select(*columns).where(DagModel.dag_id == beside)).one_or_none()
        if known is None or known.relative_fileloc is None:
            return False
        place = str(PurePosixPath(known.relative_fileloc).with_name(file))
        session.add(DagPriorityParsingRequest(known.bundle_name, place))
    return True


def spark_connection(hook: SparkSubmitHook) -> Mapping[str, Any]:
    """Return a connection of Spark as its provider resolved it: master, deploy_mode, namespace."""
    connection: Mapping[str, Any] = hook._connection
    return connection


def spark_submit_command(hook: SparkSubmitHook, application: str) -> list[str]:
    """Return the command line that ``submit()`` would run in this task, and end with it."""
    command: list[str] = hook._build_spark_submit_command(application)
    return command


def kill_submitted(operator: SparkSubmitOperator, external_id: str) -> None:
    """Have YARN or Kubernetes kill an application that another process submitted.

    :param external_id: ``application_…`` of YARN, or namespace and pod, ``namespace:pod``.
    """
    hook = operator._backend.hook
    if external_id.startswith("application_"):
        hook._yarn_application_id = external_id
    else:
        hook._kubernetes_driver_pod = external_id.partition(":")[2]
    operator.on_kill()


def start_run(dag_id: str, run_id: str, conf: Mapping[str, Any], *, clear: bool = False) -> None:
    """Start a run of a DAG from inside of a task; one with this id that is there already is kept.

    :param clear: where it is there, it is cleared: its tasks run again.
    :raises airflow.sdk.exceptions.AirflowRuntimeError: Airflow does not answer, or refused.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import TriggerDagRun

    message = TriggerDagRun(
        dag_id=dag_id, run_id=run_id, conf=dict(conf), logical_date=None, reset_dag_run=clear
    )
    task_runner.SUPERVISOR_COMMS.send(message)  # an answer that it is there is no error


def task_instance() -> Any:
    """Return what asks for runs and DAGs, in tasks and in the triggerer, by its static methods."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance


__all__ = [
    "PooledTask",
    "kill_submitted",
    "may_change_dag",
    "may_change_pool",
    "pooled_tasks",
    "request_parse",
    "set_weight",
    "spark_connection",
    "spark_submit_command",
    "start_run",
    "task_instance",
    "user_of",
    "web_application",
]
