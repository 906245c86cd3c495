"""What was learned in one place is kept in another: the same room, and none of the values."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from tests.support.mapped import RULES, declared, types
from tests.unit.mappings.test_learned_rooms import WAYS, event

from waybill.mappings import Given, LearnedFields, learn, with_learned
from waybill.mappings.evolution import NamedField
from waybill.pipelines import EventDeclaration

SEED = 20_261_125


def between(before: EventDeclaration, after: EventDeclaration | None) -> LearnedFields:
    """Return what was learned, as it comes out of JSON."""
    assert after is not None
    content = json.loads(json.dumps(LearnedFields.between(before, after).to_json()))
    return LearnedFields.from_json(content)


def taught(known: EventDeclaration, *payloads: object) -> LearnedFields:
    return between(known, learn(known, payloads, RULES))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_a_task_learned_makes_the_room_that_it_had_itself(way):
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    learned = 0
    for _ in range(150):
        known = declared(columns={"a": "int32"}, **way)
        for _ in range(3):
            payloads = [event(draw, number) for number in range(draw.randint(1, 4))]
            roomy = learn(known, payloads, RULES)
            if roomy is not None:
                learned += 1
                assert with_learned(known, between(known, roomy), RULES) == roomy
                assert with_learned(roomy, between(known, roomy), RULES) is None
                known = roomy
    assert learned > 200


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_two_tasks_that_know_the_same_lose_nothing_of_each_other(way):
    draw = random.Random(SEED)
    known = declared(columns={"a": "int32"}, **way)
    for _ in range(200):
        now = known
        for _ in range(2):
            roomy = learn(known, [event(draw, 1), event(draw, 2)], RULES)
            if roomy is not None:
                after = with_learned(now, between(known, roomy), RULES) or now
                kept = {column.name: column.source for column in after.table.columns}
                assert all(kept[one.name] == one.source for one in now.table.columns)
                sources = set(kept.values()) | {child.source for child in after.table.children}
                assert sources >= {column.source for column in roomy.table.columns}
                assert sources >= {child.source for child in roomy.table.children}
                now = after


def test_no_value_of_an_event_is_in_what_is_told():
    payload = {"id": 1, "who": "canary-1", "list": [{"mail": "canary-2"}], "n": 987654321987654321}
    told = json.dumps(taught(declared(nested="flatten", arrays="child"), payload).to_json())
    assert "who" in told
    assert "canary" not in told
    assert "987654" not in told


def test_tasks_that_meet_numbers_of_one_field_make_it_as_wide_as_both_need():
    known = declared()
    now = known
    for value in (1, 1.5, 2**63):
        now = with_learned(now, taught(known, {"v": value}), RULES) or now
    assert types(now)["v"] == "decimal(38,9)"
    other = with_learned(now, taught(known, {"v": "text"}), RULES)
    assert other is None, "no type holds both: as where the second comes later"


def test_a_column_that_a_deploy_dropped_meanwhile_does_not_come_back():
    known = declared(columns={"old": "int64"})
    told = taught(known, {"id": 1, "old": 2, "new": 3})
    now = with_learned(declared(), told, RULES)
    assert now is not None
    assert types(now) == {"id": "int64", "new": "int64"}


@pytest.mark.parametrize(
    "now",
    [declared("strict"), declared("ignore"), declared(nested="flatten"), declared(arrays="child")],
)
def test_what_reads_payloads_in_another_way_by_now_learns_nothing_of_it(now):
    assert with_learned(now, taught(declared(), {"id": 1, "new": {"a": 1}}), RULES) is None


def test_names_are_given_where_they_are_kept():
    told = taught(declared(), {"id": 1, "userId": 7})
    given = Given(columns=NamedField({"user": "user_id"}, frozenset({"user_id"})))
    now = with_learned(declared(), told, RULES, given)
    assert now is not None
    [_, name] = types(now)
    assert name.startswith("user_id_"), "user_id was given to another field once"


def test_fields_get_columns_while_there_is_room_and_not_one_more():
    rules = replace(RULES, most_columns=3)
    told = taught(declared(), {"id": 1, **{f"f{n}": n for n in range(9)}})
    now = with_learned(declared(), told, rules)
    assert now is not None
    assert list(types(now)) == ["id", "f0", "f1"]
    assert with_learned(now, told, rules) is None


@pytest.mark.parametrize("name", ["a\0b", "x" * 1_001, "\ud800"])
def test_a_field_that_the_tracker_cannot_hold_is_passed_over(name):
    known = declared()
    told = taught(known, {"id": 1, "ok": True}).to_json()
    told[1].insert(0, [None, name, "int64"])
    now = with_learned(known, LearnedFields.from_json(told), RULES)
    assert now is not None
    assert list(types(now)) == ["id", "ok"]
