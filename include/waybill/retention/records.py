"""Records in Kafka whose commits are loaded, and old: deleted, oldest first.

A record goes once all of this holds:
- the commit that holds it is loaded at the topic's destination (a topic has one), and older than
  the margin, and so is each commit before it;
- no staged object of these commits is in another state than loaded or deleted: what is in
  quarantine is read again from the log; nor parked events of them in quarantine that may be made
  again from it;
- no staged object that was made again of this topic's records waits to be loaded: it may be lost in
  its turn;
- no write-ahead log may still look for it. Who opens a log again, or takes its source over, looks
  in Kafka for what it had sent beyond its last committed page, and counts that: what is not found
  is sent once more. So of a log that is open, or taken over and not counted yet, all stays that was
  younger than the margin when the log was seen last, but for what stands before its committed
  pages. A log that lives holds nothing up, one that nobody opens again is named (``held``);
- it is not the last record that processing read: each start compares that one with the log;
- its topic is the one that the ledger knows, by id, and not stopped. Of commits made before the
  ledger knew this log (``known_since``, ``known_since_commit``: a topic of the same name was
  deleted, or its log was cut, and settled) the offsets say nothing.

How far commits were gone through is kept (``topic_offsets.trimmed_commit``), after the records are
deleted: a kill between has them deleted again, which changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, text

from waybill.errors import StopError, WaybillError
from waybill.ledger import read_positions
from waybill.progress import Progress
from waybill.storage import KafkaLog, TrackerStore
from waybill.topics import examine, read_stops, stop_error

_LOG = logging.getLogger(__name__)
MOST_COMMITS = 5_000
"""Commits that one look goes through."""
_KNOWN = text("""
SELECT cluster_id, topic_id, partition, known_since, known_since_commit, trimmed_commit
FROM topic_offsets WHERE topic = :topic
""")
# A commit is as old as the oldest one after it: a clock that was ahead holds nothing up.
_COMMITS = text("""
SELECT commit_number, offsets, committed_at,
  min(committed_at) OVER (ORDER BY commit_number DESC) AS as_old_as,
  min(committed_at) OVER (ORDER BY commit_number DESC)
    < clock_timestamp() - make_interval(secs => :kept_s) AS is_old,
  (SELECT min(state) FROM staged_objects
    WHERE destination = batches.destination AND commit_number = batches.commit_number
      AND state NOT IN ('loaded', 'deleted')) AS unloaded,
  EXISTS (
    SELECT FROM segments JOIN parked_partitions p ON p.id = partition_id
    WHERE p.quarantined > 0 AND state = 'quarantined' AND problem = ''
      AND scope = batches.destination AND segments.commit_number = batches.commit_number
  ) AS quarantined
FROM (
  SELECT destination, commit_number, offsets, committed_at FROM batches
  WHERE destination = :destination AND commit_number > :after AND commit_number <= (
    SELECT last_commit FROM load_positions WHERE destination = :destination)
  ORDER BY commit_number LIMIT :most) AS batches
ORDER BY commit_number
""")
_AGAIN = text("""
SELECT min(commit_number) FROM staged_objects JOIN batches USING (destination, commit_number)
WHERE destination = :destination AND consumer LIKE 'recovery/%' AND state IN ('staged', 'lost')
  AND (state = 'lost' OR commit_number > (
    SELECT last_commit FROM load_positions WHERE destination = :destination))
  AND EXISTS (
    SELECT FROM jsonb_array_elements(staged_objects.offsets) AS own WHERE own->>0 = :topic)
""")
_LOGS = text("""
SELECT wal_id, node, coalesce(pipelines.name, pipeline_id) AS pipeline, seen_at,
  seen_at - make_interval(secs => :kept_s) AS since, logs.offsets
FROM write_ahead_logs AS logs LEFT JOIN pipelines ON pipelines.id = pipeline_id
WHERE topic = :topic AND (state = 'open' OR (purpose = 'ingestion' AND adoptions = 0 AND NOT reread
  AND (state = 'taken_over' OR (state = 'ended'
    AND ended_at > clock_timestamp() - make_interval(days => :ended_days)))))
