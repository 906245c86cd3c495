"""One topic of an application: its lease, its positions, and what commits its share of a batch."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NoReturn, Self

from sqlalchemy import Connection

from waybill.deployment import ActivePipelines, DeployedOnTopic, elsewhere
from waybill.errors import RetryError, StopError
from waybill.ledger import (
    BatchCommit,
    LastRead,
    OffsetRange,
    StagedObject,
    acquire_lease,
    check_lease,
    commit_batch,
    count_entries,
    ended_at,
    read_positions,
    release_lease,
    write_copies,
)
from waybill.mappings import InForce, LearnedFields, NameRules, learn_once
from waybill.parking import Parking, record_storm
from waybill.pipelines import UNKNOWN_PIPELINE, base_topic, team_of
from waybill.processing import Counts, Storm, TopicOwner, destination_rules
from waybill.processing.spark.batch_size import BatchSize, QueriesAtWork
from waybill.processing.spark.batches import (
    Descriptor,
    HoleError,
    Ranges,
    SeenOffsets,
    check_ranges_seen,
    counts_of,
    made_bytes,
    ranges_seen,
)
from waybill.processing.spark.executor_settings import ExecutorSettings
from waybill.processing.spark.learning_reports import EventName, reports_by_name
from waybill.processing.spark.plan_cache import PipelinesInUse, TaskTexts
from waybill.processing.spark.tasks import StageTask, Task, TaskPlan, TopicPlan
from waybill.settings import Settings
from waybill.storage import (
    KafkaLog,
    LogEnd,
    LogState,
    ObjectStore,
    TopicInfo,
    TrackerStore,
    deployment_of,
)
from waybill.topics import LogFault, examine, read_stops, record_stops, settled_holes, stop_error

_LOG = logging.getLogger(__name__)
_NAMES_AT_ONCE = 100
"""Event names that one transaction learns for: each is a lock, and deploys wait for it."""


def keep_learned(
    connection: Connection,
    deployed: DeployedOnTopic,
    reports: Mapping[EventName, Sequence[LearnedFields]],
    rules: NameRules,
    author: str,
) -> bool:
    """Make new versions of the mappings that a topic's tasks found too narrow.

    Args:
        connection: an open transaction.
        deployed: what the tasks were sent.
        reports: of the tasks, in the order of their names.
        rules: of the destination.
        author: whose tasks they are.

    Returns:
        True: some mapping is a later one now, whoever made it.
    """
    later = False
    for name, learned in reports.items():
        pipeline_id, event_name = name
        declared = deployed.pipelines[pipeline_id].events[event_name]
        known = deployed.mappings.get(name) or InForce(0, declared)
        made = learn_once(connection, pipeline_id, known.declaration, learned, rules, author)
        later |= made.number > known.number
        _LOG.info("%s, %s: mapping %d", pipeline_id, event_name, made.number)
    return later


@dataclass(frozen=True, slots=True)
class ProcessingParts:
    """What the consumers of one application share."""

    settings: Settings
    executor_settings: ExecutorSettings
    """What tasks get of them."""
    tracker: TrackerStore
    log: KafkaLog
    parking: Parking
    pipelines: ActivePipelines
    task: Callable[[TaskPlan], Task]
    """Makes what Spark runs in each task."""
    in_use: dict[str, PipelinesInUse] = field(default_factory=dict)
    """By topic; a consumer that is opened again goes on with what it was."""
    at_work: QueriesAtWork = field(default_factory=QueriesAtWork)

    @classmethod
    def over(
        cls,
        settings: Settings,
        tracker: TrackerStore,
        log: KafkaLog,
        objects: ObjectStore,
        *,
        task: Callable[[TaskPlan], Task] | None = None,
    ) -> Self:
        """Return the parts that stand on these servers; ``task`` None: stages.

        Raises:
            RetryError: the tracker does not answer.
        """
        own = ExecutorSettings.of(settings, deployment_of(tracker))
        parking, pipelines = Parking(tracker, objects), ActivePipelines(tracker)
        return cls(settings, own, tracker, log, parking, pipelines, task or StageTask)


class TopicConsumer:
    """One topic: its lease, its positions, its commits.

    Takes the topic over from whoever had it. Its query is that of a `TopicGroup`.

    Args:
        parts: shared with the other consumers.
        topic: that it reads.
        destination: of the topic's events.
        holder: of the lease.
        check: see ``acquire_lease``.
    """

    def __init__(
        self,
        parts: ProcessingParts,
        topic: TopicInfo,
        *,
        destination: str,
        holder: str,
        check: Callable[[Connection], None] | None = None,
    ) -> None:
        self._tracker = parts.tracker
        self._log = parts.log
        self._parking = parts.parking
        self.destination = destination
        """Where its events go."""
        self._rules = destination_rules(destination, parts.settings.destinations)
        self._texts = TaskTexts()
        self._owner = TopicOwner(team_of(topic.name))
        self._in_use = parts.in_use.setdefault(topic.name, PipelinesInUse())
        self.topic = topic
        self.batch_size = BatchSize()
        """Of its batches when it is alone in its query."""
        self.name = f"processing/{topic.name}"
        self._epoch = acquire_lease(parts.tracker, self.name, holder=holder, check=check)
        self._positions: dict[int, int] = {}
        self._holes: dict[int, list[tuple[int, int]]] = {}
        self._ends: Mapping[int, LogEnd] = {}

    def open(self) -> None:
        """Hold the log against the ledger, and stand where that stands.

        Raises:
            StopError: the log is not the one that the ledger knows, or was not when it was last
                looked at: the stop is in the tracker until somebody settles it.
            RetryError: Kafka or the tracker does not answer; or it is a generation of its topic
                that has ended since somebody wanted it read.
        """
        topic = self.topic
        if ended_at(self._tracker, topic.name) is not None:  # its end fences all leases before it
            raise RetryError(f"{topic.name} has ended; the next generation of the topic is read")
        if stops := read_stops(self._tracker, topic.name):
            raise stop_error(stops, topic.name)
        known = read_positions(self._tracker, topic.name)
        self._ends = self._log.ends(topic)  # before the log is examined: see ``check_same_log``
        if faults := examine(topic, known, self._log):
            self._stop(faults)
        own = known.get((topic.cluster_id, topic.topic_id), {})
        numbers = range(topic.partitions)
        self._positions = {n: own[n].next_offset if n in own else 0 for n in numbers}
        self._holes = settled_holes(self._tracker, topic)
        _LOG.info("%s: epoch %d, starts at %s", self.name, self._epoch, self._positions)

    def release(self) -> None:
        """Let go of the topic, once no query reads it: another application need not wait."""
        release_lease(self._tracker, self.name, self._epoch)

    @property
    def positions(self) -> Mapping[int, int]:
        """Return {partition: the next offset}; all partitions of the topic are there."""
        return self._positions

    def ranges_until(self, ends: Mapping[str, int]) -> dict[int, tuple[int, int]]:
        """Return what a batch that ends at these offsets (by partition) has that is new."""
        return {
            int(number): (self._positions.get(int(number), 0), end)
            for number, end in ends.items()
            if end > self._positions.get(int(number), 0)
        }

    def in_use(self, ids: frozenset[str]) -> set[str]:
        """Return of the topic's pipelines, by id, those that tasks are sent."""
        return self._in_use.of(ids)

    def need(self, pipeline_ids: Collection[str]) -> None:
        """Take pipelines into use whose events came.

        Raises:
            StopError: all are: the batch would run again for nothing.
        """
        if not self._in_use.add(pipeline_ids):
            raise StopError(f"{self.topic.name}: a task needed pipelines that it was sent")

    def plan(self, deployed: DeployedOnTopic, *, learns: bool = True) -> TopicPlan:
        """Return what tasks need of this topic; each plan is of a batch of its own."""
        return TopicPlan(
            batch_id=str(uuid.uuid4()),
            pipelines=self._texts.of(deployed.pipelines, deployed.mappings),
            learns=learns,
            ids=self._texts.ids(deployed.ids, deployed.pipelines),
            owner=self._owner,
        )

    def find_foreign(self, deployed: DeployedOnTopic, named: Collection[str]) -> frozenset[str]:
        """Keep which of these pipelines send to another topic; return those that were not known.

        A pipeline sends to one topic for ever, so they stay so. Cost: a statement where events
        named pipelines that are not deployed on the topic, none otherwise.

        Args:
            deployed: what is, on this topic.
            named: ids of pipelines that its events named.
        """
        known = self._owner.foreign
        unknown = set(named) - deployed.ids - known - {UNKNOWN_PIPELINE}
        if not unknown:
            return frozenset()
        with self._tracker.transaction() as connection:
            found = elsewhere(connection, unknown, base_topic(self.topic.name))
        self._owner = replace(self._owner, foreign=known | found)
        return found

    def learn(self, deployed: DeployedOnTopic, descriptors: Sequence[Descriptor]) -> bool:
        """Keep what the tasks of a batch learned, in transactions of some event names each.

        A process that dies behind it, and before the batch is committed, leaves columns that are
        empty until those events come again.

        Args:
            deployed: what the tasks were sent.
            descriptors: of the topic's tasks.

        Returns:
            True: some mapping is a later one now, whoever made it. False: there is no more room.

        Raises:
            RetryError: the tracker does not answer.
            FencedError: another application has the topic.
        """
        later, names = False, iter(reports_by_name(descriptors).items())
        while some := dict(islice(names, _NAMES_AT_ONCE)):
            with self._tracker.transaction() as connection:
                check_lease(connection, self.name, self._epoch)
                later |= keep_learned(connection, deployed, some, self._rules, self.name)
        return later

    def check_same_log(self, state: LogState) -> None:
        """Refuse a batch while whose records were read the log may have become another one.

        A log loses records only where its leader changes, and each change has a new epoch. While
        all epochs are those from before the log was examined, the records that were read follow
        those that the ledger has. If one is not, the consumer starts anew: it examines the log and
        reads the batch again.

        Args:
            state: of the topic, asked for after the batch was read.

        Raises:
            RetryError: a leader changed, or the topic was made anew.
        """
        changed = [
            number
            for number, end in state.ends.items()
            if end.leader_epoch != self._ends[number].leader_epoch
        ]
        if changed or state.topic_id != self.topic.topic_id:
            what = f"partitions {changed} changed their leader" if changed else "it was made anew"
            raise RetryError(
                f"{self.topic.name}: {what} since the log was held against the ledger; that is "
                "done again, and the batch is read again"
            )
        self._ends = state.ends

    def commit(self, batch: TopicBatch, storms: Sequence[Storm], *, took_ms: int) -> int:
        """Commit the topic's share of a batch, in one transaction; return the commit number.

        Call `check_same_log` before.

        Args:
            batch: as its tasks tell of it.
            storms: pipelines that are held from now on; their events of this batch are parked.
            took_ms: since the batch's beginning.

        Raises:
            StopError: records are missing (the stop is in the tracker from now on), or another
                process took the topic over, or moved it.
            RetryError: records were not read that are in the log, or the tracker does not answer.
        """
        commit = self._commit_of(batch, took_ms)
        parked = [item["parked"] for item in batch.descriptors if item["parked"]]

        def record_parked(connection: Any, number: int) -> list[str]:
            copies = self._parking.record_once(
                connection, parked, scope=self.destination, commit_number=number
            )
            write_copies(connection, str(commit.batch_id), copies)
            for storm in storms:
                cause = storm.to_cause(batch.deployed.pipelines[storm.pipeline_id].version)
                record_storm(connection, storm.pipeline_id, cause)
            return [item.key for item in parked]

        number = commit_batch(self._tracker, commit, record_parked)
        self._go_on_behind(batch)
        events = sum(item.count for item in commit.ranges)
        _LOG.info("%s: commit %d, %d events in %.2f s", self.name, number, events, took_ms / 1000)
        return number

    def _go_on_behind(self, batch: TopicBatch) -> None:
        self._positions.update({n: end for n, (_, end) in batch.ranges.items()})
        held = {pipeline_id for pipeline_id, _ in batch.counts.by_pipeline()}
        self._in_use.end_batch(held, batch.plan.pipelines)

    def _commit_of(self, batch: TopicBatch, took_ms: int) -> BatchCommit:
        seen = ranges_seen(batch.descriptors)
        absent = self._check_whole(batch.ranges, seen)
        topic = self.topic
        return BatchCommit(
            batch_id=uuid.UUID(batch.plan.batch_id),
            consumer=self.name,
            epoch=self._epoch,
            cluster_id=topic.cluster_id,
            topic_id=topic.topic_id,
            topic=topic.name,
            destination=self.destination,
            ranges=[
                OffsetRange(
                    number,
                    start,
                    end,
                    seen[number].count if number in seen else 0,
                    absent=absent[number],
                    last=self._last_read(number, seen.get(number)),
                )
                for number, (start, end) in batch.ranges.items()
            ],
            counts=list(batch.counts.by_pipeline()),
            staged=[
                StagedObject(
                    item["staged"]["key"],
                    item["staged"]["rows"],
                    item["staged"]["bytes"],
                    [[topic.name, n, first, last + 1] for n, first, last, *_ in item["ranges"]],
                    item["staged"]["row_bytes"],
                )
                for item in batch.descriptors
                if item["staged"]
            ],
            replayed=count_entries(row for item in batch.descriptors for row in item["replayed"]),
            took_ms=took_ms,
            tasks_ms=round(batch.took_s * 1000),
        )

    def _last_read(self, number: int, seen: SeenOffsets | None) -> LastRead | None:
        if seen is None:
            return None
        end = self._ends[number]
        return LastRead(seen.last, seen.at_ms, seen.digest, end.leader_epoch, end.offset)

    def _check_whole(self, ranges: Ranges, seen: Mapping[int, SeenOffsets]) -> dict[int, int]:
        """Return {partition: offsets without a record, all of them settled as such}.

        Raises:
            StopError: other offsets have no record: the stop is in the tracker from now on.
            RetryError: records were not read that are in the log.
        """
        try:
            return check_ranges_seen(self.topic.name, ranges, seen, self._holes)
        except HoleError as error:
            holes = [self._hole(number, *ranges[number]) for number in error.partitions]
            if faults := [hole for hole in holes if hole is not None]:
                self._stop(faults)
            raise RetryError(f"{error}, but the log has them: they are read again") from error

    def _hole(self, number: int, start: int, end: int) -> LogFault | None:
        settled = self._holes.get(number, [])
        missing = [
            pair
            for pair in self._log.missing(self.topic.name, number, start, end)
            if pair not in settled
        ]
        if not missing:
            return None
        message = (
            f"{self.topic.name}/{number} has no record at {sum(b - a for a, b in missing):,} of "
            f"the offsets {start:,} to {end - 1:,}: the log has a hole"
        )
        return LogFault("hole", number, message, {"missing": [list(pair) for pair in missing]})

    def _stop(self, faults: Sequence[LogFault]) -> NoReturn:
        record_stops(self._tracker, self.topic.name, faults)
        raise stop_error(faults, self.topic.name)


