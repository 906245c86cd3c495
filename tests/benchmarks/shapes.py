"""``make bench-shapes``: what processing costs an event, whatever the shape of the data.

No servers: messages go through the stages as in a task of Spark's (decoding, the process of user
code, mapping, the staged and the parked object, traces) into a store in memory. CPU seconds of this
process and of that of user code, the median of several turns; each shape takes turns with the
simplest one: one event name, seven columns, nothing failing. A shape's *ratio* is its CPU over what
the simplest takes for as many events or, where that is more, for as many bytes.

Data is deterministic. ``QUICK=1``: fewer events and turns; ``ONLY=<names>``: some shapes.
Exit code 1 where a figure of the full form is beyond its limit.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import psutil
from tests.support.memory_objects import MemoryObjects

from waybill.events import Event, encode
from waybill.mappings import rules_of
from waybill.pipelines import Column, EventDeclaration, Pipeline, Source, TableSpec
from waybill.processing import Chain, LocalLearner, Plan, sandbox_with
from waybill.processing.spark.task_output import TaskOutput
from waybill.processing.spark.tasks import chunk_of, gathered
from waybill.settings import SandboxSettings
from waybill.storage import ObjectStore, Records

AT_ONCE, AT_ONCE_BYTES = 8192, 8 * 1024**2
"""Messages, and their bytes, that a task takes from Kafka at a time."""
MINUTE = 29_000_000
AT_MS = MINUTE * 60_000
TOPIC = "events.bench"
SEED = 20
TEAM = "bench"
PASSES = "def transform(event):\n    return event\n"
COPIES = """
import dataclasses

def transform(event):
    return [dataclasses.replace(event, data={**event.data, "number": event.data["number"] * 3 + n})
            for n in range(3)]
"""
RAISES = """
def transform(event):
    if event.data["number"] % 100 == 0:
        raise ValueError("one in a hundred")
    return event
