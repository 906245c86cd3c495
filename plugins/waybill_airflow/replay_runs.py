"""Runs of the DAG ``replay``, started and asked for from inside of a task.

A task's own way to Airflow needs no connection and no password, and the runs carry the name of the
user who triggered the task's run. Starting several of them from one task is nothing that the task
SDK has in public: ``TriggerDagRunOperator`` ends its task to start one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waybill_airflow.airflow_internals import start_run, task_instance
from waybill_airflow.operators.replay import REPLAY_DAG_ID

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_NOT_FOUND, _SERVER_ERROR = 404, 500
"""Statuses of HTTP; from the second on, the error is the server's own."""


class TaskReplayRuns:
    """``waybill.replay.ReplayRuns``, and ``ReplayLauncher``, for the task of this process."""

    def start(self, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a run; one with this id that is there already is kept.

        :raises waybill.errors.RetryError: Airflow does not answer, or has an error of its own.
        :raises waybill.errors.StopError: Airflow refused it, for instance as there is no such DAG.
        """
        _start(run_id, conf, clear=False)

    def launch(self, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a run, or clear it where it failed, which resumes its replay.

        :raises waybill.errors.WaybillError: as ``start``.
        """
        from airflow.sdk.exceptions import AirflowRuntimeError

        try:
            failed = _count([run_id], ["failed"])
        except AirflowRuntimeError as error:
            raise _refusal(f"run {run_id!r} of the DAG `replay`", error) from error
        _start(run_id, conf, clear=failed > 0)

    def state(self, run_id: str) -> str | None:
        """Return the state of a run; ``None``: there is none with this id.

        :raises waybill.errors.RetryError: Airflow does not answer, or has an error of its own.
        """
        from airflow.sdk.exceptions import AirflowRuntimeError

        try:
            state = task_instance().get_dagrun_state(REPLAY_DAG_ID, run_id)
        except AirflowRuntimeError as error:
            if _status(error) == _NOT_FOUND:
                return None
            raise _refusal(f"run {run_id!r} of the DAG `replay`", error) from error
        return str(getattr(state, "value", state))  # a member of an enum, in 3.3


def _start(run_id: str, conf: Mapping[str, Any], *, clear: bool) -> None:
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        start_run(REPLAY_DAG_ID, run_id, conf, clear=clear)
    except AirflowRuntimeError as error:
        raise _refusal(f"run {run_id!r} of the DAG `replay`", error) from error


def count_unfinished(run_ids: Sequence[str]) -> int:
    """Return how many of these runs wait or run; also in the triggerer.

    :raises airflow.sdk.exceptions.AirflowRuntimeError: Airflow does not answer.
    """
    from waybill.replay import UNFINISHED

    return _count(run_ids, UNFINISHED)


def _count(run_ids: Sequence[str], states: Collection[str]) -> int:
    return int(
        task_instance().get_dr_count(
            dag_id=REPLAY_DAG_ID, run_ids=list(run_ids), states=list(states)
        )
    )


def is_paused(dag_id: str = REPLAY_DAG_ID) -> bool:
    """Tell whether somebody paused a DAG: runs of it wait until it is unpaused.

    :raises waybill.errors.RetryError: Airflow does not answer, or has an error of its own.
    :raises waybill.errors.StopError: there is no such DAG.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        return bool(task_instance().get_dag(dag_id).is_paused)
    except AirflowRuntimeError as error:
        raise _refusal(f"the DAG `{dag_id}`", error) from error


def _status(error: Any) -> int | None:
    """Return the HTTP status of what the API server answered; ``None``: it did not answer."""
    detail = error.error.detail
    status = detail.get("status_code") if isinstance(detail, dict) else None
    return status if isinstance(status, int) else None


def _refusal(about: str, error: Any) -> Exception:
    from waybill.errors import RetryError, StopError

    status = _status(error)
    if status is None or status >= _SERVER_ERROR:
        return RetryError(f"Airflow did not answer about {about}: {error}")
    return StopError(f"Airflow refused {about} ({status}): {error}")


__all__ = ["TaskReplayRuns", "count_unfinished", "is_paused"]
