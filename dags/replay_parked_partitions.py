"""Launches one run of the `replay` DAG for each parked partition that matches a filter.

An empty filter field matches all. Asking twice for the same launches it once: a run's id is made
from the partition, what is parked in it and the options. A launch that finds its run there is shown
as skipped; a failed run is cleared and resumes. What is parked of a pipeline that is held is left
out, and named in the log of `plan`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from waybill.parking import ParkedFilter
from waybill.replay import ReplayRequest
from waybill_airflow.dag_defaults import REPLAYS, paused_at_creation
from waybill_airflow.operators.replay import PlanReplaysOperator
from waybill_airflow.operators.trigger_replay import TriggerReplayOperator
from waybill_airflow.params import params_of

OPTIONS = ("rate_per_s", "governed", "canary", "dry_run")
FILTERS = ("pipeline", "event_name", "stage", "error_type", "since", "until")

with DAG(
    "replay_parked_partitions",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=paused_at_creation(),
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        "execution_timeout": timedelta(minutes=30),
        **REPLAYS,
    },
    tags={"waybill", "replay"},
    doc_md=__doc__,
    params={
        **params_of(ParkedFilter, only=FILTERS, section="Filter"),
        **params_of(ReplayRequest, only=OPTIONS),
        "limit": Param(
            1000,
            type="integer",
            minimum=1,
            maximum=1000,
            title="Most partitions",
            description="The rest is named in the log of `plan`; a further run takes it.",
        ),
    },
) as dag:
    plan = PlanReplaysOperator(
        task_id="plan",
        filters={name: dag.param(name) for name in FILTERS},
        **{name: dag.param(name) for name in OPTIONS},
        limit=dag.param("limit"),
    )
    TriggerReplayOperator.partial(task_id="launch", max_active_tis_per_dagrun=4).expand(
        launch=plan.output
    )
