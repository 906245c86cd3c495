"""How the library's errors end a task: wrong input at once, all else is retried."""

from __future__ import annotations

import pytest
from tests.dags.test_operators import PARTITION, context

from waybill.errors import InputError, RetryError, StopError
from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.operators.campaign import ReplayCampaignOperator
from waybill_airflow.operators.ingest import IngestOperator
from waybill_airflow.operators.maintenance import (
    CleanUpParkedFilesOperator,
    RefreshTrackerOperator,
)
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator
from waybill_airflow.operators.upkeep import UpkeepJobOperator

NOWHERE = "postgresql://127.0.0.1:1/nowhere"


def test_bad_input_fails_without_a_retry_and_keeps_its_words():
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="what, where"), as_task_failures():
        raise InputError("what, where, what to do")


@pytest.mark.parametrize("error", [RetryError("later"), StopError("lease lost"), OSError("disk")])
def test_every_other_error_passes_as_it_is_and_is_retried(error):
    with pytest.raises(type(error)) as caught, as_task_failures():
        raise error
    assert caught.value is error


def test_a_misspelt_setting_fails_the_task_and_is_named(monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    monkeypatch.setenv("WAYBILL_KAFKA__BOOTSTRAP_SERVER", "x")
    with pytest.raises(AirflowFailException, match="did you mean WAYBILL_KAFKA__BOOTSTRAP_SERVERS"):
        read_settings()


def real_operators():
    return [
        IngestOperator(task_id="t", pipeline="flights"),
        ReplayParkedPartitionOperator(task_id="t", request=PARTITION),
        ReplayCampaignOperator(task_id="t"),
        CleanUpParkedFilesOperator(task_id="t"),
        RefreshTrackerOperator(task_id="t"),
        UpkeepJobOperator(task_id="t", job="audit"),
    ]


@pytest.mark.parametrize("number", range(6))
def test_with_the_tracker_away_the_real_library_asks_for_a_retry(number, monkeypatch):
    """No stand-in: the library is called, and finds nobody at the tracker's address."""
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", NOWHERE)
    with pytest.raises(RetryError):
        real_operators()[number].execute(context())
