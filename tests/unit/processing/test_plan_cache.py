"""What tasks are sent of pipelines and mappings: what they need, written down once."""

from __future__ import annotations

import orjson
from tests.unit.processing.made import pipeline

from waybill.mappings import InForce
from waybill.pipelines import Pipeline
from waybill.processing.spark.plan_cache import TaskTexts, read_mapping


def learned(number: int, **types: str) -> InForce:
    return InForce(number, pipeline(policy="evolve", **types).events["order"])


def test_only_mappings_that_learned_something_are_sent():
    declared = pipeline(policy="evolve", events=("order", "refund"))
    mappings = {
        ("p1", "order"): learned(2, n="int64", x="string"),
        ("p1", "refund"): InForce(1, declared.events["refund"]),
    }
    texts = TaskTexts().of({"p1": declared}, mappings)
    assert [Pipeline.from_json(orjson.loads(text)) for text in texts.pipelines] == [declared]
    [text] = texts.mappings
    assert read_mapping(text) == ("p1", "order", mappings["p1", "order"])


def test_what_did_not_change_is_written_down_once():
    texts, declared = TaskTexts(), pipeline(policy="evolve")
    first = learned(2, n="int64", x="string")
    one = texts.of({"p1": declared}, {("p1", "order"): first})
    again = texts.of({"p1": declared}, {("p1", "order"): first})
    assert again.pipelines[0] is one.pipelines[0]
    assert again.mappings[0] is one.mappings[0]
    later = texts.of({"p1": declared}, {("p1", "order"): learned(3, n="int64", y="string")})
    assert read_mapping(later.mappings[0])[2].number == 3


def test_a_deploy_that_declares_what_was_learned_has_nothing_more_to_send():
    texts, mapping = TaskTexts(), learned(2, n="int64", x="string")
    assert (
        len(texts.of({"p1": pipeline(policy="evolve")}, {("p1", "order"): mapping}).mappings) == 1
    )
    declared = pipeline(policy="evolve", n="int64", x="string")
    assert texts.of({"p1": declared}, {("p1", "order"): mapping}).mappings == ()
    assert texts.of({"p1": declared}, {}).mappings == ()
