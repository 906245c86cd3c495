"""Loading by Spark's executors: two against one, and what a small load costs in each place.

Four PostgreSQL databases, one destination each, get the same staged rows through the loading
application's own consumers; executors are processes of one core on this machine. Each destination
loads once before the clock runs. A small load has 100 rows: in the driver it is read and merged at
once, by an executor it is a Spark job.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

DESTINATIONS = 4
SMALL_ROWS, SMALL_LOADS = 100, 12
COMMIT_ROWS = 100_000
_STARTS = 5
"""Spark waits 10 s for a Python process that it started."""


def measure_executors(
    settings: Any, postgres: Any, folder: Path, *, rows: int, rounds: int
) -> dict[str, float]:
    """Return rows/s with one and two executors, their ratio, and milliseconds of small loads.

    Args:
        settings: over the servers; the tracker and bucket are used, with destinations of their own.
        postgres: server of the destinations' databases.
        folder: for Spark's files.
        rows: for each destination and run.
        rounds: of one executor and two, in turn; medians.
    """
    from waybill import services

    services.migrate(settings)
    per_s: dict[int, list[float]] = {1: [], 2: []}
    small: dict[str, float] = {}
    for number in range(rounds):
        for executors, found in per_s.items():
            run = ExecutorRun(settings, postgres, folder / f"{executors}-{number}", executors)
            with run.opened():
                found.append(run.rows_per_s(rows))
                if executors == 2 and not small:
                    small = run.small_loads()
    one, two = (statistics.median(found) for found in per_s.values())
    pairs = zip(per_s[1], per_s[2], strict=True)
    return {
        "loading_2_vs_1_executors": round(statistics.median(b / a for a, b in pairs), 3),
        "loading_1_executor_rows_per_s": round(one),
        "loading_2_executors_rows_per_s": round(two),
        **small,
    }


class ExecutorRun:
    """One session with so many executors, and destinations of its own."""

    def __init__(self, settings: Any, postgres: Any, folder: Path, executors: int) -> None:
        from waybill.settings import DestinationSettings

        self._names = [f"executors-{folder.name}-{place}" for place in range(DESTINATIONS)]
        destinations = {
            name: DestinationSettings(
                dsn=postgres.database(name.replace("-", "_")), loaded_by="executors"
            )
            for name in self._names
        }
        spark = {
            "master": f"local-cluster[{executors},1,1024]",
            "work_dir": folder,
            "trigger_ms": 0,
            "loading_max_cores": executors,
        }
        self._settings = settings.model_copy(
            update={
                "destinations": destinations,
                "spark": settings.spark.model_copy(update=spark),
                "traces": settings.traces.model_copy(update={"enabled": False}),
            }
        )
        self._staged: dict[str, int] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the session for as long as the block takes."""
        from waybill.clusters import ApplicationLease
        from waybill.ledger import acquire_lease
        from waybill.loading.spark.application import LoadingParts
        from waybill.loading.spark.staged_listener import StagedListener
        from waybill.processing.spark import open_session
        from waybill.storage import deployment_of, open_objects, open_tracker

        settings = self._settings
        with open_tracker(settings.tracker) as tracker:
            self._tracker, self._objects = tracker, open_objects(settings.s3)
            self._epoch = acquire_lease(tracker, "processing/events.t.w", holder="bench")
            self._spark = open_session(
                settings.spark, name="bench-loading", max_cores=settings.spark.loading_max_cores
            )
            try:
                lease = ApplicationLease.acquire(tracker, "loading", "default")
                deployment = deployment_of(tracker)
                with StagedListener(tracker) as listener:
                    self._parts = LoadingParts(
                        settings,
                        tracker,
                        self._spark,
                        self._objects,
                        None,
                        deployment,
                        lease,
                        listener,
                    )
                    yield
            finally:
                self._spark.stop()

    def rows_per_s(self, rows: int) -> float:
        """Load rows into all destinations, each by its own consumer."""
        from waybill.ledger import load_position

        consumers = [self._warm(name, load_position) for name in self._names]
        sizes = [min(COMMIT_ROWS, rows - at) for at in range(0, rows, COMMIT_ROWS)]
        bodies = [staged_body(1_000_000 + at * COMMIT_ROWS, n) for at, n in enumerate(sizes)]
        began = time.monotonic()
        last = {name: self._stage(name, sizes, bodies) for name in self._names}
        self._wait(last, consumers, load_position)
        took_s = time.monotonic() - began
        for consumer in consumers:
            _end(consumer)
        return rows * len(self._names) / took_s

    def small_loads(self) -> dict[str, float]:
        """Return the median time of a small load in the driver, and by an executor."""
        from waybill.ledger import load_position, staged_after
        from waybill.loading import Loader, Patience, loader
        from waybill.loading.spark.application import _open

        name = self._names[0]
        took: dict[str, list[float]] = {"driver": [], "task": []}
        with patch.object(loader, "is_small", lambda _rows, _size: False):
            for who, found in took.items():
                made = Loader(
                    self._tracker,
                    self._objects,
                    lambda: _open(self._settings, name),
                    name=name,
                    executors=self._parts.executors(name) if who == "task" else None,
                )
                patience = Patience(made, park_after_s=None, wait=threading.Event().wait)
                for _ in range(SMALL_LOADS):
                    last = self._stage(name, [SMALL_ROWS])
                    after = load_position(self._tracker, name)
                    waiting = staged_after(self._tracker, name, after=after, until=last)
                    began = time.monotonic()
                    patience.deliver(waiting, after=after, until=last)
                    found.append((time.monotonic() - began) * 1000)
                made.close()
        return {
            f"small_load_{who}_ms": round(statistics.median(found[2:]), 1)
            for who, found in took.items()
        }

    def _warm(self, name: str, load_position: Any) -> Any:
        """Start a destination's consumer and load once; again where a busy machine is too slow."""
        last = {name: self._stage(name, [5_000])}
        for _ in range(_STARTS - 1):
            consumer = self._start(name)
            try:
                self._wait(last, [consumer], load_position)
            except SystemExit as error:
                sys.stderr.write(f"{name} is started again: {error}\n")
                _end(consumer)
            else:
                return consumer
        consumer = self._start(name)
        self._wait(last, [consumer], load_position)
        return consumer

    def _start(self, name: str) -> Any:
        consumer = self._parts.consumer(name, wait=threading.Event().wait)
        consumer.start()
        return consumer

    def _wait(self, last: dict[str, int], consumers: Sequence[Any], load_position: Any) -> None:
        while any(load_position(self._tracker, name) < until for name, until in last.items()):
            if ended := [one for one in consumers if not one.is_running]:
                raise SystemExit(f"loading ended: {ended[0].error}")
            time.sleep(0.05)

    def _stage(self, name: str, sizes: Sequence[int], bodies: Sequence[bytes] = ()) -> int:
        """Commit a batch of each size for a destination; return the last commit's number."""
        first = self._staged.get(name, 0)
        self._staged[name] = first + sum(sizes)
        return stage_commits(
            self._tracker, self._objects, self._epoch, name, sizes, first=first, bodies=bodies
        )


