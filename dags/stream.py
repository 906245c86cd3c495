"""Keeps the Spark applications of virtual clusters running: `stream_default`, `stream_clusters`.

`stream_default` is for the cluster `default`, `stream_clusters` for those that were made with
`waybill clusters create`: each run lists them, and supervises the applications of each. `processing` and `loading` each
supervise one application, which lives outside of its task, with a row in the tracker. A task looks at it, starts or ends
what follows, and defers: the triggerer wakes it where reports stay away or something else is wanted. Ending a
task, or Airflow itself, leaves the applications running, and the next task, on any worker, goes on from the row.

| to | do |
|---|---|
| stop the applications | `waybill clusters stop <cluster>`, or *Stop* on the page *Clusters*: within a minute they are stopped and kept so |
| start them again | `waybill clusters start <cluster>`, or *Start* there |
| replace them by new ones | `waybill clusters restart <cluster>`, or *Restart* there |
| supervise no longer | pause this DAG: at once nobody looks any more; the applications run on, unwatched |

A run is a shift: of six hours for `stream_default`, of a quarter of an hour for `stream_clusters`, so that a new
cluster is served by then; the next one takes over what runs. When a task of `stream_default` gives up, the run ends, and
the next run takes over both applications.
"""  # noqa: E501 - a table row is one line

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import FIRST, START, paused_at_creation
from waybill_airflow.operators.clusters import ListClustersOperator
from waybill_airflow.operators.spark_application import SparkApplicationOperator

SHIFT, SHORT_SHIFT = timedelta(hours=6), timedelta(minutes=15)
COMMON = {
    "start_date": START,
    "catchup": False,
    "is_paused_upon_creation": paused_at_creation(moves_data=True),
    "max_active_runs": 1,
    "tags": {"waybill", "stream"},
    "doc_md": __doc__,
}
TASKS = {
    **FIRST,
    "retries": 5,
    "retry_delay": timedelta(seconds=10),
    "max_retry_delay": timedelta(minutes=5),
    "queue": "stream",
    "retry_policy": None,  # what hinders a start, such as no Java, is mended while Airflow runs
}

with DAG(
    "stream_default",
    schedule="@continuous",
    fail_fast=True,
    default_args={
        **TASKS,
        "execution_timeout": SHIFT + timedelta(minutes=30),
        "max_active_tis_per_dag": 1,
    },
    **COMMON,
):
    for kind in ("processing", "loading"):
        SparkApplicationOperator(task_id=kind, kind=kind, shift=SHIFT)

with DAG(
    "stream_clusters",
    schedule="* * * * *",
    default_args={  # short: the next run takes over, and one task keeps the others waiting
        **TASKS,
        "retries": 3,
        "execution_timeout": SHORT_SHIFT + timedelta(minutes=2),
    },
    max_active_tasks=64,
    **COMMON,
):
    clusters = ListClustersOperator(task_id="clusters")
    for kind in ("processing", "loading"):
        SparkApplicationOperator.partial(task_id=kind, kind=kind, shift=SHORT_SHIFT).expand(
            virtual_cluster=clusters.output
        )
