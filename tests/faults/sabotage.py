"""Sabotage: single events dropped or doubled inside the real processes, behind the product's back.

The product knows nothing of it: its classes are replaced, in the processes of the campaign only, by
ones that do the same but for a few events. What is done is noted in a log, so that the campaign
knows what must be found. A dropped event leaves no count and no trace where it is dropped; one that
is doubled leaves two.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waybill.processing import Chain, ChainResult, Chunk
from waybill.processing.spark.tasks import StageTask

REMOVED = (
    "log to Kafka: lost",
    "stage task: dropped unread",
    "mapping: dropped",
    "staged object to load: lost",
)
DOUBLED = (
    "log to Kafka: sent twice",
    "task's output: row twice",
    "staged object to load: row twice",
)
NOWHERE = "events.nowhere.nowhere"
_PLAN = "SABOTAGE_PLAN"
_NUMBER = re.compile(rb'"subject":"\[(\d+)\]"')
_ID = re.compile(rb'"id":"([0-9a-f]{32})"')


class Plan:
    """Which orders of which pipeline are dropped and doubled where.

    Args:
        path: of what ``write_plan`` wrote.
    """

    def __init__(self, path: Path) -> None:
        said = json.loads(path.read_text())
        self.pipeline_id: str = said["pipeline_id"]
        self._source = f'/{self.pipeline_id}"'.encode()
        self._log: str = said["log"]
        self._numbers = {place: frozenset(numbers) for place, numbers in said["acts"].items()}

    def wants(self, place: str, value: bytes) -> bool:
        """Tell whether a message is to meet its fate here; notes that it does."""
        found = _NUMBER.search(value)
        if found is None or int(found[1]) not in self._numbers[place] or self._source not in value:
            return False
        identity = _ID.search(value)
        assert identity is not None
        self.note(place, identity[1].decode())
        return True

    def rows(self, place: str, pipeline_id: str, rows: pa.RecordBatch | pa.Table) -> list[int]:
        """Return which rows are to meet their fate here; notes that they do."""
        if pipeline_id != self.pipeline_id:
            return []
        wanted = pa.array([f"[{number}]" for number in self._numbers[place]], pa.string())
        mask = pc.is_in(rows.column("_waybill_key"), wanted)
        found = [index for index, is_one in enumerate(mask.to_pylist()) if is_one]
        for index in found:
            self.note(place, rows.column("_waybill_id")[index].as_py())
        return found

    def note(self, place: str, event_id: str) -> None:
        """Write down what was done, whoever dies next."""
        line = json.dumps([place, event_id]) + "\n"
        descriptor = os.open(self._log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o640)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def write_plan(
    path: Path, *, pipeline_id: str, numbers: Sequence[int], removed: int, doubled: int, seed: int
) -> None:
    """Draw which orders meet which fate, as many at each place, and write it down.

    Args:
        path: of the plan; the log is beside it.
        pipeline_id: whose orders.
        numbers: of orders that reach the destination when nothing is done to them.
        removed, doubled: how many.
        seed: of the draw.
    """
    chosen = iter(random.Random(seed).sample(numbers, removed + doubled))
    acts: dict[str, list[int]] = {place: [] for place in (*REMOVED, *DOUBLED)}
    for number in range(removed):
        acts[REMOVED[number % len(REMOVED)]].append(next(chosen))
    for number in range(doubled):
        acts[DOUBLED[number % len(DOUBLED)]].append(next(chosen))
    log = str(path.with_suffix(".log"))
    path.write_text(json.dumps({"pipeline_id": pipeline_id, "log": log, "acts": acts}))


def done(path: Path) -> dict[str, set[str]]:
    """Return place to ids of the events that met their fate there; ``path`` of the plan."""
    log = path.with_suffix(".log")
    found: dict[str, set[str]] = {place: set() for place in (*REMOVED, *DOUBLED)}
    for line in log.read_text().splitlines() if log.exists() else ():
        place, event_id = json.loads(line)
        found[place].add(event_id)
    return found


def environment(path: Path, checkout: Path) -> dict[str, str]:
    """Return what the environment of all processes must hold for the plan to be followed."""
    given = os.environ.get("PYTHONPATH")
    paths = [str(checkout), *([given] if given else [])]
    return {_PLAN: str(path), "PYTHONPATH": os.pathsep.join(paths)}


def _plan() -> Plan:
    return Plan(Path(os.environ[_PLAN]))


# Ingestion: between the write-ahead log and Kafka


def in_ingestion() -> None:
    """Replace the client of Kafka in this process."""
    import confluent_kafka

    plan, real = _plan(), confluent_kafka.Producer

    class Producer(real):  # type: ignore[misc, valid-type]
        def produce(self, topic: str, value: bytes, *rest: Any, **named: Any) -> None:
            if plan.wants(REMOVED[0], value):
                topic = NOWHERE
            elif plan.wants(DOUBLED[0], value):
                super().produce(topic, value, rest[0] if rest else named.get("key"))
            super().produce(topic, value, *rest, **named)

    confluent_kafka.Producer = Producer


# Processing: inside the tasks of Spark's workers


def in_processing() -> None:
    """Replace the task that the driver in this process sends to its workers."""
    from waybill.processing.spark import topic_consumer

    topic_consumer.StageTask = SabotagedTask  # type: ignore[misc]


class SabotagedTask(StageTask):
    """Runs a chain that is sabotaged; workers find it by its name."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stages."""
        from waybill.processing.spark import tasks

        tasks.Chain = SabotagedChain  # type: ignore[misc]
        yield from super().__call__(batches)