@dataclass(frozen=True)
class TopicBatch:
    """A topic's share of a micro-batch, once its tasks have run."""

    ranges: Ranges
    plan: TopicPlan
    deployed: DeployedOnTopic
    descriptors: Sequence[Descriptor]
    counts: Counts

    @classmethod
    def of(
        cls,
        ranges: Ranges,
        plan: TopicPlan,
        deployed: DeployedOnTopic,
        descriptors: Sequence[Descriptor],
    ) -> Self:
        """Return the share that these descriptors tell of."""
        return cls(ranges, plan, deployed, descriptors, counts_of(descriptors))

    @property
    def events(self) -> int:
        """Return the offsets that it has."""
        return sum(end - start for start, end in self.ranges.values())

    @property
    def failures(self) -> list[Sequence[Any]]:
        """Return what its tasks tallied; see ``Tally.rows``."""
        return [row for descriptor in self.descriptors for row in descriptor["failures"]]

    @property
    def took_s(self) -> float:
        """Return how long the topic's tasks worked on it, added up."""
        return sum(float(descriptor["took_s"]) for descriptor in self.descriptors)

    @property
    def longest_s(self) -> float:
        """Return how long the task worked on it that took the longest."""
        return max((float(descriptor["took_s"]) for descriptor in self.descriptors), default=0.0)

    @property
    def made_bytes(self) -> int:
        """Return what its tasks made of its events."""
        return made_bytes(self.descriptors)
