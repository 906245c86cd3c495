"""Replay parked partitions: one at a time, after a hold, or when their cause changes."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from waybill_airflow.dag_defaults import REPLAY_POOL
from waybill_airflow.extra_links import ParkedGroupLink
from waybill_airflow.failures import as_task_failures, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow.sdk import Context

REPLAY_DAG_ID = "replay"
REASON = "reason"
"""Key of what a replay that failed leaves beside its report: why, in a sentence."""
_WHERE_TO_LOOK = (
    "%d of %d events are in the log again. What becomes of them there: `waybill parked list` shows "
    "what is parked again, `waybill balance` what is still in flight"
)
NOTES = "notes"
_NAMES = ("pipeline", "event_name", "stage", "error_type")


class ReplayParkedPartitionOperator(BaseOperator):
    """Send the parked events of one partition back, in the order in which they were written.

    Safe to kill and to retry: a replay is known by its DAG run, and a retry resumes it. Consumers
    recognise what was sent twice by id and version.

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
        with as_task_failures(), _reason_told(context):
            from waybill.replay import BatchRequest, ReplayRequest
            from waybill.services import run_replay, run_replay_batch

            given = dict(context["params"] if self.request is None else self.request)
            batch = {name: given.pop(name, None) for name in BatchRequest.model_fields}
            request = ReplayRequest.of(given)
            asked = {"who": who_asked(context), "run_id": context["run_id"]}
            report: Any
            if any(value is not None for value in batch.values()):
                report = run_replay_batch(read_settings(), BatchRequest.of(batch), **asked)
            else:
                report = run_replay(read_settings(), request, **asked)
        counts: dict[str, Any] = report.to_json()
        self.log.info("replay: %s", counts)
        if not request.dry_run and "resumed" in counts:
            self._replayed = request.names, counts
            self.log.info(_WHERE_TO_LOOK, counts["sent"] + counts["resumed"], counts["events"])
        if problem := getattr(report, "problem", ""):
            context["ti"].xcom_push(key="return_value", value=counts)  # the page shows it
            context["ti"].xcom_push(key=REASON, value=problem)
            raise AirflowFailException(problem)
        return counts

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what it read and wrote; called by Airflow's OpenLineage provider alone."""
        from waybill_airflow.lineage import of_replay

        return self._replayed and of_replay(read_settings(), *self._replayed)


@contextmanager
def _reason_told(context: Context) -> Iterator[None]:
    """Leave why the block failed where the page, the API and the command line find it."""
    from waybill.errors import WaybillError

    try:
        yield
    except WaybillError as error:
        context["ti"].xcom_push(key=REASON, value=str(error))
        raise


class ProbeHeldPipelinesOperator(BaseOperator):
    """Probe the held pipelines that are due, and release those whose cause is gone.

    The result is mapped over ``TriggerReplayOperator``, one launch for each partition whose held
    events are to go back: a public mechanism that needs no database, shows each launch as a task of
    its own and retries it alone. Safe to kill and to retry.

    Run ids are made from the partition and what is parked in it: asked twice for the same, the
    second launch finds the run there and is skipped. A run that exists and *failed* is cleared
    instead, which resumes its replay.

    :raises waybill.errors.RetryError: the tracker or the object store did not answer.
    :raises waybill.errors.StopError: a parked file of a sample is corrupt.
    :returns: for each partition ``trigger_run_id``, ``conf`` and ``reset_dag_run``.
    """

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Probe, and return the arguments of the launches."""
        with as_task_failures():
            from waybill.services import probe_held_pipelines

            report = probe_held_pipelines(read_settings()).to_json()
        for probe in report["probes"]:
            self.log.info("probe: %s", probe)
        self.log.info("held: %s", ", ".join(report["held"]) or "none")
        with as_task_failures():
            before = _ended_replays(report["to_replay"])
        return [_return(row, before, context) for row in report["to_replay"]]


def _identity(row: dict[str, Any]) -> dict[str, str]:
    return {name: row[name] for name in ("pipeline", "event_name", "stage", "error_type")}


def _return(row: dict[str, Any], before: Mapping[int, str], context: Context) -> dict[str, Any]:
    """Return the launch of one partition's held events."""
    conf = _identity(row)
    return _launch(replay_run_id(row["id"], conf, _salt(row, before)), conf, context)


