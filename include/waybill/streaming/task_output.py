"""What a task writes: a staged object, a parked object and traces.

Failures and ends of events are taken from the chain chunk by chunk, and kept as the lines and
traces they will be: as objects they take four times as much.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa

from waybill.parking import Identity, Packer, ParkedEvent, identify, new_key
from waybill.parking.segment_stream import write_segments
from waybill.stages import ChainResult, Failure, Fault
from waybill.storage import ObjectStore
from waybill.streaming.storms import Tally
from waybill.streaming.task_traces import trace_batches
from waybill.tracing import Recorder

STORE_AWAY_LIMIT_S = 600.0
"""How long a task waits for an object store that is away before it fails (and is run again)."""
_LOG_ORDER = attrgetter("partition", "offset")


class TaskOutput:
    """Collects what came of one task's chunks, and writes it.

    Args:
        known: ids of the pipelines that are deployed.
        traced: whether traces are kept.
    """

    def __init__(self, *, topic: str, batch_id: str, known: Collection[str], traced: bool) -> None:
        self._topic = topic
        self._batch_id = batch_id
        self._traced = traced
        self._staged_key = f"staged/{datetime.now(UTC):%Y/%m/%d}/{uuid.uuid4()}.wbs"
        self._parked_key = new_key()
        self._packer = Packer()
        self._tally = Tally(known)
        self._traces: list[pa.RecordBatch] = []

    def take(self, result: ChainResult) -> None:
        """Take the failures and ends of events that a chain has so far; the chain forgets them."""
        now = datetime.now(UTC)
        if self._traced:
            self._traces += trace_batches(
                result,
                topic=self._topic,
                batch_id=self._batch_id,
                staged_key=self._staged_key,
                parked_key=self._parked_key,
                now=now,
            )
        self._tally.add(result.failures)
        result.failures.sort(key=_LOG_ORDER)
        at = now.isoformat().replace("+00:00", "Z")
        for failure in result.failures:
            self._packer.add(self._parked_event(failure, at), _identity(failure))
        result.failures.clear()
        result.mapped.clear()
        result.transformed.clear()

    def write(
        self, result: ChainResult, *, objects: ObjectStore, recorder: Recorder
    ) -> tuple[dict[str, Any], bytes]:
        """Write objects and traces; return their descriptor, and the stream of parked segments.

        A crash in here leaves only garbage: nothing names what was written.
        """
        stream = b""
        descriptor: dict[str, Any] = {
            "counts": result.counts.to_json(),
            "failures": self._tally.rows(),
            "staged": None,
            "parked": None,
        }
        if rows := result.staged.rows:
            body = result.staged.finish()
            objects.put_waiting(self._staged_key, body, limit_s=STORE_AWAY_LIMIT_S)
            descriptor["staged"] = {"key": self._staged_key, "rows": rows, "bytes": len(body)}
        if self._packer.count:
            body, segments = self._packer.finish()
            objects.put_waiting(self._parked_key, body, limit_s=STORE_AWAY_LIMIT_S)
            descriptor["parked"] = {"key": self._parked_key, "size": len(body)}
            del body
            stream = write_segments(segments)
            del segments
        recorder.write(self._traces)
        return descriptor, stream

    def _parked_event(self, failure: Failure, at: str) -> ParkedEvent:
        fault = failure.fault
        return ParkedEvent(
            pipeline_id=failure.pipeline_id,
            event_name=failure.event_name,
            stage=failure.stage,
            error_type=fault.code,
            message=fault.message,
            where=fault.where,
            stack_hash=fault.stack_hash,
            pipeline_version=failure.pipeline_version,
            event_at=failure.event_at,
            parked_at=at,
            topic=self._topic,
            kafka_partition=failure.partition,
            kafka_offset=failure.offset,
            attempt=failure.attempt,
            value=failure.value,
            errors=_errors(fault),
            source=failure.source,
        )


def _identity(failure: Failure) -> Identity | None:
    return identify(
        failure.event_id,
        source_version=failure.source_version,
        intake_version=failure.intake_version,
        minute=failure.intake_minute,
        replay_id=failure.replay_id,
    )


def _errors(fault: Fault) -> list[dict[str, str]]:
    """Return all errors of an event; none where there is only the first."""
    if not fault.others:
        return []
    return [
        {"error_type": one.code, "message": one.message, "where": one.where}
        for one in (fault, *fault.others)
    ]
