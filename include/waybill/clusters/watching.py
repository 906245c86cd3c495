"""How an application follows the assignment: by notification, and by looking where none comes.

``ServedTopics.read()`` is for a loop that runs every second or two: two small statements, and more
only where something is new. Between two looks it sleeps in ``AssignmentWatcher.wait()``: PostgreSQL
tells of a new version within milliseconds. Notifications are a hint: a connection that was lost, or
a pooler that does not pass them on, costs the waiting time and no decision.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Self

from waybill.clusters.model import (
    DEFAULT_CLUSTER,
    NO_ASSIGNMENT,
    SET_BY_WAYBILL,
    Assignment,
    VirtualCluster,
)
from waybill.clusters.records import CHANNEL, newest_version, read_assignment, read_clusters
from waybill.deployment import ActivePipelines, EventTopic
from waybill.errors import NotFoundError
from waybill.ledger import live_names
from waybill.nearest_name import hint
from waybill.pipelines import topic_name
from waybill.storage import NotifiedVersions, TrackerStore

_LOG = logging.getLogger(__name__)


class AssignmentWatcher:
    """The newest assignment, as one cluster sees it. For one thread.

    Args:
        tracker: where the assignment is.
        cluster: whose.
    """

    def __init__(self, tracker: TrackerStore, cluster: str) -> None:
        self.cluster = cluster
        self._tracker = tracker
        self._assignment = NO_ASSIGNMENT
        self._notified = NotifiedVersions(tracker, CHANNEL, newest_version)

    @property
    def version(self) -> int:
        """Return the version that was read last; 0: none."""
        return self._assignment.version

    def read(self) -> Assignment:
        """Return the assignment in force; the same object while there is none newer.

        Raises:
            RetryError: the tracker does not answer; the caller keeps to what it had.

        Cost: one statement, a look at the end of an index; one more for a new version.
        """
        with self._tracker.transaction() as connection:
            if newest_version(connection) != self._assignment.version:
                self._assignment = read_assignment(connection) or NO_ASSIGNMENT
        return self._assignment

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is a newer version, at most so long; True: a notification came.

        It raises nothing, and costs what `NotifiedVersions.wait` says.
        """
        return self._notified.wait(self.version, timeout_s)

    def close(self) -> None:
        """Give the connection back."""
        self._notified.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServedTopics:
    """The topics that one cluster is to read. For one thread.

    Args:
        tracker: where the assignment and the pipelines are.
        cluster: whose.
        pipelines: that may be shared with others; None: its own.
    """

    def __init__(
        self, tracker: TrackerStore, cluster: str, pipelines: ActivePipelines | None = None
    ) -> None:
        self.watcher = AssignmentWatcher(tracker, cluster)
        self._tracker = tracker
        self._pipelines = pipelines or ActivePipelines(tracker)

    def read(self) -> dict[str, str]:
        """Return {topic: its destination} of the teams that the cluster serves now.

        Of a topic with several generations it is the one that is read now, as Kafka names it.

        Raises:
            RetryError: the tracker does not answer; the caller keeps to what it had.

        Cost: three statements, two more where something was deployed; no declaration is parsed.
        """
        topics = self.read_topics()
        with self._tracker.transaction() as connection:
            names = live_names(connection, topics)
        return {names[topic][0]: destination for topic, destination in topics.items()}

    def read_topics(self) -> dict[str, str]:
        """Return {topic: its destination}, whatever its generations; raises as ``read``."""
        assignment = self.watcher.read()
        return topics_served(self._pipelines.read_topics(), assignment, self.watcher.cluster)

    def read_destinations(self) -> set[str]:
        """Return the destinations that the cluster is to load.

        Each is one cluster's: see ``destinations_served``.

        Raises:
            RetryError: as ``read``.
        """
        assignment = self.watcher.read()
        return destinations_served(self._pipelines.read_topics(), assignment, self.watcher.cluster)


def topics_served(
    topics: Iterable[EventTopic], assignment: Assignment, cluster: str
) -> dict[str, str]:
    """Return {topic: its destination} of the teams that a cluster serves."""
    return {
        topic_name(one.team, one.destination): one.destination
        for one in topics
        if assignment.cluster_of(one.team) == cluster
    }


def destinations_served(
    topics: Collection[EventTopic], assignment: Assignment, cluster: str
) -> set[str]:
    """Return the destinations that a cluster loads, so that none is loaded by two.

    A destination of several teams is the cluster's of the first of them, by name, that any cluster
    serves; where none does, ``default`` loads what is there.
    """
    owners: dict[str, str] = {}
    for one in sorted(topics, key=lambda one: one.team):
        served_by = assignment.cluster_of(one.team)
        if served_by is not None:
            owners.setdefault(one.destination, served_by)
    return {
        one.destination for one in topics if owners.get(one.destination, DEFAULT_CLUSTER) == cluster
    }


def topics_of_cluster(tracker: TrackerStore, cluster: str) -> dict[str, str]:
    """Return {topic: its destination} of a cluster now; ``ServedTopics`` is for a loop.

    Raises:
        RetryError: the tracker does not answer.
    """
    return ServedTopics(tracker, cluster).read()


def cluster_names(tracker: TrackerStore) -> list[str]:
    """Return the names of all clusters, in order.

    Raises:
        RetryError: the tracker does not answer.
    """
    with tracker.transaction() as connection:
        return [cluster.name for cluster in read_clusters(connection)]


def cluster_settings(tracker: TrackerStore, name: str) -> VirtualCluster:
    """Return a cluster with its settings, for an application that starts.

    What Waybill sets itself is left out of its ``spark_conf``, with a warning: earlier releases
    took such names.

    Raises:
        InputError: there is no such cluster.
        RetryError: the tracker does not answer.
    """
    with tracker.transaction() as connection:
        known = {one.name: one for one in read_clusters(connection)}
    if name not in known:
        raise NotFoundError(
            f"there is no cluster {name[:120]!r}; there are {', '.join(sorted(known))}"
            f"{hint(name, known)}. "
            "`waybill clusters create` makes one"
        )
    found = known[name]
    for taken in sorted(found.spark_conf.keys() & SET_BY_WAYBILL.keys()):
        _LOG.warning(
            "cluster %s: its %s has no effect, Waybill sets that; `waybill clusters set %s "
            "--spark-conf %s=` takes it out",
            name,
            taken,
            name,
            taken,
        )
    own = {one: value for one, value in found.spark_conf.items() if one not in SET_BY_WAYBILL}
    return replace(found, spark_conf=own)
