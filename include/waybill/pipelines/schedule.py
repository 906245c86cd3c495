"""When a pipeline's runs begin."""

from __future__ import annotations

import hashlib

HOURLY = "@hourly"


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
