"""A way of events for the tests of trails, in real files of a spool and rows of the tracker."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from tests.integration.parking_lot import make_event

from waybill.events import key_id
from waybill.settings import S3Settings, TraceSettings
from waybill.storage import ObjectStore
from waybill.tracing import Recorder, run_shipper, traces

NOON_US = 1_790_000_000_000_000 // 3_600_000_000 * 3_600_000_000
SECOND_US = 1_000_000
LOG = {"topic": "events.a.warehouse", "kafka_partition": 0}


def write(spool: Path, event_ids: list[str], phase: str, outcome: str, after_s: float, **more):
    """Write a trace of each event, some seconds after noon, of pipeline ``pl-1``."""
    given = {"pipeline_id": "pl-1", "event_name": "flight", "phase": phase, "outcome": outcome}
    given["at_us"] = NOON_US + int(after_s * SECOND_US)
    Recorder(spool).write([traces(event_ids, **(given | more))])


def way(
    lot, spool: Path, event_ids: list[str], *, parked_key: str = "", staged: bool = True, **own
) -> str:
    """Write the way of events: taken in, then parked in an object or mapped; returns the batch."""
    batch = commit(lot)
    first = {"topic": "events.aviation.warehouse", "host": "node-a"}
    log = {"topic": "events.aviation.warehouse", "kafka_partition": 3, "kafka_offset": 0}
    write(spool, event_ids, "ingestion", "accepted", 0, **first, **own)
    each = {**log, "attempt": 0, "batch": batch, **own}
    if parked_key:
        why = {"error_type": "null_value", "object_key": parked_key, "host": "worker-1"}
        write(spool, event_ids, "transformation", "parked", 0.9, **why, **each)
        return batch
    write(spool, event_ids, "transformation", "passed", 1.0, **each)
    if staged:
        write(spool, event_ids, "mapping", "passed", 1.0, object_key="staged/x", **each)
    return batch


def commit(lot) -> str:
    """Write a committed micro-batch; returns its id."""
    batch = str(uuid4())
    number = lot.sql("SELECT coalesce(max(commit_number), 0) + 1 FROM batches")[0][0]
    lot.sql(
        "INSERT INTO batches (id, consumer, epoch, destination, commit_number, offsets) "
        "VALUES (CAST(:id AS uuid), 'c', 1, 'warehouse', :n, '{}')",
        id=batch, n=number,
    )  # fmt: skip
    return batch


def came_again(lot, spool: Path, event_id: str, *, parks: bool) -> None:
    """Write the way of an event that parked and was replayed; then it came again, and was loaded.

    Its second copy is taken in 10 s after the replay sent the first one; ``parks``: the
    first one parks again, so it is parked still.
    """
    key = lot.park([make_event()])
    write(spool, [event_id], "ingestion", "accepted", 0, kafka_offset=1, batch="")
    own = {"error_type": "null_value", "object_key": key, "attempt": 0, "kafka_offset": 10}
    write(spool, [event_id], "transformation", "parked", 1, batch=commit(lot), **LOG, **own)
    [[group]] = lot.sql("SELECT max(id) FROM parked_partitions")
    replay = str(lot.parking.begin_replay(group, who="ann", run_id="run-1").id)
    write(spool, [event_id], "replay", "replayed", 30, object_key=key, replay_id=replay)
    own = {"kafka_offset": 20, "attempt": 1, "batch": commit(lot)}
    if parks:
        own |= {"error_type": "null_value", "object_key": lot.park([make_event()], 2)}
        write(spool, [event_id], "transformation", "parked", 31, **LOG, **own)
    else:
        write(spool, [event_id], "mapping", "passed", 31, object_key="staged/a", **LOG, **own)
        own = {"kafka_offset": 0, "commit_number": _number(lot), "object_key": "warehouse"}
        write(spool, [event_id], "destination", "delivered", 32, replay_id=replay, **own)
    write(spool, [event_id], "ingestion", "accepted", 40, kafka_offset=2, batch="")
    batch = commit(lot)
    own = {"kafka_offset": 30, "attempt": 0, "batch": batch, "object_key": "staged/b"}
    write(spool, [event_id], "mapping", "passed", 75, **LOG, **own)
    outcome = "delivered" if parks else "duplicate"
    own = {"kafka_offset": 0, "commit_number": _number(lot), "object_key": "warehouse"}
    write(spool, [event_id], "destination", outcome, 76, **own)


def _number(lot) -> int:
    """Return the newest commit's number."""
    return lot.sql("SELECT max(commit_number) FROM batches")[0][0]


def keyed(
    spool: Path,
    event_id: str,
    key: str,
    *,
    name: str = "flight",
    pipeline_id: str = "pl-1",
    after_s: float = 0,
) -> None:
    """Write the line by which an event is found by its primary key, a JSON array."""
    line = key_id(pipeline_id, name, key)
    more = {"event_name": name, "pipeline_id": pipeline_id, "refers_to": event_id}
    write(spool, [line], "key", "accepted", after_s, **more)


def ship(spool: Path, bucket: S3Settings) -> None:
    """Carry all files of the spool to the object store."""
    settings = TraceSettings(spool_dir=spool, roll_s=0.2)
    run_shipper(settings, ObjectStore(bucket), lambda: True, drain_s=60)


def questions(lot) -> list[tuple]:
    """Return (asked by, state) of all questions, the oldest first."""
    return lot.sql("SELECT asked_by, state FROM trace_queries ORDER BY asked_at")


__all__ = ["NOON_US", "came_again", "commit", "keyed", "questions", "ship", "way", "write"]
