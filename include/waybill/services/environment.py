"""Opening what use cases stand on."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from waybill.settings import Settings
from waybill.storage import (
    check_owner,
    deployment_id,
    librdkafka_config,
    open_objects,
    open_owned_objects,
    open_tracker,
)

if TYPE_CHECKING:
    from waybill.ingestion import Undeliverable, WaitLimit
    from waybill.inspection import ParkedEventsService
    from waybill.parking import Parking
    from waybill.producer import FoundLog, LosslessProducer
    from waybill.tracing import Recorder


KAFKA_WAIT_S = 120.0
"""Longest that a use case waits for Kafka to come up."""
_RUN_SEGMENT_BYTES = 16 * 1024**2
"""Largest segment of a run's log, and"""
_RUN_QUEUE_KB = 64 * 1024
"""librdkafka's queue of a run, in KiB: several times what a broker takes while a page is read."""


def current_user() -> str:
    """Return who runs this process, for the audit log."""
    return pwd.getpwuid(os.getuid()).pw_name


def migrate(settings: Settings) -> None:
    """Bring the tracker's tables to this version; make the bucket, and claim it if it is nobody's.

    Raises:
        ForeignBucketError: the bucket belongs to another deployment.
    """
    with open_tracker(settings.tracker) as tracker:
        tracker.migrate()
    open_objects(settings.s3).ensure_bucket()
    check_owner(open_objects(settings.s3), deployment_id(settings.tracker))


@contextmanager
def opened_parking(settings: Settings) -> Iterator[Parking]:
    """Open the parked events."""
    from waybill.parking import Parking

    with open_tracker(settings.tracker) as tracker:
        yield Parking(tracker, open_owned_objects(settings))


@contextmanager
def opened_parked_events(settings: Settings) -> Iterator[ParkedEventsService]:
    """Open the service by which people look at parked events and decide."""
    from waybill.inspection import ParkedEventsService

    with open_tracker(settings.tracker) as tracker:
        yield ParkedEventsService(
            tracker, open_owned_objects(settings), settings.destinations, settings.s3
        )


def node_of(settings: Settings) -> str:
    """Return the name of this node."""
    return settings.wal.node or socket.gethostname()


def open_producer(
    settings: Settings,
    name: str,
    refused: Undeliverable,
    claim: Callable[[FoundLog], bool],
    *,
    wait: WaitLimit | None = None,
) -> LosslessProducer:
    """Return the producer of a run: what Kafka refuses is parked, and ``claim`` takes the log.

    Its waits for Kafka, also while it opens, end as ``wait`` says; None: they do not. Its memory is
    kept small: what waits for Kafka is in mapped segments of the log and in librdkafka's queue.
    """
    from waybill.producer import LosslessProducer

    class RunProducer(LosslessProducer):
        def _while_waiting(self, mark: int) -> None:
            if wait is not None:
                wait.check(mark)

    segment_bytes = min(settings.wal.segment_bytes, _RUN_SEGMENT_BYTES)
    return RunProducer(
        settings.wal.model_copy(update={"segment_bytes": segment_bytes}),
        {"queue.buffering.max.kbytes": _RUN_QUEUE_KB, **librdkafka_config(settings.kafka)},
        name=name,
        on_undeliverable=refused.park,
        was_taken=refused.taken,
        marks=True,
        claim=claim,
    )


def open_recording(settings: Settings) -> Recorder | None:
    """Return the recorder of traces; None: they are switched off."""
    from waybill.tracing import open_recorder

    return open_recorder(settings.traces) if settings.traces.enabled else None
