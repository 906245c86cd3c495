"""Where is that event? Look-ups of ids among 100,000,000 traces on the embedded store.

Every look-up has a connection of its own, as a command has: nothing is known from the one before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests import servers
from tests.benchmarks.trace_fill import A_EVENT, fill

from waybill.settings import S3Settings
from waybill.storage import ObjectStore
from waybill.tracing import DuckDbTraces, Watched, traces
from waybill.tracing.layout import NEW_BUCKETS, Hour, object_key, place_of
from waybill.tracing.parquet import sorted_body

TRACES, FEWER = 100_000_000, 10_000_000
QUICK_TRACES, QUICK_FEWER = 10_000_000, 1_000_000
FRESH = 100
"""Objects of one machine between two compactions: a shipment each 5 s, a little less than always."""


def measure(*, quick: bool, home: Path) -> dict[str, Any]:
    """Fill the store under a folder, if it is not yet, and look ids up; return the figures."""
    many, few = (QUICK_TRACES, QUICK_FEWER) if quick else (TRACES, FEWER)
    times = 8 if quick else 100
    with servers.started(servers.start_s3, home) as s3:
        smaller = _Filled(s3, few)
        larger = _Filled(s3, many)
        figures = {
            "traces": many,
            "objects": len(larger.sizes),
            "bytes_per_trace_at_rest": round(sum(larger.sizes) / many, 2),
            "fill_s": round(larger.fill_s, 1),
        }
        any_time = larger.look_ups(times)
        figures |= {
            "lookup_p95_s": _p95(any_time),
            "lookup_objects": max(watch.objects_read for _, watch in any_time),
            "lookup_bytes": int(np.mean([watch.bytes_scanned for _, watch in any_time])),
            "lookup_p95_s_10m": _p95(smaller.look_ups(times)),
            "lookup_known_time_p95_s": _p95(larger.look_ups(times, known=True)),
            "lookup_known_time_p95_s_10m": _p95(smaller.look_ups(times, known=True)),
        }
        figures["lookup_objects_share"] = round(figures["lookup_objects"] / figures["objects"], 5)
        smaller.ship_fresh(FRESH)
        figures["lookup_fresh_objects"] = FRESH
        figures["lookup_fresh_p95_s_10m"] = _p95(smaller.look_ups(times // 4))
    return figures


class _Filled:
    """A bucket with so many traces."""

    def __init__(self, s3: servers.S3Server, count: int) -> None:
        name = f"traces-{count}"
        client = s3.client()
        if name not in {row["Name"] for row in client.list_buckets()["Buckets"]}:
            s3.service.create_bucket(name)
        self.s3: S3Settings = s3.settings.model_copy(update={"bucket": name})
        self.store = ObjectStore(self.s3)
        self._drop_fresh()
        began = time.monotonic()
        self.samples = fill(self.store, count)
        self.fill_s = time.monotonic() - began
        self.sizes = [info.size for info in self.store.list("traces/bucket=")]

    def look_ups(self, times: int, *, known: bool = False) -> list[tuple[float, Watched]]:
        """Look events up; return seconds and what was read, each."""
        chosen = np.random.default_rng(len(self.sizes)).choice(len(self.samples), times)
        return [self._look_up(self.samples[int(n)], known=known) for n in chosen]

    def _look_up(self, event: dict[str, Any], *, known: bool) -> tuple[float, Watched]:
        at = datetime.fromtimestamp(event["at_us"] / 1_000_000, UTC)
        near = timedelta(minutes=10)
        window = {"since": at - near, "until": at + near} if known else {}
        watch = Watched()
        began = time.perf_counter()
        query = DuckDbTraces(self.store, self.s3, spool_dir=None)
        found = query.trail(event["id"], watch=watch, **window)
        query.close()
        took_s = time.perf_counter() - began
        assert len(found) == A_EVENT - 1, f"{event['id']} has {len(found)} traces"
        return took_s, watch

    def ship_fresh(self, count: int) -> None:
        """Add fresh objects, each of 2,000 events that were just mapped."""
        chance = np.random.default_rng(count)
        hour = Hour.of(datetime(2026, 1, 2, 3, tzinfo=UTC))
        start_us = int(hour.start.timestamp()) * 1_000_000
        for number in range(count):
            ids = [chance.bytes(16).hex() for _ in range(2000)]
            batch = traces(
                ids,
                pipeline_id="pipeline-0001",
                event_name="table_1",
                phase="mapping",
                outcome="passed",
                at_us=start_us + number,
            )
            body = sorted_body(pa.Table.from_batches([batch]))
            self.store.put(object_key(NEW_BUCKETS, hour, f"fresh-{number}"), body)

    def _drop_fresh(self) -> None:
        """Forget what ``ship_fresh`` of an earlier measurement added."""
        fresh = [
            info.key
            for info in self.store.list("traces/bucket=")
            if (place := place_of(info.key)) and place.bucket == NEW_BUCKETS
        ]
        if fresh:
            self.store.delete(fresh)


def _p95(look_ups: Sequence[tuple[float, Watched]]) -> float:
    return round(float(np.percentile([took_s for took_s, _ in look_ups], 95)), 3)


if __name__ == "__main__":
    import json
    import os

    from tests.benchmarks.home import opened_home

    quick = os.environ.get("QUICK") == "1"
    with opened_home() as (own, _):
        print(json.dumps(measure(quick=quick, home=own)))
