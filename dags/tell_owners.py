"""Tells the owners of pipelines what happened to their events. Every minute.

What parks where nothing was parked is told at once, the numbers of all that is parked once a day. A
message that cannot be sent is kept and tried again; this DAG fails once one waits for too long.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.maintenance import TellOwnersOperator

with DAG(
    "tell_owners",
    schedule="* * * * *",
    **upkeep(timeout=timedelta(minutes=10), retry_delay=timedelta(seconds=20)),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    TellOwnersOperator(task_id="tell")
