"""One moment of everything: the tracker in one snapshot, and the log from that snapshot's offsets.

The tracker's transaction (repeatable read) begins first; then the log is asked for its ends, and
read from the offsets that the snapshot holds; then the books are read, still of the first moment.
What came into the log after the snapshot is told apart so:

- first-pass events: of an intake minute below its pipeline's watermark all are counted, and were
  in Kafka, before the snapshot. The watermarks are read again when the log was read: where one
  changed, ingestion moved meanwhile, and only what lay below it all the time is taken as whole;
- replayed events: those of replays that the snapshot does not know were sent after it; those of
  replays that ran then are held against what their marks name (``replay_entries``).

What lags far behind is not read: where more records than ``most_records`` wait in a topic, only
their number is told. The ends are told too: once the ledger stands behind them, all that was in the
log then was processed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection, select, text

from waybill.errors import ParkError, StopError
from waybill.events import decode
from waybill.ledger import (
    IntakeWatermark,
    MinuteKey,
    ReplayEntry,
    begin_snapshot,
    live_names,
    read_watermarks,
)
from waybill.pipelines import PipelineHead, topic_of
from waybill.reconciliation.minutes import numbered
from waybill.storage import KafkaLog, TopicInfo, TrackerStore
from waybill.storage.tracker import replays, topic_offsets
from waybill.topics import stops_in

Read = TypeVar("Read")
_NOW = text("SELECT floor(extract(epoch FROM clock_timestamp()) / 60)::int")
_ALL = 10**12


@dataclass(frozen=True, slots=True)
class TopicMoment:
    """How far the log of a topic reached, and the ledger with it."""

    topic_id: str
    ends: Mapping[int, int]
    """Partition to the offset after the last record."""
    positions: Mapping[int, int]
    """Partition to the ledger's next offset."""

    @property
    def waiting(self) -> int:
        """Return how many records are beyond the ledger's offsets."""
        return sum(max(0, end - self.positions.get(n, 0)) for n, end in self.ends.items())

    def has_passed(self, topic_id: str, ends: Mapping[int, int]) -> bool:
        """Tell whether the ledger stands at or behind the ends of an earlier moment."""
        return topic_id == self.topic_id and all(
            self.positions.get(number, 0) >= end for number, end in ends.items()
        )


@dataclass(slots=True)
class InLog:
    """What was measured between the snapshot's offsets and the log's ends."""

    topics: dict[str, TopicMoment] = field(default_factory=dict)
    counts: Counter[tuple[MinuteKey, str, bool]] = field(default_factory=Counter)
    """Events by (minute key, stage of entry, replayed)."""
    replayed: Counter[ReplayEntry] = field(default_factory=Counter)
    """The replayed ones by replay."""
    of_replays: dict[str, Counter[tuple[MinuteKey, str]]] = field(default_factory=dict)
    """The same by replay id, minute key and stage of entry."""
    unread: set[str] = field(default_factory=set)
    """Topics where more waits than was to be read: their events are in no count."""
    strange: dict[str, str] = field(default_factory=dict)
    """Topics that are not those the ledger knows, and what is wrong with them."""
    names: dict[str, list[str]] = field(default_factory=dict)
    """Topic to the names of its generations that have not ended."""

    def names_of(self, topic: str) -> list[str]:
        """Return the names under which a topic's events wait; they are the keys of the others."""
        return self.names.get(topic, [topic])


@dataclass(frozen=True, slots=True)
class Whole:
    """How far a pipeline's ingestion was whole at the snapshot, and until the log was read."""

    below_minute: int | None
    """Minutes below are whole; None: all are."""
    why: str
    """What goes on from there, for people."""
    waiting: int = 0
    """Events that ingestion counted and Kafka had not acknowledged, when it was told last."""

    def holds(self, minute: int) -> bool:
        """Tell whether an intake minute is whole."""
        return self.below_minute is None or minute < self.below_minute


WHOLE = Whole(None, "")


@dataclass(slots=True)
class Snapshot:
    """What was measured beside the books."""

    in_log: InLog
    whole: dict[str, Whole]
    """By pipeline id; one that is not there is whole altogether."""

    def of(self, pipeline_id: str) -> Whole:
        """Return how far a pipeline was whole."""
        return self.whole.get(pipeline_id, WHOLE)


def take_snapshot(
    tracker: TrackerStore,
    log: KafkaLog,
    pipelines: Collection[PipelineHead],
    read: Callable[[Connection, InLog], Read],
    *,
    most_records: int = _ALL,
    strict: bool = False,
) -> tuple[Read, Snapshot]:
    """Read the books and what is in flight, as of one moment.

    Args:
        tracker: the books.
        log: between ingestion and processing.
        pipelines: whose topics are looked at.
        read: reads the books in the snapshot; gets what was measured in the log.
        most_records: of a topic; where more wait, none is read.
        strict: raise where a topic is not the one that the ledger knows; else it is told.

    Raises:
        RetryError: Kafka or the tracker is away.
        StopError: see ``strict``.

    Cost: the records beyond the ledger's offsets are read once, about 100,000 a second; the
    snapshot stays open for as long.
    """
    with tracker.transaction(long_statements=True, long_idle=True) as connection:
        begin_snapshot(connection)
        first = read_watermarks(connection)
        in_log = _measure(connection, log, {topic_of(p) for p in pipelines}, most_records)
        if strict and in_log.strange:
            raise StopError("; ".join(in_log.strange.values()))
        _keep_known_replays(connection, in_log)
        found = read(connection, in_log)
    with tracker.transaction() as connection:
        second = read_watermarks(connection)
    return found, Snapshot(in_log, whole_below(first, second))


