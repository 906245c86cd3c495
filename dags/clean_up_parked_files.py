"""Deletes parked files whose segments are all replayed or discarded. Daily.

A file with one segment that is still parked stays whole. `grace_s` overrides how long a finished
file is kept.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_pausing import paused_at_creation
from waybill_airflow.operators.maintenance import CleanUpParkedFilesOperator
from waybill_airflow.params import grace

with DAG(
    "clean_up_parked_files",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=paused_at_creation(),
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(minutes=1),
        "retry_exponential_backoff": True,
        "execution_timeout": timedelta(hours=4),
    },
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
    params=grace("Keep for (seconds)", "parking.clean_up_grace_s"),
) as dag:
    CleanUpParkedFilesOperator(task_id="clean_up", grace_s=dag.param("grace_s"))
