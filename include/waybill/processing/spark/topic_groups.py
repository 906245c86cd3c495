"""The topics of one application in groups: each group one query, started again when it ended.

A topic that cannot be opened (it was made anew, its stop is not settled) waits, and is tried again
with back-off. So does one without a leader: Kafka is asked for all that are due at once, before any
is opened, and those cost no time of their own. A topic whose share of a batch could not be
committed leaves its group, and comes back in a query of its own, until it has run well for a while;
where only a server was away, or its lease was lost (it is taken again: see ``consumers``), it comes
back to its group. A topic that its neighbours wait for, or that is replayed, has a query of its own
for as long. Where nobody can tell whose fault a query's end was, its topics are divided among
smaller groups: the culprit ends up alone.

A group that gains or loses a topic is started anew at the end of its batch; the others go on. No
topic is read by two queries: a group starts once all its topics are free.

Topics are spread over several groups, a few even where one had room for all: while a batch of one
is planned or committed, the tasks of the others have the cores. And beside a topic that has a query
of its own they have a share each.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from pyspark.sql.streaming import StreamingQuery

from waybill.back_off import RetryTimer
from waybill.clusters import HeldConsumer, Serving
from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.ledger import FencedError
from waybill.processing.spark.batches import UnreadError
from waybill.processing.spark.consumers import CONSUMER_BACK_OFF, stop_queries, try_later
from waybill.processing.spark.topic_consumer import TopicConsumer
from waybill.processing.spark.topic_group import TopicGroup

_LOG = logging.getLogger(__name__)
_LONG_S = 1.0
"""What was opened so far is started when one took longer."""
_PYTHON_ERROR = re.compile(
    r"^(?!(?:java|org|py4j|pyspark)\.)[\w.]*(?:Error|Exception)\b.*$", re.MULTILINE
)
_OPENING_S = 5.0
"""What is not open after so long is left to the next look: the application's loop goes round."""
_MOST_SPREAD = 4
"""Groups over which few topics are spread. In a group of 5 topics half of a batch is planning and
commits; more groups than so would each cost the driver as much, and keep the cores no busier."""


def groups_for(cores: int) -> int:
    """Return over how many groups few topics are spread: four, or one where cores are fewer.

    On two cores two groups took nearly twice the CPU an event where batches are small: what each
    costs beside its events is not made up for.
    """
    return _MOST_SPREAD if cores >= _MOST_SPREAD else 1


def group_load(coming: int, busy_cores: float, topics: int) -> tuple[int, float, int]:
    """Return what groups are compared by: a topic that comes goes to the one with the least.

    All topics of a group wait for its batch: an idle group is the better one, however many topics
    are in it.

    Args:
        coming: topics that its query does not read yet: what they take is not known.
        busy_cores: that its batches keep busy; less than a tenth makes no difference.
        topics: that it has, with those that come.
    """
    return coming, round(busy_cores, 1), topics


@dataclass(slots=True)
class _Topic:
    most_topics: int
    """Of the group that it may be in."""
    consumer: TopicConsumer | None = None
    """None: it waits to be opened."""
    retry: RetryTimer = field(default_factory=lambda: RetryTimer(CONSUMER_BACK_OFF))
    """Begun: when it was opened, or was last a reason for a query of its own."""
    error: WaybillError | None = None
    """Why it was not opened, or does not run any more; None: it was opened since."""


@dataclass(slots=True)
class _Slot:
    """A group as it should be, and as it runs."""

    number: int
    """The least that was free."""
    most_topics: int
    topics: set[str] = field(default_factory=set)
    changed_at: float | None = None
    """Since when its topics are not those that its query reads; None: they are."""
    group: TopicGroup | None = None
    query: StreamingQuery | None = None
    read: frozenset[str] = frozenset()
    """Topics that its query reads."""

    @property
    def name(self) -> str:
        """Its query's."""
        return f"topics-{self.number}"

    @property
    def load(self) -> tuple[int, float, int]:
        """See `group_load`."""
        busy_cores = 0.0 if self.group is None else self.group.busy_cores
        return group_load(len(self.topics - self.read), busy_cores, len(self.topics))

    def change(self) -> None:
        """Note that the query is to be started anew."""
        if self.changed_at is None:
            self.changed_at = time.monotonic()

    def ended(self) -> None:
        """Note that the query has ended."""
        self.group, self.query, self.read = None, None, frozenset()
        self.change()


