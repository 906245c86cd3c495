"""Replay one parked partition."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from waybill_airflow.dag_defaults import REPLAY_POOL
from waybill_airflow.extra_links import ParkedGroupLink
from waybill_airflow.failures import as_task_failures, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Context

REPLAY_DAG_ID = "replay"
REASON = "reason"
"""Key of what a replay that failed leaves beside its report: why, in a sentence."""
_WHERE_TO_LOOK = (
    "%d of %d events are in the log again. What becomes of them there: `waybill parked list` shows "
    "what is parked again, `waybill balance` what is still in flight"
)


class ReplayParkedPartitionOperator(BaseOperator):
    """Send the parked events of one partition back, in the order in which they were written.

    Safe to kill and to retry: a replay is known by its DAG run, and a retry resumes it. Consumers
    recognise what was sent twice by id and version.

    :param request: the fields of a ``waybill.replay.ReplayRequest`` (templated); ``None``: the
        params of the DAG run, which are taken as they are.
    :param pool: of Airflow; without its slots the task waits.
    :raises AirflowFailException: there is no such partition, or a parameter is wrong; or, after all
        else was sent, parked files turned out to be damaged or gone.
    :raises waybill.errors.RetryError: Kafka, the tracker or the object store did not answer.
    :raises waybill.errors.StopError: going on could lose or double events.
    :returns: the ``ReplayReport`` as a dict: partition_id, replay_id, segments, events, sent,
        state; of a dry run the ``DryRunReport``.
    """

    template_fields = ("request",)
    operator_extra_links: ClassVar = (ParkedGroupLink(),)

    def __init__(
        self,
        *,
        request: Mapping[str, Any] | None = None,
        pool: str = REPLAY_POOL,
        **kwargs: Any,
    ) -> None:
        super().__init__(pool=pool, **kwargs)
        self.request = request

    def execute(self, context: Context) -> dict[str, Any]:
        """Replay, and return the counts."""
        with as_task_failures(), _reason_told(context):
            from waybill.replay import ReplayRequest
            from waybill.services import run_replay

            request = ReplayRequest.of(context["params"] if self.request is None else self.request)
            report = run_replay(
                read_settings(), request, who=who_asked(context), run_id=context["run_id"]
            )
        counts = report.to_json()
        self.log.info("replay: %s", counts)
        if not request.dry_run:
            self.log.info(_WHERE_TO_LOOK, counts["sent"] + counts["resumed"], counts["events"])
        if problem := getattr(report, "problem", ""):
            context["ti"].xcom_push(key="return_value", value=counts)  # the page shows it
            context["ti"].xcom_push(key=REASON, value=problem)
            raise AirflowFailException(problem)
        return counts


@contextmanager
def _reason_told(context: Context) -> Iterator[None]:
    """Leave why the block failed where the page, the API and the command line find it."""
    from waybill.errors import WaybillError

    try:
        yield
    except WaybillError as error:
        context["ti"].xcom_push(key=REASON, value=str(error))
        raise


def who_asked(context: Context) -> str:
    """Return the user who triggered the DAG run, or the run itself when a schedule did."""
    run = context["dag_run"]
    return run.triggering_user_name or f"{run.dag_id}/{run.run_id}"
