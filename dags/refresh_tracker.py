"""Compares tracker and bucket. Hourly.

Objects that no row names are deleted after a grace period; a row whose object is gone is an alarm
and is never deleted in silence. `grace_s` overrides the grace period. Tables of undeployed
pipelines are dropped where a destination refused that before.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.maintenance import RefreshTrackerOperator
from waybill_airflow.params import grace

with DAG(
    "refresh_tracker",
    schedule="@hourly",
    **upkeep(timeout=timedelta(minutes=50), long=True),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
    params=grace("Grace period (seconds)", "parking.garbage_grace_s"),
) as dag:
    RefreshTrackerOperator(task_id="refresh", grace_s=dag.param("grace_s"))
