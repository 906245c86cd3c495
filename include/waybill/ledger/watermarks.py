"""How far a pipeline's ingestion is settled: an intake minute below the watermark is whole.

Whole: all its first-pass events are counted in the ledger, and acknowledged by Kafka, or parked. A
run of ingestion opens the watermark at its minute, before it makes the first event; each page's
commit moves it, in the page's own transaction; a clean end closes it, in the one that gives the
source back. Each of these transactions checks the lease of the source first: a run that another one
took over changes nothing here. What it says while it is open

    open_from_minute   least minute of an event that is counted and not acknowledged, or not counted
    waiting            events of counted pages that were not acknowledged when it was told last

Who dies when: a run that dies leaves its watermark open where it stood, so that minutes from there
on are not whole, which is true: its log may hold events that no page counts, or that Kafka has not.
The next run opens it at the same minute or below, and raises it once all that is settled.

The collector has several logs for one pipeline, a worker each, beside each other. Each log's row
says what holds for that log; the pipeline's watermark is the least of them (``share_watermark``).

``version`` goes up with each change: who reads the ledger, and then Kafka, sees whether ingestion
moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

_OPEN = text("""
INSERT INTO intake_watermarks AS known (pipeline_id, version, open, open_from_minute)
VALUES (:pipeline, 1, true, :minute)
ON CONFLICT (pipeline_id) DO UPDATE SET version = known.version + 1, open = true,
  open_from_minute = CASE WHEN known.open THEN least(known.open_from_minute, :minute)
    ELSE :minute END,
  began_at = clock_timestamp(), told_at = clock_timestamp()
RETURNING open_from_minute
""")
_WAS_OPEN = text("SELECT open FROM intake_watermarks WHERE pipeline_id = :pipeline")
_MOVE = text("""
UPDATE intake_watermarks SET version = version + 1, open_from_minute = :minute,
  pages = pages + 1, waiting = :waiting, told_at = clock_timestamp(),
  source = source || jsonb_build_object(
    'counted', coalesce((source ->> 'counted')::bigint, 0) + :counted,
    'ingested', coalesce((source ->> 'ingested')::bigint, 0) + :ingested)
WHERE pipeline_id = :pipeline
""")
_TELL = text("""
UPDATE intake_watermarks SET version = version + 1, waiting = :waiting,
  told_at = clock_timestamp()
WHERE pipeline_id = :pipeline
""")
_CLOSE = text("""
UPDATE intake_watermarks SET version = version + 1, open = false, open_from_minute = :minute,
  waiting = 0, told_at = clock_timestamp(),
  source = source || CASE WHEN CAST(:left AS bigint) IS NULL THEN '{}'::jsonb
    ELSE jsonb_build_object('left', CAST(:left AS bigint)) END
WHERE pipeline_id = :pipeline
""")
_HOLD = text("""
INSERT INTO intake_watermarks AS known (pipeline_id, version, open_from_minute)
VALUES (:pipeline, 1, :minute)
ON CONFLICT (pipeline_id) DO UPDATE SET version = known.version + 1
""")
_SHARE = text("""
UPDATE intake_watermarks AS known SET open = logs.least IS NOT NULL,
  open_from_minute = coalesce(logs.least, :minute), waiting = logs.waiting,
  pages = known.pages + :pages, told_at = clock_timestamp(),
  began_at = CASE WHEN known.open OR logs.least IS NULL THEN known.began_at
    ELSE clock_timestamp() END
FROM (SELECT min(open_from_minute) AS least, coalesce(sum(waiting), 0)::bigint AS waiting
  FROM write_ahead_logs
  WHERE pipeline_id = :pipeline AND state = 'open' AND open_from_minute IS NOT NULL) AS logs
WHERE known.pipeline_id = :pipeline
""")
_READ = text("""
SELECT * FROM intake_watermarks
WHERE CAST(:pipelines AS text[]) IS NULL OR pipeline_id = ANY(:pipelines)
""")


@dataclass(frozen=True, slots=True)
class PageMark:
    """Where a page's commit moves the watermark to."""

    open_from_minute: int
    waiting: int
    counted: int = 0
    """Records that the source says the page has; 0 where it cannot count."""
    ingested: int = 0
    """Of a page whose source can count: the events counted; else 0."""


@dataclass(frozen=True, slots=True)
class IntakeWatermark:
    """How far one pipeline's ingestion is settled."""

    pipeline_id: str
    version: int
    open: bool
    """A run goes on, or died."""
    open_from_minute: int
    """While open: minutes from here on are not whole. Else: the minute of the last run's end."""
    waiting: int
    source: Mapping[str, Any]
    """``counted``, ``ingested``: records of the source by its own count, and events of them;
    ``left``: records that the source had left when a run ended."""
    began_at: datetime
    told_at: datetime


def open_watermark(connection: Connection, pipeline_id: str, *, minute: int) -> int | None:
    """Open a pipeline's watermark before a run makes its first event.

    Returns:
        The least minute that is not whole, if another run left it open; None: none did.
    """
    asked = {"pipeline": pipeline_id, "minute": minute}
    was_open = bool(connection.execute(_WAS_OPEN, asked).scalar())
    least = int(connection.execute(_OPEN, asked).scalar_one())
    return least if was_open else None


def move_watermark(connection: Connection, pipeline_id: str, mark: PageMark) -> None:
    """Move an open watermark, in the transaction that commits a page."""
    values = {
        "pipeline": pipeline_id,
        "minute": mark.open_from_minute,
        "waiting": mark.waiting,
        "counted": mark.counted,
        "ingested": mark.ingested,
    }
    connection.execute(_MOVE, values)


def tell_waiting(connection: Connection, pipeline_id: str, waiting: int) -> None:
    """Say how many events Kafka has not acknowledged; the watermark stays open where it is."""
    connection.execute(_TELL, {"pipeline": pipeline_id, "waiting": waiting})


def close_watermark(
    connection: Connection, pipeline_id: str, *, minute: int, left: int | None
) -> None:
    """Close a watermark at the clean end of a run: all is counted, and Kafka has it all.

    Args:
        connection: the transaction that gives the source back.
        pipeline_id: whose.
        minute: of now, by the clock that stamps events.
        left: records that the source says were not read; None: it cannot count.
    """
    connection.execute(_CLOSE, {"pipeline": pipeline_id, "minute": minute, "left": left})


def hold_watermark(connection: Connection, pipeline_id: str, *, minute: int) -> None:
    """Hold a watermark that logs share until the commit, before one of them changes its part.

    Else two that change at once would each miss what the other one said.
    """
    connection.execute(_HOLD, {"pipeline": pipeline_id, "minute": minute})


def share_watermark(
    connection: Connection, pipeline_id: str, *, minute: int, pages: int = 0
) -> None:
    """Set a watermark, which is held, to the least of its open logs.

    Args:
        connection: the transaction that changed one of them.
        pipeline_id: whose.
        minute: of now: where it stands when no log is open.
        pages: that this transaction commits.
    """
    asked = {"pipeline": pipeline_id, "minute": minute, "pages": pages}
    connection.execute(_SHARE, asked)


def read_watermarks(
    connection: Connection, pipeline_ids: Iterable[str] | None = None
) -> dict[str, IntakeWatermark]:
    """Return {pipeline id: watermark}; a pipeline without one has no run since it was upgraded."""
    asked = None if pipeline_ids is None else list(pipeline_ids)
    rows = connection.execute(_READ, {"pipelines": asked}).mappings()
    names = IntakeWatermark.__slots__
    return {row["pipeline_id"]: IntakeWatermark(**{n: row[n] for n in names}) for row in rows}
