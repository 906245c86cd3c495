"""Large payloads in the object store (claim checks) that no event names any more.

Nobody counts who names an object, so it is kept while anything might. Of a pipeline the objects go
that are older than the margin, and older than everything of it that is on its way: ingestion's
oldest event that Kafka has not acknowledged, the oldest intake minute that the auditor is not
through with, and that of which a staged object is lost: it may be made again from the events, also
where that failed once. Those that parked events name are kept: the segments are read. A pipeline
keeps all

- while a replay of it runs, or ended within the margin: its messages are in the log once more, with
  payloads as old as they were;
- where a parked segment cannot be read, or more is parked than ``MOST_PARKED_BYTES``.

Invariants
  I1  A key is put by one intake of one event, or by one replay (``replay.messages``). A record
      that is read again, or an event that is replayed again, gets an object of its own: nothing
      that is written while this runs needs an object that was old when it began.
  I2  What is on its way is read first, then the store is listed, then parked segments are read,
      then replays. Each way from one to the other is so seen at one of its ends: an event that was
      on its way and parks is younger than what was listed; one that was parked and goes back is
      named, or its replay is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import text

from waybill.events import payload_key
from waybill.parking import CorruptSegmentError, read_segment
from waybill.progress import Progress
from waybill.storage import Deletion, ObjectMissingError, ObjectStore, TrackerStore

MOST_PARKED_BYTES = 1024**3
"""Of a pipeline's parked segments, compressed; a run reads them where objects are old enough."""
_MOST_KEYS = 1_000
_SKEW_S = 60.0
_MARK = b'"dataref"'
_ESCAPE = b"\\u"
"""JSON may write any character of a name so."""
_PIPELINES = text("SELECT id FROM pipelines ORDER BY id")
_STANDS = text("""
SELECT clock_timestamp() - make_interval(secs => :kept_s) AS before,
  (SELECT min(open_from_minute) FROM intake_watermarks
    WHERE pipeline_id = :pipeline AND (open OR waiting > 0)) AS taken_in,
  (SELECT min(minute) FROM audit_minutes WHERE pipeline_id = :pipeline) AS audited,
  (SELECT min((row->>2)::int) FROM staged_objects AS lost
    JOIN ledger ON reference = 'lost:' || destination || ':' || commit_number,
    jsonb_array_elements(counts) AS row
    WHERE lost.state = 'lost' AND ledger.pipeline_id = :pipeline) AS lost,
  (SELECT count(*) FROM ledger WHERE pipeline_id = :pipeline AND NOT folded) AS unfolded
""")
_PARKED = text("""
SELECT segments.object_key, segments.position, segments.length, segments.sha256
FROM segments JOIN parked_partitions AS own ON own.id = segments.partition_id
JOIN parked_objects AS objects ON objects.key = segments.object_key
WHERE own.pipeline_id = :pipeline AND objects.state = 'live'
  AND segments.state IN ('parked', 'replaying', 'quarantined', 'discarded')
ORDER BY 1, 2
""")
_REPLAYS = text("""
SELECT count(*) FROM replays JOIN parked_partitions AS own ON own.id = replays.partition_id
WHERE own.pipeline_id = :pipeline AND (replays.finished_at IS NULL
  OR replays.finished_at > clock_timestamp() - make_interval(secs => :kept_s)
  OR EXISTS (SELECT FROM replay_entries WHERE replay_id = replays.id AND came_in < marked))
""")


