"""The Spark session of an application, the same for processing and loading."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from waybill.errors import InputError
from waybill.settings import SparkSettings


def open_session(settings: SparkSettings, *, name: str) -> SparkSession:
    """Start Spark. Nothing listens but on loopback, and no UI is served.

    Raises:
        InputError: the connector's jars are not there.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run another Python
    builder = (
        SparkSession.builder.appName(name)
        .master(settings.master)
        .config("spark.jars", ",".join(str(path) for path in _jars(settings.jars_dir)))
        .config("spark.driver.memory", settings.driver_memory)
        .config("spark.driver.host", settings.driver_host)
        .config("spark.driver.bindAddress", settings.driver_host)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "8192")
        .config("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .config("spark.sql.streaming.stopTimeout", "10s")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str((settings.work_dir / "warehouse").resolve()))
        .config("spark.local.dir", str((settings.work_dir / "local").resolve()))
        .config("spark.python.worker.reuse", "true")
        .config("spark.python.daemon.module", "waybill.streaming.daemon")
        .config("spark.task.maxFailures", "4")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _jars(folder: Path) -> list[Path]:
    jars = sorted(folder.resolve().glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise InputError(
            f"the Spark connector for Kafka is not in {folder}; run `waybill up`, which fetches it"
        )
    return jars
