"""Moves shipped traces into the buckets by which they are looked up. Every 15 minutes.

An hour's traces are merged once it is over; until then only what came since the last run is moved.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_pausing import paused_at_creation
from waybill_airflow.operators.maintenance import CompactTracesOperator

with DAG(
    "compact_traces",
    schedule="*/15 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=paused_at_creation(),
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(minutes=1),
        "retry_exponential_backoff": True,
        "execution_timeout": timedelta(minutes=50),
    },
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    CompactTracesOperator(task_id="compact")
