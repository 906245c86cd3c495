"""Topics as people see them: where the ledger stands, what is unread, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import select

from waybill.access import Decision, write_audit
from waybill.deployment import active_heads
from waybill.errors import InputError, NotFoundError, StopError
from waybill.ledger import (
    TopicGeneration,
    TopicPosition,
    all_generations,
    ask_reread,
    read_positions,
)
from waybill.nearest_name import hint
from waybill.pipelines import base_topic, generation_of, topic_of
from waybill.storage import ConfigFault, KafkaLog, TrackerStore, config_faults
from waybill.storage.tracker import topic_offsets
from waybill.topics.generations import late_records, unknown_names, waits_for
from waybill.topics.stops import LogFault, TopicStop, examine, read_stops

DRAINS_LONG_S = 600.0


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """One partition."""

    partition: int
    first: int
    """First offset that is there."""
    end: int
    """After the last record."""
    position: int
    """Where the ledger stands."""

    @property
    def unread(self) -> int:
        """Return the records between the ledger and the log's end."""
        return max(0, self.end - max(self.position, self.first))


@dataclass(frozen=True, slots=True)
class TopicLine:
    """One topic."""

    topic: str
    pipelines: tuple[str, ...]
    topic_id: str
    """Empty: it does not exist (yet)."""
    replicas: int
    partitions: tuple[PartitionLine, ...]
    stops: tuple[TopicStop, ...]
    settled: tuple[TopicStop, ...]
    """Stops that somebody settled."""
    log_faults: tuple[LogFault, ...]
    """Why the next start of its consumer would stop it; nothing of it is recorded yet."""
    faults: tuple[ConfigFault, ...]
    """What is dangerous in its configuration."""
    generation: TopicGeneration
    waits_for: tuple[str, ...] = ()
    """Of one that drains: the logs that write to it still."""
    late: int = 0
    """Of one that ended: records that somebody has written behind its end; nobody reads them."""
    unknown: bool = False
    """Kafka has it, with records, and the tracker does not know of it: it was restored from before
    the topic grew."""

    @property
    def unread(self) -> int:
        """Return the records that processing has not read."""
        return sum(line.unread for line in self.partitions)

    @property
    def state(self) -> str:
        """Return one word: unknown, stopped, missing, unsafe, altered, draining, ended or ok."""
        if self.unknown:
            return "unknown"
        if self.stops or self.log_faults:
            return "stopped"
        if not self.topic_id:
            return "missing"
        if self.faults:
            return "unsafe"
        if self.altered:
            return "altered"
        return "ok" if self.generation.state == "writing" else self.generation.state

    @property
    def drains_long(self) -> bool:
        """Tell whether it drains for longer than its logs and what is unread should take."""
        since = self.generation.draining_since
        if self.generation.state != "draining" or since is None:
            return False
        return (datetime.now(UTC) - since).total_seconds() > DRAINS_LONG_S

    @property
    def altered(self) -> str:
        """Return in words how its partitions are not those that it was made with; empty: they are.

        Keys moved to other partitions then, where their order is not kept.
        """
        made, there = self.generation.partitions, len(self.partitions)
        if not made or not there or made == there:
            return ""
        return (
            f"it was made with {made} partitions, and has {there}: somebody altered it in "
            "Kafka, so that keys are in other partitions since, and may be out of order"
        )

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "topic": self.topic,
            "state": self.state,
            "pipelines": list(self.pipelines),
            "topic_id": self.topic_id,
            "replicas": self.replicas,
            "unread": self.unread,
            "partitions": [asdict(line) | {"unread": line.unread} for line in self.partitions],
            "stops": [stop.to_json() for stop in self.stops],
            "settled": [stop.to_json() for stop in self.settled],
            "log_faults": [asdict(fault) for fault in self.log_faults],
            "config_faults": [asdict(fault) for fault in self.faults],
            "generation": self.generation.number,
            "generation_state": self.generation.state,
            "altered": self.altered,
            "draining_since": self.generation.draining_since,
            "waits_for": list(self.waits_for),
            "late": self.late,
        }


