"""Replays all parked groups that match a filter, by runs of the `replay` DAG: a *campaign*.

An empty filter field matches all; `waybill campaigns start` begins one as well. The groups that
match now are written down at once; what parks later is not among them. Each group has a run of its
own, or up to `groups_per_run` of them share one: cheaper where groups are many, as a run takes ten
seconds to start. At most `max_unfinished` runs wait or run at a time; the task waits without a
worker's slot, and ends when all groups have. Its run succeeds however they ended: its report says
how many failed, and `waybill campaigns show` how many of their events parked again; of a dry run,
how many would.

Left out, and counted with the reason: what never were events, pipelines that are held, groups that
are being replayed, and those that another campaign has. `waybill campaigns list|show` says how far
it is; `pause`, `resume` and `cancel` are there, too. A task that failed goes on when it is cleared.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill.parking import ParkedFilter
from waybill.replay import CampaignRequest, ReplayRequest
from waybill_airflow.dag_defaults import REPLAYS, paused_at_creation
from waybill_airflow.operators.campaign import ReplayCampaignOperator
from waybill_airflow.params import params_of

OPTIONS = ("rate_per_s", "governed", "canary", "enter", "dry_run")
OF_THE_CAMPAIGN = ("limit", "max_unfinished", "groups_per_run", "why", "who")
FILTERS = ("pipeline", "event_name", "stage", "error_type", "since", "until")

with DAG(
    "replay_parked_partitions",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=paused_at_creation(),
    max_active_runs=16,
    default_args={  # a campaign may last for days, and each retry goes on
        "retries": 50,
        "retry_delay": timedelta(seconds=10),
        "execution_timeout": timedelta(minutes=30),
        **REPLAYS,
    },
    tags={"waybill", "replay"},
    doc_md=__doc__,
    params={
        **params_of(ParkedFilter, only=FILTERS, section="Filter"),
        **params_of(ReplayRequest, only=OPTIONS),
        **params_of(CampaignRequest, only=OF_THE_CAMPAIGN),
    },
):
    ReplayCampaignOperator(task_id="campaign")
