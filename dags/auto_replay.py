"""Replays marked partitions when their cause has changed. Every minute.

A partition is marked with `waybill parked auto-replay`, or on the page. Its cause has changed when
a new version of its pipeline is active, or when its destination answers again after it was away.
Each replay is a run of the `replay` DAG, with a canary first.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, XComArg

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.replay import (
    NOTES,
    KeepAutoReplaysOperator,
    PlanAutoReplaysOperator,
)
from waybill_airflow.operators.trigger_replay import TriggerReplayOperator

with DAG(
    "auto_replay",
    schedule="* * * * *",
    **upkeep(timeout=timedelta(minutes=10)),
    tags={"waybill", "replay"},
    doc_md=__doc__,
) as dag:
    plan = PlanAutoReplaysOperator(task_id="plan")
    launch = TriggerReplayOperator.partial(task_id="launch", max_active_tis_per_dagrun=4).expand(
        launch=plan.output
    )
    keep = KeepAutoReplaysOperator(
        task_id="keep", notes=XComArg(plan, NOTES), trigger_rule="none_failed"
    )
    launch >> keep
