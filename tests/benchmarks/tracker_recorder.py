"""What recording costs: throughput of processing with traces and without, CPU and bytes a trace.

Real Kafka, Spark, S3 and tracker. Rounds over the same topic alternate; what switches is
``WAYBILL_TRACES__ENABLED``, each setting with workers of its own that have been warmed up. The
overhead of a pair of rounds is one minus their throughputs' ratio; the median of all pairs is
reported, and beside it what recording adds to the CPU seconds of driver, JVM and workers, which a
busy machine disturbs less.

Bytes are those of whole ways: of each event its traces of ingestion, key, transformation, mapping
and destination, recorded, and shipped into the object store.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import (
    CODE,
    DECLARATION,
    NAME,
    PIPELINE_ID,
    TEAM,
    Bench,
    all_started,
)

EVENTS, PAIRS = 200_000, 9
QUICK_EVENTS, QUICK_PAIRS = 10_000, 1
WAYS, QUICK_WAYS = 300_000, 30_000
_SWITCH = "BENCH_TRACES"
_AT_ONCE = 8_192
"""Messages that Spark gives a task at a time."""


def measure(*, quick: bool, home: Path) -> dict[str, Any]:
    """Return the figures; starts and stops its own servers under ``home``."""
    from tests import servers

    with ExitStack() as stack:
        parts = all_started(servers, home, stack)
        events = QUICK_EVENTS if quick else EVENTS
        bench = Recording(servers, tuple(parts), home / "recorder", events)
        stack.callback(bench.close)
        figures = bench.pairs(QUICK_PAIRS if quick else PAIRS)
        sizes = sizes_of(bench.settings, QUICK_WAYS if quick else WAYS)
    return {**figures, **sizes}


class Recording(Bench):
    """Runs of processing, with traces and without."""

    @property
    def settings(self) -> Any:
        """What the workers see, but for the switch."""
        return self._first

    def pairs(self, number: int) -> dict[str, Any]:
        """Run pairs of rounds, the one with traces first in every second pair."""
        from waybill.processing.spark.session import open_session
        from waybill.storage import open_log

        settings = self._settings("fill")
        log = open_log(settings.kafka)
        topic = log.ensure_topic(f"events.{TEAM}.warehouse")
        from tests.benchmarks.processing import fill

        fill(settings, topic.name, self._events)
        self._spark = open_session(settings.spark, name="bench")
        for on in (True, False):
            self._round("warm-up", log, topic, on=on)
        runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for pair in range(number):
            for on in (True, False) if pair % 2 else (False, True):
                runs[on].append(self._round(f"pair-{pair}", log, topic, on=on))
        return self._report(runs[True], runs[False])

    def _report(
        self, with_: list[dict[str, float]], without: list[dict[str, float]]
    ) -> dict[str, Any]:
        pairs = list(zip(with_, without, strict=True))
        overheads = [1 - on["per_s"] / off["per_s"] for on, off in pairs]
        cpu_s = [on["cpu_s"] - off["cpu_s"] for on, off in pairs]
        all_cpu_s = statistics.median(off["cpu_s"] for off in without)
        return {
            "recorder_overhead": round(statistics.median(overheads), 4),
            "recorder_overhead_cpu": round(statistics.median(cpu_s) / all_cpu_s, 4),
            "events_per_s_on": round(statistics.median(one["per_s"] for one in with_)),
            "events_per_s_off": round(statistics.median(one["per_s"] for one in without)),
            "overheads": [round(one, 4) for one in overheads],
            "events": self._events,
            "pairs": len(pairs),
        }

    def _round(self, name: str, log: Any, topic: Any, *, on: bool) -> dict[str, float]:
        """Process the whole topic into fresh books; returns events/s and CPU seconds."""
        # part of what Spark knows its workers by: each setting has a daemon of its own
        self._spark.sparkContext.environment[_SWITCH] = "true" if on else "false"
        settings = self._settings(f"{name}-{'on' if on else 'off'}")
        traces = settings.traces.model_copy(update={"enabled": on})
        settings = settings.model_copy(update={"traces": traces})
        return self._process(settings, log, topic, "stages")


def sizes_of(settings: Any, ways: int) -> dict[str, Any]:
    """Return CPU µs and bytes a trace, in the spool and in the store."""
    from waybill.storage import open_objects
    from waybill.tracing import Recorder, run_shipper, trace_spool

    folder = settings.home / "ways"
    recorder, spool = Recorder(folder), trace_spool(folder)
    cpu_s, traces = record_ways(recorder, ways)
    spooled = spool.used_bytes()
    objects = open_objects(settings.s3)
    before = sum(item.size for item in objects.list("traces/"))
    own = settings.traces.model_copy(update={"spool_dir": folder})
    report = run_shipper(own, objects, lambda: True, drain_s=120.0)
    if report.records != traces:
        raise SystemExit(f"of {traces} traces {report.records} were shipped")
    shipped = sum(item.size for item in objects.list("traces/")) - before
    return {
        "recorder_cpu_us_per_trace": round(cpu_s / traces * 1e6, 3),
        "bytes_per_trace": round(shipped / traces, 2),
        "spool_bytes_per_trace": round(spooled / traces, 2),
    }


def record_ways(recorder: Any, ways: int) -> tuple[float, int]:
    """Record the traces of so many events' ways; returns CPU seconds and the number of traces."""
    cpu_s, traces = 0.0, 0
    for start in range(0, ways, 50_000):
        result = chained(range(start, min(ways, start + 50_000)))
        began = time.process_time()
        batches = batches_of(result)
        recorder.write(batches)
        cpu_s += time.process_time() - began
        traces += 5 * len(result.transformed[PIPELINE_ID, NAME].ids)
    return cpu_s, traces


