"""The topics of one application in groups: each group one query, started again when it ended.

A topic that cannot be opened (it was made anew, it has no leader, its stop is not settled) waits,
and is tried again with back-off; no group waits for it. A topic whose share of a batch could not be
committed leaves its group for a query of its own, with back-off, until it has run well for a while;
where only a server was away it comes back to its group. Where nobody can tell whose fault a query's
end was, its topics are divided among smaller groups: the culprit ends up alone. A topic that its
neighbours wait for, as its code is slow, has a query of its own for as long. Each group that gains
or loses a topic is started anew at the end of its batch; the others go on.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pyspark.sql.streaming import StreamingQuery

from waybill.back_off import BackOff
from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.ledger import FencedError
from waybill.processing.spark.topic_consumer import TopicConsumer
from waybill.processing.spark.topic_group import TopicGroup

_LOG = logging.getLogger(__name__)
_BACK_OFF = BackOff(2.0, 60.0)
_END_S = 1.0
"""How long a look waits for the batch of a group that is to end; the next one asks again."""


@dataclass(slots=True)
class _Topic:
    most_neighbours: int
    """Most topics of the group that it may be in, itself included."""
    consumer: TopicConsumer | None = None
    """None: it waits to be opened."""
    since: float = 0.0
    failures: int = 0
    """In a row."""
    not_before: float = 0.0
    fenced: str = ""
    """Another application took it over: if it is wanted here all the same, this one must end."""


@dataclass(slots=True)
class _Group:
    name: str
    most_topics: int
    topics: set[str] = field(default_factory=set)
    changed: bool = True
    """Its topics are not those that its query reads."""
    group: TopicGroup | None = None
    query: StreamingQuery | None = None
    read: frozenset[str] = frozenset()
    """Topics that its query reads: none is another's before that has ended."""

    def end(self) -> None:
        """End the query, unless its batch takes longer: then ask again."""
        if self.group is None or self.query is None or self.group.end(self.query, wait_s=_END_S):
            self.ended()

    def ended(self) -> None:
        """Note that the query has ended."""
        self.group, self.query, self.read, self.changed = None, None, frozenset(), True


