"""Class-data archives of Spark and Kafka: what their Java has parsed and checked once, later ones map.

Tests start Spark some fifty times. To start a session takes 7.5 s of CPU, 4.3 with the archive, and
as much less time; to format and to start a broker, 4.0 and 2.0. Java ignores an archive of other jars
or of another Java. One that is cut off would end it: the file is moved into place whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

OPTION = "-XX:SharedArchiveFile="
_STEP_S, _LIMIT_S = 900.0, 1_800.0
"""Of a step, and of all. They are made beside a session that has the processors busy, at a
checkout's first run; a limit ends what hangs, and nothing that is slow."""
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is said on standard output otherwise, where tests read answers."""


def archive(folder: Path) -> Path | None:
    """Return the path of the archive of this Java and this Spark; whether there is one or not.

    ``None``: no Java is found.
    """
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return None
    return _named(folder, "spark", Path(pyspark.origin))


def kafka_archive(folder: Path) -> Path | None:
    """Return the path of the archive of this Java and the locked jars of Kafka, as `archive` does."""
    stack = find_spec("waybill.stack")
    if stack is None or stack.origin is None:
        return None
    return _named(folder, "kafka", Path(stack.origin).with_name("jars.lock"))


def _named(folder: Path, program: str, of: Path) -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        return None
    files = (Path(java).resolve(), of.resolve())
    named = [(str(path), path.stat().st_mtime_ns) for path in files]
    return folder / f"{program}-{hashlib.sha256(repr(named).encode()).hexdigest()[:16]}.jsa"


def kafka_options(folder: Path) -> list[str]:
    """Return the options with which a broker uses its archive; none where there is no archive yet."""
    path = kafka_archive(folder)
    if path is None or not path.exists():
        return []
    return [f"{OPTION}{path}", *_SILENT.split()]


def use(path: Path) -> None:
    """Have every Java that this process starts use the archive, if it is there."""
    if path.exists():
        os.environ["JAVA_TOOL_OPTIONS"] += f" {OPTION}{path} {_SILENT}"


def start_making(folder: Path) -> list[subprocess.Popen[bytes]]:
    """Make the archives that are not there, beside what else goes on: 30 s of CPU, 210 MB.

    What one says is in a log beside its archive: the process's last argument with `.log`.
    """
    paths = (kafka_archive(folder), archive(folder))
    folder.mkdir(parents=True, exist_ok=True)
    return [_start_making(path) for path in paths if path is not None and not path.exists()]


def _start_making(path: Path) -> subprocess.Popen[bytes]:
    with path.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.class_data", str(path)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def failure(making: subprocess.Popen[bytes]) -> str:
    """Wait for an archive that `start_making` began; say why there is none, or nothing."""
    path = Path(str(making.args[-1]))  # type: ignore[index]
    try:
        code = making.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(making.pid, signal.SIGKILL)  # it leads a session, in which Spark's Java is
        making.wait()
        return f"{path.name} could not be made within {_LIMIT_S:.0f} s"
    if not code:
        return ""
    log = path.with_suffix(".log").read_text(errors="replace")
    trace = log.rfind("Traceback (most recent call last)")  # Java says thousands of lines behind it
    said = f"{log[trace:][:2000]}\n[…]\n{log[-1000:]}" if trace >= 0 else log[-3000:]
    return f"{path.name} could not be made (exit code {code}):\n{said}"


def _make(path: Path) -> None:
    """Run what applications, or a broker, run, and keep the classes that it needed."""
    program = path.name.partition("-")[0]
    with tempfile.TemporaryDirectory(prefix=".class-data-", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        run = {"spark": _run_spark, "kafka": _run_kafka}[program]
        run(f"-XX:ArchiveClassesAtExit={made}", Path(scratch))
        for old in path.parent.glob(f"{program}-*.jsa"):
            old.unlink(missing_ok=True)
        made.replace(path)


def _run_kafka(option: str, _scratch: Path) -> None:
    from confluent_kafka import Producer
    from tests import servers
    from tests.support import topics

    from waybill.stack import jars

    class Archived(servers.QuietKafka):
        start_timeout_s = _STEP_S
        stop_grace_s = _STEP_S  # the archive is written as Java ends

        def command(self) -> list[str]:
            java, *words = super().command()
            return [java, option, *words]

    home = servers.new_home()
    try:
        jars.ensure(servers.JARS)
        folder = servers.JARS / jars.KAFKA
        broker = servers.start_on_free_ports(lambda stack: Archived(home, stack, folder))
        topic = topics.new_topic(broker.bootstrap_servers, "archived")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        producer.produce(topic, b"a message")
        assert not producer.flush(_STEP_S), "the broker took no message"
        del producer
        topics.read_all(broker.bootstrap_servers, topic)
        broker.stop()
    finally:
        servers.end_home(home)


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
    assert stream.awaitTermination(_STEP_S), "the stream did not come to its end"
    java = SparkContext._gateway.proc  # the archive is written as Java ends
    spark.stop()
    SparkContext._gateway.shutdown()
    java.stdin.close()
    java.wait(_STEP_S)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
