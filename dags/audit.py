"""Holds the books against each other. Every minute.

For each pipeline, event name, stage and intake minute: what went in came out, was parked, filtered,
or is on its way; the ranges of committed batches meet; sources counted what was taken in. What does
not add up is a breach: its owner is told by `tell_owners`, its events are named once the minute's
traces are in, and it stays open until it is explained or closed by name (`waybill audit`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_pausing import paused_at_creation
from waybill_airflow.notifiers.audit import AuditFailedNotifier
from waybill_airflow.operators.audit import AuditOperator

with DAG(
    "audit",
    schedule="* * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=paused_at_creation(),
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        "execution_timeout": timedelta(minutes=10),
        "on_failure_callback": AuditFailedNotifier(),
    },
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    AuditOperator(task_id="audit")
