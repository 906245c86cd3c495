"""The fast reading of a segment finds what ``scan`` finds, whatever is cut, flipped or left over."""

import random
from types import SimpleNamespace

import pytest

from waybill.producer.wal import DATA, MARK, FrameDamage, frame_runs, scan
from waybill.producer.wal.frame import TERMINATOR, FrameWriter, frame_at, tag_of
from waybill.producer.wal.frame_runs import INDEX_EVERY
from waybill.producer.wal.segment import WalSegment

WAL = bytes(range(16))
SEGMENT = 7
TAG = tag_of(WAL, SEGMENT)
FIRST_LSN = 60


def written(values, *, lsn=FIRST_LSN, tag=TAG, size=None):
    """Return a segment's bytes; every fifth record is a mark, every third has a key."""
    data = bytearray(size or sum(len(value or b"") + 80 for value in values) + 8)
    writer = FrameWriter(lsn)
    writer.turn_to(data, tag)
    for n, value in enumerate(values):
        kind, key = (DATA, MARK)[n % 5 == 4], b"k" * (n % 4) if n % 3 == 0 else None
        assert writer.write(kind, 5, b"topic", key, value, b"h" * (n % 2), -1)
    return bytes(data), writer.end


def values_of(count, seed=1):
    dice = random.Random(seed)
    return [
        None if n % 11 == 10 else dice.randbytes(dice.choice([0, 1, 9, 40])) for n in range(count)
    ]


def expected(data):
    """Return what ``load`` said when it was made of ``scan`` alone."""
    segment = fresh(data)
    for item in scan(data, tag=TAG, next_lsn=FIRST_LSN):
        if isinstance(item, FrameDamage):
            if item.missing or not segment._is_former_life(item.position):
                segment.damage.append(item)
            continue
        segment.end, segment.end_lsn = item.end, item.lsn + 1
        if item.kind == MARK:
            segment.marks.append(item)
        if item.lsn % INDEX_EVERY == 0:
            segment.note(item.lsn, item.position)
    tail_seen = bool(segment.damage) and segment.damage[-1].position >= segment.end
    if segment.end + len(TERMINATOR) > segment.size and not tail_seen:
        segment.damage.append(FrameDamage(segment.end, segment.size, 0))
    return state(segment)


def fresh(data):
    file = SimpleNamespace(data=data, size=len(data))
    return WalSegment(file, WAL, SEGMENT, FIRST_LSN)


def state(segment):
    return (
        segment.end,
        segment.end_lsn,
        segment.damage,
        segment.marks,
        segment._index_lsn,
        segment._index_position,
    )


def loaded(data):
    segment = fresh(data)
    segment.load()
    return state(segment)


@pytest.fixture(params=[1 << 20, 200, 60])
def window(request, monkeypatch):
    monkeypatch.setattr(frame_runs, "WINDOW_BYTES", request.param)


def test_every_cut(window):
    data, end = written(values_of(12))
    for cut in range(end + 9):
        assert loaded(data[:cut]) == expected(data[:cut]), cut
        rest = data[:cut] + bytes(100)
        assert loaded(rest) == expected(rest), cut


def test_every_flipped_bit(window):
    data, end = written(values_of(9))
    data = data[: end + 8] + bytes(50)
    for bit in range(8 * (end + 20)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert loaded(bytes(broken)) == expected(bytes(broken)), bit


@pytest.mark.parametrize("seed", range(30))
def test_runs_of_bytes_that_are_anything(window, seed):
    dice = random.Random(seed)
    data, end = written(values_of(150, seed))
    broken = bytearray(data[: end + 8] + bytes(200))
    for _ in range(dice.randint(1, 4)):
        at, size = dice.randrange(end), dice.choice([1, 8, 60, 300])
        broken[at : at + size] = dice.choice([bytes(size), dice.randbytes(size), b"\xff" * size])
    assert loaded(bytes(broken)) == expected(bytes(broken))


def test_what_a_former_life_left(window):
    old, _ = written(values_of(40, 3), tag=tag_of(WAL, 6))
    for count in range(12):
        new, end = written(values_of(count))
        data = new[: end + 8] + old[end + 8 :]
        assert loaded(data) == expected(data), count
        unwritten = new[:end] + old[end:]  # a power cut: the disk has nothing of this life there
        assert loaded(unwritten) == expected(unwritten), count
    assert loaded(old) == expected(old)


def test_values_that_hold_frames_of_the_same_life(window):
    inner, end = written(values_of(6))
    later, _ = written(values_of(6), lsn=FIRST_LSN + 3)
    data, _ = written([b"a", inner[:end], b"b", later, inner[: end - 3], b"c"])
    assert loaded(data) == expected(data)
    for bit in range(0, 8 * len(data), 29):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert loaded(bytes(broken)) == expected(bytes(broken)), bit


def test_lsns_that_come_again_or_are_left_out(window):
    first, end = written(values_of(5))
    for lsn in (FIRST_LSN, FIRST_LSN + 4, FIRST_LSN + 5, FIRST_LSN + 6, FIRST_LSN + 90):
        more, _ = written(values_of(5, 2), lsn=lsn)
        assert loaded(first[:end] + more) == expected(first[:end] + more), lsn


def test_frames_larger_than_a_window(window):
    data, _ = written([b"x" * 5000, b"y", b"z" * 3000, None, b""])
    assert loaded(data) == expected(data)


def test_many_frames():
    data, _ = written([b"v"] * 15_000)
    assert loaded(data) == expected(data)


def test_an_index_entry_names_its_frame(window):
    data, _ = written(values_of(300))
    _, end_lsn, damage, _, lsns, positions = loaded(data)
    assert (end_lsn, damage) == (FIRST_LSN + 300, [])
    assert lsns == [FIRST_LSN, 64, 128, 192, 256, 320]
    for lsn, position in zip(lsns, positions, strict=True):
        assert frame_at(data, position, TAG).lsn == lsn
