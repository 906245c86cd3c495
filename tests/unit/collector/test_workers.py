"""Which process has which logs; and the embedded stack's collector."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from waybill.collector.workers import SharedVersions, left_logs, take_free_slot, take_slot
from waybill.errors import RetryError
from waybill.events import IntakeClock, wall_us
from waybill.settings import CollectorSettings, Settings
from waybill.stack import Stack
from waybill.stack.credentials import read


def test_a_slot_has_one_process_and_the_next_one_after_its_death(tmp_path: Path):
    ready, write = os.pipe()
    child = os.fork()
    if child == 0:
        take_slot(tmp_path, 0)
        os.write(write, b"x")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"x"
        assert take_slot(tmp_path, 0) is None
        second = take_free_slot(tmp_path, 2, limit_s=0)
        assert (second.number, second.log_name("shop")) == (1, "collector-1-shop")
        with pytest.raises(RetryError, match="2 processes"):
            take_free_slot(tmp_path, 2, limit_s=0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    first = take_free_slot(tmp_path, 2, limit_s=60)
    assert first.number == 0
    second.release()
    assert take_slot(tmp_path, 1) is not None


def test_logs_that_hold_something_are_found_and_others_are_not(tmp_path: Path):
    for name in (
        "collector-0-shop/seg-1.wal",
        "collector-3-other-shop/retry/seg-1.wal",
        "collector-1-empty/checkpoint",
        "collector-2-moved/quarantine/ab/seg-1.wal",
        "ingest-shop/seg-1.wal",
        "collector-x-shop/seg-1.wal",
        "collector-shop.version",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(left_logs(tmp_path)) == [(0, "shop"), (3, "other-shop")]


def test_versions_rise_over_processes_that_give_them_at_once_by_clocks_that_differ(tmp_path: Path):
    ready, write = os.pipe()
    workers = []
    for behind_us in (0, 5_000_000, 3_600_000_000):
        child = os.fork()
        if child == 0:
            clock = IntakeClock(now_us=lambda behind_us=behind_us: wall_us() - behind_us)
            versions = SharedVersions(tmp_path, "shop")
            for _ in range(200):
                with versions.above(clock):  # written as they are given: a pipe keeps the order
                    os.write(write, clock.stamp(3).version.to_bytes(8, "little"))
            os._exit(0)
        workers.append(child)
    for child in workers:
        assert os.waitpid(child, 0)[1] == 0
    os.close(write)
    with os.fdopen(ready, "rb") as pipe:
        given = pipe.read()
    numbers = [int.from_bytes(given[at : at + 8], "little") for at in range(0, len(given), 8)]
    assert len(numbers) == 600
    assert all(after - before >= 3 for before, after in itertools.pairwise(numbers))


def test_the_stack_has_a_collector_where_it_was_asked_for(tmp_path: Path):
    def names(settings: Settings) -> list[str]:
        stack = Stack(settings)
        return [service.name for service in stack.supervised(read(stack.home))]

    plain = Settings(home=tmp_path)
    asked = Settings(home=tmp_path, collector=CollectorSettings(embedded=True))
    assert "collector" not in names(plain)
    assert set(names(asked)) - set(names(plain)) == {"collector"}
    assert names(Stack(plain).with_collector(wanted=True).settings) == names(asked)
    assert names(Stack(asked).with_collector(wanted=False).settings) == names(plain)
