"""``make faults-standalone``: two virtual clusters on a Spark standalone cluster, for real.

A master and two workers of one core each on loopback; each worker has a work folder of its own, and
an environment without any setting of Waybill. Two applications of one core each serve four teams
whose events come without a pause. Meanwhile teams are moved; a worker is killed (SIGKILL, with its
executors and all that they started) and started again; all teams of one cluster are moved to the
other, and back. At the end every event must be staged exactly once. ``STANDALONE_SEED`` repeats the
choices; ``QUICK=1`` is a short form. Ends with 1 where an event is lost or doubled.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pyspark
import pytest
from tests import servers
from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import all_started
from tests.faults import failpoints
from tests.faults.processing_campaign import CLUSTERS, Campaign, Tally, other, show

from waybill.settings import Settings

WORKERS = 2
ROUNDS, QUICK_ROUNDS = 5, 1
_FORGOTTEN = ("WAYBILL", "SPARK")
"""Variables of the environment that a worker does not get begin so."""
_PACKAGE = "org.apache.spark.deploy"


class SparkCluster:
    """A master and its workers, each a process group of its own.

    Args:
        folder: of their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = servers.random_ports()
        self._port, self._page = ports.kafka_port, ports.s3_port
        self.url = f"spark://127.0.0.1:{self._port}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start_master(self) -> None:
        """Start the master."""
        words = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page))
        self._start("master", "master.Master", *words)

    def start_worker(self, number: int) -> None:
        """Start a worker of one core."""
        name = f"worker-{number}"
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "2g")
        work = ("--work-dir", str(self._folder / name))
        self._start(name, "worker.Worker", *words, *work, self.url)

    def kill_worker(self, number: int) -> None:
        """Kill a worker with all that it started."""
        self._kill(f"worker-{number}")

    def kill_master(self) -> None:
        """Kill the master; another one knows nothing of what it knew."""
        self._kill("master")

    def _kill(self, name: str) -> None:
        child = self._running.pop(name)
        below = psutil.Process(child.pid).children(recursive=True)
        for process in (psutil.Process(child.pid), *below):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        child.wait()

    def _start(self, name: str, main: str, *words: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_FORGOTTEN)}
        environment |= {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
        }
        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [program, f"{_PACKAGE}.{main}", *words],
                env=environment, cwd=self._folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End all."""
        for child in self._running.values():
            below = psutil.Process(child.pid).children(recursive=True)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            child.wait()


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Run a master and its workers for as long as the block takes."""
    cluster = SparkCluster(folder)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.start_master()
        for number in range(WORKERS):
            cluster.start_worker(number)
        yield cluster


def run(settings: Settings, *, rounds: int, seed: int) -> tuple[Tally, int]:
    """Run the campaign; return what came of it, and how many workers were killed."""
    draw = random.Random(seed)
    with (
        pytest.MonkeyPatch.context() as patch,
        spark_cluster(settings.home / "spark-cluster") as cluster,
    ):
        failpoints.put_up(patch, settings.home / "failpoints")
        spark = {"master": cluster.url, "processing_max_cores": 1, "driver_memory": "512m"}
        made = settings.model_copy(update={"spark": settings.spark.model_copy(update=spark)})
        campaign = Campaign(made, seed)
        # workers have none of the failpoints' environment: the applications as they are
        real = {"dags_dir": settings.dags_dir}
        campaign.settings = campaign.settings.model_copy(update=real)
        killed = 0
        try:
            campaign.prepare()
            with campaign.sending():
                campaign.flow()
                for _ in range(rounds):
                    campaign.move_any()
                    number = draw.randrange(WORKERS)
                    cluster.kill_worker(number)
                    killed += 1
                    time.sleep(draw.uniform(0, 3))
                    cluster.start_worker(number)
                    campaign.flow()
                    gone = draw.choice(CLUSTERS)
                    teams = [team for team, at in campaign.at().items() if at == gone]
                    if teams:
                        campaign.move(teams, other(gone))
                        campaign.flow()
                        campaign.move(teams, gone)
            campaign.end()
        finally:
            campaign.close()
    return campaign.tally, killed


def main() -> int:
    rounds = QUICK_ROUNDS if os.environ.pop("QUICK", "") == "1" else ROUNDS
    seed = int(os.environ.pop("STANDALONE_SEED", random.randrange(10**6)))
    began = time.monotonic()
    with opened_home() as (home, stack):
        parts = all_started(servers, home, stack)
        folder = home / "work"
        folder.mkdir()
        settings = servers.stack_settings(*parts, folder)
        tally, killed = run(settings, rounds=rounds, seed=seed)
    report = show(tally, seed, time.monotonic() - began)
    sys.stdout.write(json.dumps(report | {"workers_killed": killed}) + "\n")
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
