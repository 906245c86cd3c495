"""Replay one parked partition."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from waybill_airflow.dag_defaults import REPLAY_POOL
from waybill_airflow.extra_links import ParkedGroupLink
from waybill_airflow.failures import as_task_failures, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow.sdk import Context

    from waybill.replay import CanaryWaitError
    from waybill.settings import Settings

REPLAY_DAG_ID = "replay"
REASON = "reason"
"""Key of what a replay that failed leaves beside its report: why, in a sentence."""
_WHERE_TO_LOOK = (
    "%d of %d events are in the log again. What becomes of them there: `waybill parked list` shows "
    "what is parked again, `waybill balance` what is still in flight"
)
_SHORT_WAIT_S = 5.0
"""So long a task waits for a step of a canary itself."""


class ReplayParkedPartitionOperator(BaseOperator):
    """Send the parked events of one partition back, in the order in which they were written.

    Safe to kill and to retry: a replay is known by its DAG run, and a retry resumes it. Consumers
    recognise what was sent twice by id and version.

    A canary waits until a step is processed and loaded: for more than some seconds in the
    triggerer, without a worker's slot. A step that takes longer than ``parking.canary_wait_s``
    fails the try, and the next one goes on with it.

    A run that a campaign started with ``campaign`` and ``batch`` replays the partitions of that
    batch, one after the other. One that fails stops no other: its outcome is in the campaign, and
    the task fails once all were seen to. A retry goes on with those that have no outcome.

    :param request: the fields of a ``waybill.replay.ReplayRequest`` (templated); ``None``: the
        params of the DAG run, which are taken as they are: also those of a ``BatchRequest``.
    :param pool: of Airflow; without its slots the task waits.
    :raises AirflowFailException: there is no such partition, or a parameter is wrong; or, after all
        else was sent, parked files turned out to be damaged or gone.
    :raises waybill.errors.RetryError: Kafka, the tracker or the object store did not answer.
    :raises waybill.errors.StopError: going on could lose or double events.
    :returns: the ``ReplayReport`` as a dict: partition_id, replay_id, segments, events, sent,
        state; of a dry run the ``DryRunReport``; of a batch the ``BatchReport``.
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
        self._replayed: tuple[dict[str, str], dict[str, Any]] | None = None
        """Names of the one group that was replayed, and the counts."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Replay, and return the counts."""
        return self._replay(context, {}, "", 0.0)

    def go_on(
        self, context: Context, event: Mapping[str, Any], ends: Any, step: str, until_s: float
    ) -> dict[str, Any]:
        """Go on with a canary: its step is processed and loaded, or its time is over."""
        return self._replay(context, {**ends, step: event["ends"]}, step, until_s)

    def _replay(
        self, context: Context, ends: Mapping[str, Any], step: str, until_s: float
    ) -> dict[str, Any]:
        """Replay, or defer until a step of a canary is known; ``until_s``: waits for it at most."""
        with as_task_failures(), reason_told(context, self._note):
            from waybill.replay import (
                AwaitedEnds,
                BatchRequest,
                CanaryWait,
                CanaryWaitError,
                ReplayRequest,
            )
            from waybill.services import run_replay, run_replay_batch

            given = dict(context["params"] if self.request is None else self.request)
            batch = {name: given.pop(name, None) for name in BatchRequest.model_fields}
            request = ReplayRequest.of(given)
            settings = read_settings()
            asked = {"who": who_asked(context), "run_id": context["run_id"]}
            report: Any
            if any(value is not None for value in batch.values()):
                report = run_replay_batch(settings, BatchRequest.of(batch), **asked)
            else:
                known = {name: AwaitedEnds.from_json(value) for name, value in ends.items()}
                wait = CanaryWait(_SHORT_WAIT_S, known)
                try:
                    report = run_replay(settings, request, **asked, canary_wait=wait)
                except CanaryWaitError as error:
                    self._wait(settings, error, until_s if error.step == step else None)
        counts: dict[str, Any] = report.to_json()
        self.log.info("replay: %s", counts)
        if not request.dry_run and "resumed" in counts:
            self._replayed = request.names, counts
            self.log.info(_WHERE_TO_LOOK, counts["sent"] + counts["resumed"], counts["events"])
        if problem := getattr(report, "problem", ""):
            context["ti"].xcom_push(key="return_value", value=counts)  # the page shows it
            context["ti"].xcom_push(key=REASON, value=problem)
            self._note(context, problem)
            raise AirflowFailException(problem)
        return counts

    def _note(self, context: Context, reason: str) -> None:
        """Leave the reason with the campaign that the run is of, if it is."""
        from waybill.errors import WaybillError
        from waybill.services import note_failed_replay

        try:
            note_failed_replay(read_settings(), context["run_id"], reason)
        except WaybillError as error:
            self.log.warning("why the run failed is not in its campaign: %s", error)

    def _wait(
        self, settings: Settings, error: CanaryWaitError, waits_until_s: float | None
    ) -> NoReturn:
        """Defer until the step is known; once it was waited for long enough, raise the error."""
        from waybill_airflow.triggers.replays import ReplayTrigger

        now_s = time.time()
        until_s = waits_until_s or now_s + settings.parking.canary_wait_s
        if now_s >= until_s:
            raise error
        ends = {name: value.to_json() for name, value in error.ends.items()}
        self.log.info("%s; waiting without a slot", str(error).partition(". ")[0])
        self.defer(
            trigger=ReplayTrigger(ends[error.step], until_s),
            method_name="go_on",
            kwargs={"ends": ends, "step": error.step, "until_s": until_s},
        )
        raise AssertionError("unreachable: to defer raises")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what it read and wrote; called by Airflow's OpenLineage provider alone."""
        from waybill_airflow.lineage import of_replay

        return self._replayed and of_replay(read_settings(), *self._replayed)


@contextmanager
def reason_told(
    context: Context, note: Callable[[Context, str], None] | None = None
) -> Iterator[None]:
    """Leave why the block failed where the page, the API and the command line find it.

    ``note`` leaves it in a further place.
    """
    from waybill.errors import WaybillError

    try:
        yield
    except WaybillError as error:
        context["ti"].xcom_push(key=REASON, value=str(error))
        if note is not None:
            note(context, str(error))
        raise


def who_asked(context: Context) -> str:
    """Return the user who triggered the DAG run, or the run itself when a schedule did."""
    run = context["dag_run"]
    return run.triggering_user_name or f"{run.dag_id}/{run.run_id}"
