"""The Spark session of an application, the same for processing and loading."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from waybill.errors import InputError, RetryError
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
_EXTRA_JAVA = "spark.driver.extraJavaOptions"
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
"""How queries write ``offsets/<n>`` and ``commits/<n>``. Spark's default starts ``chmod`` and
``readlink`` several times for each file, which takes four times as long."""
_WORDS = 400
"""Most characters of what Spark says of a start that failed."""


def open_session(
    settings: SparkSettings,
    *,
    name: str,
    max_cores: int | None = None,
    memory_mb: int | None = None,
    conf: Mapping[str, str] | None = None,
    is_light: bool = False,
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
        conf: more of Spark's configuration, of a virtual cluster; what Waybill sets wins.
        is_light: the driver's Java does little; its code is compiled once, and not again for speed.

    Raises:
        InputError: the connector's jars are not there, or ``spark.speculation`` is on.
        RetryError: Spark does not start: its master does not answer, or refuses.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run another Python
    options = session_options(settings, max_cores=max_cores, memory_mb=memory_mb)
    master = settings.master
    if is_submitted():
        SparkContext._ensure_initialized()  # else nobody knows what was submitted
        submitted = SparkConf()
        master = submitted.get("spark.master", master) or master
        options = _beside_submitted(options, submitted)
    else:
        options["spark.master"] = master
        conf = {**_java_options(conf or {}, is_light=is_light), **(conf or {})}
    if master.startswith("spark://"):  # without it executors stay on a node that drains
        conf = {"spark.decommission.enabled": "true", **(conf or {})}
    builder = SparkSession.builder.appName(name).config(map={**(conf or {}), **options})
    try:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("WARN")
    except (Py4JError, PySparkException) as error:
        raise RetryError(
            f"Spark did not start: {_first_words(error)}; see that its master {master} answers, "
            "and what Spark wrote to the log before"
        ) from error
    _refuse_speculation(session)
    return session


def is_submitted() -> bool:
    """Tell whether this process is the driver of a `spark-submit`, which chose the master."""
    return _SUBMITTED in os.environ


def _java_options(conf: Mapping[str, str], *, is_light: bool) -> dict[str, str]:
    """Return the options of a driver's Java that idles cheaply; others, such as a cluster's, win.

    One that chooses a garbage collector keeps it: Java refuses two.
    """
    chosen = [conf.get(_EXTRA_JAVA, ""), *(os.environ.get(name, "") for name in _JAVA_VARIABLES)]
    options = ["-XX:-UsePerfData"]
    if not any(_COLLECTOR.search(one) for one in chosen):
        options.append("-XX:+UseSerialGC")  # no threads of its own: the heap is small
    if is_light:
        options.append("-XX:TieredStopAtLevel=1")
    return {"spark.driver.defaultJavaOptions": " ".join(options)}


def _first_words(error: Exception) -> str:
    """Return what happened, without the stack of Java."""
    return " ".join(str(error).partition("\tat ")[0].split())[:_WORDS]


def cores_of(session: SparkSession) -> int:
    """Return how many cores an application has, or may have once its executors are there."""
    context = session.sparkContext
    if context.master.startswith("local"):
        return int(context.defaultParallelism)
    return int(context.getConf().get("spark.cores.max", "1"))


def stop_session(session: SparkSession) -> None:
    """Stop Spark, also one that has ended, so that the log ends with why the application does."""
    with suppress(Py4JError):
        session.stop()


def session_options(
    settings: SparkSettings, *, max_cores: int | None = None, memory_mb: int | None = None
) -> dict[str, str]:
    """Return what Waybill sets of Spark's configuration; see ``open_session``.

    Its names are in ``waybill.clusters.SET_BY_WAYBILL``: a cluster's own configuration has none.

    Raises:
        InputError: the connector's jars are not there.
    """
    options = {
        **_own_jars(settings.jars_dir),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": settings.driver_host,
        "spark.driver.bindAddress": settings.driver_host,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
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
    return options


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
    if is_submitted():
        return {}
    return {"spark.jars": ",".join(str(path) for path in _jars(folder))}


def _jars(folder: Path) -> list[Path]:
    jars = sorted(folder.resolve().glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise InputError(
            f"the Spark connector for Kafka is not in {folder}; run `waybill up`, which fetches it"
        )
    return jars
