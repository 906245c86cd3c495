"""Batches whose events teach something: kept by the driver, run again, committed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.unit.processing.batches_in_process import Application, messages
from tests.unit.processing.made import event, pipeline

from waybill.errors import RetryError
from waybill.events import encode
from waybill.mappings import NameRules
from waybill.pipelines import Pipeline
from waybill.processing import LocalLearner
from waybill.processing.spark import tasks, topic_group
from waybill.processing.spark.learning_reports import report_of


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Application]]:
    yield lambda **pipelines: Application(monkeypatch, **pipelines)


def evolving(code: str | None = None, ident: str = "p1", **types: str) -> Pipeline:
    options = {} if code is None else {"code": code}
    return pipeline(ident=ident, policy="evolve", **options, **types)


def test_a_batch_with_nothing_to_learn_runs_once_and_asks_the_tracker_once(application):
    made = application(t=evolving())
    made.group.run({"t": [messages({"n": 1}, {"n": 2}), messages({"n": 3})]})
    assert (made.runs, made.kept.reads) == ([{"t"}], 1)
    assert [row["n"] for row in made.rows("t")] == [1, 2, 3]


def test_what_two_tasks_learn_is_kept_at_once_and_all_rows_have_it(application):
    made = application(t=evolving())
    made.group.run({"t": [messages({"n": 1}, {"n": 2**70}), messages({"x": "a"}), messages({})]})
    assert made.runs == [{"t"}, {"t"}]
    assert [len(learned[("p1", "order")]) for learned in made.consumers["t"].learned] == [2]
    names = [column.name for column in made.kept.mappings["p1", "order"].declaration.table.columns]
    assert names == ["id", "n", "x"]
    assert [(row["n"], row["x"]) for row in made.rows("t")] == [
        (1, None), (2**70, None), (None, "a"), (None, None),
    ]  # fmt: skip
    [batch] = made.consumers["t"].committed
    assert batch.plan.batch_id == "t 2"


def test_of_the_first_run_nothing_is_named_and_its_learning_tasks_wrote_nothing(application):
    made = application(t=evolving())
    made.group.run({"t": [messages({"n": 1}), messages({"new": 1}, {"n": "no number"})]})
    committed = {
        told[kind]["key"] if kind == "staged" else told[kind].key
        for batch in made.consumers["t"].committed
        for told in batch.descriptors
        for kind in ("staged", "parked")
        if told[kind]
    }
    garbage = made.objects.bodies.keys() - committed
    assert committed <= made.objects.bodies.keys()
    assert len(garbage) == 1, "of the first run's task that learned nothing"
    assert made.parked("t") == [("mapping", "type_mismatch", 1)]
    assert set(made.recorder.batches) == {"t 1", "t 2"}


def test_neighbours_of_a_topic_that_learns_are_committed_before_and_once(application):
    made = application(t=evolving(), other=evolving(ident="p2"))
    others = [encode(event(n, {"id": n, "n": n}, pipeline_id="p2")) for n in range(3)]
    made.group.run({"t": [messages({"new": 1})], "other": [others]})
    assert made.runs == [{"t", "other"}, {"t"}]
    assert [len(made.consumers[topic].committed) for topic in ("t", "other")] == [1, 1]
    assert len(made.rows("other")) == 3


def test_a_tracker_that_is_away_leaves_the_topic_out_and_nothing_is_committed(application):
    made = application(t=evolving(), other=evolving(ident="p2"))
    made.consumers["t"].away = RetryError("the tracker is away")
    others = [encode(event(1, {"id": 1, "n": 1}, pipeline_id="p2"))]
    made.group.run({"t": [messages({"new": 1})], "other": [others]})
    assert list(made.group.errors) == ["t"]
    assert isinstance(made.group.errors["t"], RetryError)
    assert (made.consumers["t"].committed, len(made.rows("other"))) == ([], 1)
    made.consumers["t"].away = None
    made.group.run({"t": [messages({"n": 5}), messages({"new": 1})]})
    assert [row["new"] for row in made.rows("t")] == [None, 1], "a worker forgets what was not kept"


def test_a_worker_maps_by_nothing_that_was_not_kept(application):
    made = application(t=evolving())
    made.consumers["t"].away = RetryError("the tracker is away")
    made.group.run({"t": [messages({"new": 1})]})
    made.group.run({"t": [messages({"n": 5})]})
    assert made.rows("t") == [{"id": 1, "n": 5}]


MAKES_UP = """
import uuid
def transform(event):
    event.data[f"made_up_{uuid.uuid4()}"] = 1
    return event
