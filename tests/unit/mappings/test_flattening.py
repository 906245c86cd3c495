"""Paths of fields: each is read back as its parts, and no two fields have one."""

from __future__ import annotations

import random

import pytest

from waybill.mappings import decode_path, encode_path, flatten

SEED = 7
LETTERS = ["a", "b", ".", "\\", "", "\n", "é"]


def names(draw: random.Random) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(0, 3)))


def payload(draw: random.Random, depth: int) -> dict:
    return {
        names(draw): payload(draw, depth - 1) if depth and draw.random() < 0.5 else draw.random()
        for _ in range(draw.randint(0, 4))
    }


def leaves(value: object, parts: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    if not isinstance(value, dict) or (not value and parts):
        return {parts: value}
    found: dict[tuple[str, ...], object] = {}
    for name, inner in value.items():
        found |= leaves(inner, (*parts, name))
    return found


def test_every_field_has_a_path_of_its_own():
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(3_000):
        one = payload(draw, 4)
        flat = flatten(one, 32)
        assert {decode_path(path): value for path, value in flat.items()} == leaves(one)


def test_parts_come_back():
    draw = random.Random(SEED)
    for _ in range(3_000):
        parts = tuple(names(draw) for _ in range(draw.randint(1, 4)))
        assert decode_path(encode_path(parts)) == parts


@pytest.mark.parametrize(
    ("depth", "flat"),
    [(1, {"a.b": {"c": {"d": 1}}}), (2, {"a.b.c": {"d": 1}}), (3, {"a.b.c.d": 1})],
)
def test_what_lies_deeper_is_a_value(depth, flat):
    assert flatten({"a": {"b": {"c": {"d": 1}}}}, depth) == flat


def test_dots_in_names_and_empty_objects_and_arrays():
    flat = flatten({"a.b": 1, "a": {"b": 2, "c": {}, "d": [{"e": 1}]}, "x\\": {"": None}}, 8)
    assert flat == {r"a\.b": 1, "a.b": 2, "a.c": {}, "a.d": [{"e": 1}], "x\\\\.": None}


def test_names_that_are_no_text_are_not_looked_into():
    assert flatten({"a": {1: 2}, 3: {"b": 4}}, 8) == {"a": {1: 2}, 3: {"b": 4}}


def test_a_backslash_at_the_end_stands_for_itself():
    assert decode_path("a\\") == ("a\\",)
