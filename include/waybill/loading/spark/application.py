"""The loading application: one consumer a destination.

How a load is made is in ``loader``, what it takes in ``next_loads`` and ``sizes``, who carries it
out in ``placement``, what happens when it is not taken in ``backoff``. No Spark is started where it
would have no executors: this process makes the loads then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import orjson
from pyspark.sql import SparkSession

from waybill.clusters import (
    ApplicationLease,
    Heartbeat,
    ServedTopics,
    VirtualCluster,
    cluster_settings,
)
from waybill.destinations import Destination, open_destination
from waybill.errors import InputError
from waybill.loading import Loader, LoadSizes, Patience, placement_of
from waybill.loading.spark.consumers import Consumers, LoadingConsumer, Pauses
from waybill.loading.spark.executors import ExecutorLoads
from waybill.loading.spark.staged_listener import StagedListener
from waybill.processing.spark import (
    ExecutorSettings,
    Stopping,
    has_executors,
    is_submitted,
    keep_running,
    open_session,
    stop_session,
    watch_executors,
)
from waybill.settings import Settings
from waybill.storage import (
    ObjectStore,
    TrackerStore,
    deployment_of,
    open_owned_objects,
    open_tracker,
    refuse_foreign_bucket,
)
from waybill.tracing import Recorder, open_recorder

_LOG = logging.getLogger(__name__)
_LOOK_FOR_DESTINATIONS_S = 2.0
_CANCELLED_S = 3.0
"""What loads are waited for whose jobs were cancelled."""


@dataclass(frozen=True)
class LoadingParts:
    """What the consumers of one application share."""

    settings: Settings
    tracker: TrackerStore
    spark: SparkSession | None
    """None: this process makes all loads."""
    objects: ObjectStore
    recorder: Recorder | None
    deployment: str
    """Its id."""
    application: ApplicationLease
    listener: StagedListener
    _told: set[str] = field(default_factory=set)
    """Destinations of which the log says who loads them."""

    def consumer(
        self, name: str, *, wait: Callable[[float], bool], pool: str = ""
    ) -> LoadingConsumer:
        """Return the consumer of a destination.

        Args:
            name: the destination's.
            wait: sleeps for some seconds; returns True when the application is to stop.
            pool: Spark's scheduler pool; empty: one of its own.
        """
        loader = Loader(
            self.tracker,
            self.objects,
            partial(_open, self.settings, name),
            name=name,
            recorder=self.recorder,
            executors=self.executors(name, pool=pool or f"load-{name}"),
            application=self.application,
        )
        found = self.settings.destinations.get(name)
        patience = Patience(
            loader,
            park_after_s=found.park_after_s if found else None,
            wait=lambda seconds: consumer.is_ending or wait(seconds),
            compare_every_s=found.compare_every_s if found else None,
        )
        spark = self.settings.spark
        consumer = LoadingConsumer(
            self.tracker,
            loader,
            patience,
            sizes=LoadSizes.of(found),
            pauses=Pauses(spark.trigger_ms / 1000, spark.idle_trigger_ms / 1000),
            staged=self.listener.wake_of(name),
        )
        return consumer

    def executors(self, name: str, *, pool: str = "") -> ExecutorLoads | None:
        """Return what carries out a destination's loads on executors; None: the driver does.

        Spark's real master counts, not the setting: the application may have been submitted.
        """
        spark = self.spark
        found = placement_of(
            self.settings.destinations.get(name),
            has_executors=spark is not None and has_executors(spark.sparkContext.master),
        )
        if name not in self._told:
            self._told.add(name)
            who = "executors load" if found.by_executors else "the driver loads"
            why = f": {found.reason}" if found.reason else ""
            _LOG.info("loading/%s: %s it%s", name, who, why)
        if spark is None or not found.by_executors:
            return None
        sent = ExecutorSettings.of(self.settings, self.deployment, loads=name)
        return ExecutorLoads(spark, sent, pool=pool)


def run_loading(settings: Settings, *, cluster: str, epoch: int | None = None) -> None:
    """Run until told to stop (SIGTERM, or by its row in the tracker).

    Args:
        settings: of the driver.
        cluster: which one it serves.
        epoch: that it was started with; None: it was started by hand.

    Raises:
        InputError: there is no such cluster.
        StopError: another application of the cluster was started, or Spark has no executors any
            more.
        RetryError: Spark does not start; the supervisor starts it again.
    """
    stopping = Stopping()
    with open_tracker(settings.tracker) as tracker, ExitStack() as reporting:
        own = cluster_settings(tracker, cluster)
        lease = ApplicationLease.acquire(tracker, "loading", cluster, epoch=epoch)
        heartbeat = reporting.enter_context(Heartbeat(lease, stopping.ask))
        refuse_foreign_bucket(settings)
        objects = open_owned_objects(settings)
        recorder = open_recorder(settings.traces) if settings.traces.enabled else None
        spark = _opened_spark(settings, own, cluster)
        if spark is not None:
            reporting.callback(stop_session, spark)
        parts = LoadingParts(
            settings,
            tracker,
            spark,
            objects,
            recorder,
            deployment_of(tracker),
            lease,
            reporting.enter_context(StagedListener(tracker)),
        )
        watch = None if spark is None else watch_executors(spark)

        def start(name: str) -> LoadingConsumer:
            consumer = parts.consumer(name, wait=stopping.wait, pool=own.scheduler_pool)
            consumer.start()
            return consumer

        consumers = Consumers(start)
        reporting.callback(consumers.ask_to_end)  # also where the loop fails: before Spark ends
        served = ServedTopics(tracker, cluster)

        def wanted() -> list[str]:
            # what the look before left is reported
            left = consumers.serving(served.watcher.version)
            heartbeat.beat(at_work=watch is None or watch.look(), serving=left)
            return sorted(served.read_destinations())

        keep_running(
            consumers.look,
            wanted,
            stopping,
            every_s=_LOOK_FOR_DESTINATIONS_S,
            sleep=reporting.enter_context(served.watcher).wait,
        )
        if not consumers.stop() and spark is not None:
            spark.sparkContext.cancelAllJobs()
            consumers.stop(_CANCELLED_S)
        if spark is not None:
            stop_session(spark)
        consumers.close()


def _opened_spark(settings: Settings, cluster: VirtualCluster, name: str) -> SparkSession | None:
    """Return the session of what has executors, or was submitted; None: no Spark is of use."""
    if not is_submitted() and not has_executors(settings.spark.master):
        return None
    return open_session(
        settings.spark,
        name=f"waybill-loading-{name}",
        max_cores=settings.spark.loading_max_cores,
        memory_mb=cluster.memory_mb,
        conf=cluster.spark_conf,
        is_light=True,
    )


def _open(settings: Settings, name: str) -> Destination:
    destination = settings.destinations.get(name)
    if destination is None:
        known = ", ".join(sorted(settings.destinations)) or "none"
        example = orjson.dumps({name: {"kind": "postgres", "dsn": "postgresql://…"}}).decode()
        raise InputError(
            f"destination {name!r} is not configured (known: {known}); set "
            f"WAYBILL_DESTINATIONS={example} and start loading again: settings are read at its "
            "start",
            code="destination_unreachable",
        )
    return open_destination(name, destination, settings.s3)
