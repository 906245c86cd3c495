"""Decides which virtual cluster serves which team. Every minute.

Measures what comes in for each team, what it costs and for how long it waits; moves teams where a
cluster is over its limits, one is hot, or a person pinned, drained or moved something; computes the
cores that each cluster needs; gives topics whose tasks do not keep up more partitions. Applications
follow the newest version of the assignment by themselves: `waybill clusters`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.clusters import CoordinateOperator

with DAG(
    "coordinate",
    schedule="* * * * *",
    **upkeep(timeout=timedelta(minutes=10)),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    CoordinateOperator(task_id="coordinate")
