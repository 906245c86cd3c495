"""Events that name a team or a pipeline that does not belong to their topic."""

from __future__ import annotations

import pytest
from tests.unit.processing.batches_in_process import Application
from tests.unit.processing.made import (
    PASSES,
    chained,
    check_books,
    event,
    faults,
    pipeline,
    rows,
    total,
)

from waybill.events import encode
from waybill.pipelines import team_of
from waybill.processing import TopicOwner
from waybill.processing.spark import topic_consumer

OWNER = TopicOwner("team", frozenset({"p2"}))


@pytest.mark.parametrize(
    "intruder",
    [
        event(2, team="other"),
        event(2, pipeline_id="p2"),
        event(2, pipeline_id="p9", team="other"),
        event(2, pipeline_id="p2", stage="mapping", attempt=1, replay_id="r"),
        event(2, team="other", stage="destination", attempt=3, replay_id="r"),
        event(2, team="other", op="delete"),
    ],
    ids=["team", "pipeline", "both", "replay", "replay of a load", "delete"],
)
def test_an_event_that_is_not_of_this_topic_is_in_no_pipelines_books(intruder) -> None:
    result = chained(pipeline(), [event(1), intruder, event(3)], owner=OWNER)
    assert faults(result) == [(1, "transformation", "foreign_event")]
    [parked] = result.failures
    assert (parked.pipeline_id, parked.event_name, parked.event_id) == ("unknown", "", "")
    assert parked.value == encode(intruder), "it is kept as it came"
    assert result.counts.pipeline_ids == {"p1", "unknown"}
    assert total(result, "ingestion") == {"in_first": 1, "passed": 1, "out": 1}
    assert [row["id"] for row in rows(result)] == [1, 3]
    assert not result.replayed
    check_books(result)


def test_of_plain_messages_alone_each_intruder_parks() -> None:
    many = [event(number, team="team" if number % 3 else "other") for number in range(300)]
    result = chained(pipeline(), many, owner=OWNER)
    assert len(result.failures) == 100
    assert {one.fault.code for one in result.failures} == {"foreign_event"}
    assert len(rows(result)) == 200
    assert total(result, "ingestion")["in_first"] == 100


def test_user_code_never_sees_one_and_what_it_names_is_cut() -> None:
    code = "def transform(event):\n    assert event.team == 'team'\n    return event\n"
    result = chained(pipeline(code), [event(1, team="x" * 5_000)], owner=OWNER)
    [parked] = result.failures
    assert parked.fault.code == "foreign_event"
    assert len(parked.fault.message) < 300
    assert "'team'" in parked.fault.message


def test_a_pipeline_that_nobody_deployed_is_still_unknown_and_without_an_owner_all_enter() -> None:
    result = chained(pipeline(), [event(1, pipeline_id="p9")], owner=OWNER)
    assert faults(result) == [(0, "transformation", "pipeline_unknown")]
    assert [row["id"] for row in rows(chained(pipeline(PASSES), [event(1, team="other")]))] == [1]


def test_the_team_stands_in_the_name_of_each_generation() -> None:
    assert team_of("events.red.warehouse") == "red"
    assert team_of("events-g12.red.warehouse") == "red"


def test_a_batch_runs_again_once_where_it_names_pipelines_of_other_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Application(monkeypatch, t=pipeline(), u=pipeline(ident="p2"))
    asked: list[set[str]] = []

    def elsewhere(_: object, ids: set[str], topic: str) -> frozenset[str]:
        asked.append(set(ids))
        assert topic == "t"
        return frozenset(ids & {"p2"})

    monkeypatch.setattr(topic_consumer, "elsewhere", elsewhere)
    consumer = app.consumers["t"]
    messages = [event(1), event(2, pipeline_id="p2"), event(3, pipeline_id="p9")]
    for _ in range(2):
        app.group.run({"t": [[encode(one) for one in messages]], "u": [[]]})
    assert asked == [{"p2", "p9"}, {"p9"}, {"p9"}], "what is another topic's is known from then on"
    assert [sorted(run) for run in app.runs] == [["t", "u"], ["t"], ["t", "u"]]
    assert sorted(app.parked("t")) == 2 * [("transformation", "foreign_event", 1)] + 2 * [
        ("transformation", "pipeline_unknown", 1)
    ]
    for batch in consumer.committed:
        assert batch.counts.pipeline_ids == {"p1", "p9", "unknown"}