class TopicGroups:
    """Keeps each wanted topic in a group, and each group's query running. For one thread.

    Args:
        open_consumer: takes a topic over, and opens it where the ledger stands; None: not yet.
        make_group: makes the group of some consumers, by a name and its number, from 1.
        start: starts a group's query.
        unreadable: tells which of some topics cannot be read now, and why; asked once a look.
        most_topics: of a group.
        spread: over how many groups topics are spread before more share one; see `groups_for`.
    """

    def __init__(
        self,
        open_consumer: Callable[[str], TopicConsumer | None],
        make_group: Callable[[Iterable[TopicConsumer], str, int], TopicGroup],
        start: Callable[[TopicGroup], StreamingQuery],
        unreadable: Callable[[Collection[str]], Mapping[str, RetryError]],
        *,
        most_topics: int,
        spread: int = 1,
    ) -> None:
        self._open_consumer = open_consumer
        self._make_group = make_group
        self._start = start
        self._unreadable = unreadable
        self._most_topics = most_topics
        self._spread = spread
        self._topics: dict[str, _Topic] = {}
        self._wanted: list[str] | None = None
        """By the last look."""
        self._slots: list[_Slot] = []
        self._leaving: dict[str, TopicConsumer] = {}
        """Not wanted any more, and perhaps still read."""

    def look(self, wanted: Iterable[str]) -> None:
        """Start what is wanted and does not run; let go of what is not wanted any more.

        Waits for no batch: what it cannot do yet is done by a later look.
        """
        names = self._wanted = list(wanted)
        for slot in self._slots:
            self._take_errors(slot)
        for topic in self._topics.keys() - set(names):
            self._let_go(topic)
        for slot in list(self._slots):
            self._part(slot)
            self._reunite(slot)
            if slot.group is not None:
                slot.group.look()
        self._restart()
        self._open(names)
        self._restart()

    def serving(self, version: int) -> Serving | None:
        """Return what the last look left running, by this version; None before the first one."""
        if self._wanted is None:
            return None
        read = self._read()
        held = filter(None, (self._held(topic, read) for topic in self._wanted))
        return Serving.of(version, len(self._wanted), list(held))

    def _held(self, topic: str, read: Collection[str]) -> HeldConsumer | None:
        state = self._topics.get(topic)
        if state is None or state.consumer is None:
            error = None if state is None else state.error
            return HeldConsumer.of(topic, error, "for its turn, or for the cluster that had it")
        if topic in read:
            return None
        return HeldConsumer.of(topic, None, "for the query that is to read it")

    def stop(self) -> None:
        """Stop all queries at the end of their batches, or after `LAST_BATCH_S`."""
        stop_queries(
            (slot.query, slot.group.end)
            for slot in self._slots
            if slot.query is not None and slot.group is not None
        )

    def _take_errors(self, slot: _Slot) -> None:
        """Take the topics out that a group could not go on with; all, if nobody can say which."""
        if slot.group is None or slot.query is None:
            return
        group, query = slot.group, slot.query
        for topic, error in list(group.errors.items()):
            state = self._topics.get(topic)
            if state is not None and state.consumer is not None and topic in slot.read:
                self._failed(topic, error, most_topics=1)
        if query.isActive:
            return
        slot.ended()
        group.clear()
        text = str(query.exception()).partition("=== Streaming Query ===")[0]
        if query.exception() is None or not slot.topics:
            return
        blamed = {topic for topic in slot.topics if _mentions(text, topic)}
        most = 1 if blamed else max(1, len(slot.topics) // 2)
        for topic in blamed or set(slot.topics):
            self._failed(topic, WaybillError(_cause_first(text)), most_topics=most)

    def _end(self, slot: _Slot) -> bool:
        """End a group's query; False while its batch runs: then ask again."""
        if slot.group is not None and slot.query is not None and not slot.group.end(slot.query):
            slot.change()  # it is told to end, and must: no batch has an effect any more
            return False
        self._take_errors(slot)
        slot.ended()
        return True

    def _failed(self, topic: str, error: WaybillError, *, most_topics: int) -> None:
        state = self._topics[topic]
        if isinstance(error, UnreadError) or not isinstance(error, RetryError | FencedError):
            state.most_topics = most_topics
        self._leave(topic)
        self._try_later(topic, error)

    def _let_go(self, topic: str) -> None:
        consumer = self._topics[topic].consumer
        if consumer is not None:
            self._leaving[topic] = consumer
        self._leave(topic)
        del self._topics[topic]

    def _leave(self, topic: str) -> None:
        self._topics[topic].consumer = None
        for slot in self._slots:
            if topic in slot.topics:
                slot.topics.remove(topic)
                slot.change()

    def _part(self, slot: _Slot) -> None:
        """Give topics that their neighbours wait for a query of their own."""
        apart = set() if slot.group is None else slot.group.take_apart()
        for topic in apart & slot.topics:
            state = self._topics[topic]
            state.most_topics, state.retry.began = 1, time.monotonic()
            if slot.topics == {topic}:
                slot.most_topics = 1  # it has one, which gets no neighbour now
            elif slot.most_topics > 1:
                _LOG.info("%s is read by a query of its own from now on", topic)
                self._move(slot, topic)

    def _reunite(self, slot: _Slot) -> None:
        """Let topics that have run well for a while back into groups of the full size.

        Their own query ends before: no group waits for its batch.
        """
        now = time.monotonic()
        well = {
            topic
            for topic in slot.topics
            if slot.most_topics < self._most_topics
            and now - self._topics[topic].retry.began >= CONSUMER_BACK_OFF.healthy_s
        }
        if well and self._end(slot):
            for topic in sorted(well & slot.topics):
                state = self._topics[topic]
                state.most_topics, state.retry.failures = self._most_topics, 0
                self._move(slot, topic)

    def _move(self, slot: _Slot, topic: str) -> None:
        """Take an open topic out of a group, and put it where it may be."""
        slot.topics.remove(topic)
        slot.change()
        self._place(topic)

    def _open(self, wanted: Iterable[str]) -> None:
        """Open the topics that are due; start groups as soon as they are full, or one is slow."""
        topics, opened = self._readable(self._due(wanted)), list[str]()
        most = self._spread * self._most_topics
        until = time.monotonic() + _OPENING_S
        for topic in topics:
            began = time.monotonic()
            if began > until:
                break
            state = self._topics[topic]
            self._try(topic, state)
            opened += [topic] if state.consumer is not None else []
            if len(opened) == most or time.monotonic() - began > _LONG_S:
                self._start_all(opened)
                opened = []
        self._start_all(opened)

    def _due(self, wanted: Iterable[str]) -> list[str]:
        """Return the topics to open now; those that failed before wait for the others."""
        read, now = self._read(), time.monotonic()
        states = {t: self._topics.setdefault(t, _Topic(self._most_topics)) for t in wanted}
        due = [
            topic
            for topic, state in states.items()
            if state.consumer is None and topic not in read
            if state.retry.due <= now
        ]
        return sorted(due, key=lambda topic: states[topic].retry.failures)

    def _readable(self, topics: Sequence[str]) -> list[str]:
        """Return the topics that can be read now; the others are tried again with back-off."""
        unreadable = self._unreadable(topics) if topics else {}
        for topic, error in unreadable.items():
            self._topics[topic].retry.began = time.monotonic()
            self._try_later(topic, error)
        return [topic for topic in topics if topic not in unreadable]

    def _start_all(self, opened: Iterable[str]) -> None:
        for topic in opened:
            self._place(topic)
        self._restart()

    def _try(self, topic: str, state: _Topic) -> None:
        state.retry.began = time.monotonic()
        try:
            state.consumer, state.error = self._open_consumer(topic), None
        except (StopError, InputError, RetryError) as error:
            self._try_later(topic, error)

    def _try_later(self, topic: str, error: WaybillError) -> None:
        state = self._topics[topic]
        state.error = error
        try_later(topic, state.retry, error)

    def _place(self, topic: str) -> None:
        """Put a topic into the idlest group with room, or into a new one; into none that ends."""
        most = self._topics[topic].most_topics
        slots = [slot for slot in self._slots if slot.most_topics == most]
        lasting = [slot for slot in slots if slot.topics or not slot.read]
        has_room = [slot for slot in lasting if len(slot.topics) < most]
        is_spread = most < self._most_topics or len(lasting) >= self._spread
        slot = min(has_room, key=lambda one: one.load, default=None) if is_spread else None
        slot = slot or self._new_slot(most)
        slot.topics.add(topic)
        slot.change()

    def _new_slot(self, most_topics: int) -> _Slot:
        used = {slot.number for slot in self._slots}
        number = next(number for number in count(1) if number not in used)
        slot = _Slot(number, most_topics)
        self._slots.append(slot)
        return slot

    def _restart(self) -> None:
        """Start the queries of the groups whose topics changed, once all these are free."""
        for slot in self._slots:
            others = self._read(besides=slot)
            if slot.changed_at is None or (slot.topics and not slot.topics.isdisjoint(others)):
                continue  # it goes on as it is until the query that has its topic has ended
            if self._end(slot) and slot.topics:
                consumers = [self._topics[topic].consumer for topic in sorted(slot.topics)]
                open_ones = [consumer for consumer in consumers if consumer is not None]
                slot.group = self._make_group(open_ones, slot.name, slot.number)
                slot.query = self._start(slot.group)
                slot.read = frozenset(slot.topics)
                took_s, slot.changed_at = time.monotonic() - slot.changed_at, None
                _LOG.info("%s: %d topics, started in %.2f s", slot.name, len(slot.read), took_s)
        self._slots = [slot for slot in self._slots if slot.topics or slot.read]
        self._release()

    def _read(self, *, besides: _Slot | None = None) -> frozenset[str]:
        """Return the topics that queries read now."""
        return frozenset[str]().union(*(one.read for one in self._slots if one is not besides))

    def _release(self) -> None:
        """Let go of the topics that are not wanted any more, once no query reads them."""
        for topic in self._leaving.keys() - self._read():
            try:
                self._leaving.pop(topic).release()
            except RetryError as error:  # who takes it over waits a little longer
                _LOG.warning("%s was not let go of: %s", topic, error)


def _cause_first(text: str) -> str:
    """Return Spark's words of a query's end with the last error of Python in front, if it has one.

    They begin with ids, and a report of what is served has the first ones only.
    """
    causes = _PYTHON_ERROR.findall(text)
    return f"{causes[-1]}; {text}" if causes else text


def _mentions(text: str, topic: str) -> bool:
    """Tell whether a text names a topic, also as Kafka writes a partition: ``topic-0``."""
    return re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.])", text) is not None
