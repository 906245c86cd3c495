"""A look at every team: Kafka's ends, the ledger's offsets, what waits longest, the batches.

Kafka is asked for all topics at once, in a few requests. A topic that does not answer costs its own
figures: those that were known of it last stand in for them, and the look says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, select, text

from waybill.clusters.growth import PartitionBacklog
from waybill.clusters.loads import HotPartition, LoadSample, TopicLook
from waybill.clusters.records import last_look_s, now_s, read_topic_looks
from waybill.deployment import team_destinations
from waybill.errors import WaybillError
from waybill.ledger import live_names
from waybill.pipelines import base_topic, topic_name
from waybill.storage import TopicSpan, TrackerStore
from waybill.storage.tracker import topic_offsets

_CHUNK = 1_000
"""Commits that are looked through at once for those since the last look."""
_FIRST_LOOK_S = 60.0
_LONGEST_LOOK_S = 600.0
"""Where looks were left out, no more than this is looked back."""
_HOT_SHARE = 0.5
_HOT_WAITING = 10_000
"""Of what waits for a team, a partition has more than half, and so many at least: it is hot."""
_DESTINATIONS = text("SELECT destination, last FROM commit_sequences ORDER BY destination")
_BATCHES = text("""
SELECT batch.commit_number, batch.consumer, read.events::bigint AS events,
  coalesce(batch.tasks_ms, batch.took_ms * read.tasks, 0)::float / 1000 AS core_s,
  coalesce(batch.took_ms, 0)::float / 1000 AS took_s,
  batch.committed_at > to_timestamp(:since_s) AS is_new,
  batch.committed_at <= to_timestamp(:now_s) AS is_past
FROM (
  SELECT commit_number, consumer, offsets, took_ms, tasks_ms, committed_at FROM batches
  WHERE destination = :destination AND commit_number <= :last
  ORDER BY commit_number DESC LIMIT :chunk) AS batch
CROSS JOIN LATERAL (
  SELECT sum((part->>4)::bigint) AS events, count(*) AS tasks
  FROM jsonb_array_elements(batch.offsets) AS part) AS read
ORDER BY batch.commit_number DESC
""")
"""Where tasks did not say what they took, it is the whole batch on a core a partition: too much."""


class BatchSums(NamedTuple):
    """What a consumer committed in some time."""

    batches: int = 0
    events: int = 0
    core_s: float = 0.0
    """That its tasks took."""
    took_s: float = 0.0
    """From each batch's beginning to its commit."""

    @property
    def events_per_s(self) -> float:
        """Return how many events they got through by the second that they took; 0: not known."""
        return self.events / self.took_s if self.took_s else 0.0


class TopicLog(Protocol):
    """What the coordinator asks of Kafka: ``waybill.storage.KafkaLog``."""

    def topics(self) -> set[str]:
        """Return the names of all topics."""

    def spans(self, names: Collection[str]) -> dict[str, TopicSpan | WaybillError]:
        """Return {name: the topic and how far it reaches, or why that is not known}."""

    def first_times(
        self, offsets: Mapping[str, Mapping[int, int]]
    ) -> dict[str, dict[int, int | None]]:
        """Return {topic: {partition: time of its first record at or after an offset, in ms}}."""


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """What a topic is behind with, by partition."""

    team: str
    name: str
    """As Kafka names the generation."""
    partitions: Mapping[int, PartitionBacklog]
    """Of all partitions."""
    arrival_per_s: float | None
    """Events that came in a second since the look before; None: not known."""

    @property
    def lag_s(self) -> float:
        """Return for how long its oldest unread event waits."""
        return max((one.lag_s or 0.0 for one in self.partitions.values()), default=0.0)


@dataclass(slots=True)
class Measurement:
    """What one look gave."""

    at_s: float
    """By the tracker's clock, in seconds since the epoch."""
    samples: list[LoadSample] = field(default_factory=list)
    """Of all teams."""
    topics: list[TopicLook] = field(default_factory=list)
    """Of those that answered."""
    backlogs: list[TopicBacklog] = field(default_factory=list)
    """Of those that answered and have something waiting."""


