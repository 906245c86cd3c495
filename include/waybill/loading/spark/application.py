"""The loading application: one consumer a destination, its offsets the tracker's commit numbers.

How a load is made is in ``loader``, who carries it out in ``placement``, what happens when it is
not taken in ``backoff``, how much it takes in ``source``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from waybill.clusters import ApplicationLease, Heartbeat, ServedTopics, cluster_settings
from waybill.destinations import Destination, open_destination
from waybill.errors import InputError, WaybillError
from waybill.ledger import StagedReference, load_position
from waybill.loading import Loader, Patience, placement_of
from waybill.loading.spark.executors import ExecutorLoads
from waybill.loading.spark.source import StagedSource
from waybill.processing.spark import (
    BatchGate,
    Consumers,
    ExecutorSettings,
    IdleTrigger,
    Stopping,
    checkpoint_location,
    fresh_checkpoints,
    give_memory_back,
    has_executors,
    keep_running,
    open_session,
    read_offsets,
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


class LoadingConsumer:
    """One destination: its loader, its position, its query."""

    def __init__(
        self,
        settings: Settings,
        tracker: TrackerStore,
        loader: Loader,
        patience: Patience,
        checkpoint: Path,
        *,
        pool: str = "",
    ) -> None:
        self._settings = settings
        self._loader = loader
        self._patience = patience
        self._name = loader.name
        self._checkpoint = checkpoint
        self._pool = pool or f"load-{loader.name}"
        self._position = load_position(tracker, loader.name)
        self._gate = BatchGate()
        self._trigger = IdleTrigger(settings.spark.trigger_ms, settings.spark.idle_trigger_ms)
        self.error: WaybillError | None = None
        """What its last batch failed with."""

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query where the destination stands."""
        _LOG.info("%s: starts after commit %d", self._loader.consumer, self._position)
        # The query's thread inherits the pool of the thread that starts it.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        query = (
            spark.readStream.format("waybill_staged")
            .option("destination", self._name)
            .load()
            .writeStream.queryName(f"load-{self._checkpoint.name}")  # see TopicGroup.start
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", checkpoint_location(self._checkpoint))
            .trigger(processingTime=f"{self._settings.spark.trigger_ms} milliseconds")
            .start()
        )
        self._trigger.watch(query)
        return query

    def look(self) -> None:
        """See whether a destination that is waited for answers, when nothing else asks it."""
        self._trigger.look()
        self._patience.look()

    @property
    def problem(self) -> str:
        """Why its destination takes nothing; empty: it does, as far as is known."""
        return self._patience.problem

    @property
    def is_ending(self) -> bool:
        """Whether its query was told to end: a destination that is away is waited for no more."""
        return self._gate.is_closed

    def end(self, query: StreamingQuery) -> bool:
        """Stop the query, unless a load runs, or a comparison: see `BatchGate.end`."""
        return self._gate.end(query) and self._patience.end()

    def close(self) -> None:
        """Close the destination."""
        self._loader.close()

    def _on_batch(self, frame: DataFrame, spark_batch_id: int) -> None:
        with self._gate.batch() as is_wanted:
            if not is_wanted:
                return
            self._trigger.worked()
            try:
                self._load(frame, spark_batch_id)
            except Exception as error:
                if isinstance(error, WaybillError):
                    self.error = error
                else:
                    self.error = WaybillError(f"{type(error).__name__}: {error}")
                raise

    def _load(self, frame: DataFrame, spark_batch_id: int) -> None:
        until = int(read_offsets(self._checkpoint, spark_batch_id)["commit"])
        if until <= self._position:
            return
        references = [
            StagedReference(*row) for row in frame.collect() if row.commit_number > self._position
        ]
        self._patience.deliver(references, after=self._position, until=until)
        self._position = until
        give_memory_back()


@dataclass(frozen=True)
class LoadingParts:
    """What the consumers of one application share."""

    settings: Settings
    tracker: TrackerStore
    spark: SparkSession
    objects: ObjectStore
    recorder: Recorder | None
    deployment: str
    """Its id."""
    application: ApplicationLease
    _told: set[str] = field(default_factory=set)
    """Destinations of which the log says who loads them."""

    def consumer(
        self, name: str, checkpoint: Path, *, wait: Callable[[float], bool], pool: str = ""
    ) -> LoadingConsumer:
        """Return the consumer of a destination.

        Args:
            name: the destination's.
            checkpoint: Spark's folder; empty.
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
        consumer = LoadingConsumer(
            self.settings, self.tracker, loader, patience, checkpoint, pool=pool
        )
        return consumer

    def executors(self, name: str, *, pool: str = "") -> ExecutorLoads | None:
        """Return what carries out a destination's loads on executors; None: the driver does.

        Spark's real master counts, not the setting: the application may have been submitted.
        """
        found = placement_of(
            self.settings.destinations.get(name),
            has_executors=has_executors(self.spark.sparkContext.master),
        )
        if name not in self._told:
            self._told.add(name)
            who = "executors load" if found.by_executors else "the driver loads"
            why = f": {found.reason}" if found.reason else ""
            _LOG.info("loading/%s: %s it%s", name, who, why)
        if not found.by_executors:
            return None
        sent = ExecutorSettings.of(self.settings, self.deployment, loads=name)
        return ExecutorLoads(self.spark, sent, pool=pool)


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
        checkpoints = fresh_checkpoints(settings.spark.work_dir / f"loading-{cluster}")
        refuse_foreign_bucket(settings)
        objects = open_owned_objects(settings)
        recorder = open_recorder(settings.traces) if settings.traces.enabled else None
        spark = open_session(
            settings.spark,
            name=f"waybill-loading-{cluster}",
            max_cores=settings.spark.loading_max_cores,
            memory_mb=own.memory_mb,
            conf=own.spark_conf,
            is_light=True,
        )
        reporting.callback(stop_session, spark)
        spark.dataSource.register(StagedSource)
        parts = LoadingParts(
            settings, tracker, spark, objects, recorder, deployment_of(tracker), lease
        )
        watch = watch_executors(spark)

        def start(name: str) -> tuple[LoadingConsumer, StreamingQuery]:
            checkpoint = checkpoints / f"{name}-{uuid.uuid4().hex}"
            consumer = parts.consumer(name, checkpoint, wait=stopping.wait, pool=own.scheduler_pool)
            return consumer, consumer.start(spark)

        consumers = Consumers(start)
        served = ServedTopics(tracker, cluster)

        def wanted() -> list[str]:
            # what the look before left is reported
            left = consumers.serving(served.watcher.version)
            heartbeat.beat(at_work=watch.look(), serving=left)
            return sorted(served.read_destinations())

        keep_running(
            consumers.look,
            wanted,
            stopping,
            every_s=_LOOK_FOR_DESTINATIONS_S,
            sleep=reporting.enter_context(served.watcher).wait,
        )
        consumers.stop()
        stop_session(spark)
        consumers.close()


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
