"""Run upkeep: a shift of all jobs that are due, or one job by hand.

What a job does, and when, is the library's: ``waybill.upkeep``. Both operators take a job's lease
before it runs, so a job never runs twice at once, whoever starts it.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.hooks.waybill import connection_text
from waybill_airflow.notifiers.task_failed import error_words

if TYPE_CHECKING:
    from airflow.sdk import Context

    from waybill.services import UpkeepParts


class UpkeepOperator(BaseOperator):
    """Run the jobs of upkeep that are due, each in a thread of its own, for a shift.

    A job that fails is written down and told; it fails neither the others nor this task. Safe to
    kill at any time: the next shift takes over, a job that was cut off after a minute.

    :param shift: how long; it ends later where a job runs, once that has ended.
    :raises AirflowFailException: the settings are wrong.
    :raises waybill.errors.RetryError: the tracker did not answer for half a minute, or a job took
        longer than its limit.
    :raises waybill.errors.StopError: another process has a job that ran here: this one was frozen.
    :returns: how often each job ran.
    """

    def __init__(self, *, shift: timedelta = timedelta(hours=1), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shift = shift

    def execute(self, context: Context) -> dict[str, int]:
        """Run the shift."""
        with as_task_failures():
            from waybill.services import run_upkeep

            length_s = self.shift.total_seconds()
            return run_upkeep(read_settings(), _parts(context), length_s=length_s)


class UpkeepJobOperator(BaseOperator):
    """Run one job of upkeep now, whether or not it is due or paused.

    :param job: its name: see ``waybill upkeep list``.
    :raises AirflowFailException: there is no such job, or what it was given is wrong.
    :raises waybill.errors.RetryError: a server did not answer, or the job is run elsewhere for
        longer than five minutes.
    :returns: its outcome.
    """

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job

    def execute(self, context: Context) -> dict[str, Any]:
        """Run it."""
        with as_task_failures():
            from waybill.services import run_upkeep_job

            return run_upkeep_job(read_settings(), _parts(context), self.job)


def _parts(context: Context) -> UpkeepParts:
    from waybill.services import UpkeepParts
    from waybill_airflow.replay_runs import TaskReplayRuns

    run = context["dag_run"]
    return UpkeepParts(
        TaskReplayRuns(),
        f"{run.dag_id}/{run.run_id}",
        words_of=error_words,
        is_stopped=partial(_is_paused, run.dag_id),
        lookup=connection_text,
    )


def _is_paused(dag_id: str) -> bool:
    from waybill.errors import WaybillError
    from waybill_airflow.replay_runs import is_paused

    try:
        return is_paused(dag_id)
    except WaybillError:  # it is asked again
        return False


__all__ = ["UpkeepJobOperator", "UpkeepOperator"]
