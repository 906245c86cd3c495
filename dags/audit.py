"""Holds the books against each other. Every minute.

For each pipeline, event name, stage and intake minute: what went in came out, was parked, filtered,
or is on its way; the ranges of committed batches meet; sources counted what was taken in. What does
not add up is a breach: its owner is told by `tell_owners`, its events are named once the minute's
traces are in, and it stays open until it is explained or closed by name (`waybill audit`).
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.notifiers.audit import AuditFailedNotifier
from waybill_airflow.operators.reconciliation import AuditOperator

with DAG(
    "audit",
    schedule="* * * * *",
    **upkeep(timeout=timedelta(minutes=10), on_failure_callback=AuditFailedNotifier()),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    AuditOperator(task_id="audit")
