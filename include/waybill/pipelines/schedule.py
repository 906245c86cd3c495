"""When a pipeline's runs begin."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

HOURLY = "@hourly"
_UNSCHEDULED = ("@once", "@continuous")
_CRON = {"@quarterly": "0 0 1 */3 *"}


def cron_schedule(schedule: str | None, pipeline_id: str) -> str | None:
    """Return a schedule with the minute that ``@hourly`` means for this pipeline.

    Thousands of runs that begin in one minute wait for each other: a scheduler makes runs for ten
    DAGs a turn. So each pipeline has a minute of its own, which its id gives for ever. What else a
    declaration says is meant as it stands: ``0 * * * *`` is minute 0.

    Args:
        schedule: as declared.
        pipeline_id: the id, which never changes.
    """
    if schedule != HOURLY:
        return schedule
    digest = hashlib.sha256(pipeline_id.encode()).digest()
    return f"{int.from_bytes(digest[:4], 'big') % 60} * * * *"


def next_run(schedule: str | None, pipeline_id: str, now: datetime) -> datetime | None:
    """Return when the next run is due by its schedule alone; None: by hand, once, continuously.

    Args:
        schedule: as declared.
        pipeline_id: the id, which never changes.
        now: the time, with a zone.
    """
    cron = cron_schedule(schedule, pipeline_id)
    if not cron or cron in _UNSCHEDULED:
        return None
    from croniter import croniter  # type: ignore[import-untyped]

    due: datetime = croniter(_CRON.get(cron, cron), now.astimezone(UTC)).get_next(datetime)
    return due
