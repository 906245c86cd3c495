"""What a task writes of one topic: a staged object, a parked object and traces.

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

from waybill.parking import Packer, new_key, write_segments
from waybill.processing import ChainResult, Tally, identity_of, parked_event, trace_batches
from waybill.storage import ObjectStore

STORE_AWAY_LIMIT_S = 600.0
"""How long a task waits for an object store that is away before it fails (and is run again)."""
_LOG_ORDER = attrgetter("partition", "offset")


class TaskOutput:
    """Collects what came of a topic's chunks in one task, and writes it.

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
        self.traces: list[pa.RecordBatch] = []
        """To be recorded once the objects are written."""

    def take(self, result: ChainResult) -> None:
        """Take the failures and ends of events that a chain has so far; the chain forgets them."""
        now = datetime.now(UTC)
        if self._traced:
            self.traces += trace_batches(
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
            self._packer.add(parked_event(failure, self._topic, at), identity_of(failure))
        result.failures.clear()
        result.mapped.clear()
        result.transformed.clear()

    def drop(self) -> None:
        """Let go of all that was taken: nothing is to be written."""
        self._packer, self._tally = Packer(), Tally(())
        self.traces.clear()

    def write(self, result: ChainResult, objects: ObjectStore) -> tuple[dict[str, Any], bytes]:
        """Write the objects; return their descriptor, and the stream of parked segments.

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
            descriptor["staged"] = {
                "key": self._staged_key,
                "rows": rows,
                "bytes": len(body),
                "row_bytes": result.staged.row_bytes,
            }
        if self._packer.count:
            body, segments = self._packer.finish()
            objects.put_waiting(self._parked_key, body, limit_s=STORE_AWAY_LIMIT_S)
            descriptor["parked"] = {"key": self._parked_key, "size": len(body)}
            del body
            stream = write_segments(segments)
            del segments
        return descriptor, stream
