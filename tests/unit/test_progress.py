"""Progress lines: none for what is short, one every ten seconds for what is long."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from waybill.progress import EVERY_S, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "waybill.progress")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_line_every_ten_seconds_with_counts_rate_and_what_remains(
    lines: Callable[[], list[str]],
) -> None:
    clock = Clock()
    progress = Progress("replay of partition 7", "events", 12_000, clock=clock)
    for _ in range(60):
        clock.now += 0.5
        progress.add(100)
    assert lines() == [
        "replay of partition 7: 2,000 of 12,000 events (17%), 200 a second, about 50 s left",
        "replay of partition 7: 4,000 of 12,000 events (33%), 200 a second, about 40 s left",
        "replay of partition 7: 6,000 of 12,000 events (50%), 200 a second, about 30 s left",
    ]


def test_what_is_short_says_nothing_and_what_is_slow_counts_a_minute(
    lines: Callable[[], list[str]],
) -> None:
    clock = Clock()
    progress = Progress("campaign 1", "groups", 10, clock=clock)
    clock.now += EVERY_S - 0.1
    progress.add()
    assert lines() == []
    clock.now += 50.1
    progress.add()
    assert lines() == ["campaign 1: 2 of 10 groups (20%), 2.0 a minute, about 4 min left"]


def test_what_others_did_before_is_no_rate_and_an_unknown_total_leaves_no_rest(
    lines: Callable[[], list[str]],
) -> None:
    clock = Clock()
    progress = Progress("ingestion of orders", "records", clock=clock)
    progress.at(1_000_000, None)
    clock.now += EVERY_S
    progress.at(1_000_500, None)
    clock.now += EVERY_S
    progress.at(1_001_000, 2_001_000)
    assert lines() == [
        "ingestion of orders: 1,000,500 records, 50 a second",
        "ingestion of orders: 1,001,000 of 2,001,000 records (50%), 50 a second, about 5.6 h left",
    ]
