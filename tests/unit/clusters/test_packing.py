"""Packing of teams into virtual clusters: limits, pins, few moves, hot teams apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.clusters import Assignment, PackingPolicy, TeamLoad, VirtualCluster, assign, check_pin
from waybill.errors import InputError

NOW = 1_800_000_000.0
POLICY = PackingPolicy()
MINUTE = 60.0


def load(team: str, cores: float = 0.1, consumers: int = 1) -> TeamLoad:
    """A team that keeps so many cores busy."""
    return TeamLoad(team, consumers, arrival_per_s=cores * 1000, core_s_per_event=0.001)


def cluster(name: str, cores: int | None = 4, consumers: int | None = None) -> VirtualCluster:
    return VirtualCluster(name, max_consumers=consumers, cores=cores)


def places(assignment: Assignment) -> dict[str, str]:
    return {team: at.cluster for team, at in assignment.placements.items()}


def kinds(assignment: Assignment) -> dict[str, str]:
    return {move.team: move.kind for move in assignment.moves}


TWO = [cluster("a"), cluster("b")]
AB_LOADS = [load("one", 1.0), load("two", 1.0), load("three", 1.0), load("four", 1.0)]


def test_one_cluster_without_limits_serves_every_team():
    found = assign(None, AB_LOADS, [VirtualCluster("default")], {}, now_s=NOW)
    assert set(places(found).values()) == {"default"}
    assert found.version == 1
    assert found.problems == ()


def test_new_teams_are_spread_by_load():
    found = assign(None, AB_LOADS, TWO, {}, now_s=NOW)
    assert sorted(places(found).values()) == ["a", "a", "b", "b"]
    assert set(kinds(found).values()) == {"new"}


def test_the_same_measurements_change_nothing_not_even_the_version():
    first = assign(None, AB_LOADS, TWO, {}, now_s=NOW)
    assert assign(first, AB_LOADS, TWO, {}, now_s=NOW + MINUTE) == first


def test_a_team_that_is_gone_leaves_and_moves_nobody():
    first = assign(None, AB_LOADS, TWO, {}, now_s=NOW)
    second = assign(first, AB_LOADS[1:], TWO, {}, now_s=NOW + MINUTE)
    assert places(second) == {k: v for k, v in places(first).items() if k != "one"}
    assert second.version == 2
    assert second.moves == ()


def test_between_the_thresholds_nobody_is_moved():
    first = assign(None, AB_LOADS, TWO, {}, now_s=NOW)
    [team, *_] = sorted(first.teams_of("a"))
    grown = [replace(one, arrival_per_s=2300) if one.team == team else one for one in AB_LOADS]
    assert assign(first, grown, [cluster("a"), cluster("b")], {}, now_s=NOW + MINUTE).moves == ()


def test_the_smallest_team_whose_leaving_is_enough_is_moved_out_of_an_overloaded_cluster():
    loads = [load("big", 1.6), load("mid", 1.2), load("small", 0.9), load("other", 0.5)]
    first = assign(None, loads, TWO, {t: "a" for t in ("big", "mid", "small")}, now_s=NOW)
    second = assign(first, loads, TWO, {}, now_s=NOW + MINUTE)
    assert [(move.team, move.new, move.kind) for move in second.moves] == [("small", "b", "load")]
    assert "a is over its limits" in second.moves[0].reason


def test_where_nothing_fits_nobody_is_moved_and_the_problem_is_said():
    loads = [load(f"t{n}", 1.0) for n in range(8)]
    first = assign(None, loads, TWO, {}, now_s=NOW)
    second = assign(first, loads, TWO, {}, now_s=NOW + MINUTE)
    assert second.moves == first.moves
    assert [words.split(" (")[0] for words in second.problems] == [
        "cluster a is over its limits",
        "cluster b is over its limits",
    ]


def test_a_hot_team_gets_an_empty_cluster_to_itself():
    loads = [load("calm", 0.4), load("also", 0.4), load("rush", 0.3)]
    three = [cluster("a"), cluster("b"), cluster("c")]
    first = assign(None, loads, TWO, {}, now_s=NOW)
    hot = [load("rush", 3.0) if one.team == "rush" else one for one in loads]
    second = assign(first, hot, three, {}, now_s=NOW + MINUTE)
    assert second.teams_of("c") == {"rush"}
    assert kinds(second) == {"rush": "hot"}
    assert second.placements["rush"].hot


def test_no_new_team_comes_beside_a_hot_one_until_it_has_cooled():
    three = [cluster("a"), cluster("b")]
    first = assign(None, [load("rush", 2.2), load("calm", 2.4)], three, {}, now_s=NOW)
    calmer = [load("rush", 1.6), load("calm", 1.0), load("new", 0.1)]
    second = assign(first, calmer, three, {}, now_s=NOW + MINUTE)
    assert places(second)["new"] == places(second)["calm"], "rush is hot until it is below 35 %"


def test_a_load_that_goes_up_and_down_moves_a_team_once():
    first = assign(None, [load("a1", 1.6), load("a2", 1.2), load("b1", 0.5)], TWO, {
        "a1": "a", "a2": "a", "b1": "b"}, now_s=NOW)  # fmt: skip
    moves, at = 0, first
    for minute in range(60):
        swing = 2.6 if minute % 10 < 5 else 1.6
        before = at
        loads = [load("a1", swing), load("a2", 1.2), load("b1", 0.5)]
        at = assign(at, loads, TWO, {}, now_s=NOW + MINUTE * (minute + 1))
        moves += sum(1 for team, where in places(at).items() if places(before)[team] != where)
    assert moves == 1


def test_a_team_is_not_moved_back_for_load_within_an_hour():
    first = assign(None, [load("a1", 2.0), load("a2", 1.7), load("b1", 0.5)], TWO, {
        "a1": "a", "a2": "a", "b1": "b"}, now_s=NOW)  # fmt: skip
    loads = [load("a1", 1.9), load("a2", 1.7), load("b1", 0.5)]
    away = assign(first, loads, TWO, {}, now_s=NOW + MINUTE)
    assert kinds(away) == {"a2": "load"}
    pressed = [load("a1", 0.2), load("a2", 1.7), load("b1", 1.8)]
    soon = assign(away, pressed, TWO, {}, now_s=NOW + 45 * MINUTE)
    assert (places(soon)["a2"], places(soon)["b1"]) == ("b", "a")
    later = assign(away, pressed, TWO, {}, now_s=NOW + 62 * MINUTE)
    assert (places(later)["a2"], places(later)["b1"]) == ("a", "b")


def test_at_most_so_many_teams_move_at_once():
    clusters = [cluster("a", 20), cluster("b", 20)]
    loads = [load(f"t{n:02}", 1.0) for n in range(20)]
    first = assign(None, loads, clusters, {one.team: "a" for one in loads}, now_s=NOW)
    second = assign(first, loads, clusters, {}, now_s=NOW + MINUTE)
    assert len(second.moves) == POLICY.moves


def test_a_drained_cluster_is_emptied_step_by_step_and_gets_no_team():
    loads = [load(f"t{n}", 0.1) for n in range(8)]
    at = assign(None, loads, TWO, {}, now_s=NOW)
    clusters = [replace(TWO[0], state="draining"), TWO[1]]
    left = [len(at.teams_of("a"))]
    for minute in range(3):
        at = assign(at, loads, clusters, {}, now_s=NOW + MINUTE * (minute + 1))
        left.append(len(at.teams_of("a")))
    assert left == [4, 1, 0, 0]
    assert kinds(at) == {} or set(kinds(at).values()) == {"drain"}


def test_teams_of_a_cluster_that_is_gone_are_placed_at_once():
    loads = [load(f"t{n}", 0.1) for n in range(8)]
    first = assign(None, loads, TWO, {}, now_s=NOW)
    second = assign(first, loads, [TWO[1]], {}, now_s=NOW + MINUTE)
    assert set(places(second).values()) == {"b"}
    assert set(kinds(second).values()) == {"gone"}


def test_a_pin_wins_and_the_others_make_room():
    loads = [load("vip", 2.0), load("one", 1.2), load("two", 1.2)]
    first = assign(None, loads, TWO, {"vip": "b", "one": "a", "two": "a"}, now_s=NOW)
    second = assign(first, loads, TWO, {"vip": "a"}, now_s=NOW + MINUTE)
    assert places(second)["vip"] == "a"
    assert kinds(second)["vip"] == "pin"
    assert "b" in {places(second)["one"], places(second)["two"]}


def test_a_pin_to_an_unknown_cluster_names_those_that_there_are():
    with pytest.raises(InputError, match=r"no cluster 'c'; there are a, b.*clusters create"):
        assign(None, AB_LOADS, TWO, {"one": "c"}, now_s=NOW)
    with pytest.raises(InputError, match="no cluster 'c'"):
        check_pin("one", "c", None, AB_LOADS, TWO, {})


def test_a_pin_to_a_cluster_that_is_full_says_what_to_do():
    clusters = [cluster("a", 4, consumers=5), cluster("b", 4, consumers=100)]
    loads = [load("vip", 0.1, consumers=4), load("late", 0.1, consumers=3), load("x", 0.1)]
    with pytest.raises(InputError, match=r"'a' is full.*7 consumers of at most 5.*--max-consumers"):
        check_pin("late", "a", None, loads, clusters, {"vip": "a"})
    check_pin("x", "a", None, loads, clusters, {"vip": "a"})
    check_pin("late", "b", None, loads, clusters, {"vip": "a"})


def test_a_cluster_is_not_full_for_a_pin_while_teams_without_one_can_leave():
    clusters = [cluster("a", 4, consumers=3), cluster("b", 4, consumers=100)]
    loads = [load("one", consumers=3), load("vip", consumers=3)]
    first = assign(None, loads, [clusters[0]], {"one": "a"}, now_s=NOW)
    check_pin("vip", "a", first, loads, clusters, {})
    second = assign(first, loads, clusters, {"vip": "a"}, now_s=NOW + MINUTE)
    assert places(second) == {"vip": "a", "one": "b"}


def test_a_pin_whose_load_the_cores_do_not_carry_is_refused():
    loads = [load("vip", 3.0), load("huge", 2.0)]
    with pytest.raises(InputError, match=r"its load would be 5.0 of its 4 cores.*--cores"):
        check_pin("huge", "a", None, loads, TWO, {"vip": "a"})


def test_a_pin_of_an_unknown_team_or_to_a_drained_cluster_is_refused():
    with pytest.raises(InputError, match="no deployed pipeline is of team 'nobody'"):
        check_pin("nobody", "a", None, AB_LOADS, TWO, {})
    drained = [replace(TWO[0], state="draining"), TWO[1]]
    with pytest.raises(InputError, match="'a' is being drained"):
        check_pin("one", "a", None, AB_LOADS, drained, {})


def test_a_pin_to_a_cluster_without_an_application_is_refused():
    down = [replace(TWO[0], is_served=False, unserved="it reads nothing"), TWO[1]]
    with pytest.raises(InputError, match="cluster 'a' serves anybody.*: it reads nothing. See"):
        check_pin("one", "a", None, AB_LOADS, down, {})
    check_pin("one", "b", None, AB_LOADS, down, {})
    none = [replace(one, is_served=False) for one in (*TWO, cluster("default"))]
    with pytest.raises(InputError, match="no application of cluster 'a' serves anybody"):
        check_pin("one", "a", None, AB_LOADS, none, {})
    check_pin("one", "default", None, AB_LOADS, none, {})


def test_a_team_that_no_cluster_has_room_for_is_told_not_squeezed_in():
    clusters = [cluster("a", consumers=2)]
    found = assign(None, [load("one", 0.2, 2), load("two", 0.1, 1)], clusters, {}, now_s=NOW)
    assert places(found) == {"one": "a"}
    assert "team two is served by no cluster" in found.problems[0]
    assert found.waiting == ("two",)
    more = assign(found, [load("one", 0.2, 2), load("two", 0.1, 1)], [cluster("a")], {}, now_s=NOW)
    assert (places(more), more.waiting) == ({"one": "a", "two": "a"}, ())


def test_no_team_comes_into_a_cluster_without_an_application_and_none_leaves_for_that():
    down = [replace(TWO[0], is_served=False), TWO[1]]
    assert set(places(assign(None, AB_LOADS, down, {}, now_s=NOW)).values()) == {"b"}
    first = assign(None, AB_LOADS, TWO, {}, now_s=NOW)
    assert assign(first, AB_LOADS, down, {}, now_s=NOW + MINUTE).moves == first.moves
    none = [replace(one, is_served=False) for one in (*TWO, cluster("default"))]
    alone = places(assign(None, AB_LOADS, none, {}, now_s=NOW))
    assert set(alone.values()) == {"default"}  # nobody knows whether others were ever up


def test_no_running_team_is_moved_while_no_application_can_serve_anybody():
    clusters = [cluster("a"), cluster("b"), cluster("default")]
    loads = [load("one", 2.5), load("two", 1.4)]
    first = assign(None, loads, [clusters[0]], {}, now_s=NOW)
    down = [replace(one, is_served=False) for one in clusters]
    unable = [down[0], replace(down[1], is_unable=True), down[2]]
    drained = [replace(down[0], state="draining"), *unable[1:]]
    for late in (down, unable, drained):
        assert places(assign(first, loads, late, {}, now_s=NOW + MINUTE)) == places(first)
    more = assign(first, [*loads, load("new")], unable, {}, now_s=NOW + MINUTE)
    assert kinds(more) == {"new": "new"}
    assert places(more)["new"] == "b"  # its application is at work, those of the others are not


def test_a_team_that_fits_nowhere_keeps_no_smaller_one_in_a_cluster_that_is_drained():
    clusters = [cluster("a"), cluster("b", consumers=2)]
    loads = [load("large", 0.9, 5), load("small", 0.1, 1)]
    first = assign(None, loads, [cluster("a")], {}, now_s=NOW)
    drained = [replace(clusters[0], state="draining"), clusters[1]]
    later = assign(first, loads, drained, {}, now_s=NOW + MINUTE)
    assert places(later) == {"large": "a", "small": "b"}


def test_a_running_team_that_grew_over_the_limit_is_not_stopped():
    clusters = [cluster("a", consumers=2)]
    first = assign(None, [load("one", 0.2, 2)], clusters, {}, now_s=NOW)
    second = assign(first, [load("one", 0.2, 3)], clusters, {}, now_s=NOW + MINUTE)
    assert places(second) == {"one": "a"}
    assert "over its limits" in second.problems[0]


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 101, "a\n", "é"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(InputError, match="a name is made of"):
        VirtualCluster(name)


def test_no_cluster_at_all_and_two_of_one_name_are_refused():
    with pytest.raises(InputError, match="there is no cluster"):
        assign(None, AB_LOADS, [], {}, now_s=NOW)
    with pytest.raises(InputError, match="the same name"):
        assign(None, AB_LOADS, [TWO[0], TWO[0]], {}, now_s=NOW)


def test_an_assignment_survives_json():
    found = assign(None, AB_LOADS, TWO, {"one": "b"}, now_s=NOW)
    assert Assignment.from_json(found.to_json()) == found


CLUSTERS = st.lists(
    st.builds(
        VirtualCluster,
        st.sampled_from("abcde"),
        max_consumers=st.none() | st.integers(1, 12),
        cores=st.none() | st.integers(1, 6),
        state=st.sampled_from(["active", "active", "active", "draining"]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one.name,
)
LOADS = st.lists(
    st.builds(load, st.sampled_from([f"t{n}" for n in range(14)]), st.floats(0, 4), st.integers(1, 4)),
    max_size=14,
    unique_by=lambda one: one.team,
)  # fmt: skip


@st.composite
def rounds(draw):
    """Clusters, pins among them, and the loads of some rounds."""
    clusters = draw(CLUSTERS)
    names = st.sampled_from([one.name for one in clusters])
    pins = draw(st.dictionaries(st.sampled_from(["t0", "t1", "t2"]), names, max_size=3))
    return clusters, pins, draw(st.lists(LOADS, min_size=1, max_size=5))


def consumers_in(name: str, at: Assignment, loads: list[TeamLoad]) -> int:
    return sum(one.consumers for one in loads if one.team in at.teams_of(name))


@given(rounds())
def test_whatever_the_loads_pins_hold_and_no_limit_of_consumers_is_broken_by_a_move(given_rounds):
    clusters, pins, loads_of_rounds = given_rounds
    before = None
    for number, loads in enumerate(loads_of_rounds):
        at = assign(before, loads, clusters, pins, now_s=NOW + number * MINUTE)
        again = assign(
            before, list(reversed(loads)), clusters[::-1], pins, now_s=NOW + number * MINUTE
        )
        assert places(at) == places(again), "the order in which things are given says nothing"
        teams = {one.team for one in loads}
        assert at.placements.keys() <= teams
        assert {team: at.placements[team].cluster for team in pins.keys() & teams} == {
            team: name for team, name in pins.items() if team in teams
        }
        was = {} if before is None else places(before)
        came = {team for team, name in places(at).items() if was.get(team) != name}
        for one in clusters:
            moved_in = {team for team in came if places(at)[team] == one.name} - pins.keys()
            if moved_in:
                assert one.state == "active"
                pinned = sum(x.consumers for x in loads if pins.get(x.team) == one.name)
                assert one.has_room(consumers_in(one.name, at, loads)) or pinned
        spent = (
            {m.team for m in at.moves if m.kind in {"load", "hot", "drain"}}
            if at is not before
            else set()
        )
        assert len(spent) <= POLICY.moves
        before = at


@given(rounds())
def test_a_round_of_the_same_loads_calms_down(given_rounds):
    clusters, pins, [loads, *_] = given_rounds
    at, versions = None, []
    for number in range(20):
        at = assign(at, loads, clusters, pins, now_s=NOW + number * MINUTE)
        versions.append(at.version)
    assert versions[-1] == versions[-4], "moves end once the loads do not change"


@given(CLUSTERS, LOADS, st.data())
def test_a_pin_that_is_let_through_keeps_the_limits(clusters, loads, data):
    if not loads:
        return
    first = assign(None, loads, clusters, {}, now_s=NOW)
    team = data.draw(st.sampled_from([one.team for one in loads]))
    name = data.draw(st.sampled_from([one.name for one in clusters]))
    try:
        check_pin(team, name, first, loads, clusters, {})
    except InputError:
        return
    policy = replace(POLICY, moves=100, rest_s=0)
    at = assign(first, loads, clusters, {team: name}, now_s=NOW + MINUTE, policy=policy)
    [target] = [one for one in clusters if one.name == name]
    assert places(at)[team] == name
    assert target.has_room(consumers_in(name, at, loads))
