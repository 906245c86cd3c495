"""Keeps promises each minute: one warm task runs the jobs of upkeep that are due.

| job | what it does |
|---|---|
| `audit` | holds the books against each other, opens and names breaches |
| `watch` | looks for what is out of the usual before a book breaks; makes lost objects again |
| `tell_owners` | tells owners what happened to their events |
| `probe_held_pipelines` | tries whether held pipelines may go on, and replays what was held |
| `auto_replay` | replays marked groups whose cause has changed |
| `coordinate` | decides which virtual cluster serves which team, and what each needs |
| `measure_delays` | sees how long tasks wait that may run |
| `share_slots` | shares the slots of ingestion among teams, at pages of their runs |
| `scale_nodes` | decides how many nodes there are to be, and asks for them |
| `seal_audit_log` | seals new entries of the audit log, so that it shows who changes them |

`upkeep` runs each in a thread of its own, so a long one delays no other. Each has its own record:
`waybill upkeep list`, or the page *Balance*. A job that fails is told and tried again, and the
others go on. A run is a shift of an hour; the next takes over, also where one was killed. While
`upkeep` is paused nothing of this is done. One job is paused by `waybill upkeep pause <job>`.

The DAGs `audit`, `watch` and so on run one job now, started by hand, whether or not it is due or
paused. Where `upkeep` is at it, they wait for that.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import upkeep
from waybill_airflow.notifiers.upkeep import UpkeepFailedNotifier
from waybill_airflow.operators.upkeep import UpkeepJobOperator, UpkeepOperator

SHIFT = timedelta(hours=1)
JOBS = (
    ("audit", "maintenance"),
    ("watch", "maintenance"),
    ("tell_owners", "maintenance"),
    ("probe_held_pipelines", "replay"),
    ("auto_replay", "replay"),
    ("coordinate", "maintenance"),
    ("measure_delays", "maintenance"),
    ("share_slots", "maintenance"),
    ("scale_nodes", "maintenance"),
    ("seal_audit_log", "maintenance"),
)

with DAG(
    "upkeep",
    schedule="* * * * *",  # not @continuous: a shift that fails at its start would begin at once
    **upkeep(timeout=SHIFT + timedelta(minutes=40), on_failure_callback=UpkeepFailedNotifier()),
    tags={"waybill", "maintenance"},
    doc_md=__doc__,
):
    UpkeepOperator(task_id="shift", shift=SHIFT)

for job, subject in JOBS:
    with DAG(
        job,
        schedule=None,
        **upkeep(timeout=timedelta(minutes=40)),
        tags={"waybill", subject, "by-hand"},
        doc_md=__doc__,
    ):
        UpkeepJobOperator(task_id=job, job=job)
