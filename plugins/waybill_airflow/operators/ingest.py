"""Fetch the events of a pipeline's source and send them to Kafka."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from waybill_airflow.dag_defaults import INGEST_POOL
from waybill_airflow.extra_links import PipelineLink
from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.hooks.waybill import connection_text
from waybill_airflow.operators.replay import reason_told, who_asked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from waybill.ingestion import RunSoFar, TurnEndedError


_SHORT_S = 2.0
"""So long a run stays away that gave its slot to another team: one loop of the scheduler, and more.
Whose team waits has a higher priority by then."""
_FIRST_S, _LONGEST_S = 5.0, 300.0
"""So long it stays away at least where Kafka takes nothing: each time twice as long."""
_KAFKA_AWAY_S = 1800.0
"""After so long without a page the try fails, and somebody hears of it."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """How long a run has waited, over its turns."""

    pause_s: float = 0.0
    since_s: float | None = None
    """Since when it waits for Kafka without a page in between, in seconds since the epoch."""

    def after(self, ended: TurnEndedError, before: RunSoFar | None) -> _Wait:
        """Return it for the end of a turn."""
        if ended.waits_for == "share":
            return _Wait(_SHORT_S)
        pages = 0 if before is None else before.figures.pages
        if self.since_s is None or ended.so_far.figures.pages > pages:
            return _Wait(_FIRST_S, time.time())
        return _Wait(min(_LONGEST_S, max(_FIRST_S, 2 * self.pause_s)), self.since_s)

    @property
    def is_over(self) -> bool:
        """Tell whether it is too long."""
        return self.ends_s is not None and time.time() >= self.ends_s

    @property
    def ends_s(self) -> float | None:
        """When it is, in seconds since the epoch; None: never."""
        return None if self.since_s is None else self.since_s + _KAFKA_AWAY_S


class IngestOperator(BaseOperator):
    """Read a pipeline's source from where the last run stopped, through the lossless producer.

    Safe to kill and to retry: what was accepted is in the write-ahead log, and the cursor advances
    only with it, so that the next try goes on where this one stopped.

    A task that Airflow ends (it was marked as failed, its pod goes) stops at its next page, if that
    is within the five seconds that Airflow gives it, and is killed otherwise; the next run sends
    what is left in the log. A run that ``waybill sources stop`` or the page *Sources* stops is
    skipped.

    A run holds its slot for a *turn*. Where its team is over its share of the slots and another
    team waits, it gives the slot back at a page; where Kafka takes nothing for
    ``airflow.kafka_wait_s``, it waits without one. It goes on from that page, in the same try. A
    Kafka that takes nothing for half an hour fails the try.

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
        return self._turn(context, None, _Wait())

    def go_on(
        self,
        context: Context,
        event: Mapping[str, Any],
        so_far: dict[str, Any],
        wait: dict[str, Any],
    ) -> dict[str, Any]:
        """Go on with the next turn: the trigger fired, and says nothing more."""
        from waybill.ingestion import RunSoFar

        return self._turn(context, RunSoFar.from_json(so_far), _Wait(**wait))

    def _turn(self, context: Context, before: RunSoFar | None, wait: _Wait) -> dict[str, Any]:
        """Read to the source's end, and return the counts; or defer where the turn ends."""
        with as_task_failures(), reason_told(context):
            from waybill.errors import RetryError
            from waybill.ingestion import IngestRequest, Turn, TurnEndedError
            from waybill.services import AskedRun, run_ingest

            ended: TurnEndedError | None = None
            settings = read_settings()
            asked = None
            if self.from_params:
                request = IngestRequest.of(dict(context["params"]))
                asked = AskedRun(request, context["run_id"], who_asked(context))
            try:
                report = run_ingest(
                    settings,
                    self.pipeline,
                    lookup=connection_text,
                    asked=asked,
                    turn=Turn(settings.airflow.kafka_wait_s, lambda: self._is_ended, before),
                )
            except TurnEndedError as error:
                wait = wait.after(error, before)
                if wait.is_over:
                    raise
                ended, report = error, error.so_far.report
            self._counts = report.to_json()
            if self._is_ended and (report.stopped or ended):
                raise RetryError("the task was ended: it stopped at a page, the next run goes on")
        if ended is not None:
            self._wait(ended, wait)
        if report.stopped:
            context["ti"].xcom_push(key="return_value", value=self._counts)
            raise AirflowSkipException(
                f"stopped by {report.stopped} after {report.read:,} rows, which are delivered or"
                " parked; the next run goes on"
            )
        return self._counts

    def _wait(self, ended: TurnEndedError, wait: _Wait) -> NoReturn:
        """Defer until the run may go on."""
        from waybill_airflow.triggers.ingest import IngestTurnTrigger

        so_far = ended.so_far
        self.log.info(
            "%s; the run waits without a slot, after %s rows, and goes on at the same page",
            ended,
            f"{so_far.report.read:,}",
        )
        self.defer(
            trigger=IngestTurnTrigger(
                str(so_far.run),
                time.time() + wait.pause_s,
                asks_kafka=ended.waits_for == "kafka",
                not_after_s=wait.ends_s,
            ),
            method_name="go_on",
            kwargs={"so_far": so_far.to_json(), "wait": asdict(wait)},
        )
        raise AssertionError("unreachable: to defer raises")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what it read and wrote; called by Airflow's OpenLineage provider alone."""
        from waybill_airflow.lineage import of_ingest

        return of_ingest(read_settings(), self.pipeline, self._counts)
