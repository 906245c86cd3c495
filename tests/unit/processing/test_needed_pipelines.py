"""Topics of many pipelines: tasks are sent those in use, and batches run again for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson
import pytest
from tests.support.evolving import kafka_records
from tests.unit.processing.batches_in_process import Application, InProcessTask
from tests.unit.processing.made import event, pipeline

from waybill.events import encode
from waybill.pipelines import Pipeline
from waybill.processing import Storm
from waybill.processing.spark import plan_cache, tasks, topic_group
from waybill.processing.spark.plan_cache import (
    NotSentError,
    PipelinesInUse,
    PipelineText,
    TaskTexts,
    TopicPlans,
)
from waybill.processing.spark.tasks import TaskPlan

MANY = 300


def many(**changed: Pipeline) -> dict[str, Pipeline]:
    """Return that many pipelines of which most are one object: nobody reads them."""
    return {f"p{number}": pipeline(ident="never-read") for number in range(MANY)} | changed


def declared(*numbers: int, **options: Any) -> dict[str, Pipeline]:
    return {f"p{n}": pipeline(ident=f"p{n}", **options) for n in numbers}


def of(number: int, *rows: int, **payload: Any) -> list[bytes]:
    """Return messages of a pipeline, one a row."""
    return [
        encode(event(row, {"id": row, "n": row, **payload}, pipeline_id=f"p{number}"))
        for row in rows
    ]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Application:
    """Return an application whose topic ``t`` has many pipelines, and ``other`` one."""
    application = Application(monkeypatch, t=pipeline(), other=pipeline(ident="q"))
    application.kept.pipelines["t"] = many(**declared(1, 2, 3))
    return application


def ids_sent(made: Application) -> list[set[str]]:
    return [set(plan.pipelines) for plan in made.plans("t")]


def numbers(made: Application, topic: str = "t") -> list[int]:
    return sorted(row["n"] for row in made.rows(topic))


def test_tasks_are_sent_the_pipelines_in_use_and_a_batch_of_these_runs_once(made):
    made.group.run({"t": [of(1, 1, 2)]})
    assert ids_sent(made) == [set(), {"p1"}]
    made.group.run({"t": [of(1, 3), of(1, 4)]})
    assert ids_sent(made)[2:] == [{"p1"}]
    assert numbers(made) == [1, 2, 3, 4]


def test_what_a_batch_needs_runs_again_and_is_committed_once_and_exactly(made):
    made.group.run({"t": [of(1, 1)]})
    made.group.run({"t": [of(1, 2), of(1, 3) + of(2, 4, 5) + of(1, 6), of(3, 7)]})
    assert ids_sent(made)[2:] == [{"p1"}, {"p1", "p2", "p3"}]
    assert numbers(made) == [1, 2, 3, 4, 5, 6, 7]
    first, second = made.consumers["t"].committed
    assert [first.events, second.events] == [1, 6]
    assert second.counts.total("in_first", stage="transformation") == 6
    assert [sum(span[3] for span in told["ranges"]) for told in second.descriptors] == [1, 4, 1]
    assert set(made.recorder.batches) == {"t 2", "t 3", "t 4"}


def test_a_task_that_needs_a_pipeline_writes_nothing_of_its_topic(made, monkeypatch):
    made.group.run({"t": [of(1, 1)]})
    before = set(made.objects.bodies)
    run, written = made._run_tasks, list[set[str]]()

    def noted(frame: Any, task: Any) -> Any:
        found = run(frame, task)
        written.append(made.objects.bodies.keys() - before)
        return found

    monkeypatch.setattr(topic_group, "run_tasks", noted)
    made.group.run({"t": [of(1, *range(2, 2000)) + of(2, 2000)]})
    assert [len(keys) for keys in written] == [0, 1]
    assert len(numbers(made)) == 2000


def test_a_task_that_was_sent_none_reads_on_only_while_it_finds_some(made):
    """As when the topic was just opened: one that was sent some reads all, to run again once."""
    made.group.run({"t": [of(1, 1)]})
    none, some = made.plans("t")
    shares = [of(2, 1), of(2, 2) + of(3, 3), of(2, *range(4, 10)), of(1, 10)]
    assert looked_at(made, none, shares) == (3, ["p2", "p3"])
    assert looked_at(made, some, shares) == (4, ["p2", "p3"])


def looked_at(made: Application, plan: Any, runs: Sequence[Sequence[bytes]]) -> tuple[int, Any]:
    """Return how many runs of records a task asks for, and what it then needs."""
    settings = made.group._parts.executor_settings
    task = InProcessTask(TaskPlan({"t": plan}, [], settings))
    unwanted, given = set[str](), list[int]()

    def records() -> Iterator[Any]:
        for values in runs:
            if "t" not in unwanted:
                given.append(len(values))
                yield kafka_records("t", values)

    [row] = task.run(records(), unwanted)
    return len(given), orjson.loads(row.column(0)[0].as_py())["needed"]


def test_neighbours_of_a_topic_that_needs_some_are_committed_before_and_once(made):
    others = [encode(event(n, {"id": n, "n": n}, pipeline_id="q")) for n in range(3)]
    made.group.run({"t": [of(1, 1)], "other": [others]})
    assert made.runs == [{"t", "other"}, {"t"}]
    assert [len(made.consumers[topic].committed) for topic in ("t", "other")] == [1, 1]
    assert made.rows("other") == [{"id": n, "n": n} for n in range(3)]


def test_an_id_that_no_pipeline_has_parks_and_runs_nothing_again(made):
    made.group.run({"t": [of(1, 1)]})
    made.group.run({"t": [of(MANY, 2) + of(1, 3)]})
    assert ids_sent(made)[2:] == [{"p1"}]
    assert made.parked("t") == [("transformation", "pipeline_unknown", 1)]
    assert numbers(made) == [1, 3]


def test_messages_that_are_no_plain_first_passes_tell_their_pipelines_too(made):
    replayed = encode(event(2, attempt=1, pipeline_id="p2"))
    made.group.run({"t": [[b"no event", *of(1, 1), replayed]]})
    assert ids_sent(made) == [set(), {"p1", "p2"}]
    assert numbers(made) == [1, 2]
    assert [kind for _, kind, _ in made.parked("t")] == ["envelope_not_json"]


def test_two_deploys_between_the_runs_are_what_the_next_one_goes_by(made):
    need = made.consumers["t"].need

    def need_and_deploy(ids: Sequence[str]) -> None:
        made.kept.pipelines["t"] |= {
            "p1": pipeline("def transform(event):\n    return None\n", ident="p1"),
            "new": pipeline(ident="new"),
        }
        need(ids)

    made.consumers["t"].need = need_and_deploy  # type: ignore[method-assign]
    fresh = [encode(event(5, {"id": 5, "n": 5}, pipeline_id="new"))]
    made.group.run({"t": [of(1, 1) + fresh]})
    assert ids_sent(made) == [set(), {"p1"}, {"p1", "new"}]
    assert numbers(made) == [5]
    [batch] = made.consumers["t"].committed
    assert batch.counts.total("filtered") == 1


def test_one_that_is_gone_in_the_next_run_parks_and_comes_back_when_it_is_there_again(made):
    need, known = made.consumers["t"].need, made.kept.pipelines["t"]

    def need_and_undeploy(ids: Sequence[str]) -> None:
        made.kept.pipelines["t"] = {ident: one for ident, one in known.items() if ident != "p2"}
        need(ids)

    made.consumers["t"].need = need_and_undeploy  # type: ignore[method-assign]
    made.group.run({"t": [of(2, 1)]})
    assert ids_sent(made) == [set(), set()]
    assert made.parked("t") == [("transformation", "pipeline_unknown", 1)]
    made.consumers["t"].need = need  # type: ignore[method-assign]
    made.kept.pipelines["t"] = dict(known)
    made.group.run({"t": [of(2, 2)]})
    assert ids_sent(made)[2:] == [{"p2"}]
    assert numbers(made) == [2]


def test_reports_that_are_cut_end(made, monkeypatch):
    monkeypatch.setattr(tasks, "MOST_NEEDED", 2)
    made.kept.pipelines["t"] |= declared(*range(MANY))
    made.group.run({"t": [[message for n in range(10) for message in of(n, n)]]})
    assert [len(sent) for sent in ids_sent(made)] == [0, 2, 4, 6, 8, 10]
    assert numbers(made) == list(range(10))


def test_learning_and_need_do_not_eat_up_each_others_runs(made, monkeypatch):
    monkeypatch.setattr(tasks, "MOST_NEEDED", 1)
    made.kept.pipelines["t"] |= declared(*range(MANY), policy="evolve")
    shares = [of(0, 0, new=1), *([of(n, n, **{f"x{n}": n})] for n in range(1, 8))]
    flat = [shares[0], [message for share in shares[1:] for message in share[0]]]
    made.group.run({"t": flat})
    assert [len(sent) for sent in ids_sent(made)] == [0, 2, 3, 4, 5, 6, 7, 8, 8]
    assert made.parked("t") == []
    assert len(made.consumers["t"].learned) == 1, "kept once no pipeline is missing"
    rows = {row["id"]: row for row in made.rows("t")}
    assert rows[0]["new"] == 1
    assert [rows[n][f"x{n}"] for n in range(1, 8)] == list(range(1, 8))


def test_a_worker_forgets_what_it_learned_before_it_met_a_pipeline_that_it_was_not_sent(made):
    made.kept.pipelines["t"] |= declared(1, policy="evolve")
    made.group.run({"t": [of(1, 1)]})
    made.consumers["t"].learn = lambda deployed, told: False  # type: ignore[method-assign]
    made.group.run({"t": [of(1, 2, new=1) + of(2, 3)]})
    assert made.parked("t") == [("mapping", "unknown_column", 1)]
    assert numbers(made) == [1, 3]


def test_a_storm_of_a_pipeline_that_was_needed_holds_it(made, monkeypatch):
    found: list[list[Storm]] = []
    commit = made.consumers["t"].commit

    def noted(batch: Any, storms: Any, *, took_ms: int) -> int:
        found.append(list(storms))
        assert batch.deployed.pipelines.keys() == {"p1", "p2"}
        return commit(batch, storms, took_ms=took_ms)

    monkeypatch.setattr(made.consumers["t"], "commit", noted)
    made.kept.pipelines["t"] |= {"p2": pipeline("def transform(event):\n    1 / 0\n", ident="p2")}
    least = made.group._parts.settings.parking.storm_min_events
    made.group.run({"t": [of(1, 1), of(2, *range(least))]})
    assert ids_sent(made) == [set(), {"p1", "p2"}, {"p1", "p2"}]
    assert [[storm.pipeline_id for storm in storms] for storms in found] == [["p2"]]
    assert made.parked("t") == [("transformation", "pipeline_held", least)]


def test_a_task_that_needs_what_it_was_sent_makes_no_batch_run_for_ever(made, monkeypatch):
    run = made._run_tasks

    def needy(frame: Any, task: Any) -> Any:
        found = run(frame, task)
        return {topic: [{**told[0], "needed": ["p1"]}] for topic, told in found.items()}

    monkeypatch.setattr(topic_group, "run_tasks", needy)
    made.group.run({"t": [of(1, 1)]})
    assert len(made.runs) == 2
    assert "was sent" in str(made.group.errors["t"])
    assert made.consumers["t"].committed == []


def test_of_a_topic_of_few_all_are_sent_also_those_that_are_new(made):
    made.kept.pipelines["t"] = declared(1, 2)
    made.group.run({"t": [of(1, 1)]})
    made.kept.pipelines["t"] |= declared(3)
    made.group.run({"t": [of(3, 2)]})
    assert ids_sent(made) == [{"p1", "p2"}, {"p1", "p2", "p3"}]
    assert all(plan.ids == b"" for plan in made.plans("t"))


def test_ids_are_written_down_once_for_as_long_as_they_are_the_same(made):
    for row in range(3):
        made.group.run({"t": [of(1, row)]})
    first, *others = [plan.ids for plan in made.plans("t")]
    assert first
    assert all(ids is first for ids in others)


def texts(size_bytes: int, *idents: str) -> dict[str, PipelineText]:
    return {
        ident: PipelineText(bytes(size_bytes // 2), (bytes(size_bytes // 2),)) for ident in idents
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PipelinesInUse]:
    monkeypatch.setattr(plan_cache, "_TEXT_BYTES", 100)
    monkeypatch.setattr(plan_cache, "_LONG", 3)
    return PipelinesInUse


def test_what_has_not_come_for_long_is_left_out_where_there_is_too_much(small):
    in_use, ids = small(), frozenset(f"p{n}" for n in range(MANY))
    assert in_use.of(ids) == set()
    assert in_use.add(["p1", "p2", "p3"])
    for _ in range(3):
        in_use.end_batch(["p3"], texts(40, *in_use.of(ids)))
    assert in_use.of(ids) == {"p2", "p3"}, "as much as is too much"
    assert in_use.add(["p1", "p2"])
    assert not in_use.add(["p1", "p2"])


def test_nothing_is_left_out_that_came_lately_or_while_there_is_room(small):
    in_use, ids = small(), frozenset(f"p{n}" for n in range(MANY))
    in_use.add(["p1", "p2", "p3"])
    for _ in range(10):
        in_use.end_batch(["p1", "p2", "p3"], texts(1000, *in_use.of(ids)))
    assert in_use.of(ids) == {"p1", "p2", "p3"}
    for _ in range(10):
        in_use.end_batch(["p1"], texts(20, *in_use.of(ids)))
    assert in_use.of(ids) == {"p1", "p2", "p3"}
    for _ in range(10):
        in_use.end_batch(["p1", "unknown"], texts(1000, *in_use.of(ids)))
    assert in_use.of(ids) == {"p1"}


def test_what_comes_back_makes_room_so_that_it_is_not_left_out_for_ever(small):
    """Else a topic whose pipelines all come now and then runs each of its batches twice."""
    ids = frozenset(f"p{n}" for n in range(20))
    in_use, again = small(), list[int]()
    for batch in range(400):
        came = f"p{batch % 20}"
        sent = in_use.of(ids)
        if came not in sent:
            in_use.add([came])
            again.append(batch)
        in_use.end_batch([came], texts(20, *in_use.of(ids)))
    assert max(again) < 100
    assert in_use.of(ids) == ids


def test_room_has_an_end(small, monkeypatch):
    monkeypatch.setattr(plan_cache, "_MOST_TEXT_BYTES", 200)
    ids = frozenset(f"p{n}" for n in range(20))
    in_use = small()
    for batch in range(400):
        in_use.add([f"p{batch % 20}"])
        in_use.end_batch([f"p{batch % 20}"], texts(20, *in_use.of(ids)))
    assert len(in_use.of(ids)) == 10


def test_of_few_large_ones_those_that_do_not_come_are_left_out_and_stay_out(small):
    in_use, ids = small(), frozenset({"p1", "p2"})
    assert in_use.of(ids) == ids
    for _ in range(4):
        in_use.end_batch(["p1"], texts(80, *in_use.of(ids)))
    assert in_use.of(ids) == {"p1"}
    assert in_use.of(ids | {"p3"}) == {"p1", "p3"}


def test_a_plan_of_a_pipeline_that_was_not_sent_is_there_and_cannot_be_had(made):
    written, ids = TaskTexts(), frozenset({"p1", "p2"})
    plans = TopicPlans(lambda version: pytest.fail("nobody reads it"))
    plans.take(written.of({"p1": pipeline()}, {}), written.ids(ids, {"p1"}))
    assert [ident in plans for ident in ("p1", "p2", "p3")] == [True, True, False]
    assert plans.not_sent(["p1", "p2", "p3"]) == {"p2"}
    with pytest.raises(NotSentError, match="'p2'"):
        plans["p2"]
    with pytest.raises(KeyError):
        plans["p3"]
    plans.take({}, b"")
    assert "p2" not in plans
