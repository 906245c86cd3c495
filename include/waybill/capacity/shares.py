"""Fair shares of a pool's slots among teams: who is to leave, who goes first. Pure.

The share of a team is the slots divided by the teams that run or wait, rounded down, at least one.
A slot that this leaves over is whoever's took it. Where a team below its share waits:

- teams over their share give back as many slots as are missing, those that are most over first;
- where teams are more than slots, each has one at most; then those whose turn has lasted ``TURN_S``
  give it back to teams that have none: so nobody waits for ever behind reads that take days;
- of those that wait the first of teams below their share go before all others: the team that has
  fewest first, then the team that had one longest ago, then who has waited longest.

A team alone takes all slots. A run that is asked to leave and does not for ``DEAF_S``, as its page
is long or its process is dead, stays asked, and another one is asked in its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

TURN_S = 300.0
DEAF_S = 60.0


class SlotTask(NamedTuple):
    """A task that has a slot of a pool, or waits for one."""

    key: str
    team: str
    since_s: float
    """When it got the slot, or began to wait, on any clock."""
    waits: bool
    asked_s: float | None = None
    """For so long it is asked to give its slot back; None: it is not."""


class Shares(NamedTuple):
    """What is to happen with a pool's slots."""

    first: tuple[str, ...] = ()
    """Tasks that wait and go before all others, in this order."""
    leave: tuple[str, ...] = ()
    """Tasks that are to give their slots back."""


def share_slots(
    tasks: Iterable[SlotTask],
    slots: int,
    now_s: float,
    had_s: Mapping[str, float] = MappingProxyType({}),
) -> Shares:
    """Return which tasks go first, and which are to give their slots back.

    Args:
        tasks: all that have a slot of the pool, or wait for one.
        slots: of the pool; 0 or less: there is no such limit, or nothing runs at all.
        now_s: the time, on the clock of the tasks.
        had_s: when each team had a slot last, on any clock; one that is not named never had one.

    Cost: linear, and a sort.
    """
    running: dict[str, list[SlotTask]] = defaultdict(list)
    waiting: dict[str, list[SlotTask]] = defaultdict(list)
    for task in tasks:
        (waiting if task.waits else running)[task.team].append(task)
    teams = running.keys() | waiting.keys()
    if slots <= 0 or not waiting:
        return Shares()
    share = max(1, slots // len(teams))
    held = {team: len(running.get(team, ())) for team in teams}
    needs = _needs(waiting, held, share, had_s)
    if not needs:
        return Shares()
    free = max(0, slots - sum(held.values()))
    leave = _leave(running, held, share, len(needs) - free)
    if len(teams) > slots:
        leave += _turned(running, held, len(needs) - free - len(leave), now_s)
    deaf = [t for own in running.values() for t in own if _is_deaf(t)] if leave else []
    ready = max(1, free + len(leave))
    return Shares(
        tuple(task.key for task in needs[:ready]),
        tuple(dict.fromkeys(task.key for task in (*leave, *deaf))),
    )


def _needs(
    waiting: dict[str, list[SlotTask]],
    held: dict[str, int],
    share: int,
    had_s: Mapping[str, float],
) -> list[SlotTask]:
    """Return the tasks with which teams reach their share, in the order in which they go."""
    ranked = []
    for team, tasks in waiting.items():
        tasks.sort(key=_oldest)
        missing = tasks[: max(0, share - held[team])]
        had = had_s.get(team, float("-inf"))
        ranked += [(held[team] + place, had, task) for place, task in enumerate(missing)]
    ranked.sort(key=lambda one: (one[0], one[1], _oldest(one[2])))
    return [task for _, _, task in ranked]


def _leave(
    running: dict[str, list[SlotTask]], held: dict[str, int], share: int, missing: int
) -> list[SlotTask]:
    """Return tasks of teams over their share, as many as slots are missing."""
    ranked = []
    for team, tasks in running.items():
        over = held[team] - share
        able = sorted((task for task in tasks if not _is_deaf(task)), key=_oldest)
        ranked += [(place - over, task) for place, task in enumerate(able[: max(0, over)])]
    ranked.sort(key=lambda one: (one[0], _oldest(one[1])))
    return [task for _, task in ranked[: max(0, missing)]]


def _turned(
    running: dict[str, list[SlotTask]], held: dict[str, int], missing: int, now_s: float
) -> list[SlotTask]:
    """Return tasks whose turn is over, the only ones of their teams."""
    ended = [
        task
        for team, tasks in running.items()
        if held[team] == 1
        for task in tasks
        if now_s - task.since_s >= TURN_S and not _is_deaf(task)
    ]
    return sorted(ended, key=_oldest)[: max(0, missing)]


def _is_deaf(task: SlotTask) -> bool:
    return task.asked_s is not None and task.asked_s >= DEAF_S


def _oldest(task: SlotTask) -> tuple[float, str]:
    return task.since_s, task.key
