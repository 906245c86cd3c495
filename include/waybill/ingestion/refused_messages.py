"""Messages that Kafka refuses for good: parked whole, once, with the books set right.

Ingestion counts an event as passed on when its page is committed, whatever Kafka says later. A
refusal takes that back (passed -1, out -1, parked +1) in the transaction that records the parked
segment and the message's log and lsn. It may come before the page's commit, after it, or while the
next process opens the log: the sums are the same. A replayed event is parked again at the stage
where it was to enter, whoever opens the log it was left in; one that had been parked at ingestion,
there (in_replayed +1, parked +1).

Who dies when: after the object is stored, or the trace written, they are garbage, and the producer
hands the message over again; its second trace names the same batch, which is this one message.
After the transaction, the same: then the message is known by its log and lsn, and nothing is
written.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from sqlalchemy import Connection

from waybill.errors import ParkError, StopError
from waybill.events import Event, decode, rfc3339
from waybill.ledger import Refusal, commit_refusal, knows_refusal, refused_lsns
from waybill.parking import Packer, ParkedEvent, Parking, identify, new_refused_key
from waybill.processing import Counts
from waybill.producer import Undelivered
from waybill.storage import ObjectStore, TrackerStore
from waybill.tracing import Recorder, traces

_ERROR_TYPES = {
    "MSG_SIZE_TOO_LARGE": "delivery_too_large",
    "RECORD_LIST_TOO_LARGE": "delivery_too_large",
    "INVALID_MSG_SIZE": "delivery_too_large",
    "_UNKNOWN_TOPIC": "delivery_topic_unknown",
    "UNKNOWN_TOPIC_OR_PART": "delivery_topic_unknown",
    "UNKNOWN_TOPIC_ID": "delivery_topic_unknown",
    "_UNKNOWN_PARTITION": "delivery_topic_unknown",
    "TOPIC_AUTHORIZATION_FAILED": "delivery_unauthorized",
    "CLUSTER_AUTHORIZATION_FAILED": "delivery_unauthorized",
}


def delivery_error(code: str) -> str:
    """Return the error type for Kafka's name of an error."""
    return _ERROR_TYPES.get(code, "delivery_refused")


class Undeliverable:
    """Takes what Kafka refuses; its ``park`` is a producer's ``on_undeliverable``.

    Args:
        tracker: the books.
        parking: the parked events.
        objects: where they go.
        pipeline_version: of the pipeline whose events are produced.
        stage: of the partition replayed, or ``ingestion``.
        recorder: for the traces.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        parking: Parking,
        objects: ObjectStore,
        *,
        pipeline_version: str,
        stage: str = "ingestion",
        recorder: Recorder | None = None,
    ) -> None:
        self._tracker = tracker
        self._parking = parking
        self._objects = objects
        self._pipeline_version = pipeline_version
        self._stage = stage
        self._recorder = recorder
        self.parked = 0
        """Messages parked by this process."""

    def taken(self, wal_id: str, from_lsn: int) -> set[int]:
        """Return what was parked of a log, from an lsn on; a producer's ``was_taken``.

        Raises:
            RetryError: the tracker is away.
        """
        return refused_lsns(self._tracker, wal_id, from_lsn)

    def park(self, refused: Undelivered) -> None:
        """Park a message; again changes nothing. Any thread, one call at a time.

        Raises:
            RetryError: the tracker or the object store is away; call again.
            StopError: the message is no event, so it is not of Waybill's own log.
        """
        if knows_refusal(self._tracker, refused.wal_id, refused.lsn):
            return
        event = _event(refused)
        parked = self._parked_event(refused, event)
        packer = Packer()
        identity = identify(
            event.id,
            source_version=event.source_version,
            intake_version=event.intake_version,
            minute=event.intake_minute,
            replay_id=event.replay_id,
        )
        packer.add(parked, identity)
        packed = packer.finish()
        key = new_refused_key(refused.wal_id, refused.lsn)
        self._objects.put(key, packed.body)

        def record(connection: Connection, number: int) -> list[str]:
            self._parking.record(
                connection,
                key=key,
                size=len(packed.body),
                segments=packed.segments,
                scope=f"ingestion/{event.pipeline_id}",
                commit_number=number,
            )
            return [key]

        counts = list(self._counts(event).by_pipeline())
        replayed = {}
        if event.attempt and event.replay_id:
            replayed[event.replay_id, event.name, self._stage_of(event)] = 1
        refusal = Refusal(refused.wal_id, refused.lsn, event.pipeline_id, key, counts, replayed)
        self._trace(refused, event, parked.error_type, key)
        if commit_refusal(self._tracker, refusal, record):
            self.parked += 1

    def _stage_of(self, event: Event) -> str:
        """Return where an event is parked: where its own replay meant it to enter.

        The log may hold what another replay of the partition left, which entered elsewhere.
        """
        if event.attempt and self._stage != "ingestion":
            return event.stage
        return self._stage

    def _counts(self, event: Event) -> Counts:
        counts = Counts()
        key = (event.pipeline_id, event.name, self._stage_of(event), event.intake_minute)
        counts.add(key, "parked")
        if event.attempt:
            counts.add(key, "in_replayed")
        else:
            counts.add(key, "passed", -1)
            counts.add(key, "out", -1)
        return counts

    def _parked_event(self, refused: Undelivered, event: Event) -> ParkedEvent:
        return ParkedEvent(
            pipeline_id=event.pipeline_id,
            event_name=event.name,
            stage=self._stage_of(event),
            error_type=delivery_error(refused.code),
            message=f"{refused.code}: {refused.message}",
            where=refused.topic,
            stack_hash="",
            pipeline_version=self._pipeline_version,
            event_at=event.time,
            parked_at=rfc3339(datetime.now(UTC)),
            topic="",
            kafka_partition=-1,
            kafka_offset=refused.lsn,
            attempt=event.attempt,
            value=refused.value or b"",
        )

    def _trace(self, refused: Undelivered, event: Event, error_type: str, key: str) -> None:
        if self._recorder is None:
            return
        batch = traces(
            [event.id],
            pipeline_id=event.pipeline_id,
            event_name=event.name,
            phase=self._stage_of(event),
            outcome="parked",
            error_type=error_type,
            at_us=time.time_ns() // 1000,
            topic=refused.topic,
            object_key=key,
            batch=f"refused:{refused.wal_id}:{refused.lsn}",
            attempt=event.attempt,
            replay_id=event.replay_id,
            intake_minute=event.intake_minute,
        )
        self._recorder.write([batch])


def _event(refused: Undelivered) -> Event:
    try:
        return decode(refused.value or b"")
    except ParkError as error:
        raise StopError(
            f"record {refused.lsn} of log {refused.wal_id} is no Waybill event ({error.message}); "
            "it stays in the log"
        ) from error