def measure(tracker: TrackerStore, log: TopicLog) -> Measurement:
    """Look at each team that has a deployed pipeline.

    Args:
        tracker: the books.
        log: where the topics are.

    Returns:
        A sample for each team, with the last known figures of its topics that did not answer.

    Raises:
        RetryError: Kafka, or the tracker, does not answer at all.

    Cost: for all topics together three calls of ``log``, and reading one record of each partition
    that is behind: see ``KafkaLog.spans`` and ``first_times``; a thousand commits of each
    destination, or those since the last look.
    """
    there = log.topics()
    with tracker.transaction() as connection:
        topics = team_topics(connection)
        names = {name for own in topics.values() for name in own} & there
        found = Measurement(now_s(connection))
        since = last_look_s(connection) or found.at_s - _FIRST_LOOK_S
        since = max(since, found.at_s - _LONGEST_LOOK_S)
        batches = read_batches(connection, since, found.at_s)
        known = _read_positions(connection, names)
        before = read_topic_looks(connection, names)
    looks = _looks(log, names, known, found.at_s, before)
    found.topics = [one.known for one in looks.values() if not one.unseen]
    for team, own in sorted(topics.items()):
        sample = _sample(team, own, [looks[name] for name in sorted(own & there)], found.at_s)
        found.samples.append(_with_batches(sample, own, batches))
        found.backlogs += [
            TopicBacklog(team, name, looks[name].backlogs, _arrival(before.get(name), looks[name]))
            for name in sorted(own & there)
            if any(one.waiting for one in looks[name].backlogs.values())
        ]
    return found


def _arrival(before: TopicLook | None, look: _Look) -> float | None:
    """Return the events that came in a second since the look before, if that was not long ago."""
    if before is None or not 0.0 < (passed_s := look.known.at_s - before.at_s) <= _LONGEST_LOOK_S:
        return None
    return max(0.0, (look.known.written - before.written) / passed_s)


def team_topics(connection: Connection) -> dict[str, set[str]]:
    """Return {team: topics that its deployed pipelines write to}.

    Of a topic, all generations that have not ended, as Kafka names them.
    """
    topics = {
        team: {topic_name(team, destination) for destination in destinations}
        for team, destinations in team_destinations(connection).items()
    }
    names = live_names(connection, {topic for own in topics.values() for topic in own})
    return {team: {name for topic in own for name in names[topic]} for team, own in topics.items()}


def count_consumers(names: Iterable[str]) -> int:
    """Return how many topics these are generations of: one of each is read at a time."""
    return len({base_topic(name) for name in names})


@dataclass(frozen=True, slots=True)
class _Look:
    """One topic in one look."""

    known: TopicLook
    unseen: str = ""
    """Why it did not answer: ``known`` is older."""
    backlogs: Mapping[int, PartitionBacklog] = field(default_factory=dict)
    """By partition."""


def _looks(
    log: TopicLog,
    names: Collection[str],
    known: Mapping[str, Mapping[tuple[str, str], Mapping[int, int]]],
    now: float,
    before: Mapping[str, TopicLook],
) -> dict[str, _Look]:
    """Look at all topics at once; what the ledger knows of another one of a name does not count."""
    spans = log.spans(names)
    positions = {
        name: _positions(span, known.get(name, {}))
        for name, span in spans.items()
        if isinstance(span, TopicSpan)
    }
    behind = {
        name: {n: at for n, at in own.items() if at < spans[name].marks[n][1]}  # type: ignore[union-attr]
        for name, own in positions.items()
    }
    behind = {name: own for name, own in behind.items() if own}
    times = log.first_times(behind) if behind else {}
    looks = {}
    for name, span in spans.items():
        last = before.get(name, TopicLook(name, now, 0, 0, 0.0))
        if not isinstance(span, TopicSpan):
            looks[name] = _Look(last, str(span))
        else:
            looks[name] = _seen(span, positions[name], times.get(name, {}), now, last.lag_s)
    return looks


def _positions(
    span: TopicSpan, known: Mapping[tuple[str, str], Mapping[int, int]]
) -> dict[int, int]:
    """Return where each partition is read on."""
    own = known.get((span.topic.cluster_id, span.topic.topic_id), {})
    return {n: min(high, max(low, own.get(n, 0))) for n, (low, high) in span.marks.items()}


