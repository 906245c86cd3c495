"""Replay: a parked partition's segments back to their topic, in the order they were written.

Slices of segments (``parking.reading``) go through the lossless producer; after each comes a mark,
and once Kafka has acknowledged all before it, the tracker marks the slice's segments ``replayed``
while the next slice is sent (``marking``). Killed anywhere, a run with the same run id resumes:
marks found in the log are settled first, events found behind the last mark are not sent again. An
event that Kafka refuses for good is parked again: see ``undeliverable``. A damaged segment is set
apart before the first event of its slice is sent; the rest goes on, and the report says so.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Protocol
from uuid import UUID

from waybill.errors import InputError
from waybill.events import decode
from waybill.ingestion import Undeliverable
from waybill.parking import ParkedEvent, Parking, Replay, ReplayConditions, Segment, SliceReading
from waybill.pipelines import Pipeline, topic_of
from waybill.producer import LosslessProducer, WalFullError
from waybill.progress import Progress
from waybill.replay.canary_steps import parked_before
from waybill.replay.eligibility import refuse_held, refuse_ingestion
from waybill.replay.marking import Marking, MarkingLimits
from waybill.replay.messages import (
    MAPPING,
    TRANSFORMATION,
    Parents,
    asked_entry,
    choose_entry,
    encode_again,
    enters_earlier,
    message_again,
    readable,
    refuse_without_source,
)
from waybill.replay.throttle import LoadWatch, ReplayThrottle
from waybill.storage import ObjectStore
from waybill.tracing import Recorder, traces

_Message = tuple[Segment, str, str, bytes, bytes, int]
"""Where an event is parked; its name, id, ordering key, message and intake minute."""
_Traced = tuple[str, str, str, int]
"""The object where an event is parked; its name, id and intake minute."""


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One run of a replay, or of a step of a canary: what it sends back, and who asked."""

    partition_id: int
    who: str
    run_id: str
    conditions: ReplayConditions = field(default_factory=ReplayConditions)
    rate_per_s: int | None = None
    step: str = ""
    """Of a canary."""
    enter: str | None = None
    """``transformation``: what parked at mapping goes back as the parents that it was made from;
    ``mapping``: as it parked. ``None``: as parents where all events carry them, else as parked.
    Decided once, before the first event is sent: see ``Replay.entry``."""
    choice: ReplayConditions | None = None
    """Of a canary's first step: all that the canary takes; it is decided over these."""
    entry: str | None = None
    """Of a canary's further steps: what was decided for the first."""
    governed: bool = True
    """Its rate follows the live lag, if the parts have a watch: see ``throttle``."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What one replay did, over all its runs."""

    partition_id: int
    replay_id: str
    state: str
    segments: int
    events: int
    sent: int
    """Events sent by this run."""
    resumed: int
    """Events that a run before had put into the log already."""
    refused: int
    """Events that Kafka refused for good, parked again since this run opened the log."""
    quarantined: int
    """Events that were not sent: their segments are damaged, or gone from the store."""
    seconds: float

    @property
    def problem(self) -> str:
        """Return why this replay did not send all it was asked for; empty: it did."""
        if not self.quarantined:
            return ""
        return (
            f"{self.quarantined:,} events of partition {self.partition_id} were not sent back: "
            "their parked files are damaged or gone from the store, and they are quarantined; all "
            f"else was sent ({self.events - self.quarantined:,} events). Restore the objects named "
            "in the log and in the notices, run `waybill parked recheck`, then replay again"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


class Generation(Protocol):
    """The generation of a topic that a log writes to."""

    @property
    def name(self) -> str:
        """Return its name in Kafka."""
        ...

    def is_left(self) -> bool:
        """Tell whether there is a newer one, and the tracker that the log is alive; cheap."""
        ...

    def follow(self) -> None:
        """Go on with the newest; Kafka has all that was sent, and it is marked."""
        ...


@dataclass(slots=True)
class ReplayParts:
    """What a replay needs, opened."""

    parking: Parking
    producer: LosslessProducer
    pipeline: Pipeline
    recorder: Recorder | None = None
    undeliverable: Undeliverable | None = None
    """Parks what Kafka refuses, if the producer was opened with it; else that stops the run."""
    objects: ObjectStore | None = None
    """For payloads that are too large to travel; None: they travel all the same."""
    watch: LoadWatch | None = None
    """Sees how the topic stands; without it no replay is governed."""
    limits: MarkingLimits = field(default_factory=MarkingLimits)
    """Of what goes under one mark."""
    topic: Generation | None = None
    """The generation of the topic that it is sent to; None: the topic has one for ever."""
    pace: ReplayThrottle | None = None
    """Of several replays that share these parts, one after the other; None: each has its own."""
    has_recovered: bool = False
    """What a dead run left in the log was seen to, by a replay before."""


def replay(parts: ReplayParts, run: ReplayRun) -> ReplayReport:
    """Send a partition's parked segments back; resumes when run again with the same run id.

    Raises:
        RetryError: another replay of the partition runs, or Kafka or the tracker is away.
        InputError: what is parked there never was an event; or its pipeline is held, and this run
            has not begun; or it was cancelled.
        FencedError: its log was settled by name; run again, it goes on with a new one.
    """
    return _Run(parts, run).run()


class _Run:
    def __init__(self, parts: ReplayParts, run: ReplayRun) -> None:
        self._parts = parts
        self._asked = run
        self._topic = parts.topic.name if parts.topic else topic_of(parts.pipeline)
        self._partition = parts.parking.partition(run.partition_id)
        self._sent = self._resumed = 0
        shared = parts.undeliverable if parts.has_recovered else None
        self._refused_before = shared.parked if shared else 0
        self._parents: Parents | None = None
        self._marking = Marking(
            parts.parking,
            parts.producer,
            self._partition,
            self._trace,
            parts.limits,
        )
        self._unfinished: Counter[tuple[str, int]] = Counter()
        """Events (id and intake version) that a dead run has sent, and not marked."""
        self._untraced: list[_Traced] = []
        self._progress = Progress(f"replay of partition {run.partition_id}", "events")

    def run(self) -> ReplayReport:
        began = time.monotonic()
        parts, run = self._parts, self._asked
        refuse_ingestion(self._partition.stage, self._partition.error_type)
        if not parts.has_recovered:
            self._marking.recover()  # what another replay takes can no longer be marked
            parts.has_recovered = True
        if parts.parking.replay_step(run.partition_id, run.run_id, run.step) is None:
            refuse_held(parts.parking, self._partition.pipeline_id)
            if run.entry is None:
                enters_earlier(run.enter, self._partition.stage, parts.pipeline)
        begun = parts.parking.begin_replay(
            run.partition_id,
            who=run.who,
            run_id=run.run_id,
            conditions=run.conditions,
            rate_per_s=run.rate_per_s,
            step=run.step,
        )
        self._find_unfinished(str(begun.id))
        self._parents = self._parents_of(begun)
        pace = parts.pace or ReplayThrottle(parts.watch if run.governed else None, run.rate_per_s)
        self._progress.total = begun.events - begun.sent
        slices = parts.parking.read_slices(parts.parking.replay_slices(begun.id))
        with self._marking.begin(begun.id, self._resumes, self._parents), closing(slices):
            for reading in slices:
                self._send(begun.id, reading, pace)
        ended = parts.parking.finish_replay(begun.id)
        return ReplayReport(
            partition_id=run.partition_id,
            replay_id=str(ended.id),
            state=ended.state,
            segments=parts.parking.replay_size(ended.id),
            events=ended.events,
            sent=self._sent,
            resumed=self._resumed,
            refused=self._refused(),
            quarantined=ended.quarantined,
            seconds=round(time.monotonic() - began, 2),
        )

    def _refused(self) -> int:
        undeliverable = self._parts.undeliverable
        return undeliverable.parked - self._refused_before if undeliverable else 0

    def _parents_of(self, begun: Replay) -> Parents | None:
        """Return the parents that a replay sends; None: its events enter where they parked.

        Where a try before this one has sent something, they enter where that did.
        """
        parking, entry = self._parts.parking, begun.entry
        by_older_release = asked_entry(self._asked.enter)
        if entry is None:
            entry = by_older_release
        elif not entry:
            was_sent = begun.sent or self._unfinished  # by one that knows of no decision
            chosen = by_older_release if was_sent else self._choose_entry(begun)
            entry = parking.decide_entry(begun.id, chosen)
        if entry != TRANSFORMATION or self._partition.stage != MAPPING:
            return None
        parents = Parents(self._partition)
        if begun.sent:
            parents.resume(parking, begun.id)
        return parents

    def _choose_entry(self, begun: Replay) -> str:
        """Return where the events of a replay are to enter, of which nothing was sent.

        Raises:
            InputError: they cannot; the replay is cancelled.
        """
        run, parking = self._asked, self._parts.parking
        events = readable(parking, begun.id)
        try:
            if run.entry is None:
                events = chain(events, self._later_events(begun))
                return choose_entry(run.enter, self._partition.stage, self._parts.pipeline, events)
            if run.entry == TRANSFORMATION:
                refuse_without_source(events)
        except InputError as error:
            parking.cancel_replay(begun.id, who=run.who)
            raise InputError(f"{error}. Nothing was sent") from error
        return run.entry

    def _later_events(self, begun: Replay) -> Iterator[ParkedEvent]:
        """Yield what the further steps of a canary take, if this is its first."""
        choice = self._asked.choice
        if choice is None:
            return
        most = choice.max_events
        left = None if most is None else most - begun.events
        if left is None or left > 0:
            choice = replace(parked_before(choice, begun), max_events=left)
            drawn = self._parts.parking.draw(self._partition.id, choice)
            yield from (event for _, event in drawn.events)

    def _find_unfinished(self, replay_id: str) -> None:
        """Note the events behind the log's last mark: the beginning of an unfinished unit."""
        for record in self._parts.producer.recovered.unmarked:
            event = decode(record.value or b"")
            if event.replay_id == replay_id:
                self._unfinished[event.id, event.intake_version] += 1

    def _resumes(self) -> bool:
        return bool(self._unfinished)

    def _was_sent(self, message: bytes) -> bool:
        """Tell whether a dead run has sent this event; once for each time that it did."""
        if not self._unfinished:
            return False
        event = decode(message)
        which = event.id, event.intake_version
        if which not in self._unfinished:
            return False
        self._unfinished[which] -= 1
        if not self._unfinished[which]:
            del self._unfinished[which]
        self._resumed += 1
        return True

    def _send(self, replay_id: UUID, reading: SliceReading, pace: ReplayThrottle) -> None:
        parts, marking = self._parts, self._marking
        if reading.damaged:
            parts.parking.quarantine(replay_id, reading.damaged)
        if not reading.segments:
            return
        self._follow_generation()
        messages = self._messages(reading.events, str(replay_id))
        if marking.begin_slice(reading.segments):
            messages = iter(list(messages))
        marking.begin_sending()
        for segment, name, event_id, key, message, minute in messages:
            self._untraced.append((segment.object_key, name, event_id, minute))
            if self._was_sent(message):
                continue
            if pace.wait():
                marking.settle()
                self._is_left()  # a slice may take long at its rate: the tracker is told meanwhile
            self._produce(message, key)
            self._sent += 1
        marking.end_slice(reading.segments)
        self._progress.add(sum(segment.count for segment in reading.segments))

    def _follow_generation(self) -> None:
        """Go on with the newest generation of the topic, between two slices."""
        topic = self._parts.topic
        if topic is not None and self._is_left() and self._marking.end_generation():
            topic.follow()
            self._topic = topic.name

    def _is_left(self) -> bool:
        return self._parts.topic is not None and self._parts.topic.is_left()

    def _produce(self, message: bytes, key: bytes) -> None:
        try:
            self._parts.producer.produce(self._topic, message, key)
        except WalFullError as full:
            self._marking.make_room(full)
            self._parts.producer.produce(self._topic, message, key)

    def _messages(
        self, parked: Iterable[tuple[Segment, ParkedEvent]], replay_id: str
    ) -> Iterator[_Message]:
        objects = self._parts.objects
        if self._parents is None:
            name = self._partition.event_name
            for segment, one in parked:
                yield segment, name, *message_again(one, replay_id=replay_id, objects=objects)
            return
        for segment, event, came in self._parents.of(parked, replay_id):
            message = encode_again(event, came, objects=objects)
            yield segment, event.name, event.id, event.key.encode(), message, event.intake_minute

    def _trace(self, replay_id: str, first_id: int) -> None:
        """Write the traces of what is about to be marked: on disk before the mark is in the log.

        A run that died in between leaves traces of events that the next one sends under the same
        batch, as its first unit begins with the same segment; of two such the later one counts.
        """
        recorder, partition = self._parts.recorder, self._partition
        sent, self._untraced = self._untraced, []
        if recorder is None or not sent:
            return
        objects, names, ids, minutes = map(list, zip(*sent, strict=True))
        batch = traces(
            ids,
            pipeline_id=partition.pipeline_id,
            event_name=names,
            phase="replay",
            outcome="replayed",
            error_type=partition.error_type,
            at_us=time.time_ns() // 1000,
            topic=self._topic,
            object_key=objects,
            batch=f"replay:{replay_id}:{first_id}",
            replay_id=replay_id,
            intake_minute=minutes,
        )
        recorder.write([batch])