class TopicGroups:
    """Keeps each wanted topic in a group, and each group's query running.

    Args:
        open_consumer: takes a topic over, and opens it where the ledger stands.
        make_group: makes the group of some consumers, by a name.
        start: starts a group's query.
        most_topics: of a group.
    """

    def __init__(
        self,
        open_consumer: Callable[[str], TopicConsumer],
        make_group: Callable[[Iterable[TopicConsumer], str], TopicGroup],
        start: Callable[[TopicGroup], StreamingQuery],
        *,
        most_topics: int,
    ) -> None:
        self._open_consumer = open_consumer
        self._make_group = make_group
        self._start = start
        self._most_topics = most_topics
        self._topics: dict[str, _Topic] = {}
        self._groups: list[_Group] = []
        self._leaving: dict[str, TopicConsumer] = {}
        """Not wanted any more, and perhaps still read."""
        self._made = 0

    def look(self, wanted: Iterable[str]) -> None:
        """Start what is wanted and does not run; let go of what is not wanted any more.

        Raises:
            StopError: another application took over what is still wanted here.
        """
        names = list(wanted)
        for topic in names:
            if topic in self._topics and (fenced := self._topics[topic].fenced):
                raise StopError(f"{topic} was taken over by another application: {fenced}")
        for group in self._groups:
            if group.query is not None and not group.query.isActive:
                self._ended(group, group.query)
        for topic in self._topics.keys() - set(names):
            consumer = self._topics[topic].consumer
            if consumer is not None:
                self._leaving[topic] = consumer
            self._leave(topic)
            del self._topics[topic]
        self._part_slow()
        self._reunite()
        for opened in self._open(names):
            self._place(opened)
            self._restart()
        self._restart()

    def stop(self) -> None:
        """Stop all queries."""
        for group in self._groups:
            if group.query is not None:
                group.query.stop()

    def _ended(self, group: _Group, query: StreamingQuery) -> None:
        """Take the topics that are to blame out of a group whose query ended by itself."""
        errors = {} if group.group is None else dict(group.group.errors)
        group.ended()
        neighbours = 1
        if not errors:
            text = str(query.exception())
            blamed = [topic for topic in group.topics if _names(text, topic)]
            neighbours = 1 if blamed else max(1, len(group.topics) // 2)
            errors = {topic: WaybillError(text) for topic in blamed or group.topics}
        for topic, error in errors.items():
            if topic not in group.topics:  # it left while its last batch ran
                continue
            state = self._topics[topic]
            if isinstance(error, FencedError):
                state.fenced = str(error)
            elif not isinstance(error, RetryError):
                state.most_neighbours = neighbours
            self._leave(topic)
            self._later(topic, state, error)

    def _leave(self, topic: str) -> None:
        self._topics[topic].consumer = None
        for group in self._groups:
            if topic in group.topics:
                group.topics.remove(topic)
                group.changed = True

    def _part_slow(self) -> None:
        """Give topics that their neighbours waited for a query of their own."""
        for group in list(self._groups):
            slow = group.group.take_slow() if group.group is not None else set()
            for topic in group.topics & slow:
                state = self._topics[topic]
                state.most_neighbours, state.since = 1, time.monotonic()
                if len(group.topics) > 1:
                    _LOG.warning("%s is slow: it has a query of its own from now on", topic)
                    self._move(group, topic)

    def _move(self, group: _Group, topic: str) -> None:
        """Take an open topic out of a group, and put it where it may be."""
        group.topics.remove(topic)
        group.changed = True
        self._place([topic])

    def _reunite(self) -> None:
        """Let topics that have run well for a while back into groups of the full size."""
        now = time.monotonic()
        for group in [one for one in self._groups if one.most_topics < self._most_topics]:
            for topic in sorted(group.topics):
                state = self._topics[topic]
                if now - state.since >= _BACK_OFF.healthy_s:
                    state.most_neighbours, state.failures = self._most_topics, 0
                    self._move(group, topic)

    def _open(self, wanted: Collection[str]) -> Iterator[list[str]]:
        """Open the topics that are due; yield them by the group's size, so that these can start."""
        opened: list[str] = []
        read = frozenset[str]().union(*(group.read for group in self._groups))
        for topic in wanted:
            state = self._topics.setdefault(topic, _Topic(self._most_topics))
            due = time.monotonic() >= state.not_before and topic not in read
            if state.consumer is None and due and not state.fenced:
                self._try(topic, state)
                opened += [topic] if state.consumer is not None else []
            if len(opened) == self._most_topics:
                yield opened
                opened = []
        yield opened

    def _try(self, topic: str, state: _Topic) -> None:
        state.since = time.monotonic()
        try:
            state.consumer = self._open_consumer(topic)
        except (StopError, InputError, RetryError) as error:
            self._later(topic, state, error)

    def _later(self, topic: str, state: _Topic, error: WaybillError) -> None:
        now = time.monotonic()
        state.failures = _BACK_OFF.failures(state.failures, now - state.since)
        wait_s = _BACK_OFF.wait_s(state.failures)
        _LOG.error("consumer %s stopped; again in %.0f s: %s", topic, wait_s, error)
        state.not_before = now + wait_s

    def _place(self, topics: Iterable[str]) -> None:
        """Put topics into groups with room, or into new ones."""
        for topic in topics:
            most = self._topics[topic].most_neighbours
            group = next(
                (
                    group
                    for group in self._groups
                    if group.most_topics == most and len(group.topics) < most
                ),
                None,
            )
            if group is None:
                self._made += 1
                group = _Group(f"topics-{self._made}", most)
                self._groups.append(group)
            group.topics.add(topic)
            group.changed = True

    def _restart(self) -> None:
        """Start the queries of the groups whose topics changed, once the batch of each is over."""
        changed = [group for group in self._groups if group.changed]
        for group in changed:
            group.end()
        self._release()
        for group in changed:
            read = frozenset[str]().union(*(other.read for other in self._groups))
            if group.topics and not group.read and group.topics.isdisjoint(read):
                consumers = [self._topics[topic].consumer for topic in sorted(group.topics)]
                open_ones = [consumer for consumer in consumers if consumer is not None]
                group.group = self._make_group(open_ones, group.name)
                group.query = self._start(group.group)
                group.read, group.changed = frozenset(group.topics), False
        self._groups = [group for group in self._groups if group.topics or group.read]

    def _release(self) -> None:
        """Let go of the topics that are not wanted any more, once no query reads them."""
        read = frozenset[str]().union(*(group.read for group in self._groups))
        for topic in self._leaving.keys() - read:
            try:
                self._leaving.pop(topic).release()
            except RetryError as error:  # who takes it over waits a little longer
                _LOG.warning("%s was not let go of: %s", topic, error)


def _names(text: str, topic: str) -> bool:
    """Tell whether a text names a topic, also as Kafka writes a partition: ``topic-0``."""
    return re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.])", text) is not None
