"""Replays one parked partition: its events go back to Kafka in the order written.

The partition is named by pipeline, event name, stage and error type. Of what parked at ingestion
only what Kafka refused (`delivery_…`) can be replayed: the rest never were events. `dry_run` runs
the deployed stages over the parked events instead, and reports how many would pass; it changes
nothing. Clearing a failed run resumes its replay. A run that meets damaged parked files sends all
else, then fails and says so. See the parked partitions with `waybill parked list`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from waybill.events import CATALOGUE, STAGES
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator
from waybill_airflow.params import (
    dry_run_options,
    replay_conditions,
    replay_options,
    window,
)
from waybill_airflow.pausing import paused_at_creation

with DAG(
    "replay",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=paused_at_creation(),
    max_active_runs=4,
    default_args={
        "retries": 5,
        "retry_delay": timedelta(seconds=10),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=10),
        "execution_timeout": timedelta(hours=12),
    },
    tags={"waybill", "replay"},
    doc_md=__doc__,
    params={
        "pipeline": Param(type="string", minLength=1, title="Pipeline", section="Partition"),
        "event_name": Param(type="string", title="Event name", section="Partition"),
        "stage": Param(
            type="string",
            enum=list(STAGES),
            title="Stage",
            description="Of what parked at ingestion, only what Kafka refused can be replayed.",
            section="Partition",
        ),
        "error_type": Param(
            type="string",
            minLength=1,
            examples=list(CATALOGUE),
            title="Error type",
            section="Partition",
        ),
        **window(),
        **replay_conditions(),
        **replay_options(),
        **dry_run_options(),
    },
) as dag:
    ReplayParkedPartitionOperator(
        task_id="replay",
        pipeline=dag.param("pipeline"),
        event_name=dag.param("event_name"),
        stage=dag.param("stage"),
        error_type=dag.param("error_type"),
        since=dag.param("since"),
        until=dag.param("until"),
        parked_since=dag.param("parked_since"),
        parked_until=dag.param("parked_until"),
        fingerprint=dag.param("fingerprint"),
        max_events=dag.param("max_events"),
        rate_per_s=dag.param("rate_per_s"),
        canary=dag.param("canary"),
        governed=dag.param("governed"),
        dry_run=dag.param("dry_run"),
        sample=dag.param("sample"),
        enter=dag.param("enter"),
    )