def whole_below(
    first: Mapping[str, IntakeWatermark], second: Mapping[str, IntakeWatermark]
) -> dict[str, Whole]:
    """Return how far each pipeline was whole at a first look and stayed it until a second one."""
    found: dict[str, Whole] = {}
    for pipeline_id in {*first, *second}:
        before, after = first.get(pipeline_id), second.get(pipeline_id)
        if before is not None and before.open:
            found[pipeline_id] = Whole(before.open_from_minute, _why(before), before.waiting)
        elif after is not None and (before is None or after.version != before.version):
            begun = int(after.began_at.timestamp() // 60) - 1
            minutes = [after.open_from_minute, begun]
            if before is not None:
                minutes.append(before.open_from_minute)
            found[pipeline_id] = Whole(min(minutes), "ingestion has begun just now")
    return found


def _why(watermark: IntakeWatermark) -> str:
    told = f"{watermark.told_at:%Y-%m-%d %H:%M:%S} UTC"
    if watermark.waiting:
        return (
            f"{numbered(watermark.waiting, 'event')} "
            f"{'was' if watermark.waiting == 1 else 'were'} in ingestion's write-ahead log and not "
            f"acknowledged by Kafka at {told}"
        )
    return f"ingestion goes on, or died: it last reported at {told}"


def _measure(connection: Connection, log: KafkaLog, topics: set[str], most_records: int) -> InLog:
    found = InLog(names=live_names(connection, topics))
    topics = {name for names in found.names.values() for name in names}
    known: dict[str, dict[tuple[str, str], dict[int, int]]] = {}
    query = select(topic_offsets).where(topic_offsets.c.topic.in_(topics))
    for row in connection.execute(query):
        at = known.setdefault(row.topic, {}).setdefault((row.cluster_id, row.topic_id), {})
        at[int(row.partition)] = int(row.next_offset)
    for stop in stops_in(connection):
        said = f"{stop.words}; nothing is read of {stop.topic!r} until somebody settles it"
        found.strange[stop.topic] = f"{said}: `waybill topics settle {stop.topic}`"
    for name in sorted((topics & log.topics()) - found.strange.keys()):
        topic = log.describe(name)
        marks = log.watermarks(topic)
        if words := _strange(topic, known.get(name, {}), marks):
            found.strange[name] = words
            continue
        positions = known.get(name, {}).get((topic.cluster_id, topic.topic_id), {})
        moment = TopicMoment(topic.topic_id, {n: high for n, (_, high) in marks.items()}, positions)
        found.topics[name] = moment
        if moment.waiting > most_records:
            found.unread.add(name)
        elif moment.waiting:
            _read(log, name, moment, found)
    return found


def _strange(
    topic: TopicInfo,
    known: Mapping[tuple[str, str], Mapping[int, int]],
    marks: Mapping[int, tuple[int, int]],
) -> str:
    """Return in words why a log is not the one that the ledger knows; empty: it may be."""
    own = (topic.cluster_id, topic.topic_id)
    if others := known.keys() - {own}:
        return (
            f"topic {topic.name!r} is not the one the ledger knows (id {topic.topic_id}, ledger "
            f"{sorted(others)}): it was deleted and created again, or this is another cluster"
        )
    positions = known.get(own, {})
    if gone := sum(max(0, low - positions.get(n, 0)) for n, (low, _) in marks.items()):
        are = "is" if gone == 1 else "are"
        return f"{numbered(gone, 'record')} of {topic.name!r} {are} gone, unprocessed"
    if gone := sum(max(0, positions.get(n, 0) - high) for n, (_, high) in marks.items()):
        records = numbered(gone, "record")
        return f"the log of {topic.name!r} ends {records} below the ledger: it was cut"
    return ""


def _read(log: KafkaLog, name: str, moment: TopicMoment, found: InLog) -> None:
    ranges = {n: (moment.positions.get(n, 0), end) for n, end in moment.ends.items()}
    for value in log.read(name, ranges):
        try:
            event = decode(value)
        except ParkError:
            continue
        key = (event.pipeline_id, event.name, event.intake_minute)
        if event.attempt and event.replay_id:
            found.replayed[event.replay_id, event.name, event.stage] += 1
            of_replay = found.of_replays.setdefault(event.replay_id, Counter())
            of_replay[key, event.stage] += 1
        else:
            found.counts[(key, event.stage, event.attempt > 0)] += 1


def _keep_known_replays(connection: Connection, in_log: InLog) -> None:
    """Leave out what replays sent that the snapshot does not know: they began after it."""
    given = {replay_id: _uuid(replay_id) for replay_id in in_log.of_replays}
    wanted = [one for one in given.values() if one is not None]
    query = select(replays.c.id).where(replays.c.id.in_(wanted))
    known = set(connection.execute(query).scalars()) if wanted else set()
    later = {replay_id for replay_id, one in given.items() if one and one not in known}
    for entry in [entry for entry in in_log.replayed if entry[0] in later]:
        del in_log.replayed[entry]
    for replay_id in in_log.of_replays.keys() - later:
        for (key, stage), number in in_log.of_replays[replay_id].items():
            in_log.counts[key, stage, True] += number


def _uuid(replay_id: str) -> UUID | None:
    try:
        return UUID(replay_id)
    except ValueError:
        return None
