"""Short form of ``make faults-airflow``: Airflow's processes killed while a campaign runs."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest
from tests.faults.airflow_campaign import SHORTEST, Tally, exit_code, played, show
from tests.support.real_airflow import LOG_BUCKET

from waybill.storage import ObjectStore

pytestmark = pytest.mark.timeout(5400)
SEED = int(os.environ.get("AIRFLOW_SEED", "1"))


@pytest.mark.serves
@pytest.mark.slow
def test_each_group_is_replayed_once_whichever_process_of_airflow_is_killed(
    airflow_metadata, stack_settings
):
    """And the logs of tasks outlive the node that they were written on, as compose has it."""
    store = ObjectStore(stack_settings.s3.model_copy(update={"bucket": LOG_BUCKET}))
    with played(stack_settings, airflow_metadata, SHORTEST, seed=SEED) as (tally, airflow):
        show([tally], SEED)
        assert tally.kills == dict.fromkeys(SHORTEST.kinds, SHORTEST.each)
        assert (tally.launched_twice, tally.lost, tally.stuck) == (0, 0, 0)
        found = "SELECT run_id, try_number FROM task_instance WHERE dag_id = 'replay' ORDER BY 1"
        run_id, number = airflow.sql(found)[0]
        shutil.rmtree(airflow.airflow.home / "logs")
        place = f"dag_id=replay/run_id={run_id}/task_id=replay/attempt={number}.log"
        assert b"events are in the log again" in store.get(f"tasks/{place}")
        page = f"/dags/replay/dagRuns/{run_id}/taskInstances/replay/logs/{number}"
        with airflow.client() as client:
            shown = client.get(page, params={"full_content": True}).raise_for_status().text
        assert "events are in the log again" in shown


@pytest.mark.parametrize(
    ("kills", "lost", "code", "words"),
    [
        ({"scheduler": 2, "worker": 1}, 0, 0, ""),
        ({"scheduler": 1, "worker": 1}, 0, 2, "scheduler: 1 of 2 asked for not done"),
        ({"scheduler": 2}, 0, 2, "worker: 1 of 1 asked for not done"),
        ({"scheduler": 2, "worker": 1}, 3, 1, "of 9 groups 0 launched twice, 3 lost, 0 stuck"),
        ({}, 3, 1, "worker: 1 of 1 asked for not done"),
    ],
)
def test_the_command_fails_where_a_fault_was_not_reached_or_a_group_is_wrong(
    capsys, kills, lost, code, words
):
    asked = Counter({"scheduler": 2, "worker": 1})
    tally = Tally("LocalExecutor", asked, groups=9, kills=Counter(kills), lost=lost)
    assert exit_code([tally]) == code
    assert words in capsys.readouterr().err
