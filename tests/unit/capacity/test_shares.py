"""Fair shares of slots: who leaves, who goes first; and what comes of that, round by round."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.capacity import Shares, SlotTask, share_slots
from waybill.capacity.shares import DEAF_S, TURN_S

ROUND_S = 60.0


def tasks(**teams: str) -> list[SlotTask]:
    """Return tasks, a letter each: ``r`` runs, ``w`` waits; the first of each team is the oldest."""
    return [
        SlotTask(f"{team}{place}", team, float(place), letter == "w")
        for team, letters in teams.items()
        for place, letter in enumerate(letters)
    ]


@pytest.mark.parametrize("slots", [-1, 0, 1, 16])
def test_nobody_leaves_and_nobody_goes_first_where_nothing_waits(slots: int) -> None:
    assert share_slots([], slots, 0.0) == Shares()
    assert share_slots(tasks(a="rrr", b="r"), slots, 1e6) == Shares()


def test_a_team_alone_takes_all_slots() -> None:
    assert share_slots(tasks(a="rrrrwwww"), 4, 1e6).leave == ()


def test_a_team_over_its_share_gives_back_as_many_as_the_other_lacks_its_longest_turns_first() -> (
    None
):
    assert share_slots(tasks(a="rrrrw", b="w"), 4, 0.0) == Shares(("b0",), ("a0",))
    assert share_slots(tasks(a="rrrrw", b="www"), 4, 0.0) == Shares(("b0", "b1"), ("a0", "a1"))


def test_a_free_slot_is_nobodys_to_give_back_and_goes_to_the_team_below_its_share() -> None:
    assert share_slots(tasks(a="rrrww", b="w"), 4, 0.0) == Shares(("b0",), ())


def test_the_team_that_is_most_over_gives_back_first() -> None:
    assert share_slots(tasks(a="rr", b="rrrr", c="w"), 6, 0.0) == Shares(("c0",), ("b0",))
    found = share_slots(tasks(a="rrr", b="rrrr", c="ww"), 7, 0.0)
    assert found == Shares(("c0", "c1"), ("b0", "a0"))


def test_a_slot_that_even_shares_leave_over_is_whoevers_took_it() -> None:
    assert share_slots(tasks(a="rrr", b="rrw"), 5, 0.0) == Shares()


def test_of_two_that_lack_a_slot_the_team_with_fewer_goes_first_then_who_waited_longest() -> None:
    found = share_slots([*tasks(a="rrrr", b="rw"), SlotTask("c", "c", 0.5, True)], 6, 0.0)
    assert found.first == ("c", "b1")


def test_with_more_teams_than_slots_a_turn_ends_after_a_while_for_a_team_that_has_none() -> None:
    held = [*tasks(a="r", b="r"), SlotTask("c", "c", 9.0, True), SlotTask("d", "d", 5.0, True)]
    assert share_slots(held, 2, TURN_S - 1).leave == ()
    assert share_slots(held, 2, TURN_S) == Shares(("d", "c"), ("a0", "b0"))
    assert share_slots(held[:3], 2, TURN_S) == Shares(("c",), ("a0",))
    assert share_slots(held, 2, TURN_S, {"d": 2.0, "c": 1.0}).first == ("c", "d")


def test_another_run_is_asked_where_the_first_one_does_not_hear() -> None:
    own = tasks(a="rrr", b="w")
    asked = [own[0]._replace(asked_s=DEAF_S - 1), *own[1:]]
    assert share_slots(asked, 3, 0.0).leave == ("a0",)
    deaf = [own[0]._replace(asked_s=DEAF_S), *own[1:]]
    assert share_slots(deaf, 3, 0.0).leave == ("a1", "a0")


held_or_waiting = st.dictionaries(
    st.sampled_from("abcdefg"), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=7
)


@given(held_or_waiting, st.integers(1, 12), st.floats(0, 2 * TURN_S))
def test_only_what_runs_leaves_and_only_what_waits_goes_first_and_no_more_than_there_is_room_for(
    teams: dict[str, tuple[int, int]], slots: int, now_s: float
) -> None:
    found = tasks(**{team: "r" * runs + "w" * waits for team, (runs, waits) in teams.items()})
    by_key = {task.key: task for task in found}
    shares = share_slots(found, slots, now_s)
    first, leave = [[by_key[key] for key in keys] for keys in shares]
    assert all(task.waits for task in first)
    assert not any(task.waits for task in leave)
    assert len(set(shares.first)) == len(first)
    assert len(set(shares.leave)) == len(leave)
    present = {task.team for task in found}
    share = max(1, slots // max(1, len(present)))
    held = Counter(task.team for task in found if not task.waits)
    goes, comes = (Counter(task.team for task in part) for part in (leave, first))
    for team in present:
        assert held[team] - goes[team] >= share or not goes[team] or len(present) > slots
        assert not (goes[team] and comes[team]), "a team would take from itself"
        assert not comes[team] or held[team] + comes[team] <= share
    free = max(0, slots - sum(held.values()))
    assert len(first) <= max(1, free + len(leave))
    assert len(leave) <= max(0, sum(comes.values()) - free)


@dataclass
class Pool:
    """A pool of slots as Airflow has it: priority, then the date of the run."""

    slots: int
    now_s: float = 0.0
    runs: dict[str, SlotTask] = field(default_factory=dict)
    dates: dict[str, int] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    served: Counter[str] = field(default_factory=Counter)
    """Rounds in which each team had a slot."""
    had_s: dict[str, float] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=count)

    def add(self, team: str) -> None:
        number = next(self.numbers)
        key = f"{team}-{number}"
        self.runs[key] = SlotTask(key, team, self.now_s, waits=True)
        self.dates[key] = number

    def schedule(self) -> None:
        """Give free slots, as Airflow's scheduler does."""
        waiting = [run for run in self.runs.values() if run.waits]
        waiting.sort(key=lambda run: (run.key not in self.first, self.dates[run.key]))
        free = max(0, self.slots - sum(not run.waits for run in self.runs.values()))
        for run in waiting[:free]:
            self.runs[run.key] = run._replace(waits=False, since_s=self.now_s)

    def round(self) -> Shares:
        """Have a round: who is to leave does, at its next page, and waits again."""
        self.now_s += ROUND_S
        shares = share_slots(self.runs.values(), self.slots, self.now_s, self.had_s)
        self.first = shares.first
        for key in shares.leave:
            self.runs[key] = self.runs[key]._replace(waits=True, since_s=self.now_s)
        self.schedule()
        served = {run.team for run in self.runs.values() if not run.waits}
        self.served.update(served)
        self.had_s |= dict.fromkeys(served, self.now_s)
        return shares

    def held(self) -> Counter[str]:
        return Counter(run.team for run in self.runs.values() if not run.waits)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 15)), min_size=1, max_size=5),
    st.integers(4, 12),
)
def test_after_a_round_no_team_has_more_than_its_share_while_one_with_less_waits(
    floods: list[tuple[str, int]], slots: int
) -> None:
    pool = Pool(slots)
    for team, runs in floods:
        for _ in range(runs):
            pool.add(team)
        pool.schedule()
        pool.round()
        held, teams = pool.held(), {run.team for run in pool.runs.values()}
        share = slots // len(teams)
        waits = {run.team for run in pool.runs.values() if run.waits}
        below = {one for one in waits if held[one] < share}
        assert not below, (held, share)
        assert sum(held.values()) == min(slots, len(pool.runs)), "a slot is idle"
        assert pool.round() == Shares(), "shares that are fair are left alone"


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(2, 7), st.integers(1, 20))
def test_no_team_starves_where_there_are_more_teams_than_slots(
    slots: int, teams: int, flood: int
) -> None:
    pool = Pool(slots)
    for _ in range(flood):
        pool.add("a")
    pool.schedule()
    for team in "bcdefgh"[: teams - 1]:
        pool.add(team)
    turns = int(TURN_S / ROUND_S) + 2
    for _ in range(turns * (teams + 1)):
        pool.round()
    assert len(pool.served) == teams, pool.served
    assert max(pool.served.values()) <= 2 * min(pool.served.values()) + 2 * turns
