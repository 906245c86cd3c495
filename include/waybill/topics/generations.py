"""Growing a topic: a generation with more partitions, and the end of the one before.

``ledger.generations`` has the invariants, and what the tracker does; here is what Kafka is asked.

Who dies when. Growing makes the topic in Kafka first, then one transaction begins the generation:
killed in between, an empty topic that nobody knows is left, and the same command takes it. Ending
asks Kafka for the ends inside its one transaction, while nobody else can hold the generation: what
was acknowledged to a log that could still count or mark it is before these ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, select

from waybill.access import Decision, write_audit
from waybill.deployment import active_heads
from waybill.errors import InputError, NotFoundError, RetryError, StopError
from waybill.ledger import (
    LogLine,
    TopicGeneration,
    all_generations,
    end_generation,
    flip_generation,
    generations_of,
    is_drained,
    live_names,
    lock_generations,
    mark_deleted,
    note_partitions,
    read_logs,
    read_positions,
    writing_generation,
    writing_name,
)
from waybill.nearest_name import hint
from waybill.pipelines import base_topic, generation_name, generation_of, topic_of
from waybill.storage import KafkaLog, TopicInfo, TrackerStore
from waybill.storage.tracker import replays, topic_offsets
from waybill.topics.request import GrowRequest
from waybill.topics.stops import read_stops

_LOG = logging.getLogger(__name__)
_DEAD_AFTER_S = 600.0
"""A log that was not seen for so long may be a dead process's: nothing grows before it is settled,
since the next generation would not be read meanwhile."""
_ENDS_S = 2.0
"""Kafka is asked for the ends while rows are held: for no longer, and once."""
_AGAIN_S = 30.0
_RATE = " events/s"
"""Ends what is said of a replay that has a rate."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What growing a topic does."""

    topic: str
    team: str
    number: int
    """Of the generation that begins."""
    name: str
    """Of its topic in Kafka."""
    before: int
    """Partitions of the one that drains."""
    partitions: int
    adopted: bool
    """Its topic is there already: a command before this one was killed."""
    unread: int
    """Records of the one that drains that processing has not read: it does so first."""
    writers: tuple[str, ...]
    """Logs that write to the one that drains: it ends once they are through."""
    throttled: tuple[str, ...] = ()
    """Those of them of replays with a rate: their slice may take hours."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def open_topic(tracker: TrackerStore, log: KafkaLog, name: str) -> TopicInfo:
    """Return a generation of a topic by its name in Kafka, made if it is the first and missing.

    How many partitions it has is written down the first time. A later one is made by ``grow`` only.

    Raises:
        StopError: it is a later generation, and is missing.
        InputError: it has a configuration under which events could be lost.
        RetryError: a server does not answer.
    """
    found = log.ensure_topic(name) if base_topic(name) == name else log.safe_topic(name)
    note_partitions(tracker, name, found.partitions)
    return found


def unknown_names(tracker: TrackerStore, log: KafkaLog, topics: Collection[str]) -> list[str]:
    """Return the generations of topics that have records in Kafka, and that the tracker lacks.

    It was restored from before the topic grew. One without records was left by a ``grow`` that
    was killed.

    Raises:
        RetryError: a server does not answer.
    """
    names = [name for name in log.topics() if generation_of(name)[1] > 1]
    names = [name for name in names if base_topic(name) in topics]
    names = [one for one in _without_row(tracker, names) if _has_records(log, one)]
    return _without_row(tracker, names)  # again: it may have been made, and written to, meanwhile


def _without_row(tracker: TrackerStore, names: Collection[str]) -> list[str]:
    if not names:
        return []
    with tracker.transaction() as connection:
        known = {one.name for own in all_generations(connection).values() for one in own}
    return sorted(set(names) - known)


def _has_records(log: KafkaLog, name: str) -> bool:
    return any(high for _, high in log.watermarks(log.describe(name)).values())


def open_writing_topic(tracker: TrackerStore, log: KafkaLog, topic: str) -> TopicInfo:
    """Return the generation of a topic that new messages go to.

    Raises:
        StopError: it is missing, or the tracker was restored from before the topic grew.
        InputError: it has a configuration under which events could be lost.
        RetryError: a server does not answer.
    """
    if unknown := unknown_names(tracker, log, [topic]):
        raise StopError(
            f"Kafka has {unknown[0]}, with records, and the tracker does not know of it: it was "
            f"restored from before {topic} grew, and nobody would read these. See `Backup` in "
            "docs/operations.md"
        )
    return open_topic(tracker, log, writing_name(tracker, topic))


def generation_ends(tracker: TrackerStore, log: KafkaLog, topic: str) -> dict[str, dict[int, int]]:
    """Return {name: {partition: end}} of the generations of a topic that have not ended.

    One that Kafka does not have is not there.
    """
    with tracker.transaction() as connection:
        names = live_names(connection, [topic])[topic]
    there = log.topics()
    return {
        name: {n: high for n, (_, high) in log.watermarks(log.describe(name)).items()}
        for name in names
        if name in there
    }


def plan_growth(
    tracker: TrackerStore, log: KafkaLog, request: GrowRequest, *, adopts: int = 0
) -> Growth:
    """Return what growing a topic would do; changes nothing.

    Args:
        tracker: the books.
        log: where the topics are.
        request: what is asked for.
        adopts: an empty topic that a killed command left is taken with its own number of
            partitions, so many at most; 0: only with as many as are asked for.

    Raises:
        InputError: there is no such topic, it has as many partitions, its last generation drains
            still, it is stopped, a log that writes to it seems dead, or something is in the way.
        RetryError: a server does not answer.
    """
    topic = request.topic
    teams = {topic_of(one): one.team for one in active_heads(tracker).values()}
    if topic not in teams:
        near = hint(topic, teams)
        raise NotFoundError(
            f"no pipeline writes to topic {topic!r}; `waybill topics list` shows all{near}"
        )
    with tracker.transaction() as connection:
        generations = generations_of(connection, topic)
    _refuse_while_draining(generations)
    writing = writing_generation(generations)
    if stops := read_stops(tracker, writing.name):
        raise InputError(
            f"{writing.name} is stopped ({'; '.join(stop.words for stop in stops)}): it would not "
            f"drain. Settle it first: `waybill topics settle {writing.name}`"
        )
    if writing.name not in log.topics():
        raise InputError(f"{writing.name} is not there yet; the first run of ingestion makes it")
    info = log.describe(writing.name)
    there = max(info.partitions, writing.partitions)
    if request.partitions <= there:
        raise InputError(
            f"{topic} has {there} partitions: a generation has more than the one before, since "
            "keys gain nothing by fewer"
        )
    writers = [one for one in read_logs(tracker) if one.topic == writing.name]
    _refuse_dead(writers, writing.name)
    name = generation_name(topic, writing.number + 1)
    waiting = waits_for(tracker, writing)
    left = _left_partitions(log, name)
    wanted = left if left is not None and there < left <= adopts else request.partitions
    _refuse_other(name, left, wanted)
    return Growth(
        topic,
        teams[topic],
        writing.number + 1,
        name,
        info.partitions,
        wanted,
        left is not None,
        _unread(tracker, log, info),
        waiting,
        tuple(one for one in waiting if one.endswith(_RATE)),
    )


def _unread(tracker: TrackerStore, log: KafkaLog, topic: TopicInfo) -> int:
    at = read_positions(tracker, topic.name).get((topic.cluster_id, topic.topic_id), {})
    marks = log.watermarks(topic)
    return sum(
        max(0, high - max(low, at[n].next_offset if n in at else 0))
        for n, (low, high) in marks.items()
    )


def _refuse_while_draining(generations: Collection[TopicGeneration]) -> None:
    for one in generations:
        if one.state == "draining":
            raise InputError(
                f"{one.name} drains since {one.draining_since:%Y-%m-%d %H:%M} UTC; the topic can "
                "grow again once it has ended: `waybill topics list` shows what it waits for"
            )


def _refuse_dead(writers: Collection[LogLine], name: str) -> None:
    dead = [one for one in writers if one.state == "open" and one.unseen_s > _DEAD_AFTER_S]
    if dead:
        raise InputError(
            f"{name} could not drain: "
            + "; ".join(f"{_words(one)}, not seen for {one.unseen_s / 60:.0f} min" for one in dead)
            + ". Run its pipeline (or replay) again, or end the log by name: `waybill logs settle`"
        )


def _words(log: LogLine) -> str:
    """Return who has a log, in words."""
    return f"log {log.wal_id} of {log.pipeline} ({log.purpose}) on {log.node}"


def _left_partitions(log: KafkaLog, name: str) -> int | None:
    """Return the partitions of a generation's topic that a killed command left; None: none did."""
    if name not in log.topics():
        return None
    found = log.safe_topic(name)
    if any(high for _, high in log.watermarks(found).values()):
        raise InputError(f"topic {name} is there, and somebody has written to it; nothing was done")
    return found.partitions


