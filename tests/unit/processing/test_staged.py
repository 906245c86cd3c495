"""Staged objects: read as written, or refused."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from tests.unit.processing.made import chained, event, pipeline

from waybill.processing import StagedPacker, read_staged
from waybill.processing.staged import SYSTEM_FIELDS, StagedHead, StagedObjectError

SEED = 11


def body() -> bytes:
    two = pipeline(events=("order", "refund"), n="int64", note="string")
    events = [
        event(n, {"id": n, "n": 2**62 + n, "note": "é" * n}, name="order" if n % 2 else "refund")
        for n in range(1, 8)
    ]
    events.append(
        event(9, {"id": 9, "n": 1, "note": None}, op="delete", attempt=2, stage="mapping")
    )
    return chained(two, events).staged.finish()


def test_rows_types_and_system_columns_survive() -> None:
    frames = {frame.event_name: frame for frame in read_staged(body())}
    assert set(frames) == {"order", "refund"}
    order = frames["order"]
    assert (order.pipeline_id, order.team, order.table.name) == ("p1", "team", "order")
    assert order.data.schema.names == ["id", "n", "note", *[f.name for f in SYSTEM_FIELDS]]
    rows = order.data.to_pylist()
    assert [(r["id"], r["n"], r["note"]) for r in rows[:2]] == [
        (1, 2**62 + 1, "é"),
        (3, 2**62 + 3, "ééé"),
    ]
    last = rows[-1]
    assert (last["_waybill_id"], last["_waybill_op"], last["_waybill_attempt"]) == (
        "e9",
        "delete",
        2,
    )
    assert (last["_waybill_source_version"], last["_waybill_replayed"]) == (9, False)
    assert [r["id"] for r in rows] == [1, 3, 5, 7, 9], "rows of a table keep the log's order"


@pytest.mark.parametrize(
    "slices", [[1] * 400, [3, 1, 1, 200, 1, 60, 300, 1, 1], [256, 256, 1], [255, 1, 1]]
)
def test_small_batches_are_joined_and_the_rows_keep_their_order(slices: list[int]) -> None:
    packer, at = StagedPacker(), 0
    spec = pipeline(events=("order",)).events["order"].table
    head = StagedHead("p1", "team", "order", "v1", spec)
    for rows in slices:
        batch = pa.record_batch({"n": range(at, at + rows), "note": ["x"] * rows})
        packer.add(head=head, batch=batch)
        at += rows
    [(_, table)] = packer.tables()
    assert table.column("n").to_pylist() == list(range(at))
    assert packer.rows == at
    [frame] = read_staged(packer.finish())
    assert frame.data == table
    assert (frame.pipeline_id, frame.event_name, frame.table) == ("p1", "order", spec)


def test_an_object_without_rows_has_no_frames() -> None:
    packer = StagedPacker()
    assert packer.rows == 0
    assert read_staged(packer.finish()) == []


def test_any_damaged_byte_is_detected() -> None:
    whole = body()
    frames = read_staged(whole)
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    places = {*chance.sample(range(len(whole)), 400), *range(len(whole) - 300, len(whole))}
    for place in sorted(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        try:
            found = read_staged(bytes(damaged))
        except StagedObjectError:
            continue
        # A flipped space in the directory may say the same: then nothing is lost.
        assert [f.data for f in found] == [f.data for f in frames], place


def test_any_cut_is_detected() -> None:
    whole = body()
    for length in [*range(20), *range(20, len(whole), 37), len(whole) - 1]:
        with pytest.raises(StagedObjectError, match="staged/x"):
            read_staged(whole[:length], key="staged/x")


@pytest.mark.parametrize("directory", [b"", b"{}", b"5", b'[{"position":0}]', b"[[]]", b"[]"])
def test_a_directory_that_does_not_cover_the_object_is_refused(directory: bytes) -> None:
    import struct

    whole = body()
    (length,) = struct.unpack_from("<I", whole, len(whole) - 8)
    frames = whole[: len(whole) - 8 - length]
    with pytest.raises(StagedObjectError):
        read_staged(frames + directory + struct.pack("<I", len(directory)) + b"WBS1")
