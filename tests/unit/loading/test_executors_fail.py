"""What executors fail with: their own failures are told from the destination's and the store's."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from waybill.destinations import BehindError
from waybill.errors import InputError, RetryError, StopError
from waybill.events import CATALOGUE
from waybill.loading import LoadPlan, LoadReport, failure_to_json, raise_failure
from waybill.loading.failures import (
    BY_HAND_ONLY,
    ExecutorsFailedError,
    NotTakenError,
    destination_errors,
)
from waybill.loading.spark import ExecutorLoads, tasks
from waybill.processing.spark.executor_settings import SettingsMismatchError
from waybill.settings import DestinationSettings

PLAN = LoadPlan("x", range(1, 2), ())


class Spark:
    """A session whose jobs return one row, or raise."""

    def __init__(self, result) -> None:
        self.result = result
        self.properties: list[tuple[str, str]] = []
        self.sparkContext = SimpleNamespace(
            setLocalProperty=lambda *given: self.properties.append(given)
        )

    def range(self, *_given):
        return self

    def mapInArrow(self, *_given):
        return self

    def collect(self):
        if isinstance(self.result, PySparkException):
            raise self.result
        return [self.result]


def failed_row(error: Exception) -> SimpleNamespace:
    return SimpleNamespace(report="", failure=failure_to_json(error))


def not_taken(error: Exception) -> NotTakenError:
    with pytest.raises(NotTakenError) as caught, destination_errors("loading/x"):
        raise error
    return caught.value


def raised(result) -> Exception:
    with pytest.raises(Exception) as caught:
        ExecutorLoads(Spark(result), None)(PLAN)  # type: ignore[arg-type]
    return caught.value


def test_a_job_that_spark_gave_up_is_a_failure_of_executors():
    error = raised(PySparkException("Container killed by YARN for exceeding memory limits"))
    assert type(error) is ExecutorsFailedError
    assert "exceeding memory limits" in str(error)


@pytest.mark.parametrize(
    "error", [SettingsMismatchError("it runs another version"), InputError("no S3"), MemoryError()]
)
def test_so_is_a_worker_that_refuses_or_has_no_memory(error):
    found = raised(failed_row(error))
    assert type(found) is ExecutorsFailedError
    assert (str(error) or "MemoryError") in str(found)


@pytest.mark.parametrize("error", [RetryError("the store is away"), StopError("another bucket")])
def test_the_stores_word_and_ours_are_not(error):
    assert type(raised(failed_row(error))) is type(error)


def test_the_destinations_word_stays_its_own_and_says_whether_it_was_reached():
    for unreached in (True, False):
        error = not_taken(RetryError("it did not answer"))
        error.unreached = unreached
        found = raised(failed_row(error))
        assert (type(found), found.unreached) == (NotTakenError, unreached)
        assert found.code == "destination_unreachable"


def test_what_is_of_executors_is_parked_only_by_hand():
    error = NotTakenError(ExecutorsFailedError("they died"))
    assert (error.code, error.by_hand_only) == ("executors_failed", True)
    assert set(CATALOGUE) >= BY_HAND_ONLY
    assert CATALOGUE[error.code].stage == "destination"


@pytest.mark.parametrize(
    ("error", "reaches", "expected"),
    [
        (RetryError("no route"), True, True),
        (RetryError("no route", code="destination_unreachable"), True, True),
        (RetryError("no room", code="destination_full"), False, False),
        (BehindError("put back"), False, False),
        (InputError("no driver"), False, True),
        (InputError("a login refused", code="destination_unauthorized"), False, True),
        (InputError("a column is missing"), True, False),
        (StopError("odd"), False, False),
    ],
)
def test_which_words_may_be_of_one_who_did_not_come_to_the_destination(error, reaches, expected):
    assert not_taken(error).may_be_unreached(lambda: reaches) is expected


@pytest.mark.parametrize("opens", [True, False])
def test_a_task_asks_the_destination_whether_it_is_reached(monkeypatch, tmp_path, opens):
    folder = DestinationSettings(kind="delta", dsn=str(tmp_path))
    settings = SimpleNamespace(loaded=("x", folder), s3=None)
    worker = tasks.LoadWorker(os.getpid(), settings, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(tasks.LoadWorker, "of", lambda _settings: worker)
    if not opens:
        monkeypatch.setattr(tasks, "open_destination", refuses)
    error = not_taken(InputError("a column is missing"))
    monkeypatch.setattr(tasks, "deliver", lambda *_given: raise_failure(failure_to_json(error), ""))
    report, failure = tasks.LoadTask(PLAN, settings)._carry_out(0)  # type: ignore[arg-type]
    worker.close()
    assert report == ""
    with pytest.raises(NotTakenError, match="a column is missing") as caught:
        raise_failure(failure, "loading/x")
    assert caught.value.unreached is not opens


def refuses(*_given):
    raise InputError("needs a package")


@pytest.mark.parametrize("pool", ["load-x", ""])
def test_jobs_of_any_thread_go_into_the_destinations_pool(pool):
    report = SimpleNamespace(report=LoadReport().to_json(), failure="")
    spark = Spark(report)
    assert ExecutorLoads(spark, None, pool=pool)(PLAN) == [LoadReport()]  # type: ignore[arg-type]
    assert spark.properties == ([("spark.scheduler.pool", pool)] if pool else [])
