"""When nodes are added and drained, and when nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.capacity import Observation, PolicyState, Thresholds, decide
from waybill.errors import InputError

LIMITS = Thresholds(max_nodes=10, most_added=3, shrink_after_s=600)
CALM = Observation(
    at_s=100_000.0, units_per_node=4, units=8, ready=2, busy=4, demand=5.0, measured_s=10
)
LATE = replace(CALM, busy=8, demand=20.0, waiting=60, backlog_unit_s=1200.0, p95_s=90, oldest_s=95)


NOTHING_SEEN = PolicyState()


def looks(seen: Observation, minutes: int, state=NOTHING_SEEN, limits=LIMITS):
    """Let the same be seen for so many minutes; return the decisions and the last state."""
    found = []
    for minute in range(minutes):
        decision, state = decide(state, replace(seen, at_s=seen.at_s + 60 * minute), limits)
        found.append(decision)
    return found, state


def test_where_tasks_wait_too_long_as_many_nodes_are_added_as_a_step_allows():
    [decision], _ = looks(LATE, 1)
    assert (decision.action, decision.before, decision.after) == ("grow", 2, 5)
    assert decision.wanted == 8, "20 units at three quarters busy, and 4 for the backlog, by 4"
    assert "3 nodes a step" in decision.reasons


def test_nodes_that_start_are_counted_so_nothing_is_asked_for_twice():
    [decision], _ = looks(replace(LATE, starting=6), 1)
    assert decision.action == "hold"


def test_after_a_step_up_the_cool_down_holds_and_then_the_rest_is_added():
    [first], state = looks(LATE, 1)
    soon = replace(LATE, at_s=LATE.at_s + 30, starting=3)
    held, state = decide(state, soon, LIMITS)
    assert (first.action, held.action) == ("grow", "hold")
    assert "the last step up was 30 s ago" in held.reasons[0]
    more, _ = decide(state, replace(soon, at_s=LATE.at_s + 61), LIMITS)
    assert (more.action, more.after) == ("grow", 8)


def test_never_more_than_max_nodes_and_none_beyond_the_budget_of_the_day():
    [decision], _ = looks(replace(LATE, demand=400.0, starting=7), 1)
    assert (decision.after, "max_nodes is 10" in decision.reasons) == (10, True)
    limits = replace(LIMITS, budget_node_hours=24)
    [held], _ = looks(replace(LATE, node_hours=24.0), 1, limits=limits)
    assert (held.action, "budget" in held.reasons[0]) == ("hold", True)


def test_fewer_are_wanted_for_the_whole_cool_down_before_one_drains():
    idle = replace(CALM, ready=5, units=20, busy=1, demand=1.0)
    decisions, state = looks(idle, 11)
    assert [one.action for one in decisions] == ["hold"] * 10 + ["shrink"]
    assert (decisions[-1].before, decisions[-1].after) == (5, 4)
    draining = replace(idle, at_s=idle.at_s + 11 * 60, ready=4, draining=1)
    held, _ = decide(state, draining, LIMITS)
    assert (held.action, "still drain" in held.reasons[0]) == ("hold", True)


def test_a_peak_within_the_cool_down_keeps_its_nodes():
    idle = replace(CALM, ready=5, units=20, busy=1, demand=1.0)
    _, state = looks(idle, 8)
    _, state = decide(state, replace(idle, at_s=idle.at_s + 480, demand=14.0), LIMITS)
    held, state = decide(state, replace(idle, at_s=idle.at_s + 700), LIMITS)
    assert (held.action, "5 were wanted" in held.reasons[0]) == ("hold", True)


def test_what_was_not_measured_lately_changes_nothing():
    for seen in (replace(LATE, measured_s=301), replace(LATE, units_per_node=0)):
        [decision], state = looks(seen, 1)
        assert (decision.action, state) == ("hold", PolicyState())


def test_a_clock_that_steps_back_begins_the_window_anew_and_blocks_nothing():
    idle = replace(CALM, ready=5, units=20, busy=1, demand=1.0)
    _, state = looks(idle, 30)
    back = replace(idle, at_s=idle.at_s - 7200)
    held, state = decide(state, back, LIMITS)
    assert "known for 0 s only" in held.reasons[0]
    grown, _ = decide(
        replace(state, grown_at_s=idle.at_s), replace(LATE, at_s=back.at_s + 60), LIMITS
    )
    assert grown.action == "grow", "a step up that lies ahead counts as long ago"


def test_beyond_max_nodes_one_drains_at_once_whatever_waits():
    [decision], _ = looks(replace(LATE, ready=12, units=48, demand=90.0), 1)
    assert (decision.action, decision.after) == ("shrink", 11)


def test_the_memory_survives_being_written_and_read():
    _, state = looks(LATE, 5)
    assert PolicyState.read(state.to_json()) == state
    assert PolicyState.read({"at_s": "soon"}) == PolicyState()


@given(
    demand=st.floats(0, 1e4),
    backlog=st.floats(0, 1e7),
    p95=st.floats(0, 1e5),
    ready=st.integers(0, 30),
    starting=st.integers(0, 30),
    draining=st.integers(0, 3),
)
def test_no_decision_leaves_the_limits(demand, backlog, p95, ready, starting, draining):
    seen = replace(
        CALM, demand=demand, backlog_unit_s=backlog, p95_s=p95, ready=ready, starting=starting,
        draining=draining, units=4.0 * ready,
    )  # fmt: skip
    [decision], _ = looks(seen, 1)
    assert decision.reasons
    if decision.action == "grow":
        assert decision.before < decision.after <= min(10, decision.before + 3)
    elif decision.action == "shrink":
        assert max(1, decision.before - 1) <= decision.after < decision.before
    else:
        assert decision.after == decision.before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"min_nodes": 5, "max_nodes": 4}, "min_nodes must be from 0 to max_nodes, that is 4"),
        ({"busy_target": 0.95}, "busy_target must be over 0, less than busy_high"),
        ({"budget_node_hours": 10}, "at least what min_nodes take in a day, that is 24"),
        ({"max_nodes": "many"}, "threshold max_nodes must be a number, found 'many'"),
        ({"max_nodes": 2.5}, "whole numbers"),
        ({"most_added": 0}, "at least 1"),
        ({"drain_s": float("nan")}, "threshold drain_s must be a number"),
        ({"max_node": 4}, "no thresholds: max_node; there are wait_objective_s"),
        ({"max_nodes": 10**400}, "threshold max_nodes must be a number"),
        ([1], "must be an object"),
    ],
)
def test_thresholds_that_contradict_or_are_none_say_what_is_wrong(values, words):
    with pytest.raises(InputError) as error:
        Thresholds.read(values)
    assert words in str(error.value)


def test_whole_numbers_of_json_may_have_a_point():
    assert Thresholds.read({"max_nodes": 8.0}).max_nodes == 8


def test_consumers_want_nodes_though_nothing_waits_and_keep_those_that_they_want():
    idle = replace(CALM, demand=0.0, busy=0)
    [decision], _ = looks(replace(idle, consumer_nodes=4), 1)
    assert (decision.action, decision.after, decision.wanted) == ("grow", 4, 4)
    assert decision.reasons[0].startswith("too few for the consumers")
    found, _ = looks(replace(idle, consumer_nodes=2), 30)
    assert {one.action for one in found} == {"hold"}
    [many], _ = looks(replace(idle, consumer_nodes=400, ready=9), 1)
    assert (many.after, "max_nodes is 10" in many.reasons) == (10, True)
    [most], _ = looks(replace(idle, consumer_nodes=400, ready=10), 1)
    assert most.action == "hold"
    spent = replace(LIMITS, budget_node_hours=24)
    [held], _ = looks(replace(idle, consumer_nodes=4, node_hours=24.0), 1, limits=spent)
    assert held.action == "hold"
