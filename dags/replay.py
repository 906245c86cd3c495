"""Replays one parked partition: its events go back to Kafka in the order written.

The partition is named by pipeline, event name, stage and error type. Of what parked at ingestion
only what Kafka refused (`delivery_…`) can be replayed: the rest never were events. `dry_run` runs
the deployed stages over the parked events instead, and reports how many would pass; it changes
nothing. Clearing a failed run resumes its replay. A run that meets damaged parked files sends all
else, then fails and says so. See the parked partitions with `waybill parked list`.

A campaign with `groups_per_run` sets `campaign` and `batch`: then the run replays the partitions of
that batch, of which the one named is the first. See `waybill campaigns show`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill.replay import BatchRequest, ReplayRequest
from waybill_airflow.dag_defaults import REPLAYS, paused_at_creation, replays_at_once
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator
from waybill_airflow.params import params_of

with DAG(
    "replay",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=paused_at_creation(),
    max_active_runs=replays_at_once(),
    default_args={
        "retries": 5,
        "retry_delay": timedelta(seconds=10),
        "execution_timeout": timedelta(hours=12),
        **REPLAYS,
    },
    tags={"waybill", "replay"},
    doc_md=__doc__,
    params={**params_of(ReplayRequest), **params_of(BatchRequest, section="Of a campaign")},
):
    ReplayParkedPartitionOperator(task_id="replay")
