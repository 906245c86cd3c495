"""The checks of habits: pipelines gone quiet, and shares of parked events that jumped.

Quiet: a pipeline that brings nothing, at a time when it always brought something.

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

Drift: a destination's table has other rows than loads put there: somebody deleted, or wrote.

Loads note by how much they change a table's number of rows (``destinations.sql.counting``).
A table is counted when it is due; until it is again, what was found stands: the destination's own
books keep it. Who closes the breach by name accepts what is there as right from then on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from waybill.destinations import CountLook, RowCount, open_destination
from waybill.pipelines import Pipeline, TableSpec
from waybill.reconciliation.checks import measurements
from waybill.reconciliation.checks.findings import (
    Finding,
    Key,
    Told,
    WatchLimits,
    clock,
    events,
    span,
)
from waybill.reconciliation.checks.parked import Window, is_over, is_suspicious, parked_jump
from waybill.settings import DestinationSettings, S3Settings

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


@dataclass(frozen=True, slots=True)
class DriftLimits:
    """How often tables are counted."""

    every_s: float = 600.0
    small_rows: int = 5_000_000
    exact_every_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Place:
    """A table, and the event name under which its drift is told."""

    pipeline_id: str
    event_name: str
    spec: TableSpec

    @property
    def key(self) -> Key:
        """Return the key of its findings."""
        return ("drift", self.pipeline_id, self.event_name, "destination")


def places_of(pipelines: Sequence[Pipeline]) -> Iterator[tuple[str, list[Place]]]:
    """Yield each destination with the tables that pipelines load there, each table once."""
    found: dict[str, dict[tuple[str, str], Place]] = {}
    for pipeline in sorted(pipelines, key=lambda one: one.id):
        for event in sorted(pipeline.events.values(), key=lambda one: one.name):
            table = (event.table.schema_name, event.table.name)
            place = Place(pipeline.id, event.name, event.table)
            found.setdefault(pipeline.destination, {}).setdefault(table, place)
    yield from ((name, list(tables.values())) for name, tables in sorted(found.items()))


def look_at_drift(
    name: str,
    settings: DestinationSettings,
    places: Sequence[Place],
    limits: DriftLimits,
    *,
    accepted: Mapping[Key, datetime],
    s3: S3Settings | None = None,
) -> list[Finding]:
    """Return which tables of a destination drift.

    Args:
        name: of the destination.
        settings: how to reach it.
        places: its tables.
        limits: of the settings.
        accepted: when somebody closed a drift by name.
        s3: the object store, for a destination whose tables are objects there.

    Raises:
        RetryError, InputError: the destination is away, or not configured as it must be.
    """
    by_table = {(one.spec.schema_name, one.spec.name): one for one in places}
    looks = [
        CountLook(
            one.spec,
            every_s=limits.every_s,
            small_rows=limits.small_rows,
            exact_every_s=limits.exact_every_s,
            accepted_at=accepted.get(one.key),
        )
        for one in places
    ]
    with open_destination(name, settings, s3) as destination:
        counts = destination.count_rows(looks)
    found = [drift(by_table[one.spec.schema_name, one.spec.name], one) for one in counts]
    return [one for one in found if one is not None]


def drift(place: Place, count: RowCount) -> Finding | None:
    """Return what a count says; None: the table has the rows that it must have."""
    gap = count.expected - count.counted
    if not gap:
        return None
    table = f"{count.spec.schema_name}.{count.spec.name}"
    who = "deleted" if gap > 0 else "added"
    return Finding(
        "drift",
        place.pipeline_id,
        f"table {table} has {count.counted:,} rows, loads put {count.expected:,} there: "
        f"{abs(gap):,} {'was' if abs(gap) == 1 else 'were'} {who} by somebody else",
        event_name=place.event_name,
        stage="destination",
        gap=gap,
        detail={"table": table, "rows": count.counted, "expected": count.expected},
    )
