"""The checks of habits: pipelines gone quiet, and shares of parked events that jumped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from waybill.reconciliation.checks import measurements
from waybill.reconciliation.checks.findings import Finding, clock, events, span
from waybill.reconciliation.checks.limits import WatchLimits
from waybill.reconciliation.checks.open_findings import Told
from waybill.reconciliation.checks.parked import Window, is_over, is_suspicious, parked_jump
from waybill.reconciliation.checks.quiet import SLOT_MINUTES, Silence, unusual_silence

Name = Callable[[str], str]
"""From a pipeline's id to its name."""


def quiet(
    connection: Connection, now_minute: int, limits: WatchLimits, told: Told, name: Name
) -> list[Finding]:
    """Return the pipelines that bring nothing where they always did."""
    shortest = max(1, int(limits.quiet_after_s // (60 * SLOT_MINUTES)))
    slot = now_minute // SLOT_MINUTES
    found = []
    for pipeline_id, minute in measurements.newest_minutes(connection, now_minute).items():
        before = told.standing.get(("quiet", pipeline_id, "", ""))
        if before is not None and before.detail.get("last_minute") == minute:
            found.append(before)  # it ends when something comes, however long that takes
        elif slot - minute // SLOT_MINUTES > shortest:
            active = measurements.active_slots(connection, pipeline_id, slot)
            silence = unusual_silence(active, slot, shortest=shortest)
            if silence is not None:
                found.append(_silent(connection, name, pipeline_id, (minute, now_minute), silence))
    return found


def _silent(
    connection: Connection,
    name: Name,
    pipeline_id: str,
    minutes: tuple[int, int],
    silence: Silence,
) -> Finding:
    last, now = minutes
    longest_s = silence.longest * SLOT_MINUTES * 60
    usual = measurements.usual_events(
        connection, pipeline_id, since=last, until=now - 1, weeks=silence.weeks
    )
    detail = {
        "last_minute": last,
        "usual_events": usual.events,
        "weeks": list(usual.weeks),
        "longest_pause_s": longest_s,
    }
    if silence.weeks:
        habit = (
            f"usually brings {events(usual.events)} between {clock(last + 1, now)} and "
            f"{clock(now, now)} (median of {silence.weeks} weeks)"
        )
    else:
        habit = f"was never silent for more than {span(longest_s)} since its first event"
    words = f"{name(pipeline_id)} {habit}; 0 since {clock(last, now)}"
    return Finding("quiet", pipeline_id, words, detail=detail)


def parked_jumps(
    connection: Connection, now_minute: int, limits: WatchLimits, told: Told, name: Name
) -> list[Finding]:
    """Return the pipelines of whose newest events a larger share parks than usual."""
    windows = measurements.recent_windows(connection, now_minute)
    found = [
        one
        for one in told.standing.values()
        if one.kind == "parked_jump"
        and not is_over(
            windows.get(one.pipeline_id, Window(0, 0)), one.detail["over_below"], limits.jump
        )
    ]
    for pipeline_id, window in windows.items():
        standing = ("parked_jump", pipeline_id, "", "") in told.standing
        if not standing and is_suspicious(window, limits.jump):
            history = measurements.earlier_windows(connection, pipeline_id, now_minute)
            found += _jumped(name(pipeline_id), pipeline_id, window, history, limits)
    return found


def _jumped(
    name: str, pipeline_id: str, window: Window, history: Sequence[Window], limits: WatchLimits
) -> list[Finding]:
    jump = parked_jump(window, history, limits.jump)
    if jump is None:
        return []
    words = (
        f"{name}: {jump.share:.1%} of the events of the last 15 minutes parked "
        f"({window.parked:,} of {window.taken_in:,}); usually at most {jump.usual:.1%}"
    )
    detail = {
        "share": jump.share,
        "parked": window.parked,
        "taken_in": window.taken_in,
        "usual_share": jump.usual,
        "over_below": jump.over_below,
    }
    return [Finding("parked_jump", pipeline_id, words, detail=detail)]