"""
ORDER = {
    "number": "int64",
    "customer": "string",
    "amount": "float64",
    "currency": "string",
    "status": "string",
    "placed_at": "timestamp",
    "cents": "int64",
}
LIMITS = {
    "worst_ratio": 2.0,
    "names_200_vs_1": 1.6,
    "failing_1pct_vs_clean": 1.2,
    "doubles_vs_ints": 2.0,
    "deletes_vs_upserts": 1.2,
}


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    events: int = 100_000
    most_bytes: int = 64 * 1024**2
    turns: int = 5


QUICK = Sizes(8_192, 4 * 1024**2, 1)

Payload = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Shape:
    """Events of one kind.

    Args:
        payload: of the event of a number.
        columns: of the tables.
        names: how many event names there are.
        skewed: nine events of ten have the first name.
        pipelines: how many pipelines share the topic.
        code: of the transformation.
        policy: for fields without a column.
        change: what differs in an event of a number.
        held: its pipelines are held.
    """

    payload: Payload
    columns: Mapping[str, str] = field(default_factory=lambda: ORDER)
    names: int = 1
    skewed: bool = False
    pipelines: int = 1
    code: str = PASSES
    policy: str = "strict"
    change: Callable[[int], dict[str, Any]] = lambda _: {}
    held: bool = False

    def made(self, ident: str) -> Pipeline:
        """Return one of its pipelines."""
        columns = tuple(
            Column(name=name, type=kind, nullable=name != "number")
            for name, kind in self.columns.items()
        )
        names = [f"event_{n}" for n in range(self.names)]
        return Pipeline(
            id=ident,
            name=ident,
            team=TEAM,
            owner="bench@example.com",
            source=Source(connector="csv", event=names[0], path="x.csv"),
            events={
                name: EventDeclaration(
                    name=name,
                    key=("number",),
                    table=TableSpec(
                        schema_name="bench", name=name, columns=columns, key=("number",)
                    ),
                    policy=self.policy,
                )
                for name in names
            },
            transformation_code=self.code,
            destination="warehouse",
            schema_name="bench",
        )

    def messages(self, sizes: Sizes) -> list[bytes]:
        """Return its messages, at most so many, and at most so many bytes."""
        made: list[bytes] = []
        size, chosen = 0, random.Random(SEED)
        while len(made) < sizes.events and size < sizes.most_bytes:
            number = len(made)
            value = encode(self._event(number, chosen))
            made.append(value)
            size += len(value)
        return made

    def _name(self, chosen: random.Random) -> int:
        is_first = self.skewed and chosen.random() < 0.9
        return 0 if is_first else chosen.randrange(self.names)

    def _event(self, number: int, chosen: random.Random) -> Event:
        values: dict[str, Any] = {
            "id": f"{number:032x}",
            "pipeline_id": f"pipeline-{chosen.randrange(self.pipelines)}",
            "team": TEAM,
            "name": f"event_{self._name(chosen)}",
            "key": f"[{number}]",
            "source_version": number,
            "intake_version": 1_700_000_000_000_000 + number,
            "intake_minute": MINUTE + number // 50_000,
            "time": "2026-01-01T00:00:00Z",
            "data": self.payload(number),
        }
        return Event(**{**values, **self.change(number)})


def order(number: int) -> dict[str, Any]:
    """Return the simplest payload."""
    return {
        "number": number,
        "customer": f"customer-{number % 997}",
        "amount": number % 10_000 / 4,
        "currency": "EUR",
        "status": "placed",
        "placed_at": "2026-01-01T00:00:00Z",
        "cents": number % 10_000 * 25,
    }


def some_bad(one_in: int) -> Payload:
    """Return orders of which one in so many has a text for a number."""
    return lambda n: {**order(n), "cents": "n/a"} if n % one_in == 0 else order(n)


def numbers(made: Callable[[random.Random], Any]) -> Payload:
    """Return rows of twenty numbers."""

    def payload(number: int) -> dict[str, Any]:
        chosen = random.Random(number)
        return {"number": number, **{f"n_{i}": made(chosen) for i in range(20)}}

    return payload


def wide(columns: int) -> Payload:
    """Return rows of so many columns, a third texts, integers and doubles each."""

    def payload(number: int) -> dict[str, Any]:
        row: dict[str, Any] = {"number": number}
        for i in range(columns - 1):
            row[f"c_{i}"] = (f"text-{(number + i) % 91}", number + i, (number + i) / 4)[i % 3]
        return row

    return payload


def padded(size: int) -> Payload:
    """Return orders with a text that makes up the size."""
    return lambda n: {**order(n), "status": "x" * (size - 150)}


def with_columns(kind: str, number: int = 20) -> dict[str, str]:
    """Return columns of one type beside the key."""
    return {"number": "int64", **{f"n_{i}": kind for i in range(number)}}


def wide_columns(columns: int) -> dict[str, str]:
    """Return the columns of `wide`."""
    kinds = ("string", "int64", "float64")
    return {"number": "int64", **{f"c_{i}": kinds[i % 3] for i in range(columns - 1)}}


def deleted(one_in: int) -> Callable[[int], dict[str, Any]]:
    """Return changes by which one in so many is a delete, with its key alone."""
    return lambda n: {"op": "delete", "data": {"number": n}} if n % one_in == 0 else {}


def nested(number: int) -> dict[str, Any]:
    """Return an order with an object and an array in a column of JSON."""
    return {
        **order(number),
        "status": {"code": number % 7, "by": "shop", "tags": ["a", "b", number % 5]},
    }


def replayed(stage: str) -> Callable[[int], dict[str, Any]]:
    """Return changes of events that a replay sent."""
    return lambda _: {"attempt": 1, "replay_id": "replay-1", "stage": stage}


def shapes() -> dict[str, Shape]:
    """Return all shapes by name; the first is the simplest."""
    every = {"simplest": Shape(order)}
    for names in (10, 50, 200, 500):
        every[f"names_{names}"] = Shape(order, names=names)
    every["names_200_skewed"] = Shape(order, names=200, skewed=True)
    for pipelines in (10, 50):
        every[f"pipelines_{pipelines}"] = Shape(order, pipelines=pipelines)
    every["pipelines_10_names_50"] = Shape(order, pipelines=10, names=50)
    for label, one_in in (("0.1pct", 1000), ("1pct", 100), ("10pct", 10), ("100pct", 1)):
        every[f"failing_{label}"] = Shape(some_bad(one_in))
    every["failing_1pct_names_200"] = Shape(some_bad(100), names=200)
    every["raising_1pct"] = Shape(order, code=RAISES)
    every["ints"] = Shape(numbers(lambda r: r.randrange(10**17)), with_columns("int64"))
    every["doubles"] = Shape(numbers(lambda r: r.random()), with_columns("float64"))
    every["decimals"] = Shape(
        numbers(lambda r: r.randrange(10**9) / 100), with_columns("decimal(18,2)")
    )
    for label, one_in in (("1pct", 100), ("50pct", 2), ("100pct", 1)):
        every[f"deletes_{label}"] = Shape(order, change=deleted(one_in))
    every["deletes_1pct_names_200"] = Shape(order, change=deleted(100), names=200)
    every["children_3"] = Shape(order, code=COPIES)
    every["nested"] = Shape(nested, {**ORDER, "status": "json"})
    for columns in (5, 50, 300):
        every[f"columns_{columns}"] = Shape(wide(columns), wide_columns(columns))
    for label, size in (("1kb", 1024), ("10kb", 10 * 1024), ("100kb", 100 * 1024)):
        every[f"bytes_{label}"] = Shape(padded(size))
    every["tiny"] = Shape(lambda n: {"number": n}, {"number": "int64"})
    every["evolving"] = Shape(
        lambda n: {**order(n), **({"coupon": f"c-{n}"} if n % 100 == 0 else {})}, policy="evolve"
    )
    every["rest_as_json"] = Shape(
        lambda n: {**order(n), "coupon": f"c-{n % 9}"}, policy="json_column"
    )
    every["escapes"] = Shape(lambda n: {**order(n), "status": 'a\u2028b\u0001c "quoted"'})
    every["not_ascii"] = Shape(lambda n: {**order(n), "status": "Größe Übermaß 東京"})
    every["replayed"] = Shape(order, change=replayed("transformation"))
    every["replayed_mapping"] = Shape(order, change=replayed("mapping"))
    every["held"] = Shape(order, held=True)
    return every


class Runs:
    """Runs shapes; each has its plans and its messages, made once.

    Args:
        sizes: of all.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        settings = SandboxSettings()
        self._sandbox = sandbox_with(settings, 30.0)
        self._rules = rules_of("postgres")

    def prepared(self, shape: Shape) -> Callable[[], float]:
        """Return what runs a shape once and gives the CPU seconds that it took."""
        values = shape.messages(self._sizes)
        pipelines = [shape.made(f"pipeline-{n}") for n in range(shape.pipelines)]
        self.events, self.bytes = len(values), sum(map(len, values))

        def run() -> float:
            plans = {p.id: Plan(p, learner=LocalLearner(self._rules)) for p in pipelines}
            for plan in plans.values():
                plan.prepare()
            before = cpu_s()
            self._task(values, plans, [p.id for p in pipelines] if shape.held else [])
            return cpu_s() - before

        return run

    def _task(
        self, values: Sequence[bytes], plans: Mapping[str, Plan], held: Sequence[str]
    ) -> None:
        chain = Chain(plans, code=self._sandbox, held=held)
        output = TaskOutput(topic=TOPIC, batch_id="batch", known=plans, traced=True)

        def is_enough(records: Records) -> bool:
            return chain.is_enough(len(records.values), records.size_bytes)

        for records in gathered(read(values), is_enough):
            assert isinstance(records, Records)
            chain.process(chunk_of(records, {}), output.take)
        output.write(chain.result, _STORE)


