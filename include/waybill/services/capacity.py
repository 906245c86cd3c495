"""Capacity: the delay monitor, the infra coordinator, a node's enhancer, how it all is."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waybill.errors import InputError, RetryError
from waybill.services.airflow_client import AirflowClient
from waybill.services.environment import node_of
from waybill.services.nodes import loopback_nodes
from waybill.services.spark_nodes import spark_node_cores, spark_worker
from waybill.settings import Settings, source_pool
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.capacity import (
        CapacityReport,
        CapacityStatus,
        DelayReport,
        Enhancer,
        NodeBackend,
        NodeKind,
        TaskTimes,
        ThresholdStore,
        WorkerPool,
    )

_LOG = logging.getLogger(__name__)
_MOST_TASKS = 1_000
"""That a look reads of those that wait, run, or ended, each."""
_PATIENCE_S = 5.0
_WATCH_S = 20.0
"""So long a round waits for other thresholds, where their store can tell of them."""


def measure_delays(settings: Settings) -> DelayReport | None:
    """Look how long tasks wait, and keep it; None: Airflow's API has no user here.

    Raises:
        RetryError: Airflow or the tracker does not answer.
        InputError: Airflow refuses the user.

    Cost: three requests to Airflow, more where over 100 tasks wait, run, or ended within ten
        minutes; at most 30.
    """
    from waybill.capacity import summarise, write_waits
    from waybill.deployment import active_heads

    if settings.airflow.password is None:
        return None
    with open_tracker(settings.tracker) as tracker:
        kinds = {
            f"ingest_{head.name}": (head.team, head.source.connector)
            for head in active_heads(tracker).values()
        }
        with AirflowClient(settings.airflow, patience_s=_PATIENCE_S) as airflow:
            now_s = time.time()
            pools = [settings.capacity.pool, *map(source_pool, settings.airflow.source_slots)]
            tasks, unseen = _tasks(airflow, pools, kinds, now_s)
        report = summarise(tasks, now_s, unseen=unseen)
        with tracker.transaction() as connection:
            write_waits(connection, report)
    return report


def share_slots(settings: Settings) -> dict[str, int] | None:
    """Have the slots of ingestion shared among teams; None: Airflow's API has no user here.

    Returns:
        How many runs ``waiting`` for a slot there are, how many of them go ``first``, and how many
        runs are ``leaving``. Nothing where no source is read: then no slot is held.

    Raises:
        RetryError: Airflow or the tracker does not answer.
        InputError: Airflow refuses the user.

    Cost: one statement where no source is read; else one request to Airflow.
    """
    from waybill.ledger import any_run

    if settings.airflow.password is None:
        return None
    with open_tracker(settings.tracker) as tracker:
        if not any_run(tracker):
            return {}
    with AirflowClient(settings.airflow, patience_s=_PATIENCE_S) as airflow:
        return airflow.share_slots()


def _tasks(
    airflow: AirflowClient,
    pools: Sequence[str],
    kinds: Mapping[str, tuple[str, str]],
    now_s: float,
) -> tuple[list[TaskTimes], int]:
    """Return the tasks of pools that wait, run, or ended lately, and how many wait unseen."""
    from urllib.parse import quote

    from waybill.capacity import HISTORY_S

    own = "&".join(f"pool={quote(pool, safe='')}" for pool in pools)
    since = datetime.fromtimestamp(now_s - HISTORY_S, UTC).isoformat().replace("+00:00", "Z")
    waiting, total = airflow.task_instances(
        f"{own}&state=scheduled&state=queued&order_by=run_after", most=_MOST_TASKS
    )
    running, _ = airflow.task_instances(f"{own}&state=running", most=_MOST_TASKS)
    ended, _ = airflow.task_instances(
        f"{own}&end_date_gte={since}&state=success&state=failed&state=up_for_retry"
        "&order_by=-end_date",
        most=_MOST_TASKS,
    )
    found = [_times(one, kinds, waits=True) for one in waiting]
    found += [_times(one, kinds, waits=False) for one in (*running, *ended)]
    return [one for one in found if one is not None], max(0, total - len(waiting))


def _times(
    task: Mapping[str, Any], kinds: Mapping[str, tuple[str, str]], *, waits: bool
) -> TaskTimes | None:
    """Return the times of a task instance; None: it began before Airflow kept when it might."""
    from waybill.capacity import TaskTimes

    started = None if waits else _seconds(task.get("start_date"))
    eligible = _seconds(task.get("scheduled_when") or task.get("queued_when")) or started
    if eligible is None or (started is None and not waits):
        return None
    team, connector = kinds.get(str(task["dag_id"]), ("", str(task["dag_id"])))
    ended = None if waits or task.get("state") == "running" else _seconds(task.get("end_date"))
    return TaskTimes(team, connector, str(task.get("queue") or ""), eligible, started, ended)


def _seconds(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()


def scale_nodes(settings: Settings) -> CapacityReport:
    """Run a round of the infra coordinator.

    Raises:
        RetryError: the tracker does not answer.
    """
    from waybill.capacity import scale

    units: dict[NodeKind, int] = {kind: _units(settings, kind) for kind in _kinds()}
    wait_s = _WATCH_S if settings.capacity.store == "consul" else 0.0
    with open_tracker(settings.tracker) as tracker:
        backends, store = _backends(settings), _store(settings)
        return scale(tracker, store, backends, units=units, wait_s=wait_s)


def capacity_status(settings: Settings, *, decisions: int = 20) -> CapacityStatus:
    """Return nodes, waits, thresholds and decisions."""
    from waybill import capacity

    with open_tracker(settings.tracker) as tracker:
        return capacity.capacity_status(tracker, decisions=decisions)


def run_enhancer(settings: Settings, *, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Look after the capacity of this node, until it is stopped.

    A tracker, an executor or an Airflow that is away is waited for; workers stay as they are.

    Raises:
        InputError: what is configured contradicts itself, or Airflow refuses the user.
    """
    from waybill.capacity import CapacityWatcher, enhancer_of, write_report

    node, kind = node_of(settings), settings.capacity.node_kind
    enhancer, units = _enhancer(settings), _units(settings, kind)
    consumers = settings.capacity.consumers if kind == "spark" else 0
    drains = False
    with (
        open_tracker(settings.tracker) as tracker,
        CapacityWatcher(tracker, enhancer_of(node)) as watcher,
    ):
        while not is_stopped():
            try:
                report = replace(enhancer.look(drains=drains), consumers=consumers)
                with tracker.transaction() as connection:
                    state = write_report(connection, node, kind, units, report)
                drains = state == "draining"
                watcher.read()
            except RetryError as error:
                _LOG.warning("nothing changes: %s", error)
            if not is_stopped():
                watcher.wait(settings.capacity.look_s)


