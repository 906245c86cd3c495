"""Services of docker-compose.yaml whose programs are on this machine, run with its commands and settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.servers import JARS, random_ports, wait_for
from tests.support.compose import SERVICES, interpolated
from tests.unit.test_compose import waybill_variables
from tests.unit.tracing.samples import batch, ids

from waybill import services
from waybill.settings import Settings
from waybill.stack import jars
from waybill.storage import ObjectStore
from waybill.tracing import Recorder

pytestmark = pytest.mark.serves
MASTER, WORKER = "spark-master", "spark-worker"
_APPLICATION = """
import sys
from waybill.settings import Settings
from waybill.processing.spark.session import open_session
settings = Settings(_env_file=None)
spark = open_session(
    settings.spark, name="{kind}", max_cores=settings.spark.{kind}_max_cores
)
print("ANSWER", spark.sparkContext.parallelize(range(4), 4).sum(), flush=True)
sys.stdin.read()
"""


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[Any]:
    """Run a process of a group of its own; end the group."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def environment(**changes: str) -> dict[str, str]:
    """Return what compose gives the services of Waybill, at the addresses of a test."""
    kept = {name: value for name, value in os.environ.items() if "WAYBILL" not in name}
    path = os.pathsep.join(filter(None, sys.path))
    python = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    return {**kept, **waybill_variables("trace-shipper"), **python, **changes}


def test_the_shipper_of_compose_empties_the_spool_into_the_store(
    stack_settings: Settings, tmp_path: Path
) -> None:
    services.migrate(stack_settings)
    spool, bucket = stack_settings.traces.spool_dir, stack_settings.s3
    Recorder(spool).write([batch(ids(100))])
    values = environment(
        WAYBILL_HOME=str(tmp_path),
        WAYBILL_TRACES__SPOOL_DIR=str(spool),
        WAYBILL_TRACES__ROLL_S="0.2",
        WAYBILL_TRACKER__DSN=stack_settings.tracker.dsn.get_secret_value(),
        WAYBILL_S3__ENDPOINT_URL=str(bucket.endpoint_url),
        WAYBILL_S3__BUCKET=bucket.bucket,
        WAYBILL_S3__ACCESS_KEY=bucket.access_key.get_secret_value(),
        WAYBILL_S3__SECRET_KEY=bucket.secret_key.get_secret_value(),
    )
    program, *words = SERVICES["trace-shipper"]["command"]
    assert program == "python"
    log = tmp_path / "shipper.log"
    with running([sys.executable, *words], values, log) as shipper:
        wait_for(
            lambda: shipper.poll() is not None or list(ObjectStore(bucket).list("traces/")), 240
        )
        wait_for(lambda: shipper.poll() is not None or not list(spool.rglob("*.parquet")), 240)
        assert shipper.poll() is None, log.read_text()
        shipper.send_signal(signal.SIGTERM)
        assert shipper.wait(240) == 0, log.read_text()


@pytest.mark.campaign
def test_processing_and_loading_run_side_by_side_on_the_workers_of_compose(tmp_path: Path) -> None:
    """Two sessions as the applications open them, on a real master and worker of one machine's cores.

    One worker has what the replicas of compose have together.
    """
    port, page, other = (
        getattr(random_ports(), name) for name in ("kafka_port", "s3_port", "airflow_port")
    )
    master = command_of(MASTER, {"spark-master": "127.0.0.1", "7077": str(port), "8080": str(page)})
    url = f"spark://127.0.0.1:{port}"
    worker = command_of(WORKER, {"spark://spark-master:7077": url, "8081": str(other)})
    sizes = {
        name: interpolated(str(SERVICES[WORKER]["environment"][name]), {})
        for name in ("SPARK_WORKER_CORES", "SPARK_WORKER_MEMORY")
    }
    cores = SERVICES[WORKER]["deploy"]["replicas"] * int(sizes["SPARK_WORKER_CORES"])
    values = environment(
        WAYBILL_HOME=str(tmp_path),
        WAYBILL_SPARK__MASTER=url,
        WAYBILL_SPARK__DRIVER_HOST="127.0.0.1",
        WAYBILL_SPARK__DRIVER_MEMORY="512m",
        WAYBILL_SPARK__JARS_DIR=str(JARS / jars.SPARK),
        WAYBILL_SPARK__WORK_DIR=str(tmp_path / "spark"),
        SPARK_HOME=str(Path(pyspark.__file__).parent),
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_WORKER_DIR=str(tmp_path / "work"),
        SPARK_WORKER_CORES=str(cores),
        SPARK_WORKER_MEMORY=sizes["SPARK_WORKER_MEMORY"],
    )
    with ExitStack() as stack:
        for name, command in (
            ("master", master),
            ("worker", [*worker[:-1], "--host", "127.0.0.1", worker[-1]]),
        ):
            stack.enter_context(running(command, values, tmp_path / name))
        for kind in ("processing", "loading"):
            program = [sys.executable, "-c", _APPLICATION.format(kind=kind)]
            log = tmp_path / kind
            child = stack.enter_context(running(program, values, log))
            wait_for(lambda: child.poll() is not None or "ANSWER 6" in log.read_text(), 450)  # noqa: B023
            assert child.poll() is None, log.read_text()[-3000:]


def command_of(service: str, changes: dict[str, str]) -> list[str]:
    """Return a service's command, with this machine's program and addresses."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    _, *words = SERVICES[service]["command"]
    return [spark_class, *(changes.get(word, word) for word in words)]
