"""Turns of a run: what one hands to the next, and how long Kafka is waited for with a slot."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from uuid import UUID

import pytest

from waybill.ingestion import IngestReport, KafkaWaitError, RunSoFar, WaitLimit, turns
from waybill.ledger import RunFigures


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    return clock


def test_what_a_turn_hands_to_the_next_is_the_same_after_json() -> None:
    report = IngestReport("orders", 100, 90, 8, 1, 2, 5, 1.25)
    figures = RunFigures(100, 80, 8, 5, 12.5, 1000, "row 100", 900.0, "rows")
    so_far = RunSoFar(UUID(int=5), report, figures)
    value = json.loads(json.dumps(so_far.to_json()))
    assert RunSoFar.from_json(value) == so_far
    value["report"] |= {"of_a_later_version": 1}
    value["figures"] |= {"of_a_later_version": 1}
    assert RunSoFar.from_json(value) == so_far
    del value["report"]["refused"]
    assert RunSoFar.from_json(value).report == replace(report, refused=0)


def test_the_report_of_two_turns_has_the_sums() -> None:
    first = IngestReport("orders", 100, 90, 8, 1, 2, 5, 1.25)
    second = IngestReport("orders", 10, 9, 1, 0, 0, 1, 0.5, stopped="mia")
    assert second.after(first) == IngestReport("orders", 110, 99, 9, 1, 2, 6, 1.75, "mia")


def test_a_wait_in_which_nothing_moves_ends(clock: Clock) -> None:
    limit = WaitLimit(20.0)
    for _ in range(20):
        limit.check(7)
        clock.now_s += 1
    clock.now_s += 0.5
    with pytest.raises(KafkaWaitError, match="took nothing for 20 s"):
        limit.check(7)


def test_a_wait_in_which_something_moves_and_a_new_wait_go_on(clock: Clock) -> None:
    limit = WaitLimit(20.0)
    for left in range(100, 0, -1):  # slow, and moving
        limit.check(left)
        clock.now_s += 3
    for _ in range(3):  # of the same number, long after each other
        for _ in range(15):
            limit.check(0)
            clock.now_s += 1
        clock.now_s += 61


def test_another_threads_waits_are_not_ended(clock: Clock) -> None:
    limit = WaitLimit(1.0)
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            for _ in range(5):
                limit.check(0)
                clock.now_s += 1
        except KafkaWaitError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert not failed