@dataclass(slots=True)
class PayloadReport:
    """What was deleted of one or all pipelines."""

    deleted: int = 0
    bytes: int = 0
    parked: int = 0
    """Objects that are old enough, and that parked events name."""
    kept: dict[str, str] = field(default_factory=dict)
    """Pipelines that keep all their objects, and why."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def trim_payloads(
    tracker: TrackerStore, objects: ObjectStore, *, kept_s: float, apply: bool = True
) -> PayloadReport:
    """Delete payloads that no event names any more; safe to kill, and to run twice at once.

    Args:
        tracker: the books, folded.
        objects: the store.
        kept_s: age that an object has at least when it goes.
        apply: delete; else only say what would be.

    Raises:
        NotDeletedError: the store did not delete some; all others are gone.
        RetryError: the tracker or the store does not answer.
    """
    report, deletion = PayloadReport(), Deletion(objects)
    with tracker.transaction() as connection:
        ids = [str(row[0]) for row in connection.execute(_PIPELINES)]
    for pipeline_id in ids:
        _trim(tracker, objects, pipeline_id, kept_s, report, deletion if apply else None)
    deletion.end()
    return report


def _trim(
    tracker: TrackerStore,
    objects: ObjectStore,
    pipeline_id: str,
    kept_s: float,
    report: PayloadReport,
    deletion: Deletion | None,
) -> None:
    before, why = _before(tracker, pipeline_id, kept_s)
    # taken whole: a listing goes on by key, and these are being deleted
    prefix = payload_key(pipeline_id, "")
    old = [one for one in objects.list(prefix) if one.modified < before]
    if not old:
        return
    named = set[str]()
    if not why:
        named, why = _named(tracker, objects, pipeline_id, kept_s)
    if why:
        report.kept[pipeline_id] = why
        return
    progress = Progress(f"retention: payloads of {pipeline_id}", "payloads", len(old))
    for start in range(0, len(old), _MOST_KEYS):
        some = old[start : start + _MOST_KEYS]
        progress.add(len(some))
        sizes = {one.key: one.size for one in some if one.key not in named}
        report.parked += len(some) - len(sizes)
        gone = list(sizes) if deletion is None else deletion.delete(list(sizes))
        report.deleted += len(gone)
        report.bytes += sum(sizes[key] for key in gone)


def _before(tracker: TrackerStore, pipeline_id: str, kept_s: float) -> tuple[datetime, str]:
    """Return the time before which no event of a pipeline is on its way, and what keeps all."""
    with tracker.transaction() as connection:
        row = connection.execute(_STANDS, {"pipeline": pipeline_id, "kept_s": kept_s}).one()
    minutes = [m for m in (row.taken_in, row.audited, row.lost) if m is not None]
    times = [row.before, *(datetime.fromtimestamp(m * 60, UTC) for m in minutes)]
    before = min(times) - timedelta(seconds=_SKEW_S)
    return before, "its counts are not folded yet" if row.unfolded else ""


def _named(
    tracker: TrackerStore, objects: ObjectStore, pipeline_id: str, kept_s: float
) -> tuple[set[str], str]:
    """Return the payloads that a pipeline's parked events name, and what keeps all."""
    asked = {"pipeline": pipeline_id}
    with tracker.transaction() as connection:
        segments = connection.execute(_PARKED, asked).all()
        if connection.execute(_REPLAYS, asked | {"kept_s": kept_s}).scalar_one():
            return set(), "a replay is running, or ended recently"
    if sum(row.length for row in segments) > MOST_PARKED_BYTES:
        return set(), "too much of it is parked to read the files"
    found: set[str] = set()
    for key, position, length, sha256 in segments:
        try:
            frame = objects.get(key, position=position, length=length)
            for event in read_segment(frame, sha256=sha256, key=key, position=position):
                found.update(_references((event.value, event.source)))
        except (CorruptSegmentError, ObjectMissingError) as error:
            return set(), f"parked events cannot be read: {error}"
    return found, ""


def _references(messages: Sequence[bytes]) -> Iterator[str]:
    for message in messages:
        if _MARK not in message and _ESCAPE not in message:
            continue
        try:
            value = orjson.loads(message)
        except orjson.JSONDecodeError:
            continue  # a row that never became an event names nothing
        if isinstance(value, dict) and isinstance(value.get("dataref"), str):
            yield value["dataref"]