def topic_lines(tracker: TrackerStore, log: KafkaLog, name: str | None = None) -> list[TopicLine]:
    """Return the topics of deployed pipelines and of the ledger, by name.

    Args:
        tracker: the books.
        log: where the topics are.
        name: only this one.

    Raises:
        InputError: neither a pipeline nor the ledger knows it.
        RetryError: a server does not answer.
    """
    writers: dict[str, list[str]] = {}
    for pipeline in active_heads(tracker).values():
        writers.setdefault(topic_of(pipeline), []).append(pipeline.name)
    with tracker.transaction() as connection:
        known = set(connection.execute(select(topic_offsets.c.topic).distinct()).scalars())
        generations = {one.name: one for own in all_generations(connection).values() for one in own}
    names = {*writers, *known, *generations, *(stop.topic for stop in read_stops(tracker))}
    unknown = unknown_names(tracker, log, {base_topic(one) for one in names})
    names |= set(unknown)
    if name is not None and name not in names:
        near = hint(name, names)
        raise NotFoundError(
            f"no pipeline writes to topic {name!r}; `waybill topics list` shows all{near}"
        )
    there = log.topics()
    gone = {one.name for one in generations.values() if one.deleted_at is not None} - there
    wanted = sorted(names - gone if name is None else {name}, key=generation_of)
    lines = [
        _line(
            tracker,
            log,
            generations.get(one) or TopicGeneration(*generation_of(one)),
            tuple(sorted(writers.get(base_topic(one), ()))),
            there,
        )
        for one in wanted
    ]
    return [replace(one, unknown=one.topic in unknown) for one in lines]


def _line(
    tracker: TrackerStore,
    log: KafkaLog,
    generation: TopicGeneration,
    pipelines: tuple[str, ...],
    there: set[str],
) -> TopicLine:
    name = generation.name
    stops = tuple(read_stops(tracker, name))
    settled = tuple(read_stops(tracker, name, settled=True))
    if name not in there:
        return TopicLine(name, pipelines, "", 0, (), stops, settled, (), (), generation)
    topic = log.describe(name)
    known = read_positions(tracker, name)
    recorded = {(stop.kind, stop.partition) for stop in stops}
    log_faults = tuple(
        fault
        for fault in examine(topic, known, log)
        if (fault.kind, fault.partition) not in recorded
    )
    positions = known.get((topic.cluster_id, topic.topic_id), {})
    return TopicLine(
        name,
        pipelines,
        topic.topic_id,
        topic.replicas,
        _partitions(log.watermarks(topic), positions),
        stops,
        settled,
        log_faults,
        tuple(config_faults(log.config(name), topic.replicas)),
        generation,
        waits_for(tracker, generation) if generation.state == "draining" else (),
        late_records(log, generation) if generation.state == "ended" else 0,
    )


def _partitions(
    marks: Mapping[int, tuple[int, int]], known: Mapping[int, TopicPosition]
) -> tuple[PartitionLine, ...]:
    return tuple(
        PartitionLine(n, low, high, known[n].next_offset if n in known else 0)
        for n, (low, high) in sorted(marks.items())
    )


def faults_of(log: KafkaLog, name: str) -> list[ConfigFault]:
    """Return what is dangerous in a topic's configuration.

    Raises:
        InputError: there is no such topic.
        RetryError: Kafka does not answer.
    """
    try:
        topic = log.describe(name)
    except StopError as error:
        raise InputError(f"{error}; `waybill topics list` shows all") from error
    return config_faults(log.config(name), topic.replicas)


def configure(
    tracker: TrackerStore, log: KafkaLog, name: str, decision: Decision
) -> list[ConfigFault]:
    """Mend what is dangerous in a topic's configuration; returns what it was.

    The audit log is written first: a change that nobody wrote down is worse than a line about one
    that failed.

    Raises:
        InputError: there is no such topic.
        RetryError: a server does not answer.
    """
    faults = faults_of(log, name)
    if not faults:
        return []
    with tracker.transaction() as connection:
        write_audit(
            connection,
            who=decision.who,
            action="configure_topic",
            target=f"topic {name}",
            why=decision.why,
            before={fault.name: fault.value for fault in faults},
            after={fault.name: fault.wanted for fault in faults},
            **decision.beside_who(),
        )
    log.set_config(name, {fault.name: fault.wanted for fault in faults})
    return faults


def ask_rereads(tracker: TrackerStore, names: Sequence[str], decision: Decision) -> list[str]:
    """Have the next run of these pipelines' ingestion read their source from its beginning.

    All events are taken in again, with newer intake versions: what the destination has already is
    a duplicate there, what it lacks arrives.

    Returns:
        Names of pipelines that never read anything: they begin there anyway.

    Raises:
        InputError: no such pipeline is deployed.
    """
    why = decision.require_why()
    known = {one.name: one for one in active_heads(tracker).values()}
    known |= {one.id: one for one in known.values()}
    if unknown := [name for name in names if name not in known]:
        near = hint(unknown[0], known)
        raise NotFoundError(
            f"no such pipeline: {', '.join(unknown)}; `waybill pipelines list` shows all{near}"
        )
    fresh = []
    with tracker.transaction() as connection:
        for name in names:
            pipeline = known[name]
            if not ask_reread(connection, pipeline.id):
                fresh.append(pipeline.name)
            write_audit(
                connection,
                who=decision.who,
                action="reread_source",
                target=pipeline.id,
                why=why,
                pipeline_id=pipeline.id,
                **decision.beside_who(),
            )
    return fresh