class SabotagedChain(Chain):
    """Drops messages before any stage, and rows in the mapping; doubles rows that are staged."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._sabotage = _plan()
        self.result.staged.add = self._staging(self.result.staged.add)  # type: ignore[method-assign]

    def process(self, chunk: Chunk, taken: Callable[[ChainResult], None] | None = None) -> None:
        """Run what is left of a chunk."""
        wants = self._sabotage.wants
        kept = [i for i, value in enumerate(chunk.values) if not wants(REMOVED[1], value)]
        if len(kept) < len(chunk.values):
            columns = (chunk.values, chunk.partitions, chunk.offsets, chunk.times_us)
            chunk = Chunk(*([column[i] for i in kept] for column in columns))  # type: ignore[arg-type]
        super().process(chunk, taken)

    def _pass(
        self, event_plan: Any, name: str, items: Any, columns: Any, *, by_column: bool
    ) -> None:
        places = [self._chunk.values[place] for place in items.places]
        kept = [i for i, value in enumerate(places) if not self._sabotage.wants(REMOVED[2], value)]
        if len(kept) < len(items):
            items, columns = items.pick(kept), columns.take(pa.array(kept))
        super()._pass(event_plan, name, items, columns, by_column=by_column)

    def _staging(self, add: Callable[..., None]) -> Callable[..., None]:
        def doubling(*, head: Any, batch: pa.RecordBatch) -> None:
            twice = self._sabotage.rows(DOUBLED[1], head.pipeline_id, batch)
            if twice:
                batch = pa.concat_batches([batch, batch.take(pa.array(twice))])
            add(head=head, batch=batch)

        return doubling


# Loading: between a staged object and the destination


def in_loading() -> None:
    """Replace what reads staged objects in this process."""
    from waybill.loading import delivery

    plan, real = _plan(), delivery.read_staged

    def read(body: bytes, **named: Any) -> list[Any]:
        return [_sabotaged(plan, frame) for frame in real(body, **named)]

    delivery.read_staged = read


def _sabotaged(plan: Plan, frame: Any) -> Any:
    lost = set(plan.rows(REMOVED[3], frame.pipeline_id, frame.data))
    twice = plan.rows(DOUBLED[2], frame.pipeline_id, frame.data)
    if not lost and not twice:
        return frame
    kept = [index for index in range(frame.data.num_rows) if index not in lost]
    return replace(frame, data=frame.data.take(pa.array([*kept, *twice])))