def _ended_replays(rows: Sequence[dict[str, Any]]) -> Mapping[int, str]:
    from waybill.services import ended_replays

    return ended_replays(read_settings(), [row["id"] for row in rows])


def _salt(row: dict[str, Any], before: Mapping[int, str]) -> list[object]:
    """Return what tells one launch of a partition from the next.

    It is what is parked, and the replay that ended last: one that was cancelled, or that left
    damaged events which are mended since, is not asked for again.
    """
    return [row["parked"], str(row["last_parked_at"]), before.get(row["id"])]


def replay_run_id(partition_id: int, conf: dict[str, Any], salt: object) -> str:
    """Return the run id of one launch: the same for the same request, whoever asks.

    Only ASCII letters, digits and underscores, whatever names the partition has.
    """
    content = json.dumps([conf, salt], sort_keys=True, default=str)
    return f"replay__{partition_id}__{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _launch(run_id: str, conf: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the arguments of one launch; a run that exists and failed is cleared."""
    failed = context["ti"].get_dr_count(dag_id=REPLAY_DAG_ID, run_ids=[run_id], states=["failed"])
    return {"trigger_run_id": run_id, "conf": conf, "reset_dag_run": bool(failed)}


def who_asked(context: Context) -> str:
    """Return the user who triggered the DAG run, or the run itself when a schedule did."""
    run = context["dag_run"]
    return run.triggering_user_name or f"{run.dag_id}/{run.run_id}"


class PlanAutoReplaysOperator(BaseOperator):
    """Look at all marked partitions; list the replays to launch, as one set of arguments each.

    Run ids are made from the partition and from how its cause stood and stands: a look that is
    repeated before `KeepAutoReplaysOperator` has run names the same runs again.

    :raises waybill.errors.RetryError: the tracker did not answer.
    :returns: for each replay ``trigger_run_id``, ``conf`` and ``reset_dag_run``. Under the key
        `NOTES`, what `KeepAutoReplaysOperator` takes.
    """

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Look, and return the arguments of the launches."""
        with as_task_failures():
            from waybill.services import due_auto_replays

            due = [launch.to_json() for launch in due_auto_replays(read_settings())]
        launches, notes = [], []
        for launch in due:
            conf = {name: launch[name] for name in _NAMES} | {"canary": True}
            run_id = replay_run_id(launch["partition_id"], conf, [launch["before"], launch["seen"]])
            self.log.info("%s: %s; launched as %s", conf, launch["why"], run_id)
            failed = context["ti"].get_dr_count(
                dag_id=REPLAY_DAG_ID, run_ids=[run_id], states=["failed"]
            )
            launches.append({"trigger_run_id": run_id, "conf": conf, "reset_dag_run": bool(failed)})
            kept = {name: launch[name] for name in ("partition_id", "before", "seen")}
            notes.append(kept | {"run_id": run_id})
        context["ti"].xcom_push(key=NOTES, value=notes)
        return launches


class KeepAutoReplaysOperator(BaseOperator):
    """Keep that the planned replays were launched, so that the same change launches no other.

    :param notes: what `PlanAutoReplaysOperator` left under the key `NOTES` (templated).
    :raises waybill.errors.RetryError: the tracker did not answer.
    :returns: how many marks were moved on; one that somebody changed meanwhile is left alone.
    """

    template_fields = ("notes",)

    def __init__(self, *, notes: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.notes = notes

    def execute(self, context: Context) -> int:
        """Keep them."""
        with as_task_failures():
            from waybill.services import keep_auto_replays

            return keep_auto_replays(read_settings(), self.notes)
