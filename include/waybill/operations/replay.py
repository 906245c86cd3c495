"""Replay: a parked partition's segments back to their topic, in the order they were written.

Groups of segments (``parking.merging``) go through the lossless producer; after each comes a mark,
and once all before it is acknowledged the group's segments are marked ``replayed`` in the tracker.
Killed anywhere, a run with the same run id resumes: marks found in the log are settled first,
events found behind the last mark are not sent again. An event that Kafka refuses for good is parked
again: see ``undeliverable``. A damaged segment is set apart before the first event of its group is
sent; the rest goes on, and the report says so.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

import msgspec
import orjson

from waybill.errors import InputError, ParkError, RetryError
from waybill.events import Event, decode
from waybill.operations.claims import encode_again, next_attempt
from waybill.operations.entering import (
    Parents,
    books,
    enters_earlier,
    readable,
    refuse_without_source,
)
from waybill.operations.governor import Governor, Watch
from waybill.operations.replayable import refuse_held, refuse_ingestion
from waybill.operations.undeliverable import Undeliverable
from waybill.parking import ParkedEvent, Parking, Replay, ReplayConditions, Segment
from waybill.pipelines import Pipeline, topic_of
from waybill.producer import LosslessProducer
from waybill.storage import ObjectStore
from waybill.tracing import Recorder, traces

_FLUSH_S = 60.0


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to send back, and who asks."""

    partition_id: int
    who: str
    run_id: str
    conditions: ReplayConditions = field(default_factory=ReplayConditions)
    rate_per_s: int | None = None
    step: str = ""
    """Of a canary."""
    enter: str | None = None
    """``transformation``: what parked at mapping goes back as the parents that it was made from."""
    governed: bool = True
    """Its rate follows the live lag, if the parts have a watch: see ``governor``."""


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
        """Return what kept this replay from sending all it was asked for, in words; empty: none."""
        if not self.quarantined:
            return ""
        return (
            f"{self.quarantined:,} events of partition {self.partition_id} were not sent back: "
            "their parked files are damaged or gone from the store, and they are quarantined; all "
            f"else was sent ({self.events - self.quarantined:,} events). "
            "Restore the objects that the log and the "
            "notices name, then `waybill parked recheck`, then replay again"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


@dataclass(slots=True)
class ReplayParts:
    """What a replay stands on, opened."""

    parking: Parking
    producer: LosslessProducer
    pipeline: Pipeline
    recorder: Recorder | None = None
    undeliverable: Undeliverable | None = None
    """Parks what Kafka refuses, if the producer was opened with it; else that stops the run."""
    on_progress: Callable[[int, int], None] | None = None
    objects: ObjectStore | None = None
    """For payloads that are too large to travel; None: they travel all the same."""
    watch: Watch | None = None
    """Sees how the topic stands; without it no replay is governed."""


def replay(parts: ReplayParts, request: ReplayRequest) -> ReplayReport:
    """Send a partition's parked segments back; resumes when run again with the same run id.

    Raises:
        RetryError: another replay of the partition runs, or Kafka or the tracker is away.
        InputError: what is parked there never was an event; or its pipeline is held, and this run
            has not begun; or it was cancelled.
    """
    return _Run(parts, request).run()


class _Run:
    def __init__(self, parts: ReplayParts, request: ReplayRequest) -> None:
        self._parts = parts
        self._request = request
        self._topic = topic_of(parts.pipeline)
        self._partition = parts.parking.partition(request.partition_id)
        self._sent = self._resumed = 0
        earlier = enters_earlier(request.enter, self._partition.stage, parts.pipeline)
        self._parents = Parents(self._partition) if earlier else None

    def run(self) -> ReplayReport:
        began = time.monotonic()
        parts, request = self._parts, self._request
        refuse_ingestion(self._partition.stage, self._partition.error_type)
        self._settle_marks()
        if parts.parking.replay_step(request.partition_id, request.run_id, request.step) is None:
            refuse_held(parts.parking, self._partition.pipeline_id)
        begun = parts.parking.begin_replay(
            request.partition_id,
            who=request.who,
            run_id=request.run_id,
            conditions=request.conditions,
            rate_per_s=request.rate_per_s,
            step=request.step,
        )
        if self._parents is not None:
            self._ready(self._parents, begun)
        unfinished = self._unfinished(str(begun.id))
        pace = Governor(parts.watch if request.governed else None, request.rate_per_s)
        for group in parts.parking.replay_groups(begun.id):
            self._group(begun.id, group, unfinished, pace)
            unfinished = Counter()
        ended = parts.parking.finish_replay(begun.id)
        return ReplayReport(
            partition_id=request.partition_id,
            replay_id=str(ended.id),
            state=ended.state,
            segments=parts.parking.replay_size(ended.id),
            events=ended.events,
            sent=self._sent,
            resumed=self._resumed,
            refused=parts.undeliverable.parked if parts.undeliverable else 0,
            quarantined=ended.quarantined,
            seconds=round(time.monotonic() - began, 2),
        )

    def _settle_marks(self) -> None:
        """Tell the tracker of segments that a dead run finished; recovery acknowledged them.

        Before the replay begins: what another replay took can no longer be marked.
        """
        producer = self._parts.producer
        for lsn, payload in producer.recovered.marks:
            mark = orjson.loads(payload)
            marked = mark.get("segments") or [mark["segment"]]
            beside = books(mark, self._partition)
            self._parts.parking.mark_replayed(UUID(mark["replay"]), marked, beside)
            producer.confirm(lsn)

    def _ready(self, parents: Parents, begun: Replay) -> None:
        """See that each event has a source, before any is sent; else the replay is cancelled."""
        parking = self._parts.parking
        try:
            refuse_without_source(readable(parking, begun.id), " Nothing was sent.")
        except InputError:
            parking.cancel_replay(begun.id, who=self._request.who)
            raise
        if begun.sent:
            parents.resume(parking, begun.id)

    def _unfinished(self, replay_id: str) -> Counter[str]:
        """Return the ids behind the log's last mark: the beginning of an unfinished group."""
        found: Counter[str] = Counter()
        for record in self._parts.producer.recovered.unmarked:
            event = decode(record.value or b"")
            if event.replay_id == replay_id:
                found[event.id] += 1
        return found

    def _group(
        self, replay_id: UUID, group: list[Segment], unfinished: Counter[str], pace: Governor
    ) -> None:
        parts = self._parts
        reading = parts.parking.read_group(group)
        if reading.damaged:
            parts.parking.quarantine(replay_id, reading.damaged)
        if not reading.segments:
            return
        sent: dict[str, list[str]] = defaultdict(list)
        for segment, event, came in self._events(reading.events, str(replay_id)):
            if unfinished[event.id] > 0:
                unfinished[event.id] -= 1
                self._resumed += 1
                continue
            pace.wait()
            value = encode_again(event, came, objects=parts.objects)
            parts.producer.produce(self._topic, value, event.key.encode())
            sent[segment.object_key].append(event.id)
        self._sent += sum(map(len, sent.values()))
        self._trace(sent, reading.segments[0].id, str(replay_id))
        self._mark(replay_id, reading.segments)

    def _events(
        self, parked: Iterable[tuple[Segment, ParkedEvent]], replay_id: str
    ) -> Iterator[tuple[Segment, Event, bytes]]:
        if self._parents is not None:
            return self._parents.of(parked, replay_id)
        return ((at, returning(one, replay_id=replay_id), one.value) for at, one in parked)

    def _mark(self, replay_id: UUID, segments: Sequence[Segment]) -> None:
        parts, ids = self._parts, [segment.id for segment in segments]
        mark: dict[str, Any] = {"replay": str(replay_id), "segments": ids}
        if self._parents is not None:
            mark["earlier"] = self._parents.said()
        lsn = parts.producer.mark(orjson.dumps(mark))
        if left := parts.producer.flush(_FLUSH_S):
            raise RetryError(f"{left} events wait for Kafka; the next run goes on from here")
        beside = books(mark, self._partition)
        still_wanted = parts.parking.mark_replayed(replay_id, ids, beside)
        parts.producer.confirm(lsn)
        if not still_wanted:
            raise InputError(f"replay {replay_id} was cancelled; what is left stays parked")
        if parts.on_progress is not None:
            parts.on_progress(self._sent, sum(segment.count for segment in segments))

    def _trace(self, sent: dict[str, list[str]], first_id: int, replay_id: str) -> None:
        recorder, partition = self._parts.recorder, self._partition
        if recorder is None:
            return
        at_us = time.time_ns() // 1000
        for object_key, ids in sent.items():
            batch = traces(
                ids,
                pipeline_id=partition.pipeline_id,
                event_name=partition.event_name,
                phase="replay",
                outcome="replayed",
                error_type=partition.error_type,
                at_us=at_us,
                topic=self._topic,
                object_key=object_key,
                batch=f"replay:{replay_id}:{first_id}",
                replay_id=replay_id,
            )
            recorder.write([batch])


def returning(parked: ParkedEvent, *, replay_id: str) -> Event:
    """Return a parked event as it goes back: same id and versions, entering where it failed.

    One that Kafka refused when it was taken in enters where it would have entered then.

    Raises:
        InputError: its bytes are no event, so there is no stage that could take them.
    """
    try:
        event = decode(parked.value)
    except ParkError as error:
        raise InputError(
            f"parked bytes are not a Waybill event ({error.message}); mend the producer that wrote "
            "them and discard these"
        ) from error
    stage = event.stage if parked.stage == "ingestion" else parked.stage
    return msgspec.structs.replace(
        event, stage=stage, attempt=next_attempt(parked), replay_id=replay_id
    )
