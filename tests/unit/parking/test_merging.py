"""Segments of one commit as one stream, in whatever way their offsets overlap."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.parking.reading import merged

SEED = 20261122


def cut(chance: random.Random, offsets: list[int], parts: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(parts)]
    for offset in offsets:
        chance.choice(found).append(offset)
    return sorted((part for part in found if part), key=lambda part: part[0])


def stream(parts: list[list[int]]) -> list[tuple[int, int]]:
    """Return (segment, offset) in the order in which they go; segments hold what ``parts`` say."""
    group: list[Any] = [
        SimpleNamespace(id=index, first_offset=part[0]) for index, part in enumerate(parts)
    ]

    def read(segment: Any) -> Any:
        return (SimpleNamespace(kafka_offset=offset) for offset in parts[segment.id])

    return [(segment.id, event.kafka_offset) for segment, event in merged(group, read)]


def test_offsets_rise_and_each_event_comes_with_its_segment() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    for _ in range(300):
        offsets = sorted(chance.sample(range(200), chance.randrange(1, 60)))
        parts = cut(chance, offsets, chance.randrange(1, 6))
        found = stream(parts)
        assert [offset for _, offset in found] == offsets
        assert all(offset in parts[segment] for segment, offset in found)


@pytest.mark.parametrize(
    ("parts", "order"),
    [
        ([[1, 2, 3], [4, 5]], [1, 2, 3, 4, 5]),
        ([[5, 1, 2], [6]], [5, 1, 2, 6]),
        ([[1, 9, 2], [5, 6], [7]], [1, 5, 6, 7, 9, 2]),
        ([[1], [1], [1, 2]], [1, 1, 1, 2]),
        ([[-1, -1], [-1]], [-1, -1, -1]),
    ],
)
def test_a_segment_keeps_its_own_order(parts: list[list[int]], order: list[int]) -> None:
    assert [offset for _, offset in stream(parts)] == order
