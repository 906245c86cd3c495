"""Heads: what is read of many messages at once is what is read of each."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.errors import ParkError
from waybill.events import Event, decode, encode, read_heads, unpack_events


def event(number: int, **changes: Any) -> Event:
    plain = Event(
        f"e{number}", "p1", "team", "order", f"[{number}]", number, 1_000 + number,
        29_000_000 + number % 3, "2026-11-21T10:06:33Z", {"id": number, "x": 0.1},
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def read(values: list[bytes]) -> list[Event] | None:
    """Return the events in order, payloads read; None: they are left to the way by message."""
    groups = read_heads(values)
    if groups is None:
        return None
    found: dict[int, Event] = {}
    for heads, indices in groups:
        found.update(zip(indices, unpack_events(heads.packed()), strict=True))
        assert heads.ids == [found[index].id for index in indices]
        assert heads.keys == [found[index].key for index in indices]
        assert heads.deletes == [n for n, at in enumerate(indices) if found[at].op == "delete"]
        assert heads.intake_minutes == [found[index].intake_minute for index in indices]
        assert {(heads.team, heads.pipeline_id, heads.name)} == {
            (found[index].team, found[index].pipeline_id, found[index].name) for index in indices
        }
        for position, index in enumerate(indices):
            assert heads[position] is heads[position]
            assert msgspec.structs.replace(heads[position], data=None) == msgspec.structs.replace(
                found[index], data=None
            )
    return [found[index] for index in range(len(values))]


def test_plain_messages_are_read_as_one_by_one_and_grouped_by_pipeline_and_name() -> None:
    events = [event(n, name=["order", "refund"][n % 2], pipeline_id=f"p{n % 3}") for n in range(20)]
    values = [encode(one) for one in events]
    groups = read_heads(values)
    assert groups is not None
    assert len(groups) == 6
    assert sorted(index for _, indices in groups for index in indices) == list(range(20))
    assert read(values) == events


@pytest.mark.parametrize(
    "rare",
    [
        encode(event(1, attempt=1)),
        encode(event(1, stage="mapping", attempt=1)),
        encode(event(1, stage="mapping")),
        encode(event(1, op="delete")),
        encode(event(1, replay_id="r")),
        encode(event(1, data_ref="payloads/p1/x")),
        encode(event(1, data=b"\0")),
        encode(event(1, data="\u0001")),
        encode(event(1)).replace(b'"id":"e1"', b'"id":"\xff"'),
        encode(event(1)).replace(b'"version":"1/', b'"version":"-1/'),
        encode(event(1)).replace(b"/3e9", b"/-3e9"),
        encode(event(1)).replace(b"/3e9", b"/8000000000000000"),
        encode(event(1)).replace(b'"version":"1/', b'"version":"8000000000000000/'),
        encode(event(1)) + encode(event(2)),
        b"",
        b"{}",
        b"null",
        b"[" * 9_000,
    ],
)
def test_a_message_that_is_not_plain_leaves_its_slice_to_the_way_by_message(rare: bytes) -> None:
    values = [encode(event(0)), rare, encode(event(3))]
    found = read(values)
    if found is not None:  # then it is plain after all, and read the same
        assert found == [decode(value) for value in values]
    else:
        assert read([values[0], values[2]]) is not None


WHOLE = encode(event(5, data={"a": ["x", {"b": "y"}], "c": "}\n{", "d": "} {"}))


@given(st.lists(st.integers(0, len(WHOLE)), max_size=4), st.sampled_from([b"", b"\n", b" ", b","]))
def test_no_message_is_taken_for_a_part_of_its_neighbours(cuts: list[int], doubled: bytes) -> None:
    """Pieces of one message, and two in one, whose objects are as many as the messages."""
    edges = [0, *sorted(cuts), len(WHOLE)]
    pieces = [WHOLE[start:end] for start, end in pairwise(edges)]
    values = [*pieces, *([WHOLE + doubled + WHOLE] * (len(pieces) - 1))]
    found = read(values)
    if found is not None:
        assert found == [decode(value) for value in values]


HOSTILE = [
    # an array, and a text, that go on in the next message; then one with two objects
    [b'{"data":[{}', b"{}]}", WHOLE + WHOLE],
    [b'{"data":"x}', b'{y"}', WHOLE + WHOLE],
    [WHOLE[:-1] + b',"x":{}', b'{}}', WHOLE + b"\n" + WHOLE],
    [WHOLE[:-1], b"}", WHOLE + WHOLE],
]  # fmt: skip


@pytest.mark.parametrize("values", HOSTILE)
def test_messages_that_only_make_sense_together_make_none(values: list[bytes]) -> None:
    with pytest.raises(ParkError):
        decode(values[0])
    assert read_heads(values) is None


TEXTS = st.text(max_size=8)


@given(
    st.lists(
        st.builds(
            lambda text, number, version, data, op: encode(
                event(
                    number, id=text, key=text, name=text, source_version=version, data=data, op=op
                )
            ),
            TEXTS.filter(lambda text: "\0" not in text),
            st.integers(0, 50),
            st.integers(-(2**63), 2**63 - 1),
            st.recursive(
                st.none()
                | st.integers()
                | st.floats(allow_nan=False, allow_infinity=False)
                | TEXTS,
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
                ),
                max_leaves=6,
            ),
            st.sampled_from(["upsert", "delete"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_is_read_at_once_is_what_each_message_says(values: list[bytes]) -> None:
    found = read(values)
    if found is not None:
        assert found == [decode(value) for value in values]


def test_a_pipeline_of_two_teams_keeps_its_order() -> None:
    """Its events are one group, whoever sent them."""
    values = [encode(event(n, team=["old", "new"][n % 2])) for n in range(3)]
    assert read_heads(values) is None


def test_a_slice_too_large_to_be_held_twice_is_read_by_message() -> None:
    assert read_heads([encode(event(n, data="x" * 9_000_000)) for n in range(2)]) is None
