"""The groups of a processing application, in the session of the process that measures them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Application:
    """The groups of an application in this process's Spark session.

    Args:
        spark: the session.
        parts: of processing.
        folder: for checkpoints.
        spread: over how many groups topics are spread; None: as in the real application.
    """

    def __init__(self, spark: Any, parts: Any, folder: Path, *, spread: int | None = None) -> None:
        from waybill.processing.spark.session import cores_of
        from waybill.processing.spark.topic_groups import TopicGroups, groups_for

        self._spark, self._parts, self._folder = spark, parts, folder
        self._topics: dict[str, list[str]] = {}
        self._started: list[tuple[Any, list[str]]] = []
        """Each query, and the topics that it reads."""
        self._consumers: dict[str, Any] = {}
        size = parts.settings.spark.topics_per_query
        self.groups = TopicGroups(
            self._open,
            self._group,
            self._start,
            parts.log.unreadable,
            most_topics=size,
            spread=groups_for(cores_of(spark)) if spread is None else spread,
        )

    def rows(self) -> int:
        """Return how many records of topics that begin at 0 are committed. Cost: some µs a topic."""
        for query, _ in self._started:
            if not query.isActive and (error := query.exception()) is not None:
                raise SystemExit(f"a query ended: {error}")
        consumers = list(self._consumers.values())
        return sum(sum(consumer.positions.values()) for consumer in consumers)

    def served(self, names: Sequence[str]) -> float:
        """Have just these topics served; return the seconds until queries wait for their events."""
        began = time.monotonic()
        while True:
            self.groups.look(names)
            active = [(one, topics) for one, topics in self._started if one.isActive]
            if {topic for _, topics in active for topic in topics} == set(names) and all(
                one.status["message"].startswith("Waiting for") for one, _ in active
            ):
                return time.monotonic() - began
            time.sleep(0.05)

    def _open(self, topic: str) -> Any:
        from waybill.processing.spark.topic_consumer import TopicConsumer

        info = self._parts.log.ensure_topic(topic)
        consumer = TopicConsumer(self._parts, info, destination="warehouse", holder="bench")
        consumer.open()
        self._consumers[topic] = consumer
        return consumer

    def _group(self, consumers: Any, name: str, number: int) -> Any:
        from waybill.processing.spark.topic_group import TopicGroup

        consumers = list(consumers)
        self._topics[name] = [consumer.topic.name for consumer in consumers]
        checkpoint = self._folder / uuid.uuid4().hex
        return TopicGroup(self._parts, consumers, name=name, number=number, checkpoint=checkpoint)

    def _start(self, group: Any) -> Any:
        query = group.start(self._spark)
        self._started.append((query, self._topics[group.name]))
        return query
