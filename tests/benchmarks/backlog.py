"""A backlog of many small commits, loaded into PostgreSQL, against one commit of as many rows.

Both have a destination of their own, whose loads this process makes, with the settings of a new
installation; the clock runs from the start of the consumer until the tracker knows. In turn, medians.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.benchmarks.executors import stage_commits

COMMITS, QUICK_COMMITS = 2_000, 100
ROWS_EACH = 250


def measure_backlog(
    settings: Any, postgres: Any, *, commits: int, rounds: int
) -> dict[str, float | list[float]]:
    """Return how the rate of many commits compares to that of one, and their CPU.

    Args:
        settings: over the servers; the tracker and bucket are used, with destinations of their own.
        postgres: server of the destinations' databases.
        commits: how many.
        rounds: of both, in turn first.
    """
    from waybill.ledger import acquire_lease
    from waybill.storage import open_objects, open_tracker

    rows = commits * ROWS_EACH
    took: dict[str, list[tuple[float, float]]] = {"many": [], "one": []}
    sizes = {"many": [ROWS_EACH] * commits, "one": [rows]}
    with open_tracker(settings.tracker) as tracker:
        epoch = acquire_lease(tracker, "processing/events.t.w", holder="bench")
        objects = open_objects(settings.s3)
        for number in range(rounds):
            for kind in list(took)[:: -1 if number % 2 else 1]:
                name = f"backlog-{kind}-{number}"
                until = stage_commits(tracker, objects, epoch, name, sizes[kind])
                dsn = postgres.database(name.replace("-", "_"))
                took[kind].append(_load(tracker, objects, name, dsn, until))
    return {
        "backlog_2000_vs_1": _ratio(took["one"], took["many"], 0),
        "backlog_2000_vs_1_cpu": _ratio(took["many"], took["one"], 1),
        "backlog_rows": rows,
        "backlog_s": [round(wall, 2) for wall, _ in took["many"]],
        "backlog_one_commit_s": [round(wall, 2) for wall, _ in took["one"]],
    }


def _ratio(
    above: Sequence[tuple[float, float]], below: Sequence[tuple[float, float]], place: int
) -> float:
    pairs = zip(above, below, strict=True)
    return round(statistics.median(a[place] / b[place] for a, b in pairs), 3)


def _load(tracker: Any, objects: Any, name: str, dsn: str, until: int) -> tuple[float, float]:
    """Load all; return the seconds, and those of this process's CPU."""
    from waybill.destinations import open_destination
    from waybill.ledger import load_position
    from waybill.loading import Loader, LoadSizes, Patience
    from waybill.loading.spark.consumers import LoadingConsumer, Pauses
    from waybill.settings import DestinationSettings

    opening = partial(open_destination, name, DestinationSettings(dsn=dsn))
    loader = Loader(tracker, objects, opening, name=name)
    patience = Patience(loader, park_after_s=None, wait=threading.Event().wait)
    consumer = LoadingConsumer(
        tracker, loader, patience, sizes=LoadSizes(), pauses=Pauses(0.5, 2.0)
    )
    began, cpu = time.monotonic(), time.process_time()
    consumer.start()
    while load_position(tracker, name) < until:
        if not consumer.is_running:
            raise SystemExit(f"loading ended: {consumer.error}")
        time.sleep(0.01)
    took = time.monotonic() - began, time.process_time() - cpu
    while not consumer.end():
        time.sleep(0.05)
    consumer.close()
    return took