def chained(numbers: range) -> Any:
    """Run events through the stages, as a task does."""
    import tempfile

    from waybill.events import Event, encode, event_id
    from waybill.pipelines import load_pipeline
    from waybill.processing import Chain, Chunk, Plan

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pipeline.yaml").write_text(DECLARATION)
        (Path(folder) / "transformation.py").write_text(CODE)
        pipeline = load_pipeline(Path(folder))
    chain = Chain({PIPELINE_ID: Plan(pipeline)})
    values = []
    for number in numbers:
        key = f"[{number}]"
        identity = event_id(PIPELINE_ID, NAME, key, version=None, content=key.encode())
        data = {
            "number": number, "customer": "c", "amount": 1.5, "currency": "EUR",
            "status": "placed", "placed_at": "2026-03-01T12:30:45Z", "channel": "web",
        }  # fmt: skip
        minute = 29_920_926 + number // 100_000
        event = Event(
            identity, PIPELINE_ID, TEAM, NAME, key, 0, number, minute, "2026-11-21T10:06:33Z", data
        )
        values.append(encode(event))
    zeros = [0] * len(values)
    chain.process(Chunk(values, zeros, list(numbers), zeros))
    return chain.result


def batches_of(result: Any) -> list[Any]:
    """Return all traces of the ways of a task's events."""
    import pyarrow as pa

    from waybill.destinations import LoadOutcome
    from waybill.ingestion.page_traces import PageTraces
    from waybill.loading.traces import load_traces
    from waybill.processing.traces import trace_batches

    [passed] = result.mapped.values()
    minutes = [minute for part in passed.parts for minute in part.minutes.to_pylist()]
    page = PageTraces()
    for identity, offset, minute in zip(passed.ids, passed.offsets, minutes, strict=True):
        page.add(identity, f"[{offset}]", minute, offset, minute * 60_000_000 + offset)
    batch_id = "0b1c7f52-5be2-4e39-9b43-6b7c3f0c1a11"
    tasks = trace_batches(
        result,
        topic=f"events.{TEAM}.warehouse",
        batch_id=batch_id,
        staged_key=f"staged/2026/11/22/{batch_id}.wbs",
        parked_key="",
        now=datetime.now(UTC),
    )
    rows = pa.table(
        {
            "event_id": passed.ids,
            "pipeline_id": [PIPELINE_ID] * len(passed.ids),
            "event_name": [NAME] * len(passed.ids),
            "outcome": ["delivered"] * len(passed.ids),
            "intake_minute": pa.array(minutes, pa.int32()),
            "replay_id": pa.nulls(len(passed.ids), pa.string()),
            "number": range(len(passed.ids)),
        }
    )
    outcome = LoadOutcome(1, [], {}, (), rows)
    now_us = time.time_ns() // 1000
    return [
        *page.batches(PIPELINE_ID, NAME, topic=f"events.{TEAM}.warehouse", batch=batch_id),
        *tasks,
        *load_traces("warehouse", [outcome], {}, now_us=now_us),
    ]


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    with opened_home() as (home, _stack):
        report = measure(quick=quick, home=home)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
