"""Replays marked partitions when their cause has changed. Every minute.

A partition is marked with `waybill parked auto-replay`, or on the page. Its cause has changed when
a new version of its pipeline is active, or when its destination answers again after it was away.
Each replay is a run of the `replay` DAG, with a canary first.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, XComArg

from waybill_airflow.operators.auto_replay import (
    NOTES,
    KeepAutoReplaysOperator,
    PlanAutoReplaysOperator,
)
from waybill_airflow.operators.replay import REPLAY_DAG_ID

with DAG(
    "auto_replay",
    schedule="* * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        "execution_timeout": timedelta(minutes=10),
    },
    tags={"waybill", "replay"},
    doc_md=__doc__,
) as dag:
    plan = PlanAutoReplaysOperator(task_id="plan")
    launch = TriggerDagRunOperator.partial(
        task_id="launch",
        trigger_dag_id=REPLAY_DAG_ID,
        logical_date=None,
        skip_when_already_exists=True,
        max_active_tis_per_dagrun=4,
    ).expand_kwargs(plan.output)
    keep = KeepAutoReplaysOperator(
        task_id="keep", notes=XComArg(plan, NOTES), trigger_rule="none_failed"
    )
    launch >> keep
