"""Compares tracker and bucket. Hourly.

Objects that no row names are deleted after a grace period; a row whose object is gone is an alarm
and is never deleted in silence. `grace_s` overrides the grace period.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_pausing import paused_at_creation
from waybill_airflow.operators.maintenance import RefreshTrackerOperator
from waybill_airflow.params import grace

with DAG(
    "refresh_tracker",
    schedule="@hourly",
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
    params=grace("Grace period (seconds)", "parking.garbage_grace_s"),
) as dag:
    RefreshTrackerOperator(task_id="refresh", grace_s=dag.param("grace_s"))
