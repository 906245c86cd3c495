"""Quiet: a pipeline that brings nothing, at a time when it always brought something.

Time is cut into slots of 10 minutes; a slot is active when an event was taken in. What counts is
the silence since the last active slot, against the same hours of the weeks before:

missed   active slots that the same hours of each earlier week had, less a slack at both ends: the
         fewest of three weeks, of four the fewest but one, so that one outage or holiday is no
         habit; of a week as it was, an hour earlier and an hour later, the fewest, as a source in
         local time does not do what it does an hour too late on the day when the clocks change
usual    the second largest number of missed slots at which, in the last two weeks, events came
         again by themselves: how irregular the pipeline is
alarm    missed > 3 x usual; where its hours do not repeat from week to week, > 5 more than that,
         and a silence half as long again as the longest of six weeks; or, whatever was missed, a
         silence three times that longest

So nights, weekends and monthly closings are no alarm, as the weeks before had them too; a nightly
job is missed when it did not come; events at random need a silence far beyond their longest. With
8 days to 3 weeks of history, a silence three times the longest so far is told; with less, nothing.
The slack is the longest usual pause, from 10 minutes to 30.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sqlalchemy import Connection, text

from waybill.reconciliation.checks.findings import Finding, OpenFindings, clock, events, span
from waybill.reconciliation.checks.limits import WatchLimits

SLOT_MINUTES = 10
WEEK = 7 * 24 * 60 // SLOT_MINUTES
HISTORY_WEEKS = 6
"""Two to learn how irregular a pipeline is, four before to compare them with."""
_DAY = WEEK // 7
_MOST_WEEKS = 4
_FEWEST_WEEKS = 3
_SLACK = (1, 3)
_HOUR = 60 // SLOT_MINUTES
_FEWEST_DAYS = 8
"""Less history does not hold each day of a week."""
_FEWEST_SLOTS = 50
_TIMES = 3
_REGULAR_SHARE = 0.7
_ALWAYS = 0.95
_IRREGULAR_MORE = 5
_IRREGULAR_TIMES = 1.5
_WEEK_MINUTES = WEEK * SLOT_MINUTES
_NEWEST = text("""
SELECT pipelines.id, newest.minute FROM pipelines
CROSS JOIN LATERAL (
  SELECT minute FROM ledger_minutes
  WHERE pipeline_id = pipelines.id AND stage = 'ingestion' AND in_first > 0 AND minute <= :now
  ORDER BY minute DESC LIMIT 1) AS newest
WHERE NOT EXISTS (SELECT FROM undeployments WHERE pipeline_id = pipelines.id)
""")
_ACTIVE = text("""
SELECT slot FROM generate_series(CAST(:since AS int), CAST(:until AS int)) AS slot
WHERE EXISTS (
  SELECT 1 FROM ledger_minutes
  WHERE pipeline_id = :pipeline AND minute >= slot * :size AND minute < (slot + 1) * :size
    AND stage = 'ingestion' AND in_first > 0)
ORDER BY slot
""")
_TAKEN_IN = text("""
SELECT coalesce(sum(in_first), 0) FROM ledger_minutes
WHERE pipeline_id = :pipeline AND stage = 'ingestion' AND minute > :since AND minute <= :until
""")


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence that is out of the usual."""

    last_slot: int
    """The last active one."""
    slots: int
    """Whole slots without an event since."""
    weeks: int
    """Earlier weeks that it was compared with; 0: only with the longest pause so far."""
    missed: int
    """Active slots that these weeks had in the same hours; without weeks 0."""
    longest: int
    """The longest pause of the history before it, in slots."""


def unusual_silence(active: Sequence[int], now_slot: int, *, shortest: int) -> Silence | None:
    """Return the silence since the last active slot when it is out of the usual.

    Args:
        active: numbers of the slots with events, rising, of up to ``HISTORY_WEEKS``; the first is
            when the history begins.
        now_slot: the slot that is not over yet.
        shortest: whole slots without events that are never an alarm when there are fewer.
    """
    if not active or now_slot - active[-1] - 1 < max(shortest, 1):
        return None
    history = _History(active)
    weeks = history.weeks(active[-1])
    found = _against_weeks if weeks >= _FEWEST_WEEKS else _against_longest
    return found(history, now_slot, weeks)


def _against_weeks(history: _History, now_slot: int, weeks: int) -> Silence | None:
    last = history.active[-1]
    pauses = list(history.pauses(last - 2 * WEEK))
    longest = max((end - start - 1 for start, end in pauses), default=0)
    slack = min(max(longest, _SLACK[0]), _SLACK[1])
    missed = history.missed(last, now_slot, slack)
    long = [(start, end) for start, end in pauses if end - start > 2 * slack + 1]
    learned = sorted(history.missed(*one, slack) for one in long if history.weeks(one[0]) > 1)
    usual = learned[-2] if len(learned) > 1 else 0
    silent = now_slot - last - 1
    regular = history.repeats(last - WEEK, slack)
    by_far = silent > _TIMES * max(history.longest_pause(), 1) and missed > 0
    enough = missed > _TIMES * usual + (0 if regular else _IRREGULAR_MORE)
    if not regular and silent <= _IRREGULAR_TIMES * history.longest_pause():
        enough = False
    if not enough and not by_far:
        return None
    return Silence(last, silent, weeks, missed, longest)


