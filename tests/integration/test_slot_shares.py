"""Slots of ingestion shared among teams, on Airflow's own database: priorities, and who is to leave."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest
from tests.support import web_app
from tests.support.triggers import completed

from waybill.ledger import RunFigures, begin_run, read_slot_users, read_sources, wait_run

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
PATH = "/api/ingest-slots/share"


DAG = """
INSERT INTO dag (dag_id, is_paused, is_stale, exceeds_max_non_backfill, bundle_name, timetable_type,
  timetable_partitioned, timetable_periodic, partition_mapper_info, max_active_tasks,
  max_consecutive_failed_dag_runs, has_task_concurrency_limits, fail_fast)
VALUES (%s, %s, false, false, 'dags-folder', '', false, false, '{}', 16, 0, true, false)
"""
RUN = """
INSERT INTO dag_run (dag_id, run_id, run_type, state, run_after, clear_number, span_status)
VALUES (%s, 'r', 'manual', 'running', now(), 0, '')
"""
TASK = """
INSERT INTO task_instance (id, task_id, dag_id, run_id, map_index, pool, pool_slots, state, try_number,
  max_tries, priority_weight, span_status, scheduled_dttm, queued_dttm)
VALUES (gen_random_uuid(), 'ingest', %(dag)s, 'r', -1, 'waybill_ingest', 1, %(state)s::text, 1, 0, 1, '',
  now() - %(age)s::float * interval '1 s',
  CASE WHEN %(state)s::text <> 'scheduled' THEN now() - %(age)s::float * interval '1 s' END)
"""


class Tasks:
    """Tasks of ingest runs, as rows of Airflow's database."""

    def __init__(self) -> None:
        dsn = os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        self.database = psycopg.connect(dsn.replace("+psycopg2", ""), autocommit=True)

    def sql(self, query: str, given: Any = None) -> list[tuple[Any, ...]]:
        done = self.database.execute(query, given)
        return done.fetchall() if done.description else []

    def add(self, name: str, state: str, age_s: float, *, paused: bool = False) -> None:
        """Add the task of a pipeline's run; it has its slot, or waits, for so long."""
        dag_id = f"ingest_{name}"
        self.sql(DAG, [dag_id, paused])
        self.sql(RUN, [dag_id])
        self.sql(TASK, {"dag": dag_id, "state": state, "age": age_s})

    def set_state(self, name: str, state: str) -> None:
        changed = "UPDATE task_instance SET state = %s, queued_dttm = now() WHERE dag_id = %s"
        self.sql(changed, [state, f"ingest_{name}"])

    def weights(self) -> dict[str, int]:
        rows = self.sql("SELECT dag_id, priority_weight FROM task_instance")
        return {dag_id.removeprefix("ingest_"): weight for dag_id, weight in rows}

    def clear(self) -> None:
        for table in ("task_instance", "dag_run", "dag"):
            self.sql(f"DELETE FROM {table} WHERE dag_id LIKE 'ingest\\_%'")
        self.sql("DELETE FROM slot_pool WHERE pool = 'waybill_ingest'")


@pytest.fixture
def tasks(web):
    """A pool of two slots, and pipelines of three teams."""
    found = Tasks()
    found.clear()
    found.sql(
        "INSERT INTO slot_pool (pool, slots, include_deferred) VALUES ('waybill_ingest', 2, false)"
    )
    for name, team in {
        "a1": "aviation",
        "a2": "aviation",
        "a3": "aviation",
        "b1": "shipping",
        "c1": "mail",
    }.items():
        web.deploy(f"pl-{name}", name, team)
    yield found
    found.clear()
    found.database.close()


def asked(web) -> set[str]:
    users = read_slot_users(web.lot.tracker, ["a1", "a2", "a3", "b1", "c1"])
    return {name for name, user in users.items() if user.asked_s is not None}


def test_the_longest_turn_of_the_team_over_its_share_is_to_end_and_who_waits_goes_first(web, tasks):
    tasks.add("a1", "running", 500)
    tasks.add("a2", "running", 900)
    tasks.add("a3", "scheduled", 800)
    for name in ("a1", "a2"):
        begin_run(web.lot.tracker, f"pl-{name}", node="n")
    assert web.post("ann", PATH) == {"waiting": 1, "first": 0, "leaving": 0}
    tasks.add("b1", "scheduled", 5)
    assert web.post("ann", PATH) == {"waiting": 2, "first": 1, "leaving": 1}
    assert tasks.weights() == {"a1": 1, "a2": 1, "a3": 1, "b1": 2}
    assert asked(web) == {"a2"}
    assert web.post("ann", PATH) == {"waiting": 2, "first": 1, "leaving": 1}
    assert asked(web) == {"a2"}, "asked again, it is the same one"

    tasks.set_state("a1", "success")  # a slot is free before it has left
    assert web.post("ann", PATH) == {"waiting": 2, "first": 1, "leaving": 0}
    assert asked(web) == set()
    tasks.set_state("b1", "running")
    assert web.post("ann", PATH) == {"waiting": 1, "first": 0, "leaving": 0}
    tasks.set_state("b1", "scheduled")  # it was cleared
    tasks.add("c1", "running", 1)
    tasks.set_state("a2", "success")
    assert web.post("ann", PATH)["leaving"] == 0
    weights = tasks.weights()
    assert (weights["b1"], weights["a3"]) == (2, 1), "of one slot that is free for two teams"


def test_a_task_of_a_paused_dag_waits_for_no_slot(web, tasks):
    tasks.add("a1", "running", 500)
    tasks.add("a2", "running", 900)
    tasks.add("b1", "scheduled", 5, paused=True)
    assert web.post("ann", PATH) == {"waiting": 0, "first": 0, "leaving": 0}


def test_tasks_of_other_dags_keep_their_slots_and_have_no_part(web, tasks):
    tasks.add("of_somebody_else", "running", 9_000)
    tasks.add("a1", "running", 500)
    tasks.add("b1", "scheduled", 5)
    begin_run(web.lot.tracker, "pl-a1", node="n")
    assert web.post("ann", PATH) == {"waiting": 1, "first": 1, "leaving": 1}
    assert asked(web) == {"a1"}, "of one slot for two teams each has a turn"


def test_without_tasks_or_a_pool_there_is_nothing_to_share(web, tasks):
    assert web.post("ann", PATH) == {"waiting": 0, "first": 0, "leaving": 0}
    tasks.clear()
    tasks.add("a1", "running", 500)
    tasks.add("b1", "scheduled", 5)
    assert web.post("ann", PATH) == {"waiting": 1, "first": 0, "leaving": 0}


def test_a_run_whose_task_was_ended_while_it_waited_is_no_more_said_to_wait(web, tasks):
    from waybill_airflow.triggers.ingest import IngestTurnTrigger

    run = begin_run(web.lot.tracker, "pl-a1", node="n")
    wait_run(web.lot.tracker, "pl-a1", run, RunFigures(read=7), waits_for="kafka")
    # as the triggerer does once somebody has marked or cleared the task
    completed(IngestTurnTrigger(str(run), 0.0, asks_kafka=True).on_kill())
    [line] = [one for one in read_sources(web.lot.tracker).sources if one.pipeline == "a1"]
    assert (line.state, line.waits_for, line.figures.read) == ("failed", "", 7)
    assert "ended by hand" in line.error


def test_who_may_not_change_airflows_pools_may_not_have_slots_shared(web, tasks):
    refused = web.post("vic", PATH, status=403)
    assert "does not let 'vic' change the pool 'waybill_ingest'" in refused["detail"]