class Discarding(MemoryObjects):
    """An object store that is asked to write, and nothing more."""

    def put_waiting(self, key: str, body: bytes, *, limit_s: float) -> str:
        del limit_s
        return self.put(key, body)


_STORE = cast("ObjectStore", Discarding())


def read(values: Sequence[bytes]) -> Iterator[Records]:
    """Yield messages as a task reads them."""
    start = 0
    while start < len(values):
        part = list(values[start : start + AT_ONCE])
        while (size := sum(map(len, part))) > AT_ONCE_BYTES and len(part) > 1:
            del part[len(part) // 2 :]
        offsets = list(range(start, start + len(part)))
        yield Records(TOPIC, [0] * len(part), part, offsets, [AT_MS] * len(part), size)
        start += len(part)


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that live."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


def measured(shape: Shape, simplest: Shape, sizes: Sizes) -> dict[str, float]:
    """Return what a shape costs, and what the simplest does, in turns.

    Keys: ``us`` and ``simplest_us`` an event, ``bytes`` an event, ``ratio``.
    """
    runs = Runs(sizes)
    run = runs.prepared(shape)
    events, size = runs.events, runs.bytes
    simple = runs.prepared(simplest)
    simple_events, simple_size = runs.events, runs.bytes
    run(), simple()
    pairs = [(run(), simple()) for _ in range(sizes.turns)]
    us = statistics.median(took for took, _ in pairs) / events * 1e6
    simple_us = statistics.median(took for _, took in pairs) / simple_events * 1e6
    allowed = max(1.0, size / events / (simple_size / simple_events))
    return {
        "us": round(us, 2),
        "simplest_us": round(simple_us, 2),
        "bytes": round(size / events),
        "ratio": round(us / simple_us / allowed, 3),
    }


def summed_up(found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the figures by name, of all shapes."""
    ratios = {name: figures["ratio"] for name, figures in found.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    return {
        "worst_shape": worst,
        "worst_ratio": ratios[worst],
        "names_200_vs_1": ratios["names_200"],
        "failing_1pct_vs_clean": ratios["failing_1pct"],
        "doubles_vs_ints": round(found["doubles"]["us"] / found["ints"]["us"], 3),
        "deletes_vs_upserts": max(ratio for name, ratio in ratios.items() if "deletes" in name),
        "simplest_us": round(statistics.median(one["simplest_us"] for one in found.values()), 2),
    }


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    sizes = QUICK if quick else Sizes()
    only = [name for name in os.environ.pop("ONLY", "").split(",") if name]
    every = shapes()
    simplest = every.pop("simplest")
    for name in only:
        if name not in every:
            raise SystemExit(f"ONLY: no shape {name!r}; there are {', '.join(every)}")
    print(f"at most {sizes.events:,} events a shape, {sizes.turns} turns, seed {SEED}")
    print(f"{'shape':24} {'bytes':>8} {'µs an event':>12} {'simplest':>9} {'ratio':>7}")
    found: dict[str, dict[str, float]] = {}
    for name in only or every:
        figures = found[name] = measured(every[name], simplest, sizes)
        print(
            f"{name:24} {figures['bytes']:>8,} {figures['us']:>12.2f}"
            f" {figures['simplest_us']:>9.2f} {figures['ratio']:>7.2f}",
            flush=True,
        )
    if only:
        print(json.dumps({"shapes": found}))
        return
    report = summed_up(found)
    beyond = [] if quick else [name for name, most in LIMITS.items() if report[name] > most]
    for name in beyond:
        print(f"{name} is {report[name]}, beyond its limit {LIMITS[name]}")
    print(json.dumps({**report, "events": sizes.events, "turns": sizes.turns, "shapes": found}))
    sys.exit(bool(beyond))


if __name__ == "__main__":
    main()
