"""Short form of ``make faults-airflow``: Airflow's processes killed while a campaign runs."""

from __future__ import annotations

import os

import pytest
from tests.faults.airflow_campaign import SHORTEST, run, show

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.timeout(900)]
SEED = int(os.environ.get("AIRFLOW_SEED", "1"))


def test_each_group_is_replayed_once_whichever_process_of_airflow_is_killed(
    airflow_metadata, stack_settings
):
    tally = run(stack_settings, airflow_metadata, SHORTEST, seed=SEED)
    show([tally], SEED)
    assert tally.kills == dict.fromkeys(SHORTEST.kinds, SHORTEST.each)
    assert (tally.launched_twice, tally.lost, tally.stuck) == (0, 0, 0)