def _seen(
    span: TopicSpan,
    positions: Mapping[int, int],
    times: Mapping[int, int | None],
    now: float,
    last_lag_s: float,
) -> _Look:
    """Return a topic that answered.

    A partition that gave no record in time counts as what was known of the topic's lag last.
    """
    ends = {number: high for number, (_, high) in span.marks.items()}
    waiting = {number: max(0, end - positions[number]) for number, end in ends.items()}
    lags = {n: max(0.0, now - at_ms / 1000) for n, at_ms in times.items() if at_ms is not None}
    silent = {number for number, events in waiting.items() if events} - times.keys()
    lag_s = max([*lags.values(), *([last_lag_s] if silent else [])], default=0.0)
    known = TopicLook(span.topic.name, now, sum(ends.values()), sum(positions.values()), lag_s)
    return _Look(
        known, backlogs={n: PartitionBacklog(own, lags.get(n)) for n, own in waiting.items()}
    )


def _sample(team: str, names: set[str], looks: Sequence[_Look], now: float) -> LoadSample:
    sample = LoadSample(
        team,
        now,
        consumers=count_consumers(names),
        written=sum(look.known.written for look in looks),
        read=sum(look.known.read for look in looks),
        lag_s=max((look.known.lag_s for look in looks), default=0.0),
        unseen={look.known.topic: look.unseen for look in looks if look.unseen},
    )
    return replace(sample, hot_partitions=tuple(_hot_partitions(looks, sample.waiting)))


def _hot_partitions(looks: Sequence[_Look], waiting: int) -> Iterable[HotPartition]:
    for look in looks:
        for number, backlog in look.backlogs.items():
            own = backlog.waiting
            if len(look.backlogs) > 1 and own >= _HOT_WAITING and own > _HOT_SHARE * waiting:
                yield HotPartition(look.known.topic, number, own, round(own / waiting, 3))


def _with_batches(
    sample: LoadSample, names: set[str], batches: Mapping[str, BatchSums]
) -> LoadSample:
    own = [batches[f"processing/{name}"] for name in names if f"processing/{name}" in batches]
    return replace(
        sample,
        batches=sum(one.batches for one in own),
        batch_events=sum(one.events for one in own),
        core_s=sum(one.core_s for one in own),
    )


def read_batches(connection: Connection, since_s: float, now: float) -> dict[str, BatchSums]:
    """Return what each consumer committed since a time.

    Cost: a thousand commits of each destination, or those since then.
    """
    found: dict[str, BatchSums] = {}
    for destination, last in connection.execute(_DESTINATIONS).all():
        asked = {"destination": destination, "since_s": since_s, "now_s": now, "chunk": _CHUNK}
        for row in _newest_batches(connection, asked, int(last)):
            sums = found.get(row.consumer, BatchSums())
            found[row.consumer] = BatchSums(
                sums.batches + 1,
                sums.events + int(row.events or 0),
                sums.core_s + row.core_s,
                sums.took_s + row.took_s,
            )
    return found


def _newest_batches(connection: Connection, asked: Mapping[str, Any], last: int) -> Iterator[Any]:
    """Yield the batches of a destination that are new, a chunk of commits at a time."""
    while True:
        rows = connection.execute(_BATCHES, {**asked, "last": last}).all()
        yield from (row for row in rows if row.is_new and row.is_past)
        if len(rows) < asked["chunk"] or not rows[-1].is_new:
            return
        last = int(rows[-1].commit_number) - 1


def _read_positions(
    connection: Connection, topics: set[str]
) -> dict[str, dict[tuple[str, str], dict[int, int]]]:
    """Return {topic: {(cluster id, topic id): {partition: next offset}}}."""
    found: dict[str, dict[tuple[str, str], dict[int, int]]] = {}
    query = select(topic_offsets).where(topic_offsets.c.topic.in_(topics))
    for row in connection.execute(query):
        at = found.setdefault(row.topic, {}).setdefault((row.cluster_id, row.topic_id), {})
        at[int(row.partition)] = int(row.next_offset)
    return found
