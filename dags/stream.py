"""Keeps the Spark applications of a virtual cluster running. One Airflow DAG a cluster.

`processing` and `loading` each supervise one application, which lives outside its task: ending a
task, or Airflow itself, leaves the applications running, and the next supervisor finds them.

| to | do |
|---|---|
| stop the applications | set the Airflow variable `waybill_stream_<cluster>` to `stop`; within a minute they are stopped and kept so |
| start them again | delete the variable, or set it to `run` |
| supervise no longer | pause this DAG and end its run; the applications run on, unwatched |

A run is a shift of six hours; the next one begins at once. When one task gives up, the run ends, and
the next run takes over both applications.
"""  # noqa: E501 - a table row is one line

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import START, paused_at_creation
from waybill_airflow.operators.spark_application import SparkApplicationOperator

CLUSTERS = ("default",)
SHIFT = timedelta(hours=6)

for cluster in CLUSTERS:
    with DAG(
        f"stream_{cluster}",
        schedule="@continuous",
        start_date=START,
        catchup=False,
        is_paused_upon_creation=paused_at_creation(moves_data=True),
        max_active_runs=1,
        fail_fast=True,
        default_args={
            "retries": 5,
            "retry_delay": timedelta(seconds=10),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=5),
            "execution_timeout": SHIFT + timedelta(minutes=30),
            "max_active_tis_per_dag": 1,
            "queue": "stream",
        },
        tags={"waybill", "stream"},
        doc_md=__doc__,
    ):
        for kind in ("processing", "loading"):
            SparkApplicationOperator(task_id=kind, kind=kind, virtual_cluster=cluster, shift=SHIFT)
