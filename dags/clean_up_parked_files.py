"""Deletes parked files whose segments are all replayed or discarded. Daily.

A file with one segment that is still parked stays whole. `grace_s` overrides how long a finished
file is kept.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.maintenance import CleanUpParkedFilesOperator
from waybill_airflow.params import grace

with DAG(
    "clean_up_parked_files",
    schedule="@daily",
    **upkeep(timeout=timedelta(hours=4), long=True),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
    params=grace("Keep for (seconds)", "parking.clean_up_grace_s"),
) as dag:
    CleanUpParkedFilesOperator(task_id="clean_up", grace_s=dag.param("grace_s"))
