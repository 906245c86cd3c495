"""Plans that learn: what they go on with, what they show a learner, and what they stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.processing.made import chunk, event, faults, pipeline, rows

from waybill.events import encode
from waybill.mappings import InForce, rules_of
from waybill.pipelines import Pipeline
from waybill.processing import Chain, InProcess, Plan, read_staged
from waybill.processing.dry_runner import DryRunner
from waybill.processing.learning import LocalLearner


class Watched(LocalLearner):
    """A learner that keeps what it was shown."""

    def __init__(self, *, most_columns: int = 1_000) -> None:
        super().__init__(replace(rules_of("postgres"), most_columns=most_columns))
        self.shown: list[Sequence[Any]] = []

    def __call__(self, pipeline: Pipeline, known: InForce, payloads: Sequence[Any]) -> Any:
        self.shown.append(payloads)
        return super().__call__(pipeline, known, payloads)


def learned(plan: Plan, name: str = "order") -> dict[str, str]:
    """Return the types of a plan's columns."""
    made = plan.event(name, by_column=False)
    assert made is not None
    return {column.name: column.type for column in made.in_force.declaration.table.columns}


def wider(number: int, **types: str) -> InForce:
    return InForce(number, pipeline(policy="evolve", **types).events["order"])


def test_only_rows_that_do_not_fit_are_shown_and_only_under_evolve():
    payloads = [{"id": 1, "n": 1}, {"id": 2, "n": 1, "x": "a"}, {"id": 3, "n": None, "y": None}]
    for policy, shown in (("evolve", [[payloads[1]]]), ("strict", []), ("ignore", [])):
        learner = Watched()
        plan = Plan(pipeline(policy=policy), learner=learner)
        plan.map("order", payloads, by_column=False)
        assert learner.shown == shown, policy


def test_rows_that_enter_at_the_destination_teach_nothing_and_use_what_was_learned():
    learner = Watched()
    plan = Plan(pipeline(policy="evolve"), learner=learner)
    row = {"id": 1, "n": 1, "x": "a"}
    before = plan.map("order", [row], by_column=True)
    assert before is not None
    assert (before.faults[0].code, learner.shown) == ("unknown_column", [])
    plan.map("order", [row], by_column=False)
    after = plan.map("order", [row], by_column=True)
    assert after is not None
    assert (after.faults, after.columns.to_pylist()) == ({}, [row])


def test_a_plan_goes_on_with_later_mappings_only():
    plan = Plan(pipeline(policy="evolve"), {"order": wider(4, n="int64", x="string")})
    assert learned(plan) == {"id": "int64", "n": "int64", "x": "string"}
    plan.take("order", wider(3, n="int64"))
    plan.take("order", wider(4, n="int64"))
    plan.take("no such event", wider(9, n="int64"))
    assert learned(plan) == {"id": "int64", "n": "int64", "x": "string"}
    plan.take("order", wider(5, n="decimal(29,0)", x="string"))
    assert learned(plan)["n"] == "decimal(29,0)"
    assert plan.event("no such event", by_column=False) is None


def test_frames_of_two_versions_keep_the_logs_order_and_their_own_specs():
    plan = Plan(pipeline(policy="evolve"), learner=Watched())
    chain = Chain({"p1": plan})
    payloads = [{"n": 1}, {"n": 2, "x": "a"}, {"n": 3}, {"n": 2**63}, {"n": 4}]
    for number, payload in enumerate(payloads, 1):
        chain.process(chunk([encode(event(number, {"id": number, **payload}))], number))
    frames = read_staged(chain.result.staged.finish())
    assert [frame.data["id"].to_pylist() for frame in frames] == [[1], [2, 3], [4, 5]]
    for frame in frames:
        names = [column.name for column in frame.table.columns]
        assert frame.data.schema.names[: len(names)] == names
        assert frame.pipeline_version == plan.pipeline.version
    assert [frame.table.columns[1].type for frame in frames] == ["int64", "int64", "decimal(29,0)"]


def test_a_replay_into_the_destination_amid_a_change_keeps_the_order_too():
    plan = Plan(pipeline(policy="evolve"), learner=Watched())
    chain = Chain({"p1": plan})
    messages = [
        event(1, {"id": 1, "n": 1}, stage="destination", attempt=1),
        event(2, {"id": 1, "n": 2, "x": "new"}),
        event(3, {"id": 1, "n": 3}, stage="destination", attempt=1),
        event(4, {"id": 1, "n": 4}),
    ]
    for number, message in enumerate(messages, 1):
        chain.process(chunk([encode(message)], number))
    assert [row["n"] for row in rows(chain.result)] == [1, 2, 3, 4]
    assert faults(chain.result) == []


CODE = """
from decimal import Decimal

class Odd(dict):
    def items(self):
        raise ValueError("no")
    def __bool__(self):
        raise ValueError("no")
    def __eq__(self, other):
        raise ValueError("no")
    __hash__ = None

class Number(int):
    def bit_length(self):
        raise KeyError("no")
    __abs__ = __le__ = __eq__ = bit_length
    __hash__ = int.__hash__

ODD = {1: Odd(a=1), 2: Decimal("sNaN"), 3: Number(5), 4: [Odd()], 5: {"a": Odd(b=1)}, 6: object()}

def transform(event):
    if event.data["n"] in ODD:
        event.data["x"] = ODD[event.data["n"]]
    return event
"""


