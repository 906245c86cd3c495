from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.unit.tracing_files.plain import plain_spool

from waybill.errors import RetryError
from waybill.tracing.files import SpoolLimit


def test_a_writer_waits_until_there_is_room_and_is_told_when_there_is_none(tmp_path: Path) -> None:
    spool = plain_spool(tmp_path)
    limit = SpoolLimit(spool, threshold_bytes=10, full_wait_s=300)
    limit.wait_for(8)
    path = spool.store(b"1234567.")
    limit.wrote(8)
    room = threading.Timer(0.3, path.unlink)
    began = time.monotonic()
    room.start()
    limit.wait_for(8)
    assert time.monotonic() - began > 0.2
    room.join()
    with pytest.raises(RetryError, match="holds 0 of 10 bytes and 11 more"):
        SpoolLimit(spool, threshold_bytes=10, full_wait_s=0).wait_for(11)


def test_files_that_are_being_written_and_those_that_are_tracked_count(tmp_path: Path) -> None:
    spool = plain_spool(tmp_path)
    spool.store(b"new.")
    _, path = spool.create()
    path.write_bytes(b"open")
    spool.state_tracked(100)
    assert spool.used_bytes() == 108
    (tmp_path / "tracked.bytes").write_text("")  # as a loss of power may leave it
    assert spool.used_bytes() == 8


def test_free_space_below_the_floor_is_no_room(tmp_path: Path) -> None:
    spool = plain_spool(tmp_path)
    SpoolLimit(spool, threshold_bytes=10, floor_bytes=1, full_wait_s=0).wait_for(1)
    with pytest.raises(RetryError, match="stay free"):
        SpoolLimit(spool, threshold_bytes=10, floor_bytes=2**60, full_wait_s=0).wait_for(1)
