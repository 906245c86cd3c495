"""The Spark session of an application, the same for processing and loading."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from waybill.errors import InputError
from waybill.settings import SparkSettings

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by ``spark-submit`` in the environment of a Python driver."""
_PLACED = (
    "spark.driver.memory",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.local.dir",
)
"""What a submission, or a cluster that runs the driver, knows better."""


def open_session(
    settings: SparkSettings,
    *,
    name: str,
    max_cores: int | None = None,
    memory_mb: int | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark. Nothing listens but on loopback, and no UI is served.

    Where ``spark-submit`` started this process, master, jars and the driver's place are what was
    submitted.

    Args:
        settings: of Spark.
        name: of the application.
        max_cores: most cores of a cluster that it takes; ``None``: as the settings say. Of no
            effect on a master ``local[n]``.
        memory_mb: of an executor, in MiB; ``None``: Spark's default.
        conf: more of Spark's configuration, of a virtual cluster.

    Raises:
        InputError: the connector's jars are not there, ``spark.speculation`` is on, or ``conf`` has
            what Waybill sets itself.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run another Python
    options = {
        **_own_jars(settings.jars_dir),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": settings.driver_host,
        "spark.driver.bindAddress": settings.driver_host,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stopTimeout": "2s",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str((settings.work_dir / "warehouse").resolve()),
        "spark.local.dir": str((settings.work_dir / "local").resolve()),
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "waybill.processing.spark.daemon",
        "spark.task.maxFailures": "4",
        "spark.speculation": "false",
    }
    options["spark.cores.max"] = str(max_cores or settings.processing_max_cores)
    if memory_mb is not None:
        options["spark.executor.memory"] = f"{memory_mb}m"
    if taken := sorted({"spark.master", *options} & (conf or {}).keys()):
        raise InputError(
            f"Waybill sets {', '.join(taken)} itself: take it out of the cluster's settings "
            "(`waybill clusters set`), and set cores, memory and pool by their own options"
        )
    builder = SparkSession.builder.appName(name)
    if _SUBMITTED in os.environ:
        options = _beside_submitted(options, SparkConf())
    else:
        builder = builder.master(settings.master)
    session = builder.config(map={**options, **(conf or {})}).getOrCreate()
    _refuse_speculation(session)
    session.sparkContext.setLogLevel("WARN")
    return session


def _beside_submitted(options: Mapping[str, str], submitted: SparkConf) -> dict[str, str]:
    """Return the options that a submission leaves open; in cluster mode the cluster has its own."""
    placed = {name for name in _PLACED if submitted.contains(name)}
    if submitted.get("spark.submit.deployMode", "client") == "cluster":
        placed = set(_PLACED)
    return {name: value for name, value in options.items() if name not in placed}


def _refuse_speculation(session: SparkSession) -> None:
    """Refuse a session that was there before, with copies of tasks that are slow.

    Each would run user code once more, and its second attempt in child processes for nothing.
    """
    if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise InputError(
            "spark.speculation is on: each slow task would run twice; take it out of the "
            "cluster's defaults (spark-defaults.conf) and start again"
        )


def _own_jars(folder: Path) -> dict[str, str]:
    """Return the option with the connector's jars; none where they were submitted."""
    if _SUBMITTED in os.environ:
        return {}
    return {"spark.jars": ",".join(str(path) for path in _jars(folder))}


def _jars(folder: Path) -> list[Path]:
    jars = sorted(folder.resolve().glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise InputError(
            f"the Spark connector for Kafka is not in {folder}; run `waybill up`, which fetches it"
        )
    return jars
