"""Spark nodes: how a worker of a standalone cluster is started on loopback, asked, and drained.

A worker drains by Spark's decommissioning: it is sent SIGPWR, as Spark's `decommission-worker.sh`
does it, and tells its master. From then on it gets no executor, and the executors that it has get
no task; each ends behind the tasks that it runs. That the master knows is asked of the master: a
signal is no answer, and until then an executor may come.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from waybill.errors import InputError, RetryError
from waybill.services.environment import node_of
from waybill.settings import Settings

if TYPE_CHECKING:
    from waybill.capacity import SparkWorker
    from waybill.stack import NodeCommands

_ANSWER_S = 5.0
_TOLD_S = 5.0
"""So long a look waits until the master knows that a worker is decommissioned."""
_POLL_S = 0.2
_INHERITED = frozenset({
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "TZ",
    "USER",
})  # fmt: skip
"""What a worker has of this process's environment: its executors, and user code's servers, get all
that it has."""
_OPTIONS = (
    "-Dspark.decommission.enabled=true",
    "-Dspark.port.maxRetries=0",  # else its page may be at another port than its record says
    "-Dspark.worker.cleanup.enabled=true",
)
_MAIN = "org.apache.spark.deploy.worker.Worker"


def worker_folder(settings: Settings) -> Path:
    """Return the folder that has a folder of each Spark worker on loopback, by its node's name."""
    return settings.spark.work_dir.absolute() / "nodes"


def require_loopback_master(settings: Settings) -> None:
    """Refuse a master that workers on loopback cannot serve.

    Raises:
        InputError: it is no standalone master, or not on loopback.
    """
    master = settings.spark.master
    hosts = [one.rpartition(":")[0] for one in master.removeprefix("spark://").split(",")]
    if not master.startswith("spark://") or not all(map(_is_loopback, hosts)):
        raise InputError(
            "Spark nodes on loopback are workers of a standalone master on this machine: set "
            f"WAYBILL_SPARK__MASTER=spark://127.0.0.1:<port>, found {master!r:.80}"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def spark_commands(
    settings: Settings, node: str, enhancer: list[str], enhancer_env: Mapping[str, str]
) -> NodeCommands:
    """Return how a Spark worker and its enhancer are started; the worker has no setting of Waybill.

    Args:
        settings: of the coordinator.
        node: the node's name.
        enhancer: the enhancer's command,
        enhancer_env: and its environment.

    Raises:
        InputError: PySpark or Java is not there, or no port is free.
    """
    from importlib.util import find_spec

    from waybill.stack import NodeCommands, find_java, free_port

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InputError("Spark nodes on loopback need PySpark, and it is not installed here")
    home, page = Path(spec.origin).parent, free_port()
    folder = worker_folder(settings) / node
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    env = {name: value for name, value in os.environ.items() if name in _INHERITED} | {
        "JAVA_HOME": str(find_java().path.resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_OPTS": " ".join(_OPTIONS),
    }
    words = [
        str(home / "bin" / "spark-class"), _MAIN, "--host", "127.0.0.1",
        "--webui-port", str(page), "--cores", str(spark_node_cores(settings)),
        "--memory", settings.capacity.spark_worker_memory, "--work-dir", str(folder),
        settings.spark.master,
    ]  # fmt: skip
    return NodeCommands(words, env, enhancer, enhancer_env, {"page": page})


def spark_node_cores(settings: Settings) -> int:
    """Return the cores of a Spark node."""
    return settings.capacity.cores or os.cpu_count() or 1


def spark_worker(settings: Settings) -> SparkWorker:
    """Return the Spark worker of this node, as its enhancer sees it.

    On loopback its page and its process are in the registry of the state folder; else its page is
    ``WAYBILL_CAPACITY__SPARK_WORKER_URL``, and it is for others to decommission.
    """
    from waybill.capacity import SparkWorker
    from waybill.stack import read_record

    record = read_record(settings.home.absolute() / "run" / f"{node_of(settings)}.json")
    page = record.ports.get("page") if record else None
    url = f"http://127.0.0.1:{page}" if page else settings.capacity.spark_worker_url

    def decommission() -> None:
        if is_decommissioned(url):
            return
        process = record.process() if record and page else None
        if process is None:
            raise RetryError(
                f"the Spark worker at {url} is no process of this state folder: decommission it by "
                "Spark's own `sbin/decommission-worker.sh`"
            )
        try:
            process.send_signal(signal.SIGPWR)
        except psutil.Error as error:
            raise RetryError(f"the Spark worker is not told to drain: {error}") from error
        until = time.monotonic() + _TOLD_S
        while not is_decommissioned(url):
            if time.monotonic() > until:
                raise RetryError(f"Spark's master does not know yet that {url} is decommissioned")
            time.sleep(_POLL_S)

    return SparkWorker(spark_node_cores(settings), lambda: used_cores(url), decommission)


def used_cores(url: str) -> int:
    """Return the cores of a Spark worker that executors have, by its page.

    Raises:
        RetryError: it does not answer, or what answers is no Spark worker.
    """
    said = _asked(url, "worker")
    try:
        return max(int(said["coresused"]), len(said["executors"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _no_page(url, "worker", error) from error


def is_decommissioned(url: str) -> bool:
    """Tell whether the master of a Spark worker gives it no executor any more; raises as above."""
    said = _asked(url, "worker")
    try:
        own, master = str(said["id"]), str(said["masterwebuiurl"])
    except (KeyError, TypeError) as error:
        raise _no_page(url, "worker", error) from error
    known = _asked(master, "master")
    try:
        states = {str(one["id"]): str(one["state"]) for one in known["workers"]}
    except (KeyError, TypeError) as error:
        raise _no_page(master, "master", error) from error
    return states.get(own) == "DECOMMISSIONED"


def _asked(url: str, what: str) -> Any:
    """Return what a page of Spark says as JSON."""
    import httpx

    try:
        with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
            answer = client.get(f"{url.rstrip('/')}/json/")
            answer.raise_for_status()
            return answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RetryError(f"the Spark {what} at {url} does not answer: {error}") from error
    except ValueError as error:
        raise _no_page(url, what, error) from error


def _no_page(url: str, what: str, error: Exception) -> RetryError:
    return RetryError(f"what answers at {url} is no Spark {what}: {error!r:.100}")


__all__ = [
    "is_decommissioned",
    "require_loopback_master",
    "spark_commands",
    "spark_node_cores",
    "spark_worker",
    "used_cores",
    "worker_folder",
]
