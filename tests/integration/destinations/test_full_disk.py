"""A warehouse whose disk is full: nothing half, words that say so, and it goes on when there is room."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.support.destined import held, load, never_park
from tests.support.warehouses import MAKERS, PostgresWarehouse
from tests.unit.destinations.orders import SPEC, Order, commit_of, totals

from waybill.errors import RetryError

pytestmark = pytest.mark.serves

SIZES_MB = {"postgres": 14}
"""A new database of PostgreSQL takes 8 MB."""
SMALL_MB = 3


@pytest.fixture(params=list(MAKERS))
def cramped(request, tmp_path):
    """A warehouse on a disk of a few MB, and the disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={SIZES_MB.get(request.param, SMALL_MB)}m"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        if request.param == "postgres":
            with in_tablespace(request.getfixturevalue("postgres"), disk) as warehouse:
                yield warehouse, disk
        else:
            warehouse = MAKERS[request.param](request, disk)
            yield warehouse, disk
            warehouse.close()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def in_tablespace(postgres, disk):
    """Give a database whose files are on the disk; the server's log of writes is not."""
    with psycopg.connect(postgres.database("cramped"), autocommit=True) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone()
        place = disk / "space"
        place.mkdir()
        owner = Path(data).stat()
        shutil.chown(place, owner.st_uid, owner.st_gid)
        up_to_temp = (one for one in disk.parents if one.is_relative_to(tempfile.gettempdir()))
        for folder in (disk, *up_to_temp):
            folder.chmod(folder.stat().st_mode | 0o055)
        connection.execute(f"CREATE TABLESPACE cramped LOCATION '{place}'")
        connection.execute("CREATE DATABASE cramped TABLESPACE cramped")
        dsn = psycopg.conninfo.make_conninfo(connection.info.dsn, dbname="cramped")
        warehouse = PostgresWarehouse(dsn)
        try:
            yield warehouse
        finally:
            warehouse.close()
            connection.execute("DROP DATABASE cramped WITH (FORCE)")
            connection.execute("DROP TABLESPACE cramped")


def some_mb(first, mb):
    """Return orders with that many MB of text that does not compress."""
    draw = random.Random(first)
    return [Order(first + i, 1, 1, draw.randbytes(5_000).hex()) for i in range(mb * 100)]


def test_a_disk_that_is_full_leaves_nothing_half_and_is_waited_for(cramped):
    warehouse, disk = cramped
    load(warehouse.open(), [Order(1, 1, 1, "before")])
    before = warehouse.rows(SPEC)
    large = [*some_mb(10, 12), Order(1, 2, 2, "after")]
    for _ in range(2):
        with pytest.raises(RetryError, match=r"(?i)'warehouse'.*(full|no space|room|extend)"):
            warehouse.open().load([commit_of(2, large)], never_park)
        assert warehouse.rows(SPEC) == before
    subprocess.run(["mount", "-o", "remount,size=400m", str(disk)], check=True)
    found = warehouse.open().load([commit_of(2, large)], never_park)
    assert totals(found)["delivered"] == len(large)
    rows = held(warehouse)
    assert (len(rows), rows[1][0]) == (len(large), "after")
    assert totals(warehouse.open().load([commit_of(2, large)], never_park)) == totals(found)
