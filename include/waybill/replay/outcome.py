"""What became of a replay's events: told from the ledger, the parked files and the log.

A replay is sent before it is processed. Where its topic ended once all was sent is known; when the
ledger stands there, processing has seen every event, and when the commits until then are loaded,
the destination has. An event that was parked again is found in a file that was parked since, by its
id. Nothing here is an estimate.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Text, any_, cast, func, select

from waybill.errors import InputError, ParkError
from waybill.events import Event, decode
from waybill.ledger import last_commit_number, live_names, load_position, topic_positions
from waybill.parking import ParkedEvent, Parking, Replay, read_replay, segments_in_order
from waybill.pipelines import Pipeline, topic_of
from waybill.storage import KafkaLog, TrackerStore
from waybill.storage.tracker import (
    AT_THE_DESTINATION,
    commit_sequences,
    load_positions,
    parked_partitions,
    replay_outcomes,
    replays,
    segments,
    topic_offsets,
)

_LOOK_S = 0.5
WaitsFor = Literal["", "processing", "loading"]
Key = TypeVar("Key")


class TopicEnds(NamedTuple):
    """How far a topic reached, once all of a replay was sent."""

    name: str
    cluster_id: str
    topic_id: str
    ends: Mapping[int, int]
    """{partition: offset after the last}."""


@dataclass(frozen=True, slots=True)
class AwaitedEnds:
    """Where processing and loading have to get to, until all of a replay is known."""

    topics: tuple[TopicEnds, ...]
    """All generations of the topic that had not ended; the others were read."""
    destination: str
    last_commit: int | None = None
    """Of the destination, once processing had seen all; ``None``: it has not."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        topics = [
            [*topic[:3], [list(end) for end in sorted(topic.ends.items())]] for topic in self.topics
        ]
        return {**asdict(self), "topics": topics}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave."""
        topics = tuple(
            TopicEnds(name, cluster_id, topic_id, dict(ends))
            for name, cluster_id, topic_id, ends in value["topics"]
        )
        return cls(topics, value["destination"], value["last_commit"])


def read_awaited(
    connection: Connection, awaited: Mapping[Key, AwaitedEnds]
) -> dict[Key, tuple[AwaitedEnds, bool]]:
    """Return each with its last commit, if it is known now, and whether nothing is to wait for.

    That is so as well where the topic is not the same any more: who looks is told.

    Cost: three statements, and a row a partition.
    """
    names = {topic.name for one in awaited.values() for topic in one.topics}
    offsets: dict[str, dict[tuple[str, str], dict[int, int]]] = {}
    table = topic_offsets.c
    query = select(
        table.topic, table.cluster_id, table.topic_id, table.partition, table.next_offset
    ).where(table.topic == any_(cast(sorted(names), ARRAY(Text))))
    for name, cluster_id, topic_id, number, offset in connection.execute(query):
        log = offsets.setdefault(name, {}).setdefault((cluster_id, topic_id), {})
        log[number] = offset
    # After the offsets: what is committed with them has its number.
    last = _numbers(connection, commit_sequences.c.destination, commit_sequences.c.last)
    loaded = _numbers(connection, load_positions.c.destination, load_positions.c.last_commit)

    def stands(one: AwaitedEnds) -> tuple[AwaitedEnds, bool]:
        for topic in one.topics:
            logs = offsets.get(topic.name, {})
            own = logs.get(topic[1:3], {})
            if logs.keys() - {topic[1:3]}:
                return one, True
            if any(own.get(number, 0) < end for number, end in topic.ends.items()):
                return one, False
        number = last.get(one.destination, 0) if one.last_commit is None else one.last_commit
        return replace(one, last_commit=number), loaded.get(one.destination, 0) >= number

    return {key: stands(one) for key, one in awaited.items()}


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What became of a replay's events, so far."""

    replay_id: str
    events: int
    """Events it took."""
    sent: int
    """Events that are in the log again."""
    passed: int
    """Events that went on: none of their children is parked or in flight."""
    parked_again: dict[str, int]
    """Stage and error type ("mapping/not_null_violation") to events. One whose children were parked
    in several ways is under each."""
    loaded: dict[str, int]
    """What the destination did with their rows, so far: "delivered", "superseded" (a newer version
    was there), "duplicate", "parked". An event may become several rows, or none."""
    in_flight: int
    """Events that processing has not seen yet."""
    waits_for: WaitsFor
    """Empty: everything is known. ``loading``: what passed is staged, and partly not loaded."""

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        return asdict(self)