def _refuse_other(name: str, left: int | None, wanted: int) -> None:
    if left not in {None, wanted}:
        raise InputError(
            f"topic {name} is there, empty, with {left} partitions: use `--partitions {left}`, or "
            "delete it in Kafka"
        )


def grow(tracker: TrackerStore, log: KafkaLog, plan: Growth, decision: Decision) -> TopicGeneration:
    """Begin the next generation of a topic: runs write to it from their next page on.

    Safe to kill, and to repeat.

    Raises:
        InputError: it was grown meanwhile.
        RetryError: a server does not answer; call again.
    """
    log.create_topic(plan.name, plan.partitions)
    _refuse_other(plan.name, _left_partitions(log, plan.name), plan.partitions)
    with tracker.transaction() as connection:
        generations = lock_generations(connection, plan.topic, alone=True)
        _refuse_while_draining(generations)
        writing = writing_generation(generations)
        if writing.number + 1 != plan.number:
            raise InputError(f"{plan.topic} was grown meanwhile; nothing was done")
        made = flip_generation(connection, generations, partitions=plan.partitions)
        write_audit(
            connection,
            who=decision.who,
            action="grow_topic",
            target=f"topic {plan.topic}",
            team=plan.team,
            why=decision.why,
            before={"topic": writing.name, "partitions": plan.before},
            after={"topic": made.name, "partitions": made.partitions},
            **decision.beside_who(),
        )
    return made


