"""Looks for what is out of the usual, before any book breaks. Every minute.

A pipeline gone quiet against its own history, events or runs that wait for too long, a larger share
that parks, a destination's table that has other rows than loads put there: each is a breach, which
ends by itself. Its owner is told by `tell_owners`. Beside `audit`, so that counting a large table
holds no round of the audit up.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.reconciliation import WatchOperator

with DAG(
    "watch",
    schedule="* * * * *",
    **upkeep(timeout=timedelta(minutes=30)),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    WatchOperator(task_id="watch")
