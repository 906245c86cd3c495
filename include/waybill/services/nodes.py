"""Nodes on loopback: the commands of their workers, and how a Spark worker is asked and drained."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from waybill.errors import InputError, RetryError
from waybill.services.environment import node_of
from waybill.settings import CapacitySettings, Settings

if TYPE_CHECKING:
    from waybill.capacity import NodeBackend, NodeKind, SparkWorker
    from waybill.stack import NodeCommands

_LOG = logging.getLogger(__name__)
_ANSWER_S = 5.0
_AIRFLOW_OF_A_TASK = ("AIRFLOW_CTX_", "_AIRFLOW", "__AIRFLOW")
"""Variables that Airflow gives a task for itself begin so."""
_NO_DATABASE = "airflow-db-not-allowed"
_CELERY = (
    "{python}", "-m", "airflow", "celery", "worker", "--skip-serve-logs", "--without-gossip",
    "--without-mingle", "-c", "{workers}", "-H", "{node}", "-q", "{queues}",
)  # fmt: skip


def loopback_nodes(settings: Settings) -> dict[NodeKind, NodeBackend]:
    """Return who gives the kinds of nodes that are processes of this machine.

    Raises:
        InputError: what such nodes need is not configured.
    """
    from waybill.stack import LoopbackNodes, resolve_paths

    own = settings.capacity
    whole = resolve_paths(settings)
    found: dict[NodeKind, NodeBackend] = {}
    if "ingestion" in own.loopback:
        if own.ingestion_group:
            raise InputError(
                "WAYBILL_CAPACITY__LOOPBACK has ingestion, and WAYBILL_CAPACITY__INGESTION_GROUP "
                "is set: one of them gives the nodes"
            )
        if own.executor != "celery" or own.celery_broker is None:
            raise InputError(
                "ingestion nodes on loopback are Celery workers: set WAYBILL_CAPACITY__EXECUTOR="
                "celery and WAYBILL_CAPACITY__CELERY_BROKER"
            )
        found["ingestion"] = LoopbackNodes(
            "ingestion", whole.home, lambda node: _celery(whole, node)
        )
    if "spark" in own.loopback:
        if not settings.spark.master.startswith("spark://"):
            raise InputError(
                "Spark nodes on loopback are workers of a standalone master: set "
                f"WAYBILL_SPARK__MASTER=spark://…, found {settings.spark.master:.60}"
            )
        found["spark"] = LoopbackNodes("spark", whole.home, lambda node: _spark(whole, node))
    return found


def _celery(settings: Settings, node: str) -> NodeCommands:
    from waybill.stack import NodeCommands

    own = settings.capacity
    workers = own.workers or settings.airflow.ingest_slots
    changed = {"node_kind": "ingestion", "celery_worker": f"celery@{node}"}
    env = _environment(_of_node(settings, node, changed))
    values = {
        "python": sys.executable, "node": node, "workers": str(workers),
        "queues": ",".join(own.celery_queues),
    }  # fmt: skip
    words = [_filled(word, values) for word in own.celery_command or _CELERY]
    return NodeCommands(words, env, _ENHANCER, env)


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


_ENHANCER = (sys.executable, "-m", "waybill.cli", "capacity", "enhance")


def _spark(settings: Settings, node: str) -> NodeCommands:
    """Return the commands of a Spark worker: it has no setting of Waybill."""
    from waybill.stack import NodeCommands, find_java, free_port

    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InputError("Spark nodes on loopback need PySpark, and it is not installed here")
    home, page = Path(spec.origin).parent, free_port()
    cores = settings.capacity.cores or os.cpu_count() or 1
    folder = settings.spark.work_dir / "nodes" / node
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    env = {
        name: value
        for name, value in os.environ.items()
        if _is_plain(name, value) and not name.startswith("SPARK_")
    }
    env |= {
        "JAVA_HOME": str(find_java().path.resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true -Dspark.port.maxRetries=0",
    }
    words = [
        str(home / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker",
        "--host", "127.0.0.1", "--webui-port", str(page), "--cores", str(cores),
        "--memory", settings.capacity.spark_worker_memory, "--work-dir", str(folder),
        settings.spark.master,
    ]  # fmt: skip
    own = _environment(_of_node(settings, node, {"node_kind": "spark", "cores": cores}))
    return NodeCommands(words, env, _ENHANCER, own, {"page": page})


def _of_node(settings: Settings, node: str, changed: dict[str, Any]) -> Settings:
    own: CapacitySettings = settings.capacity.model_copy(update=changed)
    wal = settings.wal.model_copy(update={"node": node})
    return settings.model_copy(update={"wal": wal, "capacity": own})


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a process that is to have these settings."""
    kept = {name: value for name, value in os.environ.items() if _is_plain(name, value)}
    return {**kept, **settings.to_env()}


def _is_plain(name: str, value: str) -> bool:
    """Tell whether a variable of this process is also its children's."""
    return not (
        name.startswith(("WAYBILL_", *_AIRFLOW_OF_A_TASK)) or value.startswith(_NO_DATABASE)
    )


def spark_cores(settings: Settings, cores: int) -> SparkWorker:
    """Return the Spark worker of this node, as its enhancer sees it.

    On loopback its page and its process are in the registry of the state folder; else the page is
    ``WAYBILL_CAPACITY__SPARK_WORKER_URL``.
    """
    from waybill.capacity import SparkWorker
    from waybill.stack import read_record

    record = read_record(settings.home.absolute() / "run" / f"{node_of(settings)}.json")
    page = record.ports.get("page") if record else None
    url = f"http://127.0.0.1:{page}" if page else settings.capacity.spark_worker_url

    def decommission() -> None:
        process = record.process() if record and page else None
        if process is None:
            raise RetryError(
                "this node's Spark worker is no process of its state folder: decommission it by "
                "Spark's own `sbin/decommission-worker.sh`"
            )
        try:
            process.send_signal(signal.SIGPWR)
        except psutil.Error as error:
            raise RetryError(f"the Spark worker is not told to drain: {error}") from error

    return SparkWorker(cores, lambda: _used(url), decommission)


def _used(url: str) -> int:
    """Return the cores of a Spark worker that executors have."""
    import httpx

    try:
        with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
            answer = client.get(f"{url.rstrip('/')}/json/")
            answer.raise_for_status()
            said = answer.json()
        return max(int(said["coresused"]), len(said["executors"]))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RetryError(f"the Spark worker at {url} does not answer: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RetryError(f"what answers at {url} is no Spark worker: {error!r:.100}") from error


__all__ = ["loopback_nodes", "spark_cores"]