class Draining:
    """Ends the generations that are drained; for one loop that looks every second or so.

    Args:
        tracker: the books.
        log: where the topics are.
    """

    def __init__(self, tracker: TrackerStore, log: KafkaLog) -> None:
        self._tracker, self._log = tracker, log
        self._due: dict[str, float] = {}

    def end(self, topics: Collection[str]) -> list[str]:
        """End the generations of these topics that are drained; return their names.

        A topic that Kafka does not answer for, or that is stopped, holds nobody up: it is asked
        about again half a minute later. No more than one such is waited for.

        Cost: one statement where none drains; else a request or two for each that does.

        Raises:
            RetryError: the tracker does not answer.
        """
        return self._end(self._names(topics))

    def names_to_read(self, topics: Collection[str]) -> dict[str, str]:
        """Return {topic: the generation to read}, by name; ends those that are drained as ``end``.

        Cost and errors: as ``end``.
        """
        names = self._names(topics)
        if self._end(names):
            names = self._names(topics)
        return {topic: own[0] for topic, own in names.items()}

    def _end(self, names: Mapping[str, Sequence[str]]) -> list[str]:
        ended = []
        for topic in sorted(names, key=lambda topic: self._due.get(topic, 0.0)):
            own = names[topic]
            if len(own) == 1 or time.monotonic() < self._due.get(topic, 0.0):
                continue
            try:
                ended += [own[0]] if _end(self._tracker, self._log, topic) else []
            except (RetryError, StopError) as error:
                _LOG.warning("whether %s has drained is not known: %s", own[0], error)
                self._due[topic] = time.monotonic() + _AGAIN_S
                break
        return ended

    def _names(self, topics: Collection[str]) -> dict[str, list[str]]:
        with self._tracker.transaction() as connection:
            return live_names(connection, topics)


