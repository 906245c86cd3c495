"""Start runs of the DAG ``replay`` for what a plan lists.

Event names come from payloads, and a plan hands them over by XCom. ``TriggerDagRunOperator``
renders its ``conf`` as Jinja, mapped values too, and an Airflow template reaches any Python code
through ``macros``. So the operator here has no template fields, and a plan cannot set any other
argument of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

from waybill_airflow.operators.replay import REPLAY_DAG_ID

if TYPE_CHECKING:
    from collections.abc import Sequence


class Launch(TypedDict):
    """One run to start."""

    trigger_run_id: str
    conf: dict[str, Any]
    """Params of the DAG ``replay``."""
    reset_dag_run: bool
    """A run with this id failed: it is cleared, and resumes its replay."""


class TriggerReplayOperator(TriggerDagRunOperator):
    """Start one run of the DAG ``replay``; skipped when a run with its id is there.

    Map it over a plan: ``TriggerReplayOperator.partial(task_id=…).expand(launch=plan.output)``.

    :param launch: the run to start. Never rendered: it holds names that come from payloads.
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, launch: Launch, **kwargs: Any) -> None:
        super().__init__(
            trigger_dag_id=REPLAY_DAG_ID,
            trigger_run_id=launch["trigger_run_id"],
            conf=launch["conf"],
            reset_dag_run=launch["reset_dag_run"],
            logical_date=None,
            skip_when_already_exists=True,
            **kwargs,
        )
        self.launch = launch


__all__ = ["Launch", "TriggerReplayOperator"]
