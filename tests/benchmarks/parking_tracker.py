"""The tracker with 500,000 partitions and 5,000,000 segments: lists, discards, recording, clean-up.

Lists: a mix of filters, each dimension, combinations, both windows, fingerprints, teams, each order
and pages deep inside; ``held``, as the page and the CLI ask. Each kind is asked several times with
other values, once alone and once while a writer commits 200 segments a time without a pause.
``list_p95_ms`` is of all lists beside the writer. The discard, and its undoing, is one call on the
error type of an outage: an eighth of all segments, about 500,000 parked ones at full size, in
partitions of their own: a mark a partition. The undoing takes the marks away, and brings back row
by row what had been discarded there before, about 30,000 at full size. What names a window or a
fingerprint is written row by row too, and takes minutes for as many.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from tests.benchmarks.home import opened_home
from tests.benchmarks.parking_fill import STORM, Size, fill, settle

from waybill.access import Decision
from waybill.parking import ObjectDescriptor, ParkedGroupFilter, Parking, new_key
from waybill.parking.packed import SegmentDescriptor
from waybill.settings import TrackerSettings
from waybill.storage import ObjectStore, TrackerStore

FULL, QUICK = Size(500_000, 5_000_000), Size(5_000, 50_000)
ROUNDS = 6
_END = datetime(2026, 1, 1, tzinfo=UTC)
_COMMIT_SEGMENTS = 200
BY = Decision("bench", "measured")


def run(size: Size, dsn: str, *, is_filled: bool = False) -> dict[str, Any]:
    """Fill the tracker at ``dsn`` and measure; times of lists in ms, of the rest in s."""
    with TrackerStore(TrackerSettings(dsn=dsn)) as tracker:
        tracker.migrate()
        began = time.perf_counter()
        if not is_filled:
            fill(tracker, size)
        report: dict[str, Any] = {
            "partitions": size.partitions,
            "segments": size.segments,
            "fill_s": _s(began),
        }
        parking = Parking(tracker, cast(ObjectStore, None))  # nothing of this reads objects
        lists = _lists(tracker, parking, size)
        with _writer(tracker, parking) as written:
            loaded = _lists(tracker, parking, size)
        everything = list(itertools.chain.from_iterable(loaded.values()))
        report["list_p95_ms"] = _p95(everything)
        report["list_alone_p95_ms"] = _p95(list(itertools.chain.from_iterable(lists.values())))
        report["list_worst_ms"] = round(max(everything), 1)
        report["lists_ms"] = {kind: _p95(values) for kind, values in loaded.items()}
        report["record_us_per_segment"] = round(statistics.median(written), 1)
        report |= _decided(tracker, parking)
    return report


def _lists(tracker: TrackerStore, parking: Parking, size: Size) -> dict[str, list[float]]:
    """Return ms of each call, by kind."""
    draw = random.Random(7)
    rows = _some_names(tracker, size)
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for kind, wanted, order in _kinds(draw, rows):
            after = None
            for _page in range(3 if "page" in kind else 1):
                began = time.perf_counter()
                page = parking.page(wanted, after=after, limit=50, **order)
                found.setdefault(kind, []).append((time.perf_counter() - began) * 1000)
                after = page.next
                if after is None:
                    break
    return found


def _kinds(
    draw: random.Random, rows: list[Any]
) -> Iterator[tuple[str, ParkedGroupFilter, dict[str, Any]]]:
    one = draw.choice(rows)
    at = _END - timedelta(days=draw.uniform(1, 89))
    hour, month = timedelta(hours=1), timedelta(days=30)
    teams = (f"team-{draw.randrange(40)}", f"team-{draw.randrange(40)}")
    by_parked = {"sort": "parked", "descending": True}
    latest = {"sort": "last_parked_at", "descending": True}
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        "pipeline": {"pipeline_id": one[0]},
        "event name": {"event_name": one[1]},
        "stage": {"stage": one[2]},
        "rare stage": {"stage": "ingestion"},
        "error type": {"error_type": one[3]},
        "teams": {"teams": teams},
        "stage, error type, teams": {"stage": one[2], "error_type": one[3], "teams": teams},
        "nothing matches": {"pipeline_id": one[0], "error_type": "no such"},
        "fingerprint": {"fingerprint": one[4]},
        "event hour": {"since": at, "until": at + hour},
        "event month": {"since": at, "until": at + month},
        "event open": {"since": _END - hour},
        "parked hour": {"parked_since": at, "parked_until": at + hour},
        "parked month": {"parked_since": at, "parked_until": at + month},
        "parked open": {"parked_since": at},
        "both windows": {"since": at, "until": at + hour, "parked_since": at},
        "both windows, wide": {
            "since": at,
            "until": at + month,
            "parked_since": at,
            "parked_until": at + month,
        },
        "error type, event day": {
            "error_type": one[3],
            "since": at,
            "until": at + timedelta(days=1),
        },
        "stage, teams, parked day": {
            "stage": one[2],
            "teams": teams,
            "parked_since": at,
            "parked_until": at + timedelta(days=1),
        },
    }
    for kind, given in filters.items():
        wanted = ParkedGroupFilter(**given, held=True)
        for name, order in (("name", {}), ("parked", by_parked), ("latest", latest)):
            yield f"{kind}, by {name}", wanted, order
    yield "pages by bytes", ParkedGroupFilter(held=True), {"sort": "bytes", "descending": True}
    yield "pages by name", ParkedGroupFilter(held=True), {"descending": True}


def _some_names(tracker: TrackerStore, size: Size) -> list[Any]:
    from sqlalchemy import text

    ids = [(number * 7919 + 13) % size.partitions + 1 for number in range(200)]
    query = text(
        "SELECT p.pipeline_id, p.event_name, p.stage, p.error_type, (SELECT s.fingerprint "
        "FROM segments s WHERE s.partition_id = p.id LIMIT 1) FROM parked_partitions p "
        "WHERE p.id = ANY(:ids) ORDER BY p.id"
    )
    with tracker.transaction() as connection:
        return list(connection.execute(query, {"ids": ids}))


@contextmanager
def _writer(tracker: TrackerStore, parking: Parking) -> Iterator[list[float]]:
    """Commit segments all the while; gives µs a segment of each commit."""
    written: list[float] = []
    stop = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in itertools.count(10_000_000):
                if stop.is_set():
                    return
                item = ObjectDescriptor(new_key(), 40_000, tuple(_descriptors(number)))
                began = time.perf_counter()
                with tracker.transaction() as connection:
                    parking.record_objects(connection, [item], scope="bench", commit_number=number)
                written.append((time.perf_counter() - began) * 1e6 / _COMMIT_SEGMENTS)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def _descriptors(number: int) -> Iterator[SegmentDescriptor]:
    at = datetime.now(UTC).isoformat()
    for index in range(_COMMIT_SEGMENTS):
        yield SegmentDescriptor(
            pipeline_id=f"bench-{number % 20}",
            event_name=f"event {index}",
            stage="mapping",
            error_type="type_error",
            position=index * 400,
            length=400,
            count=5,
            bytes=2000,
            sha256="0" * 64,
            first_event_at=at,
            last_event_at=at,
            kafka_partition=0,
            first_offset=number,
            last_message="column is of type integer but expression is of type text",
        )


def _decided(tracker: TrackerStore, parking: Parking) -> dict[str, Any]:
    wanted = ParkedGroupFilter(error_type=STORM)
    settle(tracker)
    began = time.perf_counter()
    discarded = parking.discard(wanted, BY)
    discard_s = _s(began)
    began = time.perf_counter()
    undone = parking.undo_discard(wanted, BY)
    undo_s = _s(began)
    if not undone.segments >= discarded.segments > 0:
        raise AssertionError(f"discarded {discarded}, undone {undone}")
    return {
        "discard_500k_s": discard_s,
        "discarded_segments": discarded.segments,
        "undo_500k_s": undo_s,
        "undone_segments": undone.segments,
    }


def _s(began: float) -> float:
    return round(time.perf_counter() - began, 2)


def _p95(values: list[float]) -> float:
    return round(sorted(values)[int(len(values) * 0.95)], 1)


def show(report: dict[str, Any]) -> None:
    """Print a table of a report."""
    for name, value in report.items():
        if name != "lists_ms":
            print(f"{name:28} {value:>12,}")
    print("slowest lists, p95 in ms beside a writer:")
    slowest = sorted(report["lists_ms"].items(), key=lambda item: -item[1])[:12]
    for kind, value in slowest:
        print(f"  {kind:40} {value:>8,}")


def main() -> None:
    """Start PostgreSQL, measure, print; ``QUICK=1``: 100,000 segments."""
    with opened_home() as (home, stack):
        from tests import servers

        postgres = stack.enter_context(servers.started(servers.start_postgres, home))
        report = run(QUICK if os.environ.get("QUICK") else FULL, postgres.database("bench"))
    show(report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
