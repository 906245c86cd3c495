"""Launch the replays of partitions that are marked to replay when their cause changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.operators.replay import REPLAY_DAG_ID, replay_run_id

if TYPE_CHECKING:
    from airflow.sdk import Context

NOTES = "notes"
_NAMES = ("pipeline", "event_name", "stage", "error_type")


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