ORDER BY seen_at, wal_id
""")
_ENDED_DAYS = 30
"""A log that was settled by name while Kafka was away is counted by the next run, or forgotten."""
_KEEP = text("""
UPDATE topic_offsets SET trimmed_commit = greatest(trimmed_commit, :commit)
WHERE topic = :topic AND cluster_id = :cluster AND topic_id = :id
""")


@dataclass(frozen=True, slots=True)
class TopicTrim:
    """What was done to one topic."""

    topic: str
    deleted: int = 0
    """Records."""
    commit: int = 0
    """Up to which commit of its destination its records may be gone."""
    problem: str = ""
    """Why nothing was done; empty: it was."""
    held: str = ""
    """What keeps records that are old enough, and what to do; empty: nothing does."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class _Log(NamedTuple):
    """A write-ahead log of which what it sent may still be looked for in a topic."""

    wal_id: str
    pipeline: str
    node: str
    seen_at: datetime
    since: datetime
    """Of what was committed before, nothing is looked for."""
    offsets: Mapping[str, int]
    """{partition: offset}: nor of what stands before."""

    def looks_for(self, partition: int, end: int, committed_at: datetime) -> bool:
        """Tell whether it may have sent a record of a range that ends there."""
        return committed_at >= self.since and end > self.offsets.get(str(partition), 0)

    @property
    def words(self) -> str:
        return (
            f"what log {self.wal_id} of {self.pipeline} on {self.node}, last seen "
            f"{self.seen_at:%Y-%m-%d %H:%M} UTC, had sent may not be counted: its next run does "
            f"that, or `waybill logs settle {self.wal_id}`"
        )


class _Over(NamedTuple):
    """How far a topic's records are not needed any more."""

    ends: dict[int, int]
    """{partition: end of its newest range that is over}."""
    commit: int
    """The newest such commit."""
    held: str = ""
    """What keeps the one behind it though it is old enough; empty: its age, or there is none."""


@dataclass(slots=True)
class _Known:
    """What the ledger knows of a topic."""

    cluster_id: str
    topic_id: str
    since: dict[int, tuple[datetime, int]]
    """From when on, and behind which commit, offsets are those of this log."""
    trimmed: int


def trim_log(
    tracker: TrackerStore, log: KafkaLog, topics: Mapping[str, str], *, kept_s: float
) -> list[TopicTrim]:
    """Delete records that are loaded and old; safe to kill, and to run twice at once.

    Args:
        tracker: the books.
        log: Kafka.
        topics: {topic: its destination}.
        kept_s: how long records are kept after their commit.

    Raises:
        RetryError: Kafka or the tracker is away; a topic that cannot be trimmed says so instead.
    """
    trimmed = []
    existing = log.topics()
    progress = Progress("retention: records in Kafka", "topics", len(topics))
    for topic, destination in sorted(topics.items()):
        if topic in existing:
            done = _trim(tracker, log, topic, destination, kept_s)
            if done.held:
                _LOG.warning("%s: %s", topic, done.held)
            trimmed.append(done)
        progress.add()
    return trimmed


def _trim(
    tracker: TrackerStore, log: KafkaLog, topic: str, destination: str, kept_s: float
) -> TopicTrim:
    known = _known(tracker, topic)
    if known is None:
        return TopicTrim(topic)
    if isinstance(known, str):
        return TopicTrim(topic, problem=known)
    try:
        info = log.describe(topic)
        if (info.cluster_id, info.topic_id) != (known.cluster_id, known.topic_id):
            return TopicTrim(topic, problem="it is not the topic that the ledger knows")
        stops = read_stops(tracker, topic) or examine(info, read_positions(tracker, topic), log)
        if stops:
            return TopicTrim(topic, problem=str(stop_error(stops, topic)))
        known = _known(tracker, topic)  # as it is since: a stop may have been settled meanwhile
        if not isinstance(known, _Known) or known.topic_id != info.topic_id:
            raise StopError(f"the positions of {topic!r} were moved meanwhile")
        over = _ends(tracker, topic, destination, known, kept_s)
        own = read_positions(tracker, topic).get((known.cluster_id, known.topic_id), {})
        lows = {number: low for number, (low, _) in log.watermarks(info).items()}
        below = {
            number: least
            for number, end in over.ends.items()
            if number in own
            and (least := min(end, own[number].deletable_before)) > lows.get(number, least)
        }
        if below:
            log.delete_records(topic, below)
    except WaybillError as error:
        return TopicTrim(topic, problem=str(error))
    _keep(tracker, topic, known, over.commit)
    deleted = sum(end - lows[number] for number, end in below.items())
    return TopicTrim(topic, deleted, over.commit, held=over.held)