def stage_commits(
    tracker: Any,
    objects: Any,
    epoch: int,
    name: str,
    sizes: Sequence[int],
    *,
    first: int = 0,
    bodies: Sequence[bytes] = (),
) -> int:
    """Commit a batch of each size for a destination; return the last commit's number.

    Args:
        tracker: the books.
        objects: where staged objects are put.
        epoch: of the processing consumer.
        name: the destination's.
        sizes: in rows.
        first: number of the first order.
        bodies: of the staged objects; empty: they are made.
    """
    from tests.support.books import batch, nothing_parked

    from waybill.ledger import commit_batch
    from waybill.ledger.commit import StagedObject

    last = 0
    for place, rows in enumerate(sizes):
        key = f"staged/{uuid.uuid4()}.wbs"
        body = bodies[place] if bodies else staged_body(first, rows)
        objects.put(key, body)
        first += rows
        done = batch(
            epoch, topic=f"events.{name}", topic_id=name, destination=name,
            staged=[StagedObject(key, rows, len(body))],
        )  # fmt: skip
        last = commit_batch(tracker, done, nothing_parked)
    return last


def staged_body(first: int, rows: int) -> bytes:
    """Return a staged object with orders that are numbered from ``first``."""
    import pyarrow as pa

    from waybill.pipelines import Column, TableSpec
    from waybill.processing import StagedPacker
    from waybill.processing.staged import SYSTEM_FIELDS, StagedHead

    kinds = {"number": "int64", "customer": "string", "amount": "float64", "status": "string"}
    columns = tuple(
        Column(name=name, type=kind, nullable=name != "number") for name, kind in kinds.items()
    )
    spec = TableSpec(schema_name="bench", name="orders", columns=columns, key=("number",))
    numbers = range(first, first + rows)
    own = [
        pa.array(numbers, pa.int64()),
        pa.array([f"customer-{n % 9973}" for n in numbers]),
        pa.array([n / 100 for n in numbers]),
        pa.repeat("PLACED", rows),
    ]
    values = {
        "_waybill_id": pa.array([f"order-{n}" for n in numbers]),
        "_waybill_key": pa.array([f"[{n}]" for n in numbers]),
        "_waybill_source_version": pa.repeat(pa.scalar(0, pa.int64()), rows),
        "_waybill_intake_version": pa.array(numbers, pa.int64()),
        "_waybill_intake_minute": pa.repeat(pa.scalar(29_920_926, pa.int32()), rows),
        "_waybill_op": pa.repeat("upsert", rows),
        "_waybill_replayed": pa.repeat(pa.scalar(value=False), rows),
        "_waybill_replay": pa.nulls(rows, pa.string()),
        "_waybill_attempt": pa.repeat(pa.scalar(0, pa.int32()), rows),
    }
    schema = pa.schema([*spec.arrow_schema(), *SYSTEM_FIELDS])
    packer = StagedPacker()
    packer.add(
        head=StagedHead("bench-orders", "bench", "order", "v1", spec),
        batch=pa.RecordBatch.from_arrays([*own, *values.values()], schema=schema),
    )
    return packer.finish()


def _end(consumer: Any) -> None:
    while not consumer.end():
        time.sleep(0.05)
    consumer.close()