def _enhancer(settings: Settings) -> Enhancer:
    from waybill.capacity import Enhancer, EnhancerLimits, MachineUsage

    own = _units(settings, settings.capacity.node_kind)
    if settings.capacity.node_kind == "spark":
        return Enhancer(spark_worker(settings), MachineUsage(), EnhancerLimits(own, own))
    limits = EnhancerLimits(own, max(settings.capacity.max_workers, own))
    return Enhancer(_pool(settings), MachineUsage(), limits)


def _pool(settings: Settings) -> WorkerPool:
    from waybill.capacity import AirflowPool, CeleryPool

    own = settings.capacity
    if own.executor == "celery":
        if own.celery_broker is None:
            raise InputError(
                "set WAYBILL_CAPACITY__CELERY_BROKER: the enhancer asks Celery's workers by it"
            )
        worker = own.celery_worker or f"celery@{socket.gethostname()}"
        return CeleryPool(own.celery_broker.get_secret_value(), worker, own.celery_queues)
    if settings.airflow.password is None:
        raise InputError(
            "set WAYBILL_AIRFLOW__PASSWORD: the enhancer changes a pool's slots by Airflow's API"
        )
    airflow = AirflowClient(settings.airflow, patience_s=_PATIENCE_S)
    return AirflowPool(
        lambda: airflow.pool_slots(own.pool), lambda slots: airflow.set_pool_slots(own.pool, slots)
    )


def _kinds() -> tuple[NodeKind, ...]:
    from waybill.capacity import KINDS

    return KINDS


def _units(settings: Settings, kind: NodeKind) -> int:
    if kind == "spark":
        return spark_node_cores(settings)
    return settings.capacity.workers or settings.airflow.ingest_slots


def _backends(settings: Settings) -> dict[NodeKind, NodeBackend]:
    from waybill.capacity import AutoScalingNodes, DryRunNodes

    found: dict[NodeKind, NodeBackend] = {kind: DryRunNodes() for kind in _kinds()}
    if group := settings.capacity.ingestion_group:
        import boto3
        from botocore.config import Config

        limits = Config(connect_timeout=10, read_timeout=30, retries={"max_attempts": 2})
        client = boto3.client("autoscaling", region_name=settings.s3.region, config=limits)
        found["ingestion"] = AutoScalingNodes(group, client)
    return found | loopback_nodes(settings)


def _store(settings: Settings) -> ThresholdStore:
    from waybill.capacity import ConsulThresholds, FixedThresholds, VariableThresholds

    own = settings.capacity
    if own.store == "consul":
        if not own.consul_url:
            raise InputError("WAYBILL_CAPACITY__STORE is consul: set WAYBILL_CAPACITY__CONSUL_URL")
        token = own.consul_token.get_secret_value() if own.consul_token else ""
        return ConsulThresholds(own.consul_url, own.consul_key, token)
    if own.store == "airflow":

        def ask(variable: str) -> str | None:
            with AirflowClient(settings.airflow, patience_s=_PATIENCE_S) as airflow:
                return airflow.variable(variable)

        return VariableThresholds(own.variable, ask)
    return FixedThresholds(own.thresholds)
