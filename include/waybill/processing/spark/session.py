"""The Spark session of an application, the same for processing and loading."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from waybill.errors import InputError
from waybill.settings import SparkSettings


def open_session(
    settings: SparkSettings, *, name: str, max_cores: int | None = None
) -> SparkSession:
    """Start Spark. Nothing listens but on loopback, and no UI is served.

    Args:
        settings: of Spark.
        name: of the application.
        max_cores: most cores of a cluster that it takes; ``None``: all that are free. Of no effect
            on a master ``local[n]``.

    Raises:
        InputError: the connector's jars are not there, or ``spark.speculation`` is on.
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
        .config("spark.python.daemon.module", "waybill.processing.spark.daemon")
        .config("spark.task.maxFailures", "4")
        .config("spark.speculation", "false")
    )
    if max_cores is not None:
        builder = builder.config("spark.cores.max", str(max_cores))
    session = builder.getOrCreate()
    _refuse_speculation(session)
    session.sparkContext.setLogLevel("WARN")
    return session


def _refuse_speculation(session: SparkSession) -> None:
    """Refuse a session that was there before, with copies of tasks that are slow.

    Each would run user code once more, and its second attempt in child processes for nothing.
    """
    if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise InputError(
            "spark.speculation is on: each slow task would run twice; take it out of the "
            "cluster's defaults (spark-defaults.conf) and start again"
        )


def _jars(folder: Path) -> list[Path]:
    jars = sorted(folder.resolve().glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise InputError(
            f"the Spark connector for Kafka is not in {folder}; run `waybill up`, which fetches it"
        )
    return jars