def _against_longest(history: _History, now_slot: int, _weeks: int) -> Silence | None:
    active = history.active
    last = active[-1]
    if last - active[0] < _FEWEST_DAYS * _DAY or len(active) < _FEWEST_SLOTS:
        return None
    longest = history.longest_pause()
    silent = now_slot - last - 1
    if silent <= _TIMES * max(longest, 1):
        return None
    return Silence(last, silent, 0, 0, longest)


@dataclass(frozen=True, slots=True)
class _History:
    active: Sequence[int]

    def weeks(self, slot: int) -> int:
        """Return how many whole weeks before a slot there are to compare with."""
        return min(_MOST_WEEKS, (slot - self.active[0]) // WEEK)

    def pauses(self, since: int) -> Iterable[tuple[int, int]]:
        """Yield neighbouring active slots after ``since``."""
        start = bisect_right(self.active, since)
        return zip(self.active[start:], self.active[start + 1 :], strict=False)

    def longest_pause(self) -> int:
        """Return the longest pause of all the history."""
        pauses = self.pauses(self.active[0] - 1)
        return max((end - start - 1 for start, end in pauses), default=0)

    def missed(self, last: int, now: int, slack: int) -> int:
        """Return the active slots that earlier weeks had after ``last`` and before ``now``."""
        weeks = self.weeks(last)
        begin, end = last + slack, now - 1 - slack
        found = sorted(
            min(self._between(begin - then, end - then) for then in _hours_around(week * WEEK))
            for week in range(1, weeks + 1)
        )
        return found[1 if weeks == _MOST_WEEKS else 0] if found else 0

    def repeats(self, since: int, slack: int) -> bool:
        """Tell whether slots after ``since`` were active a week earlier too, more than by chance.

        By chance as many are as the slots near any active one are of a week.
        """
        slots = self.active[bisect_right(self.active, since) :]
        alike = sum(self._between(s - WEEK - slack - 1, s - WEEK + slack) > 0 for s in slots)
        reach = 2 * slack + 1
        near = sum(min(reach, end - start) for start, end in self.pauses(since - WEEK)) / (2 * WEEK)
        if near > _ALWAYS:
            return True
        return alike / len(slots) - near > _REGULAR_SHARE * (1 - near)

    def _between(self, after: int, until: int) -> int:
        """Return the number of active slots after one, up to another."""
        return max(0, bisect_right(self.active, until) - bisect_right(self.active, after))


def _hours_around(slots: int) -> tuple[int, int, int]:
    return slots - _HOUR, slots, slots + _HOUR


def quiet(
    connection: Connection,
    now_minute: int,
    limits: WatchLimits,
    known: OpenFindings,
    name: Callable[[str], str],
) -> list[Finding]:
    """Return the pipelines that bring nothing where they always did."""
    shortest = max(1, int(limits.quiet_after_s // (60 * SLOT_MINUTES)))
    slot = now_minute // SLOT_MINUTES
    found = []
    for pipeline_id, minute in _newest_minutes(connection, now_minute).items():
        before = known.standing.get(("quiet", pipeline_id, "", ""))
        if before is not None and before.detail.get("last_minute") == minute:
            found.append(before)  # it ends when something comes, however long that takes
        elif slot - minute // SLOT_MINUTES > shortest:
            active = _active_slots(connection, pipeline_id, slot)
            silence = unusual_silence(active, slot, shortest=shortest)
            if silence is not None:
                found.append(_silent(connection, name, pipeline_id, (minute, now_minute), silence))
    return found


def _silent(
    connection: Connection,
    name: Callable[[str], str],
    pipeline_id: str,
    minutes: tuple[int, int],
    silence: Silence,
) -> Finding:
    last, now = minutes
    longest_s = silence.longest * SLOT_MINUTES * 60
    usual = _usual_events(connection, pipeline_id, since=last, until=now - 1, weeks=silence.weeks)
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


@dataclass(frozen=True, slots=True)
class _Usual:
    """What some hours brought in the weeks before."""

    events: int
    """The median of the weeks."""
    weeks: tuple[int, ...]
    """Of each week, the newest first."""


def _newest_minutes(connection: Connection, now_minute: int) -> dict[str, int]:
    """Return {pipeline id: the newest minute in which it took events in}."""
    rows = connection.execute(_NEWEST, {"now": now_minute})
    return {str(row[0]): int(row[1]) for row in rows}


def _active_slots(connection: Connection, pipeline_id: str, now_slot: int) -> list[int]:
    """Return the numbers of the slots in which a pipeline took events in, rising."""
    given = {
        "pipeline": pipeline_id,
        "since": now_slot - HISTORY_WEEKS * WEEK,
        "until": now_slot,
        "size": SLOT_MINUTES,
    }
    return [int(row[0]) for row in connection.execute(_ACTIVE, given)]


def _usual_events(
    connection: Connection, pipeline_id: str, *, since: int, until: int, weeks: int
) -> _Usual:
    """Return what the minutes after ``since`` up to ``until`` brought in the weeks before."""
    found = []
    for week in range(1, weeks + 1):
        back = week * _WEEK_MINUTES
        given = {"pipeline": pipeline_id, "since": since - back, "until": until - back}
        found.append(int(connection.execute(_TAKEN_IN, given).scalar_one()))
    return _Usual(int(median(found)) if found else 0, tuple(found))
