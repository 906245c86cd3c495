"""Whatever dies, whenever: every trace is found once, before and after the next shipper."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration import tracing_child
from tests.servers import S3Server
from tests.support.processes import PROCESSES, start_server
from tests.unit.tracing.samples import NOON_US, batch, ids

from waybill.settings import S3Settings
from waybill.storage import ObjectStore
from waybill.tracing import DuckDbTraces, Recorder, trace_spool

pytestmark = pytest.mark.serves

FILES = 3
OBJECTS = 1
POINTS = [
    *[
        (call, 1, when)
        for call in ("add", "swap", "begin", "finish")
        for when in ("before", "after")
    ],
    *[("put", number, when) for number in range(1, OBJECTS + 1) for when in ("before", "after")],
    *[("unlink", number, when) for number in range(1, FILES + 1) for when in ("before", "after")],
]


@pytest.fixture(scope="module", autouse=True)
def _quick_processes() -> None:
    """Start the server that processes are forked from, with everything imported once."""
    start_server()


def _run(point: tuple[str, int, str] | None, spool_dir: Path, s3: S3Settings) -> int | None:
    process = PROCESSES.Process(target=tracing_child.ship, args=(spool_dir, s3, point))
    process.start()
    process.join(240)
    return process.exitcode


def _at_rest(s3: S3Settings) -> Counter[str]:
    """How often each event id is in the store, over all objects."""
    store = ObjectStore(s3)
    found: Counter[str] = Counter()
    for info in store.list("traces/bucket="):
        table = pq.read_table(pa.BufferReader(store.get(info.key)), columns=["event_id"])
        found.update(table.column(0).to_pylist())
    return found


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_a_shipper_killed_at_any_step_loses_and_doubles_nothing(
    s3: S3Server, tmp_path: Path, point: tuple[str, int, str]
) -> None:
    bucket = s3.bucket("crash")
    recorder = Recorder(tmp_path)
    every = [ids(40, f"{number}") for number in range(FILES)]
    for some in every:
        recorder.write([batch(some)])
    assert _run(point, tmp_path, bucket) == -signal.SIGKILL

    query = DuckDbTraces(ObjectStore(bucket), bucket, spool_dir=tmp_path)
    for some in every:
        for one in some[::13]:
            assert len(query.trail(one)) == 1, "while the shipper is dead"

    assert _run(None, tmp_path, bucket) == 0
    assert trace_spool(tmp_path).files() == []
    assert _at_rest(bucket) == Counter({one: 1 for some in every for one in some})
    for some in every:
        assert len(query.trail(some[7])) == 1, "after the next shipper"
    query.close()


def test_recorders_and_shippers_killed_at_random_lose_and_double_nothing(
    s3: S3Server, tmp_path: Path
) -> None:
    bucket = s3.bucket("storm")
    told: dict[str, int] = {}
    draw = random.Random(20260131)
    for round_number in range(6):
        name = f"recorder-{round_number}"
        hears, tells = PROCESSES.Pipe(duplex=False)
        recorder = PROCESSES.Process(
            target=tracing_child.record_on, args=(tmp_path, name, tells, NOON_US)
        )
        shipper = PROCESSES.Process(target=tracing_child.ship_on, args=(tmp_path, bucket, 0.05))
        recorder.start()
        shipper.start()
        tells.close()
        told[name] = 0
        while told[name] < 10:
            told[name] = hears.recv()
        time.sleep(draw.uniform(0.0, 1.0))
        for process in draw.sample([recorder, shipper], 2):
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        try:
            while True:
                told[name] = hears.recv()
        except EOFError:
            hears.close()
    assert _run(None, tmp_path, bucket) == 0
    found = _at_rest(bucket)
    assert set(found.values()) == {1}
    for name, last in told.items():
        missing = [
            f"{name}-{number}-{n}"
            for number in range(last + 1)
            for n in range(50)
            if f"{name}-{number}-{n}" not in found
        ]
        assert missing == []
    assert list(tmp_path.glob("*.open")) == []
