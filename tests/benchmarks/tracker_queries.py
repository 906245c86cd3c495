"""What runs each minute on the tracker, with 1,000,000 committed batches in its books.

Each is run some times; the figures are medians in milliseconds. A commit is a transaction of its
own, as processing and loading make it. Kafka's part is a request for its topics.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import servers
from tests.support.books import open_books
from tests.support.minutely import Minutely

from waybill.settings import KafkaSettings
from waybill.storage import open_log

BATCHES, QUICK_BATCHES = 1_000_000, 50_000
WAITING = 500
TIMES, QUICK_TIMES = 20, 5


def measure(*, quick: bool, home: Path) -> dict[str, Any]:
    """Fill the books and time what is asked of them; return the figures."""
    batches, times = (QUICK_BATCHES, QUICK_TIMES) if quick else (BATCHES, TIMES)
    home.mkdir(parents=True, exist_ok=True)
    with (
        servers.started(servers.start_postgres, home) as postgres,
        servers.started(servers.start_kafka, home) as kafka,
        open_books(postgres, "queries") as tracker,
    ):
        log = open_log(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        began = time.monotonic()
        minutely = Minutely(tracker, log, home, commits=batches, waiting=WAITING)
        figures: dict[str, Any] = {
            "tracker_batches": batches,
            "tracker_fill_s": round(time.monotonic() - began, 1),
        }
        for name, job in minutely.jobs().items():
            figures[f"{name}_ms"] = _median_ms(job, times)
    return figures


def _median_ms(job: Callable[[], object], times: int) -> float:
    job()
    took = []
    for _ in range(times):
        began = time.monotonic()
        job()
        took.append((time.monotonic() - began) * 1000)
    return round(statistics.median(took), 2)
