"""The disk in memory loses what a disk may lose, and nothing else; the real one keeps the same rules."""

import random
from pathlib import Path

import pytest

from waybill.producer.wal import WalFullError
from waybill.producer.wal.disk import RealDisk, set_aside
from waybill.producer.wal.memory_disk import SECTOR_BYTES, Killed, MemoryDisk

FOLDER = Path("/folder")
FILE = FOLDER / "file"
OLD, NEW = b"o" * 4 * SECTOR_BYTES, b"n" * 4 * SECTOR_BYTES


def made(disk):
    file = disk.make(FILE, len(OLD))
    file.data[:] = OLD
    file.sync()
    disk.sync_directory(FOLDER)
    return file


def test_a_kill_keeps_what_was_written_and_no_mapping_of_the_dead():
    disk = MemoryDisk()
    file = made(disk)
    file.data[:] = NEW
    disk.kill()
    file.data[:] = OLD
    assert disk.read(FILE) == NEW


def test_a_power_cut_leaves_any_mix_of_old_and_new_sectors():
    seen = set()
    for seed in range(200):
        disk = MemoryDisk()
        file = made(disk)
        file.data[:] = NEW
        disk.power_cut(random.Random(seed))
        left = disk.read(FILE)
        seen.add(tuple(left[at : at + 1] for at in range(0, len(left), SECTOR_BYTES)))
        assert set(left) <= {*b"on"}
    assert len(seen) == 2**4


def test_what_was_synced_survives_a_power_cut():
    for seed in range(20):
        disk = MemoryDisk()
        file = made(disk)
        file.data[:] = NEW
        file.sync()
        disk.power_cut(random.Random(seed))
        assert disk.read(FILE) == NEW


def test_after_a_refused_sync_a_second_one_succeeds_and_writes_nothing():
    disk = MemoryDisk()
    file = made(disk)
    file.data[:] = NEW
    disk.refuse("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert disk.read(FILE) == NEW
    disk.power_cut(random.Random(0))
    assert disk.read(FILE) == OLD


def test_touched_pages_are_written_after_a_refused_sync():
    disk = MemoryDisk()
    file = made(disk)
    file.data[:] = NEW
    disk.refuse("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.touch(len(NEW))
    file.sync()
    disk.power_cut(random.Random(0))
    assert disk.read(FILE) == NEW


def test_names_survive_a_power_cut_as_far_as_their_directory_was_synced():
    seen = set()
    for seed in range(100):
        disk = MemoryDisk()
        made(disk)
        disk.rename(FILE, FOLDER / "renamed")
        disk.make(FOLDER / "other", 1)
        disk.power_cut(random.Random(seed))
        seen.add(tuple(disk.names(FOLDER)))
    assert seen == {("file",), ("file", "other"), ("renamed",), ("other", "renamed")}


def test_a_kill_comes_before_or_after_the_ordered_operation_and_all_later_ones_fail():
    for after in (False, True):
        disk = MemoryDisk()
        made(disk)
        disk.kill_at(1, after=after)
        with pytest.raises(Killed):
            disk.rename(FILE, FOLDER / "renamed")
        with pytest.raises(Killed):
            disk.remove(FILE)
        disk.kill()
        assert disk.names(FOLDER) == (["renamed"] if after else ["file"])


@pytest.fixture(params=["real", "memory"])
def disk(request):
    return RealDisk() if request.param == "real" else MemoryDisk()


def test_both_disks_make_read_rename_link_and_remove_alike(disk, tmp_path):
    file = disk.make(tmp_path / "a", 5000)
    assert (file.size, bytes(file.data), file.path) == (5000, bytes(5000), tmp_path / "a")
    file.data[4998:5000] = b"zz"
    assert file.read(4997, 9) == b"\0zz"
    file.touch(5000)
    file.sync()
    with pytest.raises(FileExistsError):
        disk.make(tmp_path / "a", 1)
    aside = set_aside(disk, tmp_path / "a", "a")
    assert set_aside(disk, tmp_path / "a", "a") != aside
    disk.write(tmp_path / "b", b"first")
    disk.write(tmp_path / "b", b"small")
    disk.rename(tmp_path / "a", tmp_path / "b")
    assert disk.names(tmp_path) == ["b", "quarantine"]
    assert disk.read(aside) == disk.read(tmp_path / "b") == bytes(4998) + b"zz"
    with pytest.raises(FileNotFoundError):
        disk.read(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "a")
    file.resize(10)
    assert (file.size, len(file.data)) == (10, 10)
    file.close()
    disk.remove(tmp_path / "b")
    disk.remove(tmp_path / "b")
    assert disk.names(tmp_path) == ["quarantine"]


def test_both_disks_open_a_file_of_any_size_and_none(disk, tmp_path):
    for size in (0, 1, 4095, 4097):
        path = tmp_path / f"{size}"
        disk.write(path, b"x" * size)
        file = disk.open(path)
        assert file.size == size
        assert file.data[:size] == b"x" * size
        file.sync()
        file.close()


def test_a_disk_in_memory_has_room_for_so_much():
    disk = MemoryDisk(capacity_bytes=100)
    disk.make(FILE, 60)
    assert disk.free_bytes(FOLDER) == 40
    with pytest.raises(WalFullError, match="no room"):
        disk.make(FOLDER / "other", 41)
    assert disk.names(FOLDER) == ["file"]
