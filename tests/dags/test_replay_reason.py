"""A replay that fails leaves why, whatever kind of error it was."""

from __future__ import annotations

import pytest
from tests.dags import test_operators
from tests.dags.test_operators import PARTITION, Run, context

from waybill.errors import InputError, RetryError
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator

calls = test_operators.calls


@pytest.mark.parametrize("error", [InputError("it was cancelled"), RetryError("Kafka is away")])
def test_a_replay_that_fails_leaves_its_reason(calls, error):
    def fails():
        raise error

    calls.record("run_replay", fails)
    with pytest.raises(Exception, match=str(error)):
        ReplayParkedPartitionOperator(task_id="t", request=PARTITION).execute(
            context(ti=(run := Run()))
        )
    assert run.pushed == {"reason": str(error)}
