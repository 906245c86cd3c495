"""Trims what grows: records in Kafka, payloads, traces, the tracker's rows. Daily.

How long each is kept is a setting (`WAYBILL_RETENTION__…`); what is not loaded, parked or still
needed stays however old it is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_pausing import paused_at_creation
from waybill_airflow.operators.maintenance import ApplyRetentionOperator

with DAG(
    "apply_retention",
    schedule="@daily",
    is_paused_upon_creation=paused_at_creation(),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(minutes=1),
        "retry_exponential_backoff": True,
        "execution_timeout": timedelta(hours=4),
    },
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    ApplyRetentionOperator(task_id="trim")
