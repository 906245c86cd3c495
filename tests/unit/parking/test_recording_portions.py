"""In which order, and how many at a time, the segments of a commit are recorded."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from waybill.parking import ObjectDescriptor, Packer, ParkedEvent, SegmentDescriptor, recording
from waybill.parking.segment_stream import SegmentStream, write_segments

SEED = 5


def segment(name: str, position: int) -> SegmentDescriptor:
    packer = Packer()
    packer.add(
        ParkedEvent(
            "p1", name, "transformation", "null_value", "m", "w", "s", "v",
            "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "t", 0, position, 0, b"{}",
        )
    )  # fmt: skip
    [one] = packer.finish().segments
    return replace(one, position=position)


def objects(chance: random.Random, *, as_stream: bool) -> list[ObjectDescriptor]:
    found = []
    for number in range(3):
        own = [segment(f"e{chance.randrange(9)}", position) for position in range(40)]
        given = SegmentStream(write_segments(own)) if as_stream else own
        found.append(ObjectDescriptor(f"o{number}", 1, given))
    return found


@pytest.mark.parametrize("as_stream", [False, True])
def test_portions_are_of_whole_partitions_in_the_order_of_names(
    monkeypatch: pytest.MonkeyPatch, *, as_stream: bool
) -> None:
    print(f"seed {SEED}")
    monkeypatch.setattr(recording, "_PORTION", 7)
    given = objects(random.Random(SEED), as_stream=as_stream)
    portions = list(recording._portions(given))
    assert len(portions) > 5
    names = [[one.event_name for _, one in rows] for rows in portions]
    in_order = [name for some in names for name in some]
    assert in_order == sorted(in_order)
    assert not any(set(a) & set(b) for a, b in pairwise(names))


@pytest.mark.parametrize("as_stream", [False, True])
def test_a_partitions_segments_stay_in_the_order_of_objects_and_places(*, as_stream: bool) -> None:
    given = objects(random.Random(SEED), as_stream=as_stream)
    [rows] = recording._portions(given)
    assert len(rows) == 120
    for _, found in groupby(rows, key=lambda row: row[1].partition):
        places = [(key, one.position) for key, one in found]
        assert places == sorted(places)


def test_nothing_is_no_portion() -> None:
    assert list(recording._portions([ObjectDescriptor("o", 1, ())])) == []
    assert list(recording._portions([])) == []
