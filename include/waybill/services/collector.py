"""The HTTP collector, opened: ``uvicorn`` runs it, a process a worker."""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from waybill.services.environment import node_of, open_recording
from waybill.settings import Settings
from waybill.storage import (
    librdkafka_config,
    open_log,
    open_owned_objects,
    open_tracker,
    refuse_foreign_bucket,
)
from waybill.waiting import nobody_waiting

if TYPE_CHECKING:
    from waybill.collector import Collector

_KEEP_ALIVE_S = 30
_GRACE_S = 5


def collector_application() -> Collector:
    """Return one worker's application, for the settings of this process."""
    from waybill.collector import Collector, Stores
    from waybill.collector.catalog import Catalog

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings = Settings()
    tracker = open_tracker(settings.tracker)
    stores = Stores(
        tracker=tracker,
        log=open_log(settings.kafka),
        objects=open_owned_objects(settings),
        recorder=open_recording(settings),
        wal=settings.wal,
        kafka=librdkafka_config(settings.kafka),
        node=node_of(settings),
    )
    catalog = Catalog(tracker, events_per_s=settings.collector.events_per_s)
    return Collector(stores, settings.collector, catalog)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def run_collector(settings: Settings) -> None:
    """Serve until a signal ends it: SIGTERM and SIGINT let requests end, and settle the logs.

    Args:
        settings: those that the environment gives; workers read them there again.

    Raises:
        ForeignBucketError: the bucket belongs to another deployment.
    """
    import uvicorn

    from waybill.collector import LimitedProtocol

    refuse_foreign_bucket(settings)
    signal.signal(signal.SIGTERM, _end)  # uvicorn raises it again once it has stopped
    own = settings.collector
    with nobody_waiting():
        uvicorn.run(
            "waybill.services.collector:collector_application",
            factory=True,
            host=own.host,
            port=own.port,
            workers=own.workers,
            http=LimitedProtocol,
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=own.connections,
            h11_max_incomplete_event_size=own.header_bytes,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S + int(own.answer_s),
            log_level="info",
        )