def _known(tracker: TrackerStore, topic: str) -> _Known | str | None:
    with tracker.transaction() as connection:
        rows = connection.execute(_KNOWN, {"topic": topic}).all()
    ids = {(row.cluster_id, row.topic_id) for row in rows}
    if len(ids) > 1:
        return f"the ledger knows {len(ids)} topics of this name"
    if not rows:
        return None
    [(cluster_id, topic_id)] = ids
    return _Known(
        cluster_id,
        topic_id,
        {int(row.partition): (row.known_since, int(row.known_since_commit)) for row in rows},
        min(int(row.trimmed_commit) for row in rows),
    )


def _ends(
    tracker: TrackerStore, topic: str, destination: str, known: _Known, kept_s: float
) -> _Over:
    """Do ``_go_through``; nothing is over while what was made again of the topic is not loaded."""
    over = _go_through(tracker, topic, destination, known, kept_s)
    held = _made_again(tracker, topic, destination)  # after what it was made of was read
    return _Over({}, known.trimmed, held) if held else over


def _go_through(
    tracker: TrackerStore, topic: str, destination: str, known: _Known, kept_s: float
) -> _Over:
    """Return how far the commits behind those that were gone through are over."""
    ends: dict[int, int] = {}
    after = known.trimmed
    logs = _logs(tracker, topic, kept_s)
    while True:
        asked = {
            "destination": destination,
            "after": after,
            "kept_s": kept_s,
            "most": MOST_COMMITS,
        }
        with tracker.transaction() as connection:
            rows = connection.execute(_COMMITS, asked).all()
        for row in rows:
            own = {
                partition: end
                for name, partition, _, end, *_ in row.offsets
                if name == topic and _is_of(known, partition, row)
            }
            held = _held(row, own, logs)
            if held or not row.is_old:
                return _Over(ends, after, held if row.is_old else "")
            after = int(row.commit_number)
            ends.update(own)
        if len(rows) < MOST_COMMITS:
            return _Over(ends, after)


def _made_again(tracker: TrackerStore, topic: str, destination: str) -> str:
    """Return why nothing of a topic may go: an object that was made again of it is not loaded."""
    asked = {"topic": topic, "destination": destination}
    with tracker.transaction() as connection:
        number = connection.execute(_AGAIN, asked).scalar()
    if number is None:
        return ""
    return f"all are kept: commit {number} was made again of them, and is not loaded yet"


def _logs(tracker: TrackerStore, topic: str, kept_s: float) -> list[_Log]:
    asked = {"topic": topic, "kept_s": kept_s, "ended_days": _ENDED_DAYS}
    with tracker.transaction() as connection:
        rows = connection.execute(_LOGS, asked)
        return [_Log(**{name: getattr(row, name) for name in _Log._fields}) for row in rows]


def _held(commit: Row[Any], ends: Mapping[int, int], logs: Sequence[_Log]) -> str:
    """Return what keeps a commit's records, in words; empty: nothing but its age."""
    what = f"commit {commit.commit_number} and all behind it are kept: "
    if commit.unloaded == "lost":
        return what + "a staged object of it is lost, see `waybill destination lost`"
    if commit.unloaded:
        return what + "a staged object of it is not loaded"
    if commit.quarantined:
        return what + "parked events of it are quarantined, see `waybill parked lost`"
    for log in logs:
        if any(log.looks_for(n, end, commit.as_old_as) for n, end in ends.items()):
            return what + log.words
    return ""


def _is_of(known: _Known, partition: int, commit: Row[Any]) -> bool:
    """Tell whether a commit's offsets are those of the log that is there.

    Times alone do not tell: the clock may have been ahead when an older log was read.
    """
    if partition not in known.since:
        return False
    time, number = known.since[partition]
    return bool(commit.committed_at >= time and commit.commit_number > number)


def _keep(tracker: TrackerStore, topic: str, known: _Known, commit: int) -> None:
    if commit <= known.trimmed:
        return
    with tracker.transaction() as connection:
        given = {
            "commit": commit,
            "topic": topic,
            "cluster": known.cluster_id,
            "id": known.topic_id,
        }
        connection.execute(_KEEP, given)