"""


def test_code_that_brings_other_fields_each_time_runs_four_times_and_parks(application):
    made = application(t=evolving(MAKES_UP))
    made.group.run({"t": [messages({"n": 1}, {"n": 2})]})
    assert made.runs == [{"t"}] * 4
    assert made.parked("t") == [("mapping", "unknown_column", 1)] * 2
    made.group.run({"t": [messages({"n": 3})]})
    assert made.runs == [{"t"}] * 8, "each batch is bounded"


def test_runs_whose_reports_are_cut_do_not_use_up_those_that_learn(application, monkeypatch):
    monkeypatch.setattr(tasks, "report_of", partial(report_of, most_bytes=10))
    made = application(t=evolving())
    fields = {f"field_{number}": number for number in range(12)}
    made.group.run({"t": [messages(fields, fields)]})
    assert made.parked("t") == []
    assert [len(row) for row in made.rows("t")] == [14, 14]
    assert len(made.runs) == 13, "one field is told a run"
    assert made.group.take_apart() == set()


def test_reports_that_are_cut_for_ever_end_too(application, monkeypatch):
    monkeypatch.setattr(tasks, "report_of", partial(report_of, most_bytes=10))
    made = application(t=evolving())
    payload = {f"field_{number}": number for number in range(100)}
    made.group.run({"t": [messages(payload)]})
    assert len(made.runs) == 20 + 3 + 1
    assert made.parked("t") == [("mapping", "unknown_column", 1)]
    assert made.group.take_apart() == {"t"}, "its neighbours wait no more"


def test_where_nothing_more_can_be_kept_the_next_run_is_the_last(application, monkeypatch):
    made = application(t=evolving())
    monkeypatch.setattr(made.consumers["t"], "learn", lambda deployed, told: False)
    made.group.run({"t": [messages({"n": 1}, {"x": 1})]})
    assert made.runs == [{"t"}] * 2
    assert made.parked("t") == [("mapping", "unknown_column", 1)]
    assert [row["n"] for row in made.rows("t")] == [1]


def test_a_task_that_learns_although_it_was_told_not_to_makes_no_batch_run_for_ever(
    application, monkeypatch
):
    def learns_anyway(rules: NameRules, *, learns: bool) -> LocalLearner:
        del learns
        return LocalLearner(rules)

    made = application(t=evolving(MAKES_UP))
    monkeypatch.setattr(tasks, "LocalLearner", learns_anyway)
    made.group.run({"t": [messages({"n": 1})]})
    assert len(made.runs) == 4
    assert made.consumers["t"].committed == []
    assert "told not to learn" in str(made.group.errors["t"])


def test_a_deploy_between_the_runs_is_what_the_second_one_maps_by(application):
    made = application(t=evolving())
    consumer = made.consumers["t"]
    learn = consumer.learn

    def learn_and_deploy(*given: Any) -> bool:
        later = learn(*given)
        made.kept.pipelines["t"] = {"p1": evolving("def transform(event):\n    return None\n")}
        return later

    consumer.learn = learn_and_deploy
    made.group.run({"t": [messages({"x": 1})]})
    assert made.rows("t") == []
    [batch] = consumer.committed
    assert batch.counts.total("filtered") == 1


def test_a_hostile_payload_tells_the_driver_no_more_than_may_be_told(application, monkeypatch):
    made = application(t=evolving())
    names = [f"{number:04}{'x' * 990}" for number in range(1_500)]
    payloads = [dict.fromkeys(names[first : first + 300], 1) for first in range(0, 1_500, 300)]
    told: list[int] = []
    run = made._run_tasks

    def measured(frame: Any, task: Any) -> Any:
        found = run(frame, task)
        told.extend(len(str(one.get("learned", ""))) for one in found["t"])
        return found

    monkeypatch.setattr(topic_group, "run_tasks", measured)
    made.group.run({"t": [messages(*payloads)]})
    assert max(told) < 300_000
    assert len(made.runs) == 4
    assert made.parked("t")
