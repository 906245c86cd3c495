"""``make faults-standalone``: two virtual clusters on a Spark standalone cluster, for real.

A master and two workers on loopback; each worker has a work folder of its own, and an environment
without any setting of Waybill. In each of two virtual clusters an application processes and one
loads, with one executor of one core each: a worker offers two cores, whatever the machine has, so
that all four have theirs, and none is left for an executor whose worker died. They serve four teams
whose events come without a pause, each with a destination of its own. Meanwhile teams are moved,
and their destinations with them; a worker is killed (SIGKILL, with its executors and all that they
started) and started again; all teams of one cluster are moved to the other, and back.

At the end every event must be staged exactly once, and be in its team's table exactly once; and the
books must balance. ``ROUNDS`` changes how often (4), ``STANDALONE_SEED`` repeats the choices;
``QUICK=1`` is a short form. Ends with
1 where something is not as it must be.
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
from tests.faults.processing_campaign import Campaign, Tally, other, show

from waybill.settings import Settings

WORKERS = 2
_CORES = 2
"""Of a worker: two applications of a core each."""
ROUNDS, QUICK_ROUNDS = 4, 1
_FORGOTTEN = ("WAYBILL", "SPARK")
"""Variables of the environment that a worker does not get begin so."""
_PACKAGE = "org.apache.spark.deploy"


class SparkCluster:
    """A master and its workers, each a process group of its own.

    Args:
        folder: of their files.
        cores: that each worker offers.
    """

    def __init__(self, folder: Path, cores: int) -> None:
        self._folder = folder
        self._cores = str(cores)
        ports = servers.random_ports()
        self._port, self._page = ports.kafka_port, ports.s3_port
        self.url = f"spark://127.0.0.1:{self._port}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start_master(self) -> None:
        """Start the master."""
        words = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page))
        self._start("master", "master.Master", *words)

    def start_worker(self, number: int) -> None:
        """Start a worker."""
        name = f"worker-{number}"
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        words = ("--host", "127.0.0.1", "--webui-port", "0", "--memory", "2g")
        own = ("--cores", self._cores, "--work-dir", str(self._folder / name))
        self._start(name, "worker.Worker", *words, *own, self.url)

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
def spark_cluster(folder: Path, *, cores: int = 1) -> Iterator[SparkCluster]:
    """Run a master and its workers for as long as the block takes."""
    cluster = SparkCluster(folder, cores)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.start_master()
        for number in range(WORKERS):
            cluster.start_worker(number)
        yield cluster


def run(settings: Settings, *, rounds: int, seed: int) -> tuple[Tally, dict[str, int]]:
    """Run the campaign; return what came of it, and what else was done how often."""
    draw = random.Random(seed)
    with (
        pytest.MonkeyPatch.context() as patch,
        spark_cluster(settings.home / "spark-cluster", cores=_CORES) as cluster,
    ):
        failpoints.put_up(patch, settings.home / "failpoints")
        cores = {"processing_max_cores": 1, "loading_max_cores": 1}
        spark = {"master": cluster.url, "driver_memory": "512m", **cores}
        made = settings.model_copy(update={"spark": settings.spark.model_copy(update=spark)})
        campaign = Campaign(made, seed, loads=True)
        # workers have none of the failpoints' environment: the applications as they are
        real = {"dags_dir": settings.dags_dir}
        campaign.settings = campaign.settings.model_copy(update=real)
        done = {"workers_killed": 0, "cluster_moves": 0}
        try:
            campaign.prepare()
            with campaign.sending():
                campaign.flow()
                for number in range(rounds):
                    told("sent and loaded", campaign)
                    campaign.move_any()
                    worker = (seed + number) % WORKERS
                    cluster.kill_worker(worker)
                    done["workers_killed"] += 1
                    told(f"worker {worker} killed", campaign)
                    time.sleep(draw.uniform(0, 3))
                    cluster.start_worker(worker)
                    campaign.flow()
                    gone = draw.choice(sorted(set(campaign.at().values())))
                    teams = [team for team, at in campaign.at().items() if at == gone]
                    told(f"all of {gone} move", campaign)
                    campaign.move(teams, other(gone))
                    campaign.move(teams, gone)
                    done["cluster_moves"] += 2
            campaign.end()
        finally:
            campaign.close()
    return campaign.tally, done


def told(what: str, campaign: Campaign) -> None:
    """Say what is done, after how many events."""
    events = sum(campaign.tally.sent.values())
    print(
        f"{time.strftime('%H:%M:%S')} {what}, {events:,} events sent", file=sys.stderr, flush=True
    )


def main() -> int:
    standard = QUICK_ROUNDS if os.environ.pop("QUICK", "") == "1" else ROUNDS
    rounds = int(os.environ.pop("ROUNDS", standard))
    seed = int(os.environ.pop("STANDALONE_SEED", random.randrange(10**6)))
    began = time.monotonic()
    with opened_home() as (home, stack):
        parts = all_started(servers, home, stack)
        folder = home / "work"
        folder.mkdir()
        settings = servers.stack_settings(*parts, folder)
        tally, done = run(settings, rounds=rounds, seed=seed)
    report = show(tally, seed, time.monotonic() - began)
    sys.stdout.write(json.dumps(report | done) + "\n")
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
