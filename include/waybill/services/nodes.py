"""Nodes on loopback: the commands of their workers; and how a Spark worker is asked."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from waybill.errors import InputError, RetryError
from waybill.settings import CapacitySettings, Settings

if TYPE_CHECKING:
    from waybill.capacity import NodeBackend, NodeKind, SparkWorker
    from waybill.stack import NodeCommands

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
    setting = "WAYBILL_CAPACITY__CELERY_COMMAND" if own.celery_command else ""
    return NodeCommands(words, env, _ENHANCER, env, setting=setting)


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


_ENHANCER = (sys.executable, "-m", "waybill.cli", "capacity", "enhance")


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
    """Return the Spark worker of this node, as its enhancer sees it."""
    from waybill.capacity import SparkWorker

    return SparkWorker(cores, lambda: _used(settings.capacity.spark_worker_url))


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
