"""Frames: whatever is cut or flipped, the intact ones are found and the rest is named."""

import pytest

from waybill.errors import InputError
from waybill.producer.wal import DATA, MARK, FrameDamage, WalFrame, scan
from waybill.producer.wal.frame import (
    TERMINATOR,
    FrameWriter,
    decode_headers,
    encode_headers,
    frame_bytes,
    read_record,
    tag_of,
)

WAL = bytes(range(16))
TAG = tag_of(WAL, 7)
FIRST_LSN = 100


def written(*fields, lsn, tag=TAG):
    """Return the bytes of one frame and of the terminator behind it."""
    kind, timestamp_ms, topic, key, value, headers, partition = fields
    data = bytearray(b"\xff" * 500)
    writer = FrameWriter(lsn)
    writer.turn_to(data, tag)
    assert writer.write(kind, timestamp_ms, topic, key, value, headers, partition) == lsn
    room = frame_bytes(topic, key, value, headers)
    assert data[room:] == b"\xff" * (500 - room)
    return bytes(data[:room])


def frame(lsn, value=b"", *, tag=TAG, key=None, kind=DATA):
    whole = written(kind, 5, b"t", key, value, b"", -1, lsn=lsn, tag=tag)
    return whole[: -len(TERMINATOR)]


FRAMES = [
    frame(100, b"first"),
    frame(101, b""),
    frame(102, None, key=b"key"),
    frame(103, b"cursor", kind=MARK),
    frame(104, b"x" * 40),
]
WHOLE = b"".join(FRAMES)
ENDS = [sum(len(one) for one in FRAMES[: n + 1]) for n in range(len(FRAMES))]


def lsns(data):
    found = scan(data, tag=TAG, next_lsn=FIRST_LSN)
    return [item.lsn for item in found if isinstance(item, WalFrame)]


def damage(data):
    found = scan(data, tag=TAG, next_lsn=FIRST_LSN)
    return [item for item in found if isinstance(item, FrameDamage)]


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_log_cut_at_any_byte_keeps_every_whole_frame_before_the_cut(cut):
    whole = [FIRST_LSN + n for n, end in enumerate(ENDS) if end <= cut]
    assert lsns(WHOLE[:cut]) == whole
    assert lsns(WHOLE[:cut] + bytes(300)) == whole  # the rest of a preallocated segment


def test_any_flipped_bit_costs_at_most_the_frame_it_is_in_and_is_reported():
    data = WHOLE + bytes(64)
    for bit in range(8 * len(WHOLE)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        hit = next(n for n, end in enumerate(ENDS) if bit // 8 < end)
        expected = [FIRST_LSN + n for n in range(len(FRAMES)) if n != hit]
        assert lsns(bytes(broken)) == expected, bit
        reported = damage(bytes(broken))
        if hit < len(FRAMES) - 1:
            assert [item.missing for item in reported] == [1], bit
        elif any(broken[ENDS[-2] : ENDS[-2] + 8]):
            assert [item.missing for item in reported] == [0], bit


def test_a_flipped_bit_behind_the_end_costs_no_frame():
    for bit in range(8 * 64):
        broken = bytearray(WHOLE + bytes(64))
        broken[len(WHOLE) + bit // 8] ^= 1 << bit % 8
        assert lsns(bytes(broken)) == [100, 101, 102, 103, 104]


def test_the_end_of_an_undamaged_log_is_no_damage():
    assert damage(WHOLE + bytes(64)) == []
    assert damage(b"") == []
    assert damage(bytes(64)) == []


def test_a_zeroed_run_of_frames_is_counted_by_the_lsn_of_the_next_whole_one():
    broken = bytearray(WHOLE)
    broken[ENDS[0] : ENDS[2]] = bytes(ENDS[2] - ENDS[0])
    assert lsns(bytes(broken)) == [100, 103, 104]
    assert [item.missing for item in damage(bytes(broken))] == [2]


def test_frames_of_the_file_s_former_life_are_not_seen():
    old = frame(101, b"old", tag=tag_of(WAL, 6)) + frame(102, b"old", tag=tag_of(WAL, 6))
    assert lsns(FRAMES[0] + TERMINATOR + old) == [100]


def test_a_frame_of_an_earlier_lsn_is_not_taken_for_the_next_one():
    assert lsns(FRAMES[0] + frame(100, b"again")) == [100]


@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("value", [None, b"", b"v"])
@pytest.mark.parametrize("headers", [None, {}, [("a", b"1"), ("a", None), ("é", "text")]])
def test_null_and_empty_come_back_as_they_were(key, value, headers):
    pairs, header_bytes = encode_headers(headers)
    data = written(DATA, -1, "tøpic".encode(), key, value, header_bytes, 3, lsn=9)
    (found,) = [f for f in scan(data, tag=TAG, next_lsn=9) if isinstance(f, WalFrame)]
    record = read_record(data, found, 7)
    assert (record.lsn, record.segment_id, record.kind, record.timestamp_ms) == (9, 7, DATA, -1)
    assert (record.topic, record.key, record.value, record.headers) == ("tøpic", key, value, pairs)
    assert record.partition == 3


def test_a_frame_that_does_not_fit_writes_nothing():
    room = frame_bytes(b"t", None, b"value", b"")
    for size in range(room):
        data = bytearray(b"\xff" * size)
        writer = FrameWriter(4)
        writer.turn_to(data, TAG)
        assert writer.write(DATA, 5, b"t", None, b"value", b"", -1) == 0
        assert (data, writer.next_lsn) == (b"\xff" * size, 4)


def test_headers_keep_order_and_repetition():
    pairs, data = encode_headers([("b", "2"), ("a", b""), ("b", None)])
    assert decode_headers(data) == pairs == [("b", b"2"), ("a", b""), ("b", None)]


@pytest.mark.parametrize("bad", [[("a", 1)], {1: b"x"}, [("a\0", b"x")], [("n" * 70_000, b"")]])
def test_a_header_that_cannot_be_sent_is_refused_before_the_log(bad):
    with pytest.raises(InputError):
        encode_headers(bad)
