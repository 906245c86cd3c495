"""Nodes on loopback: who gives them, and the commands of Celery workers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from waybill.errors import InputError
from waybill.services.spark_nodes import (
    require_loopback_master,
    spark_commands,
    spark_node_cores,
    worker_folder,
)
from waybill.settings import CapacitySettings, Settings

if TYPE_CHECKING:
    from waybill.capacity import NodeBackend, NodeKind
    from waybill.stack import NodeCommands

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
        require_loopback_master(settings)
        found["spark"] = LoopbackNodes(
            "spark", whole.home, lambda node: _spark(whole, node), folders=worker_folder(whole)
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


def _spark(settings: Settings, node: str) -> NodeCommands:
    changed = {"node_kind": "spark", "cores": spark_node_cores(settings)}
    env = _environment(_of_node(settings, node, changed))
    return spark_commands(settings, node, list(_ENHANCER), env)


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


__all__ = ["loopback_nodes"]