def _end(tracker: TrackerStore, log: KafkaLog, topic: str) -> bool:
    with tracker.transaction() as connection:
        generations = generations_of(connection, topic)
    draining = next((one for one in generations if one.state == "draining"), None)
    if draining is None or waits_for(tracker, draining) or read_stops(tracker, draining.name):
        return False
    info = log.describe(draining.name)
    place = (info.cluster_id, info.topic_id)
    known = read_positions(tracker, draining.name)
    if known.keys() - {place}:
        return False  # another topic of this name: its consumer stops, and somebody settles it
    positions = {n: at.next_offset for n, at in known.get(place, {}).items()}
    ends = log.ends_now(info, limit_s=_ENDS_S)
    if not is_drained(draining, open_logs=0, positions=positions, ends=ends):
        return False  # without holding anything: the usual answer
    with tracker.transaction() as connection:
        held = {one.number: one for one in lock_generations(connection, topic, alone=True)}
        ends = log.ends_now(info, limit_s=_ENDS_S)
        done = end_generation(connection, held[draining.number], place=place, ends=ends)
    if done:
        _LOG.info("%s is drained, and ended at %s; the next one is read", draining.name, ends)
    return done


def waits_for(tracker: TrackerStore, generation: TopicGeneration) -> tuple[str, ...]:
    """Return the logs that write to a generation still, in words, and how fast replays may go."""
    logs = [one for one in read_logs(tracker) if one.topic == generation.name]
    query = select(replays.c.partition_id, replays.c.rate_per_s).where(
        replays.c.state == "running", replays.c.rate_per_s.is_not(None)
    )
    with tracker.transaction() as connection:
        found = connection.execute(query).all()
    rates = {f"replay-{row.partition_id}": f", {row.rate_per_s:,}{_RATE}" for row in found}
    return tuple(_words(one) + rates.get(one.name, "") for one in logs if one.state == "open")


def late_records(log: KafkaLog, generation: TopicGeneration) -> int:
    """Return how many records somebody has written behind a generation's end; nobody reads them.

    Copies that a process sent which woke up after it was taken over; or a service of your own that
    writes to the old topic.
    """
    marks = log.watermarks(log.describe(generation.name))
    return sum(max(0, high - generation.ends.get(n, 0)) for n, (_, high) in marks.items())


def delete_ended(tracker: TrackerStore, log: KafkaLog) -> list[str]:
    """Delete from Kafka the generations that ended and that nothing can read again; their names.

    ``apply_retention`` has gone through all commits that have any of it: so they are loaded, older
    than is kept, and not needed to make a lost object again. All of its records but the last of
    each partition were trimmed then. No log that wrote to it may still be asked for, and nothing
    was written behind its end.

    Raises:
        RetryError: a server does not answer.
    """
    with tracker.transaction() as connection:
        known = all_generations(connection)
    deleted = []
    for one in (one for own in known.values() for one in own):
        if one.state != "ended" or one.deleted_at is not None or not _is_over(tracker, log, one):
            continue
        log.delete_topic(one.name)  # which may be gone already
        mark_deleted(tracker, one)
        deleted.append(one.name)
    return deleted


def _is_over(tracker: TrackerStore, log: KafkaLog, generation: TopicGeneration) -> bool:
    logs = read_logs(tracker, every=True)
    if any(one.topic == generation.name and one.state != "closed" for one in logs):
        return False
    trimmed = select(func.min(topic_offsets.c.trimmed_commit)).where(
        topic_offsets.c.topic == generation.name
    )
    with tracker.transaction() as connection:
        commit = connection.execute(trimmed).scalar()  # None: nothing was ever read of it
    if commit is not None and commit < generation.last_commit:
        return False
    try:
        marks = log.watermarks(log.describe(generation.name))
    except StopError:
        return True  # somebody has deleted it
    return all(
        high == generation.ends.get(n, 0) and high - low <= 1 for n, (low, high) in marks.items()
    )