@pytest.mark.parametrize("nested", ["json", "flatten"])
def test_values_that_raise_whatever_is_asked_of_them_keep_nobody_from_learning(nested):
    declared = pipeline(CODE, policy="evolve")
    order = declared.events["order"].model_copy(update={"nested": nested, "arrays": "child"})
    declared = declared.model_copy(update={"events": {"order": order}})
    chain = Chain({"p1": Plan(declared, learner=Watched())})
    values = [
        encode(event(n, {"id": n, "n": n, **({"y": n} if n > 7 else {})})) for n in range(1, 10)
    ]
    chain.process(chunk(values))
    passed = rows(chain.result)
    ends = {row["id"] for row in passed} | {failure.offset + 1 for failure in chain.result.failures}
    assert ends == set(range(1, 10))
    assert {7, 8, 9} <= {row["id"] for row in passed}
    assert [row["y"] for row in passed if row["id"] > 7] == [8, 9]


def test_at_the_limit_of_columns_a_field_parks_and_the_message_says_so():
    plan = Plan(pipeline(policy="evolve"), learner=Watched(most_columns=3))
    mapped = plan.map("order", [{"id": 1, "x": 1}, {"id": 2, "y": 1}], by_column=False)
    assert mapped is not None
    assert list(learned(plan)) == ["id", "n", "x"]
    assert [row["id"] for row in mapped.columns.to_pylist()] == [1]
    fault = mapped.faults[1]
    assert (fault.code, fault.where) == ("unknown_column", "y")
    assert fault.message == (
        "field 'y' has no column in 'order': there are 3, and the destination takes no more"
    )


def test_the_limit_is_that_of_child_tables_too():
    declared = pipeline(policy="evolve")
    event_ = declared.events["order"].model_copy(update={"arrays": "child"})
    declared = declared.model_copy(update={"events": {"order": event_}})
    plan = Plan(declared, learner=Watched(most_columns=2))
    mapped = plan.map("order", [{"id": 1, "l": [{"a": 1}, {"b": 1, "c": 2}]}], by_column=False)
    assert mapped is not None
    assert mapped.faults[0].message == (
        "'order__l' item 1: field 'b' has no column: "
        "there are 1 of at most 2, no room for 2 new ones"
    )


def test_a_plan_tells_what_it_learned_and_nothing_of_what_it_was_sent():
    plan = Plan(pipeline(policy="evolve"), learner=Watched())
    plan.take("order", wider(4, n="int64", x="string"))
    assert plan.learned == {}
    for payload in ({"id": 1, "n": 2**63}, {"id": 2, "x": "a", "y": True}, {"id": 3, "n": 1.5}):
        plan.map("order", [payload], by_column=False)
    fields = [tuple(field) for field in plan.learned["order"].fields]
    assert fields == [(None, "n", "decimal(38,9)"), (None, "y", "bool")]


def test_a_learner_that_learns_no_more_parks_and_says_that_there_is_no_room():
    rules = replace(rules_of("postgres"), most_columns=2)
    plan = Plan(pipeline(policy="evolve"), learner=LocalLearner(rules, learns=False))
    mapped = plan.map("order", [{"id": 1, "n": 1}, {"id": 2, "x": 1}], by_column=False)
    assert mapped is not None
    assert (plan.learned, mapped.columns.num_rows) == ({}, 1)
    assert mapped.faults[1].message.endswith("there are 2, and the destination takes no more")


def test_a_trial_learns_and_tells_nobody():
    declared = pipeline(policy="evolve")
    values = [encode(event(n, {"id": n, "x": {"a": n}})) for n in (1, 2)]
    runner = DryRunner(
        declared, code=InProcess(), rows=True, learner=LocalLearner(rules_of("postgres"))
    )
    fates = list(runner.fates(values))
    assert [fate.rows[0].values["x"] for fate in fates] == ['{"a":1}', '{"a":2}']
    assert [c.name for c in declared.events["order"].table.columns] == ["id", "n"]
    [first, _] = DryRunner(declared, code=InProcess()).fates(values)
    assert list(first.faults) == ["mapping/unknown_column"]


def test_a_trial_gives_each_event_its_row_over_a_change_of_the_mapping():
    values = [encode(event(n, {"id": n, "n": n})) for n in range(1, 600)]
    values += [encode(event(n, {"id": n, "n": n, "x": n})) for n in range(600, 700)]
    runner = DryRunner(
        pipeline(policy="evolve"),
        code=InProcess(),
        rows=True,
        learner=LocalLearner(rules_of("postgres")),
    )
    fates = list(runner.fates(values))
    assert [fate.rows[0].values["id"] for fate in fates] == list(range(1, 700))


def test_a_task_maps_each_table_by_its_own_mapping():
    declared = pipeline(policy="evolve", events=("order", "refund"))
    chain = Chain({"p1": Plan(declared, learner=Watched())})
    values = [
        encode(event(1, {"id": 1, "n": 1, "x": "a"})),
        encode(event(2, {"id": 2, "n": 1, "y": 5}, name="refund")),
    ]
    chain.process(chunk(values))
    frames = {frame.event_name: frame for frame in read_staged(chain.result.staged.finish())}
    names = {n: [c.name for c in frame.table.columns] for n, frame in frames.items()}
    assert names == {"order": ["id", "n", "x"], "refund": ["id", "n", "y"]}
