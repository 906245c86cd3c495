"""What a cluster is to read and to load, of an assignment: each topic and destination is one's."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from waybill.clusters import Assignment, Placement, destinations_served, topics_served

CLUSTERS = ("default", "a", "b")
TEAMS = ("red", "green", "blue", "new")


class Written(NamedTuple):
    """The parts of a pipeline that matter here."""

    team: str
    destination: str


def assignment(waiting: tuple[str, ...] = (), **places: str) -> Assignment:
    placed = {team: Placement(name, 0.0, "new", "") for team, name in places.items()}
    return Assignment(1, placed, waiting=waiting)


def test_a_team_that_no_version_names_is_the_default_clusters():
    at = assignment(red="a")
    assert topics_served([Written("new", "w")], at, "default") == {"events.new.w": "w"}
    assert topics_served([Written("new", "w")], at, "a") == {}


def test_a_team_that_waits_for_room_is_nobodys():
    at = assignment(waiting=("new",), red="a")
    assert [topics_served([Written("new", "w")], at, name) for name in CLUSTERS] == [{}, {}, {}]


def test_a_destination_goes_with_the_first_of_its_teams_that_is_served():
    both = [Written("red", "w"), Written("blue", "w")]
    assert destinations_served(both, assignment(red="a", blue="b"), "b") == {"w"}
    waits = assignment(waiting=("blue",), red="a")
    assert destinations_served(both, waits, "a") == {"w"}
    none = assignment(waiting=("blue", "red"))
    assert destinations_served(both, none, "default") == {"w"}, "what is staged is loaded"


PIPELINES = st.lists(st.builds(Written, st.sampled_from(TEAMS), st.sampled_from(["w", "x"])))


@given(
    PIPELINES,
    st.dictionaries(st.sampled_from(TEAMS), st.sampled_from(CLUSTERS)),
    st.sets(st.sampled_from(TEAMS)),
)
def test_no_topic_and_no_destination_is_two_clusters(pipelines, places, waiting):
    for team in waiting:
        places.pop(team, None)
    at = assignment(tuple(sorted(waiting)), **places)
    read = [topic for name in CLUSTERS for topic in topics_served(pipelines, at, name)]
    assert sorted(read) == sorted(
        {f"events.{one.team}.{one.destination}" for one in pipelines if one.team not in waiting}
    )
    loaded = [where for name in CLUSTERS for where in destinations_served(pipelines, at, name)]
    assert sorted(loaded) == sorted({one.destination for one in pipelines})
