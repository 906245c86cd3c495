"""Deletes old runs of Waybill's own DAGs from Airflow's database, by `airflow db clean`. Daily.

Off while the setting `WAYBILL_AIRFLOW__KEEP_RUNS_DAYS` is empty: then its task is skipped. It needs
an Airflow connection to Airflow's own database (`WAYBILL_AIRFLOW__DATABASE_CONNECTION_ID`). What
Waybill's books say of replays, ingestion and loads is not in these runs, and stays.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.clean_up_runs import CleanUpRunsOperator

OWN = (
    *("upkeep", "audit", "watch", "tell_owners", "probe_held_pipelines", "auto_replay"),
    *("coordinate", "measure_delays", "share_slots", "scale_nodes", "seal_audit_log", "replay"),
    *("replay_parked_partitions",),
    *("stream_default", "stream_clusters"),
    *("clean_up_parked_files", "clean_up_runs", "refresh_tracker", "compact_traces"),
    *("apply_retention", "make_trace_tables"),
)
"""By name: other files of this folder may be somebody else's."""

with DAG(
    "clean_up_runs",
    schedule="@daily",
    **upkeep(timeout=timedelta(hours=1), long=True),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
) as dag:
    CleanUpRunsOperator(task_id="clean", dag_ids=OWN)
