"""Fetch the events of a pipeline's source and send them to Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from waybill_airflow.dag_defaults import INGEST_POOL
from waybill_airflow.extra_links import PipelineLink
from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.hooks.waybill import connection_text
from waybill_airflow.operators.replay import reason_told, who_asked

if TYPE_CHECKING:
    from airflow.sdk import Context


class IngestOperator(BaseOperator):
    """Read a pipeline's source from where the last run stopped, through the lossless producer.

    Safe to kill and to retry: what was accepted is in the write-ahead log, and the cursor advances
    only with it, so that the next try goes on where this one stopped.

    A task that Airflow ends (it was marked as failed, its pod goes) stops at its next page, if that
    is within the five seconds that Airflow gives it, and is killed otherwise; the next run sends
    what is left in the log. A run that ``waybill sources stop`` or the page *Sources* stops is
    skipped.

    :param pipeline: name of a deployed pipeline.
    :param from_params: the params of the DAG run say where it begins: the fields of a
        ``waybill.ingestion.IngestRequest``, and no others. That is done once a run: a retry goes on
        from where the try before it stopped.
    :param pool: of Airflow; without its slots the task waits.
    :param max_active_tis_per_dag: a source is read by one task at a time, in backfills too.
    :raises AirflowFailException: there is no such pipeline, or its source cannot be read.
    :raises waybill.errors.RetryError: Kafka, the tracker or the source did not answer.
    :raises airflow.sdk.exceptions.AirflowSkipException: somebody stopped the run; what it had read
        is delivered or parked.
    :returns: the ``IngestReport`` as a dict: pipeline, read, accepted, parked, resumed (counts of
        events), seconds. A run that was stopped leaves it as well, with ``stopped``: who did.
    """

    operator_extra_links: ClassVar = (PipelineLink(),)

    def __init__(
        self,
        *,
        pipeline: str,
        from_params: bool = False,
        pool: str = INGEST_POOL,
        max_active_tis_per_dag: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(pool=pool, max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.pipeline = pipeline
        self.from_params = from_params
        self._counts: dict[str, Any] = {}
        self._is_ended = False

    def on_kill(self) -> None:
        """Have the run end at its next page; called by Airflow, from a signal's handler."""
        self._is_ended = True

    def execute(self, context: Context) -> dict[str, Any]:
        """Ingest what is new, and return the counts."""
        with as_task_failures(), reason_told(context):
            from waybill.errors import RetryError
            from waybill.ingestion import IngestRequest
            from waybill.services import AskedRun, run_ingest

            asked = None
            if self.from_params:
                request = IngestRequest.of(dict(context["params"]))
                asked = AskedRun(request, context["run_id"], who_asked(context))
            report = run_ingest(
                read_settings(),
                self.pipeline,
                lookup=connection_text,
                asked=asked,
                is_ended=lambda: self._is_ended,
            )
            self._counts = report.to_json()
            if report.stopped and self._is_ended:
                raise RetryError("the task was ended: it stopped at a page, the next run goes on")
        if report.stopped:
            context["ti"].xcom_push(key="return_value", value=self._counts)
            raise AirflowSkipException(
                f"stopped by {report.stopped} after {report.read:,} rows, which are delivered or"
                " parked; the next run goes on"
            )
        return self._counts

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what it read and wrote; called by Airflow's OpenLineage provider alone."""
        from waybill_airflow.lineage import of_ingest

        return of_ingest(read_settings(), self.pipeline, self._counts)
