"""The processing application: the consumers of one virtual cluster's topics, in groups."""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path

from waybill.clusters import ApplicationLease, Heartbeat, ServedTopics, cluster_settings
from waybill.ledger import lease_holder
from waybill.processing.spark.consumers import Stopping, keep_running
from waybill.processing.spark.executor_watch import watch_executors
from waybill.processing.spark.session import cores_of, open_session, stop_session
from waybill.processing.spark.topic_consumer import ProcessingParts, TopicConsumer
from waybill.processing.spark.topic_group import TopicGroup
from waybill.processing.spark.topic_groups import TopicGroups, groups_for
from waybill.settings import Settings
from waybill.storage import (
    TrackerStore,
    open_log,
    open_owned_objects,
    open_tracker,
    refuse_foreign_bucket,
)
from waybill.topics import Draining, open_topic

_LOG = logging.getLogger(__name__)
_LOOK_FOR_TOPICS_S = 1.0
_HANDOVER_S = 10.0
"""How long a topic is waited for that another cluster has; it ends its batch before."""


def run_processing(settings: Settings, *, cluster: str, epoch: int | None = None) -> None:
    """Run until told to stop (SIGTERM, or by its row in the tracker).

    Args:
        settings: of the driver.
        cluster: which one it serves.
        epoch: that it was started with; None: it was started by hand.

    Raises:
        InputError: there is no such cluster.
        StopError: another application of the cluster was started, or Spark has no executors any
            more.
        RetryError: Kafka did not answer for 10 min at the start, or Spark does not start; the
            supervisor starts it again.
    """
    stopping = Stopping()
    log = open_log(settings.kafka)
    with open_tracker(settings.tracker) as tracker, ExitStack() as reporting:
        own = cluster_settings(tracker, cluster)
        lease = ApplicationLease.acquire(tracker, "processing", cluster, epoch=epoch)
        heartbeat = reporting.enter_context(Heartbeat(lease, stopping.ask))
        checkpoints = fresh_checkpoints(settings.spark.work_dir / f"processing-{cluster}")
        log.wait_until_up(limit_s=600)
        refuse_foreign_bucket(settings)
        parts = ProcessingParts.over(settings, tracker, log, open_owned_objects(settings))
        spark = open_session(
            settings.spark,
            name=f"waybill-processing-{cluster}",
            max_cores=own.cores or settings.spark.processing_max_cores,
            memory_mb=own.memory_mb,
            conf=own.spark_conf,
        )
        reporting.callback(stop_session, spark)
        served, draining = ServedTopics(tracker, cluster, parts.pipelines), Draining(tracker, log)
        destinations: dict[str, str] = {}
        handover, watch = Handover(tracker, cluster), watch_executors(spark)

        def open_consumer(topic: str) -> TopicConsumer | None:
            if not handover.is_free(topic):
                return None
            consumer = TopicConsumer(
                parts,
                open_topic(tracker, log, topic),
                destination=destinations[topic],
                holder=f"{cluster}:{uuid.uuid4()}",
                check=lease.check,
            )
            consumer.open()
            return consumer

        def make_group(consumers: Iterable[TopicConsumer], name: str, number: int) -> TopicGroup:
            return TopicGroup(
                parts,
                consumers,
                name=name,
                number=number,
                checkpoint=checkpoints / f"{name}-{uuid.uuid4().hex}",
                pool=own.scheduler_pool,
            )

        def wanted() -> Iterable[str]:
            # what the look before left is reported
            heartbeat.beat(at_work=watch.look(), serving=groups.serving(served.watcher.version))
            topics = read_served(served, draining)
            destinations.update(topics)
            handover.forget_all_but(topics)
            return topics

        groups = TopicGroups(
            open_consumer,
            make_group,
            lambda group: group.start(spark),
            log.unreadable,
            most_topics=settings.spark.topics_per_query,
            spread=groups_for(cores_of(spark)),
        )
        keep_running(
            groups.look,
            wanted,
            stopping,
            every_s=_LOOK_FOR_TOPICS_S,
            sleep=reporting.enter_context(served.watcher).wait,
        )
        groups.stop()


def read_served(served: ServedTopics, draining: Draining) -> dict[str, str]:
    """Return {topic: its destination} to be read now; ends the generations that are drained.

    Raises:
        RetryError: the tracker does not answer.
    """
    topics = served.read_topics()
    names = draining.names_to_read(topics)
    return {names[topic]: destination for topic, destination in topics.items()}


class Handover:
    """Has an application wait until the one that had a topic before has let go of it.

    Only for so long: whoever takes a topic over fences who had it, so that nothing but a batch is
    lost by not waiting.

    Args:
        tracker: with the leases.
        cluster: of this application; it waits for those of others only.
    """

    def __init__(self, tracker: TrackerStore, cluster: str) -> None:
        self._tracker = tracker
        self._cluster = cluster
        self._since: dict[str, float] = {}

    def forget_all_but(self, topics: Collection[str]) -> None:
        """Wait anew for a topic that comes back some day."""
        self._since = {topic: at for topic, at in self._since.items() if topic in topics}

    def is_free(self, topic: str) -> bool:
        """Tell whether a topic may be taken over; False: another cluster has it still, ask again.

        Raises:
            RetryError: the tracker does not answer.
        """
        holder = lease_holder(self._tracker, f"processing/{topic}")
        other = holder.rpartition(":")[0]
        if not other or other == self._cluster:
            self._since.pop(topic, None)
            return True
        waited_s = time.monotonic() - self._since.setdefault(topic, time.monotonic())
        if waited_s < _HANDOVER_S:
            return False
        _LOG.warning("%s is taken over from cluster %s, which did not let go of it", topic, other)
        del self._since[topic]
        return True


def fresh_checkpoints(folder: Path) -> Path:
    """Return a new, empty folder for Spark's disposable checkpoints; older ones are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    fresh = folder.resolve() / uuid.uuid4().hex
    fresh.mkdir(parents=True)
    return fresh
