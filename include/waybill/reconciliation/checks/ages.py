"""Late: the oldest event on its way to a stage, or a connector's run, is over its objective.

Age is the time that an event has waited before the stage (since Kafka or the tracker took it), not
that since its intake: a replayed event is not late for having been parked. What is parked waits for
people and is not on its way. It is over when the oldest is below four fifths of the objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from waybill.settings import WaitingStage

Stage = WaitingStage
_OVER_SHARE = 0.8
_UNSCHEDULED = ("@once", "@continuous")
_CRON = {"@quarterly": "0 0 1 */3 *"}


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest of what waits before a stage."""

    pipeline_id: str
    stage: Stage
    since: datetime
    """Since when it waits."""
    where: str = ""
    """A topic's partition, a commit: for people."""
    waiting: int = 0
    """Events that wait there; 0: not counted."""
    event_id: str = ""


def is_late(oldest: Oldest, now: datetime, objective_s: float, *, told: bool) -> bool:
    """Tell whether the oldest is over its objective; once ``told``, until it is well below."""
    limit = objective_s * (_OVER_SHARE if told else 1.0)
    return (now - oldest.since).total_seconds() > limit


def due_run(schedule: str | None, ended: datetime, now: datetime) -> datetime | None:
    """Return when the first run was due after the one that ended last; None: none is due yet.

    Args:
        schedule: of the pipeline; by hand, once and continuously are never due.
        ended: when its last run ended.
        now: the time.
    """
    if schedule is None or schedule in _UNSCHEDULED:
        return None
    from croniter import croniter  # type: ignore[import-untyped]

    due = croniter(_CRON.get(schedule, schedule), ended.astimezone(UTC)).get_next(datetime)
    return due if due <= now else None