def _numbers(connection: Connection, name: Any, number: Any) -> dict[str, int]:
    return {str(row[0]): int(row[1]) for row in connection.execute(select(name, number))}


class ReplayWatch:
    """Watches what becomes of one replay.

    Args:
        tracker: the books.
        parking: the parked events.
        log: where they were sent.
        pipeline: whose events they are.
        partition_id: the partition that was replayed.
        run_id: the run that did it; it has ended.
        step: of a canary; None: the last.

    Raises:
        InputError: no such replay.
        RetryError: Kafka or the tracker is away.
    """

    def __init__(  # noqa: PLR0913 - what it watches, and where
        self,
        tracker: TrackerStore,
        parking: Parking,
        log: KafkaLog,
        pipeline: Pipeline,
        partition_id: int,
        run_id: str,
        *,
        step: str | None = None,
    ) -> None:
        self._tracker, self._parking, self._log, self._pipeline = tracker, parking, log, pipeline
        self._replay = _replay_of(tracker, partition_id, run_id, step)

    @cached_property
    def ends(self) -> AwaitedEnds:
        """What is waited for: what is in the log now; or set to what another watch began with."""
        return ends_of(self._tracker, self._log, self._pipeline)

    def wait(self, *, limit_s: float, clock: Callable[[], float] = time.monotonic) -> ReplayOutcome:
        """Wait until all of it is known, at most ``limit_s``, and return what is known then."""
        deadline = clock() + limit_s
        while (waits_for := self.waits_for()) and clock() < deadline:
            time.sleep(min(_LOOK_S, max(0.0, deadline - clock())))
        return self.outcome(waits_for)

    def waits_for(self) -> WaitsFor:
        """Return who has not seen all events yet."""
        if self._unread():
            return "processing"
        destination, last = self._pipeline.destination, self.ends.last_commit
        if last is None:
            last = last_commit_number(self._tracker, destination)
            self.ends = replace(self.ends, last_commit=last)
        return "" if load_position(self._tracker, destination) >= last else "loading"

    def outcome(self, waits_for: WaitsFor) -> ReplayOutcome:
        """Return what is known now.

        Cost: reads what was parked since the replay began, and, if any of it may be the replay's,
        the replayed events once more.
        """
        replay = self._replay
        own = (event for event in self._in_log() if event.replay_id == str(replay.id))
        waiting = {event.id for event in own}
        ways, whole = self._parked_since()
        parked_again: Counter[str] = Counter()
        in_flight = again = 0
        for event in self._sent_events() if ways or waiting else ():
            lineage = list(_lineage(event.id))
            found = ways.get(event.id, set()).union(*(whole.get(name, ()) for name in lineage))
            if not waiting.isdisjoint(lineage):
                in_flight += 1
            elif found:
                parked_again.update(found)
                again += 1
        return ReplayOutcome(
            replay_id=str(replay.id),
            events=replay.events,
            sent=replay.sent,
            passed=max(0, replay.sent - in_flight - again),
            parked_again=dict(parked_again),
            loaded=_loaded(self._tracker, replay.id),
            in_flight=in_flight,
            waits_for=waits_for,
        )

    def _unread(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Return {topic: ranges that processing has not seen, up to the replay's end}."""
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in self.ends.topics:
            known = topic_positions(
                self._tracker,
                cluster_id=topic.cluster_id,
                topic_id=topic.topic_id,
                topic=topic.name,
            )
            ranges = {number: (known.get(number, 0), end) for number, end in topic.ends.items()}
            left = {number: (at, end) for number, (at, end) in ranges.items() if at < end}
            found |= {topic.name: left} if left else {}
        return found

    def _in_log(self) -> Iterator[Event]:
        for topic, ranges in self._unread().items():
            yield from filter(None, map(_event, self._log.read(topic, ranges)))

    def _parked_since(self) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        """Return {id: ways to fail} of what may be the replay's, and of what parked itself.

        In the first a child is under its parent too. The second matters where a parent went back
        for its children.

        Rows that a destination refused under an older release do not name their replay: they are
        told by their ids.
        """
        found: dict[str, set[str]] = {}
        whole: dict[str, set[str]] = {}
        own = select(parked_partitions.c.id).where(
            parked_partitions.c.pipeline_id == self._pipeline.id
        )
        since = segments_in_order(
            self._tracker,
            segments.c.partition_id.in_(own),
            segments.c.parked_at >= self._replay.started_at,
            segments.c.state.not_in(("deleted", "quarantined")),
        )
        for segment in since:
            for parked in self._parking.read(segment):
                event = _event(parked.value)
                if event is not None and self._may_be_ours(event, parked):
                    way = f"{parked.stage}/{parked.error_type}"
                    whole.setdefault(event.id, set()).add(way)
                    for name in _lineage(event.id):
                        found.setdefault(name, set()).add(way)
        return found, whole

    def _may_be_ours(self, event: Event, parked: ParkedEvent) -> bool:
        if parked.stage == "destination" and event.replay_id is None:  # of an older release
            return parked.attempt > 0
        return event.replay_id == str(self._replay.id)

    def _sent_events(self) -> Iterator[Event]:
        for segment in self._parking.replay_segments(self._replay.id):
            if segment.state != "quarantined":
                values = (parked.value for parked in self._parking.read(segment))
                yield from filter(None, map(_event, values))


def ends_of(tracker: TrackerStore, log: KafkaLog, pipeline: Pipeline) -> AwaitedEnds:
    """Return where processing and loading have to get to, until all that is in the log is known."""
    topics = [log.describe(name) for name in _names(tracker, pipeline)]
    ends = [{n: high for n, (_, high) in log.watermarks(topic).items()} for topic in topics]
    return AwaitedEnds(
        tuple(
            TopicEnds(topic.name, topic.cluster_id, topic.topic_id, its)
            for topic, its in zip(topics, ends, strict=True)
        ),
        pipeline.destination,
    )


def _names(tracker: TrackerStore, pipeline: Pipeline) -> list[str]:
    """Return the names under which Kafka may have what the replay sent, and nobody has read."""
    topic = topic_of(pipeline)
    with tracker.transaction() as connection:
        return live_names(connection, [topic])[topic]


def _replay_of(tracker: TrackerStore, partition_id: int, run_id: str, step: str | None) -> Replay:
    wanted = [replays.c.partition_id == partition_id, replays.c.run_id == run_id]
    if step is not None:
        wanted.append(replays.c.step == step)
    with tracker.transaction() as connection:
        found = read_replay(connection, *wanted)
    if found is None:
        raise InputError(f"run {run_id!r} has replayed nothing of partition {partition_id}")
    return found


def _loaded(tracker: TrackerStore, replay_id: UUID) -> dict[str, int]:
    query = select(replay_outcomes.c.outcome, replay_outcomes.c.events).where(
        replay_outcomes.c.replay_id == replay_id,
        replay_outcomes.c.outcome.in_(AT_THE_DESTINATION),
    )
    with tracker.transaction() as connection:
        return {str(row[0]): int(row[1]) for row in connection.execute(query)}


def became(tracker: TrackerStore, partition_id: int, run_id: str) -> dict[str, int]:
    """Return what became of the events of a run's replays so far, by the books alone.

    Over all steps of a canary: "delivered", "superseded", "duplicate", "parked" (again, at whatever
    stage), "held" (they wait because the pipeline was held); empty: nothing of it was heard of yet.
    """
    outcome = func.split_part(replay_outcomes.c.outcome, "/", 1).label("kind")
    query = (
        select(outcome, func.sum(replay_outcomes.c.events))
        .join_from(replay_outcomes, replays, replay_outcomes.c.replay_id == replays.c.id)
        .where(replays.c.partition_id == partition_id, replays.c.run_id == run_id)
        .group_by("kind")
    )
    with tracker.transaction() as connection:
        return {str(row[0]): int(row[1]) for row in connection.execute(query)}


def _event(value: bytes) -> Event | None:
    try:
        return decode(value)
    except ParkError:
        return None


def _lineage(event_id: str) -> Iterator[str]:
    """Yield an event's id, then its parent's, and so on."""
    yield event_id
    parent, _, index = event_id.rpartition("/")
    while parent and index.isdigit():
        yield parent
        parent, _, index = parent.rpartition("/")
