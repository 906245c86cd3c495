"""Who hears that a task gave up: those whom the settings of notices name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.bases.notifier import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskFailedNotifier(BaseNotifier):
    """Say by the log, the webhook and mail, as the settings say, that a task failed for good.

    Once, when a scheduled run fails after one that did not: not each minute for as long as a server
    is away; and of each run that a person started. A task of one pipeline is a notice to its owner,
    which the tracker keeps until it is sent; every other task, and where the tracker is away, is
    told at once, to the fallback address.
    """

    kind = "task"
    """Of the message, which says it in its subject."""

    def notify(self, context: Context) -> None:
        """Send the word; what a sink does not take is logged. Secrets in it are masked."""
        before = context["ti"].get_previous_dagrun()
        if before is not None and str(before.state) == "failed":
            return
        from waybill.services import tell_task_failed
        from waybill_airflow.failures import read_settings
        from waybill_airflow.hooks.waybill import redacted

        settings = read_settings()  # its secrets are known to `redacted` from here on
        tell_task_failed(
            settings,
            redacted(self.words(context)),
            kind=self.kind,
            pipeline=_pipeline_of(context),
        )

    def words(self, context: Context) -> str:
        """Return what happened, in a sentence."""
        from waybill.notices import one_line

        ti = context["ti"]
        where = one_line(f"{ti.dag_id}.{ti.task_id} in run {ti.run_id}")
        return f"{where} failed after its last try: {reason(context)}"


def _pipeline_of(context: Context) -> str:
    """Return the name of the pipeline whose task it is; empty: it is of none, or of several."""
    task = context.get("task") or getattr(context["ti"], "task", None)
    name = getattr(task, "pipeline", None)
    return name if isinstance(name, str) else ""


def reason(context: Context) -> str:
    """Return why a task failed, on one line.

    Of errors that are not the library's it is the type alone: a driver's own words can quote values
    of events.
    """
    error = context.get("exception")
    if error is None:  # Airflow's DAG processor tells it, in the place of a task that is gone
        return "its process ended amid its work; the scheduler's log says more"
    return error_words(error)


def error_words(error: BaseException) -> str:
    """Return an error in words that may be shown, on one line; secrets in it are masked."""
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.errors import WaybillError
    from waybill.notices import one_line
    from waybill_airflow.hooks.waybill import redacted

    if isinstance(error, WaybillError | AirflowFailException):
        return one_line(redacted(str(error)), 1000)
    return f"{type(error).__name__}; its log says why"


__all__ = ["TaskFailedNotifier", "error_words", "reason"]
