"""Errors of a load cross from a task as what they were: type, text, code."""

from __future__ import annotations

import logging

import pytest

from waybill.destinations import BehindError
from waybill.errors import (
    AwayError,
    InputError,
    ParkError,
    RetryError,
    StopError,
    ThrottledError,
    WaybillError,
)
from waybill.loading import failure_to_json, raise_failure
from waybill.loading.failures import NotTakenError, destination_errors
from waybill.processing import StagedObjectError

ODD = 'said "no" \ud83d alone, \0, ö\nand more'
ERRORS = [
    RetryError(ODD, code="destination_full"),
    RetryError("away"),
    AwayError(ODD, setting="WAYBILL_S3__ENDPOINT_URL"),
    ThrottledError(ODD, code="destination_throttled"),
    BehindError(ODD),
    InputError(ODD, code="destination_unauthorized"),
    StopError(ODD),
    ParkError("record_incomplete", ODD, where="column x"),
    WaybillError(ODD),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_our_errors_come_out_as_they_went_in(error):
    text = failure_to_json(error)
    assert text.isascii()
    with pytest.raises(type(error)) as caught:
        raise_failure(text, "loading/x")
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)


@pytest.mark.parametrize(
    "error", [*ERRORS, ValueError(ODD), KeyError()], ids=lambda error: type(error).__name__
)
def test_what_the_destination_said_is_the_same_as_in_the_driver(error):
    with pytest.raises(NotTakenError) as here, destination_errors("loading/x"):
        raise error
    with pytest.raises(NotTakenError) as there:
        raise_failure(failure_to_json(here.value), "loading/x")
    for name in ("code", "by_hand_only"):
        assert getattr(there.value, name) == getattr(here.value, name)
    assert str(there.value) == str(here.value)


def test_a_subclass_becomes_the_nearest_of_ours():
    with pytest.raises(StopError, match="it is torn") as caught:
        raise_failure(failure_to_json(StagedObjectError("it is torn")), "loading/x")
    assert type(caught.value) is StopError


def test_our_own_defects_stop_and_are_in_the_log(caplog):
    with pytest.raises(OSError, match="no space") as defect:
        raise OSError("no space left")
    text = failure_to_json(defect.value)
    with caplog.at_level(logging.ERROR), pytest.raises(StopError, match="OSError: no space left"):
        raise_failure(text, "loading/x")
    assert "test_failures.py" in caplog.text


def test_words_of_a_fence_or_a_cancelled_job_are_words():
    for words in ("FencedError", "[SPARK_JOB_CANCELLED] Job 3 cancelled", "StoppedError"):
        with pytest.raises(NotTakenError), destination_errors("loading/x"):
            raise RetryError(words)
        with pytest.raises(NotTakenError, match="RetryError|.") as caught:
            raise_failure(failure_to_json(NotTakenError(RetryError(words))), "loading/x")
        assert str(caught.value) == words
