"""The policy: what was seen and remembered, and the thresholds, give a decision. Pure.

Nodes are wanted for what comes in (``demand`` over ``busy_target``) and for what waits (worked off
within ``drain_s``); of Spark for its consumers as well, whatever comes in. More are asked for as
soon as tasks wait too long, nearly all units are busy or consumers want them: all that are missing
at once, as far as the step allows, those that start counted. Fewer only after ``shrink_after_s`` in
which never more were wanted: the peak of that time is what is kept, as the stabilisation window of
Kubernetes' Horizontal Pod Autoscaler does it. So a step up is answered once and what was added for
the backlog goes once.

What is not known changes nothing: no measurement, no thresholds, or one that is old. A clock that
steps back begins the window anew, and no cool-down lasts longer for it.

Live and simulated coordinators call this same function.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from waybill.capacity.model import Decision, Observation, PolicyState, Thresholds

STALE_S = 300.0
"""A measurement that is older decides nothing."""
_GAP_S = 600.0
"""A pause between looks from which on the window begins anew: nobody knows what was wanted."""
_ROUNDING = 1e-9


def decide(
    state: PolicyState, seen: Observation, thresholds: Thresholds
) -> tuple[Decision, PolicyState]:
    """Return what is to be done, and what is to be remembered.

    Args:
        state: of the look before; ``PolicyState()``: there was none.
        seen: now.
        thresholds: in force.
    """
    if seen.measured_s > STALE_S or seen.units_per_node <= 0:
        why = (
            f"the last measurement is {seen.measured_s:.0f} s old"
            if seen.units_per_node > 0
            else "no node says how many units it has"
        )
        held = Decision("hold", seen.nodes, seen.nodes, seen.nodes, (f"{why}: nothing changes",))
        return held, state
    wanted, words = _wanted(seen, thresholds)
    state = _remember(state, seen, thresholds, wanted)
    if seen.nodes < thresholds.min_nodes:
        decision = _grow(state, seen, thresholds, wanted, f"fewer than min_nodes; {words}")
    elif seen.nodes < min(seen.consumer_nodes, thresholds.max_nodes):
        decision = _grow(state, seen, thresholds, wanted, f"too few for the consumers; {words}")
    elif seen.nodes < wanted and seen.nodes <= thresholds.max_nodes:
        decision = _more(state, seen, thresholds, wanted, words)
    else:
        decision = _fewer(state, seen, thresholds, wanted, words)
    if decision.action == "grow":
        state = replace(state, grown_at_s=seen.at_s)
    return decision, state


def _wanted(seen: Observation, thresholds: Thresholds) -> tuple[int, str]:
    """Return how many nodes the work wants, and why."""
    incoming = seen.demand / thresholds.busy_target
    backlog = seen.backlog_unit_s / thresholds.drain_s
    nodes = ceil((incoming + backlog) / seen.units_per_node - _ROUNDING)
    words = (
        f"{seen.demand:.1f} units for what comes in, {seen.backlog_unit_s:.0f} unit seconds wait, "
        f"p95 {seen.p95_s:.0f} s: {nodes} nodes of {seen.units_per_node:g}"
    )
    if seen.consumer_nodes > 0:
        words += f"; consumers want {seen.consumer_nodes}"
    return max(nodes, seen.consumer_nodes), words


def _remember(
    state: PolicyState, seen: Observation, thresholds: Thresholds, wanted: int
) -> PolicyState:
    """Return the state with this look: the peaks of the window, and from when on they are known."""
    broken = not 0 <= seen.at_s - state.at_s <= _GAP_S
    kept = () if broken else state.wanted
    first = seen.at_s - thresholds.shrink_after_s
    peaks = [one for one in kept if one[0] >= first and one[1] > wanted]
    return PolicyState(
        at_s=seen.at_s,
        grown_at_s=0.0 if state.grown_at_s > seen.at_s else state.grown_at_s,
        since_s=seen.at_s if broken else state.since_s,
        wanted=(*peaks, (seen.at_s, wanted)),
    )


def _more(
    state: PolicyState, seen: Observation, thresholds: Thresholds, wanted: int, words: str
) -> Decision:
    """Grow, where somebody waits for it or nearly all is busy."""
    late = max(seen.p95_s, seen.oldest_s) > thresholds.wait_objective_s
    coming = seen.units + seen.starting * seen.units_per_node
    full = seen.demand >= thresholds.busy_high * coming
    if not late and not full:
        return _hold(seen, wanted, f"{words}; nobody waits too long, and not all are busy")
    return _grow(state, seen, thresholds, wanted, words)


def _grow(
    state: PolicyState, seen: Observation, thresholds: Thresholds, wanted: int, words: str
) -> Decision:
    rested_s = seen.at_s - state.grown_at_s
    if rested_s < thresholds.grow_every_s:
        return _hold(seen, wanted, f"{words}; the last step up was {rested_s:.0f} s ago")
    if 0 < thresholds.budget_node_hours <= seen.node_hours and seen.nodes >= thresholds.min_nodes:
        spent = f"{seen.node_hours:.1f} of {thresholds.budget_node_hours:g} node hours"
        return _hold(seen, wanted, f"{words}; the day's budget is spent: {spent}")
    target = max(wanted, thresholds.min_nodes)
    reasons = [words]
    if target > thresholds.max_nodes:
        target = thresholds.max_nodes
        reasons.append(f"max_nodes is {target}")
    if target - seen.nodes > thresholds.most_added:
        target = seen.nodes + thresholds.most_added
        reasons.append(f"{thresholds.most_added} nodes a step")
    if target <= seen.nodes:
        return _hold(seen, wanted, "; ".join(reasons))
    return Decision("grow", seen.nodes, target, wanted, tuple(reasons))


def _fewer(
    state: PolicyState, seen: Observation, thresholds: Thresholds, wanted: int, words: str
) -> Decision:
    """Drain what was not wanted for long enough; beyond ``max_nodes`` at once."""
    peak = max(nodes for _, nodes in state.wanted)
    known_s = seen.at_s - state.since_s
    over = seen.nodes > thresholds.max_nodes
    if not over and known_s < thresholds.shrink_after_s:
        return _hold(seen, wanted, f"{words}; known for {known_s:.0f} s only")
    keep = min(max(peak, thresholds.min_nodes), thresholds.max_nodes)
    if keep >= seen.nodes:
        lately = f"{peak} were wanted within {thresholds.shrink_after_s:.0f} s"
        return _hold(seen, wanted, words if peak == wanted else f"{words}; {lately}")
    if seen.draining:
        return _hold(seen, wanted, f"{words}; {seen.draining} still drain")
    if seen.starting:
        return _hold(seen, wanted, f"{words}; {seen.starting} still start")
    target = max(keep, seen.nodes - thresholds.most_removed)
    why = (
        f"max_nodes is {thresholds.max_nodes}"
        if over
        else f"for {thresholds.shrink_after_s:.0f} s no more than {peak} were wanted"
    )
    return Decision("shrink", seen.nodes, target, wanted, (words, why))


def _hold(seen: Observation, wanted: int, words: str) -> Decision:
    return Decision("hold", seen.nodes, seen.nodes, wanted, (words,))
