"""A class-data archive of Spark: what its Java has parsed and checked once, later ones only map.

Tests start Spark some fifty times. To start a session takes 7.5 s of CPU, 4.3 with the archive, and
as much less time. Java ignores an archive of other jars or of another Java. One that is cut off would
end it: the file is moved into place whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

OPTION = "-XX:SharedArchiveFile="
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is said on standard output otherwise, where tests read answers."""


def archive(folder: Path) -> Path | None:
    """Return the path of the archive of this Java and this Spark; whether there is one or not.

    ``None``: no Java is found.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    pyspark = find_spec("pyspark")
    if java is None or not os.access(java, os.X_OK) or pyspark is None or pyspark.origin is None:
        return None
    files = (Path(java).resolve(), Path(pyspark.origin).resolve())
    named = [(str(path), path.stat().st_mtime_ns) for path in files]
    return folder / f"spark-{hashlib.sha256(repr(named).encode()).hexdigest()[:16]}.jsa"


def use(path: Path) -> None:
    """Have every Java that this process starts use the archive, if it is there."""
    if path.exists():
        os.environ["JAVA_TOOL_OPTIONS"] += f" {OPTION}{path} {_SILENT}"


def start_making(path: Path) -> list[subprocess.Popen[bytes]]:
    """Make the archive, if there is none, beside what else goes on: 25 s of CPU, 160 MB.

    What it says is in a log beside the archive.
    """
    if path.exists():
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".log").open("wb") as log:
        making = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return [making]


def _make(path: Path) -> None:
    """Run what applications run, and keep the classes that it needed."""
    with tempfile.TemporaryDirectory(prefix=".class-data-", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        _run_spark(f"-XX:ArchiveClassesAtExit={made}", Path(scratch))
        for old in path.parent.glob("spark-*.jsa"):
            old.unlink(missing_ok=True)
        made.replace(path)


def _run_spark(option: str, scratch: Path) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(scratch))
        .config("spark.driver.extraJavaOptions", option)
        .getOrCreate()
    )
    spark.range(10).groupBy("id").count().collect()
    rows = spark.readStream.format("rate").load()
    stream = (
        rows.mapInArrow(lambda batches: batches, rows.schema)
        .writeStream.option("checkpointLocation", str(scratch / "checkpoint"))
        .foreachBatch(lambda batch, _number: batch.write.mode("append").parquet(str(scratch / "o")))
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination(60)
    java = SparkContext._gateway.proc  # the archive is written as Java ends
    spark.stop()
    SparkContext._gateway.shutdown()
    java.stdin.close()
    java.wait(120)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
