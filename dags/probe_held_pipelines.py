"""Tries whether held pipelines may go on, and replays what was held. Every minute.

A pipeline is held after a storm of failures; its events wait as they came. A probe dry-runs a
sample of them through the deployed version: at once after a deploy, else after one minute, then
two, four, up to an hour. Once it passes the pipeline is released, and each of its held partitions
is replayed by a run of the `replay` DAG; so is what a release by hand left waiting.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.operators.replay import ProbeHeldPipelinesOperator
from waybill_airflow.operators.trigger_replay import TriggerReplayOperator

with DAG(
    "probe_held_pipelines",
    schedule="* * * * *",
    **upkeep(timeout=timedelta(minutes=15)),
    tags={"waybill", "replay", "maintenance"},
    doc_md=__doc__,
) as dag:
    probe = ProbeHeldPipelinesOperator(task_id="probe")
    TriggerReplayOperator.partial(task_id="launch", max_active_tis_per_dagrun=4).expand(
        launch=probe.output
    )
