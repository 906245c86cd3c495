"""Whatever events bring, what was learned has room for it, and keeps the room that it had."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from tests.support.mapped import RULES, declared

from waybill.mappings import learn
from waybill.pipelines import Column, EventDeclaration, widened
from waybill.processing.mapping import Mapper, Reading

SEED = 20_130_131
FIELDS = ["a", "b", "userId", "user_id", "a.b", "", "é", "_waybill_id", "items", "id "]
SCALARS: list[Any] = [
    None, True, 0, -1, 2**40, 2**63, 10**30, 10**40, 1.5, 0.1, 0.30000000000000004, 1e300, 1e-20,
    Decimal("0.12345678901234567890123"), Decimal("12345678901234567.89"), "", "text",
    "2013-01-31", "2013-01-31T05:17:00Z", "2013-01-31T05:17:00.1234567Z", b"bytes",
]  # fmt: skip
WAYS = [
    {"nested": nested, "arrays": arrays, "depth": depth}
    for nested, depth in (("json", 8), ("flatten", 8), ("flatten", 1))
    for arrays in ("json", "child")
]


def value(draw: random.Random, depth: int) -> Any:
    kind = draw.random()
    if depth and kind < 0.15:
        return payload(draw, depth - 1)
    if depth and kind < 0.3:
        return [value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    found = draw.choice(SCALARS)
    return found if depth == 3 or not isinstance(found, bytes) else None


def payload(draw: random.Random, depth: int) -> dict[str, Any]:
    return {draw.choice(FIELDS): value(draw, depth) for _ in range(draw.randint(0, 5))}


def event(draw: random.Random, number: int) -> dict[str, Any]:
    return {**payload(draw, 3), "id": number}


def codes(declaration: EventDeclaration, rows: list[Any]) -> set[str]:
    """Return what is wrong with rows, all of it."""
    _, faults = Mapper(declaration.table, Reading.of(declaration)).map(rows)
    found: set[str] = set()
    for fault in faults.values():
        found.update([fault.code, *(other.code for other in fault.others)])
    return found


def tables(declaration: EventDeclaration) -> dict[str, tuple[Column, ...]]:
    children = {child.name: child.columns for child in declaration.table.children}
    return {declaration.table.name: declaration.table.columns, **children}


def holds(after: EventDeclaration, before: EventDeclaration) -> bool:
    """Tell whether a declaration has every column of another, by name and field, as wide."""
    for table, columns in tables(before).items():
        there = {column.name: column for column in tables(after)[table]}
        for column in columns:
            now = there[column.name]
            if now.source != column.source or widened(column.type, now.type) != now.type:
                return False
    return True


def distinct(declaration: EventDeclaration) -> bool:
    return all(
        len({column.name.casefold() for column in columns}) == len(columns)
        for columns in tables(declaration).values()
    )


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_batch_learned_at_once_has_room_for_every_field(way):
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(60):
        rows = [event(draw, number) for number in range(draw.randint(1, 6))]
        found = learn(declared(**way), rows, RULES) or declared(**way)
        assert distinct(found)
        assert "unknown_column" not in codes(found, rows), (rows, found)
        if way == WAYS[0]:  # of one field one type is inferred, which holds all its values
            assert codes(found, rows) <= {"type_mismatch"}, (rows, found)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_learned_batch_by_batch_never_loses_room(way):
    print("seed", SEED)
    draw = random.Random(SEED + 1)
    for _ in range(20):
        known = declared(**way)
        seen: list[Any] = []
        for _ in range(8):
            rows = [event(draw, number) for number in range(draw.randint(1, 4))]
            found = learn(known, rows, RULES) or known
            assert holds(found, known)
            assert distinct(found)
            assert learn(found, rows, RULES) is None
            seen += rows
            assert "unknown_column" not in codes(found, seen)
            known = found
