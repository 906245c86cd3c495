"""How the library's errors end a task: wrong input at once, all else is retried."""

from __future__ import annotations

from importlib import import_module

import pytest
from tests.dags.test_operators import PARTITION, context

from waybill.errors import InputError, RetryError, SettleError, StopError, WaybillError
from waybill_airflow.dag_defaults import RETRIES
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


def tree(root=WaybillError):
    return {root, *(each for own in root.__subclasses__() for each in tree(own))}


def error_of(kind):
    """Return an error of a class, whatever it is made from."""
    error = kind.__new__(kind)
    Exception.__init__(error, "what happened")
    return error


def test_each_class_of_the_error_tree_is_retried_or_not_as_its_root_says():
    """What may pass is tried again, what somebody has to mend is not, all else as before."""
    from airflow.sdk import RetryAction

    for name in ("cli.destinations", "services.campaigns", "ingestion.run"):
        import_module(f"waybill.{name}")  # what these import has errors of its own
    decided = {InputError: RetryAction.FAIL, SettleError: RetryAction.FAIL}
    decided |= {RetryError: RetryAction.RETRY}
    kinds = tree()
    assert len(kinds) > 15, kinds
    for kind in kinds:
        found = {decided[root] for root in decided if issubclass(kind, root)}
        expected = found.pop() if found else RetryAction.DEFAULT
        assert not found, f"{kind} is two things"
        decision = RETRIES.evaluate(error_of(kind), 1, 3)
        assert (decision.action, decision.retry_delay) == (expected, None), kind
    for other in (KeyError("defect"), OSError("disk"), MemoryError()):
        assert RETRIES.evaluate(other, 1, 3).action is RetryAction.DEFAULT


def test_wrong_settings_are_no_reason_to_try_again():
    from airflow.sdk import RetryAction
    from pydantic import ValidationError

    from waybill.settings import AirflowSettings

    with pytest.raises(ValidationError) as wrong:
        AirflowSettings(replay_slots=0)
    assert RETRIES.evaluate(wrong.value, 1, 3).action is RetryAction.FAIL


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
