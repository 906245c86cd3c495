"""Trims what grows: records in Kafka, payloads, traces, the tracker's rows. Daily.

How long each is kept is a setting (`WAYBILL_RETENTION__…`); what is not loaded, parked or still
needed stays however old it is.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.maintenance import ApplyRetentionOperator

with DAG(
    "apply_retention",
    schedule="@daily",
    **upkeep(timeout=timedelta(hours=4), long=True),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    ApplyRetentionOperator(task_id="trim")
