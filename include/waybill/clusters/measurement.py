"""A look at every team: Kafka's ends, the ledger's offsets, what waits longest, the batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, text

from waybill.clusters.loads import HotPartition, LoadSample
from waybill.clusters.records import last_look_s, now_s
from waybill.deployment import team_destinations
from waybill.errors import RetryError, StopError
from waybill.pipelines import topic_name
from waybill.storage import KafkaLog, TrackerStore
from waybill.storage.tracker import topic_offsets

_CHUNK = 1_000
"""Commits that are looked through at once for those since the last look."""
_FIRST_LOOK_S = 60.0
_LONGEST_LOOK_S = 600.0
"""Where looks were left out, no more than this is looked back."""
_MOST_UNSEEN = 3
"""Topics that may take their time not to answer; after these no other one is asked."""
_HOT_SHARE = 0.5
_HOT_WAITING = 10_000
"""Of what waits for a team, a partition has more than half, and so many at least: it is hot."""
_DESTINATIONS = text("SELECT destination, last FROM commit_sequences ORDER BY destination")
_BATCHES = text("""
SELECT batch.commit_number, batch.consumer, read.events::bigint AS events,
  coalesce(batch.tasks_ms, batch.took_ms * read.tasks, 0)::float / 1000 AS core_s,
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


class _Batches(NamedTuple):
    batches: int = 0
    events: int = 0
    core_s: float = 0.0


@dataclass(slots=True)
class Measurement:
    """What one look gave."""

    at_s: float
    """By the tracker's clock, in seconds since the epoch."""
    samples: list[LoadSample] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    """{topic: why it could not be looked at}; its team has no sample."""


def measure(tracker: TrackerStore, log: KafkaLog) -> Measurement:
    """Look at each team that has a deployed pipeline.

    Args:
        tracker: the books.
        log: where the topics are.

    Returns:
        A sample for each team; a topic that does not answer is in ``unseen``, and others go on.

    Raises:
        RetryError: Kafka, or the tracker, does not answer at all.

    Cost: two requests to Kafka for each topic, and reading one record of each partition that is
    behind; a thousand commits of each destination, or those since the last look.
    """
    there = log.topics()
    with tracker.transaction() as connection:
        topics = team_topics(connection)
        found = Measurement(now_s(connection))
        since = last_look_s(connection) or found.at_s - _FIRST_LOOK_S
        since = max(since, found.at_s - _LONGEST_LOOK_S)
        batches = _read_batches(connection, since, found.at_s)
        known = _read_positions(connection, {name for names in topics.values() for name in names})
    looks: dict[str, _TopicLook] = {}
    for name in sorted({name for names in topics.values() for name in names} & there):
        if len(found.unseen) >= _MOST_UNSEEN:
            found.unseen[name] = "it was not asked, as others did not answer"
            continue
        try:
            looks[name] = _look(log, name, known.get(name, {}), found.at_s)
        except (RetryError, StopError) as error:
            found.unseen[name] = str(error)
    for team, names in sorted(topics.items()):
        if not names & found.unseen.keys():
            own = [looks[name] for name in sorted(names & there)]
            sample = _sample(team, names, own, found.at_s)
            found.samples.append(_with_batches(sample, names, batches))
    return found


def team_topics(connection: Connection) -> dict[str, set[str]]:
    """Return {team: topics that its deployed pipelines write to}."""
    return {
        team: {topic_name(team, destination) for destination in destinations}
        for team, destinations in team_destinations(connection).items()
    }


@dataclass(frozen=True, slots=True)
class _TopicLook:
    topic: str
    ends: Mapping[int, int]
    positions: Mapping[int, int]
    lag_s: float

    def waiting(self, partition: int) -> int:
        return max(0, self.ends[partition] - self.positions[partition])


def _look(
    log: KafkaLog, name: str, known: Mapping[tuple[str, str], Mapping[int, int]], now: float
) -> _TopicLook:
    """Look at one topic; what the ledger knows of another one of its name does not count."""
    topic = log.describe(name)
    own = known.get((topic.cluster_id, topic.topic_id), {})
    marks = log.watermarks(topic)
    ends = {number: high for number, (_, high) in marks.items()}
    positions = {
        number: min(high, max(low, own.get(number, 0))) for number, (low, high) in marks.items()
    }
    behind = {number: at for number, at in positions.items() if at < ends[number]}
    first = log.first(name, behind) if behind else {}
    oldest_s = min((at_ms for at_ms, _ in first.values()), default=now * 1000) / 1000
    return _TopicLook(name, ends, positions, max(0.0, now - oldest_s))


def _sample(team: str, names: set[str], looks: Sequence[_TopicLook], now: float) -> LoadSample:
    sample = LoadSample(
        team,
        now,
        consumers=len(names),
        written=sum(sum(look.ends.values()) for look in looks),
        read=sum(sum(look.positions.values()) for look in looks),
        lag_s=max((look.lag_s for look in looks), default=0.0),
    )
    return replace(sample, hot_partitions=tuple(_hot_partitions(looks, sample.waiting)))


def _hot_partitions(looks: Sequence[_TopicLook], waiting: int) -> Iterable[HotPartition]:
    for look in looks:
        for number in look.ends:
            own = look.waiting(number)
            if len(look.ends) > 1 and own >= _HOT_WAITING and own > _HOT_SHARE * waiting:
                yield HotPartition(look.topic, number, own, round(own / waiting, 3))


def _with_batches(
    sample: LoadSample, names: set[str], batches: Mapping[str, _Batches]
) -> LoadSample:
    own = [batches[f"processing/{name}"] for name in names if f"processing/{name}" in batches]
    return replace(
        sample,
        batches=sum(one.batches for one in own),
        batch_events=sum(one.events for one in own),
        core_s=sum(one.core_s for one in own),
    )


def _read_batches(connection: Connection, since_s: float, now: float) -> dict[str, _Batches]:
    """Return what each consumer committed since a time."""
    found: dict[str, _Batches] = {}
    for destination, last in connection.execute(_DESTINATIONS).all():
        asked = {"destination": destination, "since_s": since_s, "now_s": now, "chunk": _CHUNK}
        for row in _newest_batches(connection, asked, int(last)):
            sums = found.get(row.consumer, _Batches())
            found[row.consumer] = _Batches(
                sums.batches + 1, sums.events + int(row.events or 0), sums.core_s + row.core_s
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
