"""What tasks are sent of pipelines and mappings: what they need, written and read once."""

from __future__ import annotations

import gc

import orjson
from tests.unit.processing.made import pipeline

from waybill.mappings import InForce
from waybill.pipelines import Pipeline
from waybill.processing import Plan
from waybill.processing.spark.plan_cache import TaskTexts, TopicPlans, read_mapping


def learned(number: int, **types: str) -> InForce:
    return InForce(number, pipeline(policy="evolve", **types).events["order"])


def test_only_mappings_that_learned_something_are_sent():
    declared = pipeline(policy="evolve", events=("order", "refund"))
    mappings = {
        ("p1", "order"): learned(2, n="int64", x="string"),
        ("p1", "refund"): InForce(1, declared.events["refund"]),
    }
    texts = TaskTexts().of({"p1": declared}, mappings)
    assert Pipeline.from_json(orjson.loads(texts["p1"].version)) == declared
    [text] = texts["p1"].mappings
    assert read_mapping(text) == ("order", mappings["p1", "order"])


def test_what_did_not_change_is_written_down_once():
    texts, declared = TaskTexts(), pipeline(policy="evolve")
    first = learned(2, n="int64", x="string")
    one = texts.of({"p1": declared}, {("p1", "order"): first})["p1"]
    again = texts.of({"p1": declared}, {("p1", "order"): first})["p1"]
    assert again.version is one.version
    assert again.mappings[0] is one.mappings[0]
    later = texts.of({"p1": declared}, {("p1", "order"): learned(3, n="int64", y="string")})
    assert read_mapping(later["p1"].mappings[0])[1].number == 3


def test_a_deploy_that_declares_what_was_learned_has_nothing_more_to_send():
    texts, mapping = TaskTexts(), learned(2, n="int64", x="string")
    evolving = texts.of({"p1": pipeline(policy="evolve")}, {("p1", "order"): mapping})
    assert len(evolving["p1"].mappings) == 1
    declared = pipeline(policy="evolve", n="int64", x="string")
    assert texts.of({"p1": declared}, {("p1", "order"): mapping})["p1"].mappings == ()
    assert texts.of({"p1": declared}, {})["p1"].mappings == ()


class Workers:
    """A worker's pipelines of one topic; notes which were read."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.texts = TaskTexts()
        self.plans = TopicPlans(self._make)

    def _make(self, version: Pipeline) -> Plan:
        self.read.append(version.version)
        return Plan(version)


def test_a_pipeline_is_read_when_its_first_event_comes_and_once_a_version():
    worker = Workers()
    many = {f"p{number}": pipeline(code=f"# {number}") for number in range(5000)}
    worker.plans.take(worker.texts.of(many, {}))
    assert "p7" in worker.plans
    assert "p5000" not in worker.plans
    assert worker.plans.get("p5000") is None
    assert len(worker.plans) == 5000
    assert worker.read == []
    plan = worker.plans["p7"]
    worker.plans.take(worker.texts.of(many, {}))
    assert worker.plans["p7"] is plan
    assert worker.read == [many["p7"].version]
    deployed = many | {"p7": pipeline(code="# newer")}
    worker.plans.take(worker.texts.of(deployed, {}))
    assert worker.plans["p7"].pipeline == deployed["p7"]
    worker.plans.take(worker.texts.of({}, {}))
    assert worker.plans.get("p7") is None


def test_a_plan_goes_on_with_what_was_learned_before_and_after_it_was_read():
    worker, version = Workers(), pipeline(policy="evolve")
    second, third = learned(2, n="int64", x="string"), learned(3, n="int64", x="string", y="bool")
    worker.plans.take(worker.texts.of({"p1": version}, {("p1", "order"): second}))
    plan = worker.plans["p1"]
    assert plan.event("order", by_column=False).in_force == second
    worker.plans.take(worker.texts.of({"p1": version}, {("p1", "order"): third}))
    assert worker.plans["p1"] is plan
    assert plan.event("order", by_column=False).in_force == third
    assert len(worker.read) == 1


def test_a_plan_whose_mapping_is_declared_again_is_read_anew():
    """A field was learned, then deployed as a column, then deployed away: what is declared counts."""
    worker, version = Workers(), pipeline(policy="evolve")
    third = learned(3, n="int64", x="string")
    worker.plans.take(worker.texts.of({"p1": version}, {("p1", "order"): third}))
    plan = worker.plans["p1"]
    assert plan.event("order", by_column=False).in_force == third
    worker.plans.take(worker.texts.of({"p1": version}, {}))
    again = worker.plans["p1"]
    assert again.event("order", by_column=False).in_force.declaration == version.events["order"]


def test_plans_that_are_gone_leave_nothing_to_the_collector_which_passes_over_them():
    def replaced() -> None:
        texts, plans = TaskTexts(), TopicPlans(Plan)
        first = learned(2, n="int64", x="string")
        for number, mapping in enumerate((first, learned(3, n="int64", y="string"))):
            declared = pipeline(policy="evolve", code=f"# {number}")
            plans.take(texts.of({"p1": declared}, {("p1", "order"): mapping}))
            assert plans["p1"].pipeline == declared

    replaced()  # what Python keeps once
    gc.collect()
    gc.disable()
    try:
        replaced()
        assert gc.collect() == 0
    finally:
        gc.enable()
