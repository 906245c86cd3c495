"""Moves shipped traces into the buckets by which they are looked up. Every 15 minutes.

An hour's traces are merged once it is over; until then only what came since the last run is moved.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.maintenance import CompactTracesOperator

with DAG(
    "compact_traces",
    schedule="*/15 * * * *",
    **upkeep(timeout=timedelta(minutes=50), long=True),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    CompactTracesOperator(task_id="compact")
