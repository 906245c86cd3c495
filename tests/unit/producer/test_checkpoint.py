"""The checkpoint: the old one or the new one, whatever is cut, flipped or refused."""

import os

import pytest

from waybill.producer.checkpoint import Checkpoint, CheckpointFile, decode, encode

ONE = Checkpoint(
    wal_id=b"w" * 16,
    low_lsn=1000,
    next_segment=3,
    confirmed_lsn=900,
    marked=True,
    synced_lsn=950,
    offsets={"events.a.b": {0: 17, 12: 2**40}},
)


def test_a_checkpoint_comes_back_as_it_was():
    assert decode(encode(ONE)) == ONE
    assert decode(encode(Checkpoint())) == Checkpoint()


@pytest.mark.parametrize("cut", range(len(encode(ONE))))
def test_a_checkpoint_cut_at_any_byte_is_no_checkpoint(cut):
    assert decode(encode(ONE)[:cut]) is None


def test_a_checkpoint_with_any_bit_flipped_is_no_checkpoint():
    good = encode(ONE)
    for bit in range(8 * len(good)):
        broken = bytearray(good)
        broken[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(broken)) is None, bit


def test_a_damaged_checkpoint_is_put_aside_and_the_next_one_is_written(tmp_path):
    CheckpointFile(tmp_path).save(ONE)
    (tmp_path / "checkpoint").write_bytes(encode(ONE)[:-1])
    file = CheckpointFile(tmp_path)
    assert file.load() == (Checkpoint(), True)
    assert [path.read_bytes() for path in (tmp_path / "quarantine").iterdir()] == [encode(ONE)[:-1]]
    file.save(ONE)
    assert CheckpointFile(tmp_path).load() == (ONE, False)


@pytest.mark.parametrize("refused", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_the_one_before(tmp_path, monkeypatch, refused):
    file = CheckpointFile(tmp_path)
    file.save(ONE)

    def failing(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, refused, failing)
    with pytest.raises(OSError, match="Input/output"):
        file.save(Checkpoint(low_lsn=2000))
    monkeypatch.undo()
    assert CheckpointFile(tmp_path).load() == (ONE, False)
    file.save(Checkpoint(low_lsn=2000))
    assert CheckpointFile(tmp_path).load()[0].low_lsn == 2000


def test_a_write_that_was_killed_half_way_does_not_count(tmp_path):
    CheckpointFile(tmp_path).save(ONE)
    (tmp_path / "checkpoint.new").write_bytes(b"half")
    assert CheckpointFile(tmp_path).load() == (ONE, False)


def test_the_floor_is_the_low_watermark_until_marks_are_used():
    assert Checkpoint(low_lsn=50).floor_lsn == 50
    assert Checkpoint(low_lsn=50, marked=True).floor_lsn == 1
    assert Checkpoint(low_lsn=50, marked=True, confirmed_lsn=30).floor_lsn == 31
    assert Checkpoint(low_lsn=20, marked=True, confirmed_lsn=30).floor_lsn == 20
