"""Plans carried out by Spark's executors: one job a load, one task a table of it."""

from __future__ import annotations

from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from waybill.errors import InputError, StopError
from waybill.loading import (
    ExecutorsFailedError,
    ForeignError,
    LoadPlan,
    LoadReport,
    NotTakenError,
    StoppedError,
    raise_failure,
)
from waybill.loading.spark.tasks import REPORT_SCHEMA, LoadTask
from waybill.processing.spark import ExecutorSettings

_CANCELLED = "SPARK_JOB_CANCELLED"
_SHOWN_CHARACTERS = 500


class ExecutorLoads:
    """Carries plans out in tasks: see ``waybill.loading.loader.Executors``.

    Args:
        spark: whose executors.
        settings: that they get, for one destination.
        pool: Spark's scheduler pool of the jobs, from whichever thread; empty: the default one.
    """

    def __init__(self, spark: SparkSession, settings: ExecutorSettings, *, pool: str = "") -> None:
        self._spark = spark
        self._settings = settings
        self._pool = pool

    def __call__(self, plan: LoadPlan) -> Sequence[LoadReport]:
        """Return the report of each table.

        Raises:
            NotTakenError: a table was not taken; others may be in the destination.
            ExecutorsFailedError: Spark did not bring the job to its end, or a worker is not one
                that could carry the plan out.
            RetryError: the store is away.
            StoppedError: the job was cancelled: the application ends.
            WaybillError: whatever else a task raised of ours.
        """
        if self._pool:
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        tables = len(plan.tables)
        frame = self._spark.range(0, tables, 1, tables)
        try:
            rows = frame.mapInArrow(LoadTask(plan, self._settings), REPORT_SCHEMA).collect()
        except (PySparkException, Py4JJavaError) as error:
            raise _job_error(error) from error
        for row in rows:
            if row.failure:
                _raise(row.failure, f"loading/{plan.destination}")
        return [LoadReport.from_json(row.report) for row in rows]


def _raise(failure: str, consumer: str) -> None:
    """Raise what a task returned; what is of its worker alone is a failure of executors."""
    try:
        raise_failure(failure, consumer)
    except NotTakenError:
        raise
    except InputError as error:  # its settings, or what is installed there
        raise ExecutorsFailedError(f"an executor refuses the load: {error}") from error
    except StopError as error:
        if not isinstance(error.__cause__, ForeignError):
            raise
        raise ExecutorsFailedError(f"an executor failed with the load: {error}") from error


def _job_error(error: PySparkException | Py4JJavaError) -> Exception:
    """Return what a job's failure means: tasks return their own errors, so it is Spark's."""
    if is_cancelled(error):
        return StoppedError("Spark cancelled the job of a load: the application ends")
    shown = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
    return ExecutorsFailedError(
        f"executors did not bring the load to its end: they died, or were not started: {shown}"
    )


def is_cancelled(error: PySparkException | Py4JJavaError) -> bool:
    """Tell whether a job was cancelled, by Spark's own name for it. Its words are not looked at."""
    if isinstance(error, PySparkException):
        return bool(error.getCondition() == _CANCELLED)
    java = error.java_exception
    name = java.getClass().getName()
    if name == "org.apache.spark.SparkException":
        return bool(java.getCondition() == _CANCELLED)
    return bool(name == "java.lang.InterruptedException")
