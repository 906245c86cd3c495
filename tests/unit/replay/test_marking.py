"""Marks of a replay: groups in units, told in order, once all before them is settled."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import orjson
import pytest

from waybill.errors import InputError, RetryError
from waybill.producer import WalFullError
from waybill.replay import marking as module
from waybill.replay.marking import Marking, MarkingLimits

REPLAY = UUID(int=7)


class Log:
    """A producer's log: lsns, of which those up to ``settled_lsn`` are settled."""

    capacity_bytes = 1024**3

    def __init__(self) -> None:
        self.next_lsn, self.settled_lsn, self.confirmed = 1, 0, 0
        self.marks: dict[int, Any] = {}
        self.away = False
        self.full: list[WalFullError] = []
        self.recovered = SimpleNamespace(marks=[])

    def produce(self, count: int) -> None:
        self.next_lsn += count

    def mark(self, payload: bytes) -> int:
        if self.full:
            raise self.full.pop()
        lsn, self.next_lsn = self.next_lsn, self.next_lsn + 1
        self.marks[lsn] = orjson.loads(payload)["segments"]
        return lsn

    def settled(self, lsn: int) -> bool:
        return lsn <= self.settled_lsn

    def poll(self, _timeout: float) -> int:
        if not self.away:
            self.settled_lsn = max(self.settled_lsn, min(self.marks, default=0))
            self.settled_lsn += 1
        return 0

    def flush(self, _timeout: float) -> int:
        if not self.away:
            self.settled_lsn = self.next_lsn - 1
        return len(self)

    def confirm(self, lsn: int) -> None:
        assert lsn > self.confirmed
        self.confirmed = lsn

    def __len__(self) -> int:
        return self.next_lsn - 1 - self.settled_lsn


GROUP: Any = SimpleNamespace(event_name="order", stage="transformation")


class Tracker:
    """A ``Parking`` that writes down what it is told."""

    def __init__(self, log: Log) -> None:
        self.log, self.told, self.runs = log, [], True  # type: ignore[var-annotated]

    def mark_replayed(self, replay_id: UUID, ids: list[int], _beside: Any) -> bool:
        lsn = next(lsn for lsn, marked in self.log.marks.items() if marked == ids)
        assert lsn <= self.log.settled_lsn, "told before Kafka had all of it"
        assert replay_id == REPLAY
        self.told += ids
        return self.runs

    def replayed_group(self, replay_id: UUID) -> Any:
        assert replay_id == REPLAY
        return GROUP


class Run:
    """A replay that sends groups of ten events."""

    def __init__(self, **limits: Any) -> None:
        self.log = Log()
        self.tracker = Tracker(self.log)
        self.traced: list[tuple[str, int]] = []
        self.marking = Marking(
            self.tracker,  # type: ignore[arg-type]
            self.log,  # type: ignore[arg-type]
            GROUP,
            lambda replay_id, first_id: self.traced.append((replay_id, first_id)),
            MarkingLimits(**limits),
        ).begin(REPLAY)

    def group(self, number: int, events: int = 10, *, dies: bool = False) -> bool:
        segments: Any = [SimpleNamespace(id=number, count=events, bytes=events * 100)]
        shares = self.marking.begin_slice(segments)
        self.marking.begin_sending()
        self.log.produce(events)
        if dies:
            raise RetryError("amid a slice")
        self.marking.end_slice(segments)
        return shares

    @property
    def marks(self) -> list[list[int]]:
        return list(self.log.marks.values())


def test_small_groups_share_a_mark_and_a_large_one_has_its_own() -> None:
    run = Run(events=30)
    with run.marking:
        shares = [run.group(n) for n in (1, 2)] + [run.group(3, 100), run.group(4), run.group(5)]
    assert run.marks == [[1, 2], [3], [4, 5]]
    assert shares == [True, True, False, True, True]
    assert run.traced == [(str(REPLAY), first) for first in (1, 3, 4)]
    assert run.tracker.told == [1, 2, 3, 4, 5]
    assert run.log.confirmed == run.log.next_lsn - 1


def test_bytes_time_and_a_small_log_end_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(bytes=2_500)
    with run.marking:
        for number in range(5):
            run.group(number)
    assert run.marks == [[0, 1], [2, 3], [4]]
    run = Run(seconds=0)
    with run.marking:
        run.group(1)
        run.group(2)
    assert run.marks == [[1], [2]]
    monkeypatch.setattr(Log, "capacity_bytes", 8 * 1_500)
    run = Run()
    with run.marking:
        run.group(1)
        run.group(2)
    assert run.marks == [[1], [2]]


def test_the_next_is_sent_before_a_mark_is_settled_and_few_wait() -> None:
    run = Run(events=10)
    with run.marking:
        for number in range(3):
            run.group(number)
        assert run.tracker.told == [0], "the third waits for the first"
        run.group(3)
        assert run.tracker.told == [0, 1]
        run.log.settled_lsn = 3 * 11
        run.marking.settle()
        assert run.tracker.told == [0, 1, 2]
    assert run.tracker.told == [0, 1, 2, 3]


def test_while_kafka_is_away_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_S", 0.0)
    run = Run(events=10)
    run.log.away = True
    with pytest.raises(RetryError, match="events are waiting for Kafka"), run.marking:
        for number in range(9):
            run.group(number)
    assert (len(run.marks), run.tracker.told) == (3, [])
    run = Run()
    run.log.away = True
    with pytest.raises(RetryError, match="11 events are waiting for Kafka"), run.marking:
        run.group(1)
    assert (run.marks, run.tracker.told) == ([[1]], [])


def test_a_cancelled_replay_tells_of_all_that_it_sent() -> None:
    run = Run(events=10)
    with pytest.raises(InputError, match="was cancelled"), run.marking:
        run.group(1)
        run.tracker.runs = False
        run.group(2)
        run.log.settled_lsn = 11
        run.marking.settle()
        assert run.tracker.told == [1]
        run.group(3)
    assert run.tracker.told == [1, 2, 3]


def test_an_error_between_groups_leaves_them_marked_and_told() -> None:
    run = Run()
    with pytest.raises(ValueError, match="between"), run.marking:
        run.group(1)
        run.group(2)
        run.marking.begin_slice([])
        raise ValueError("between")
    assert (run.marks, run.tracker.told) == ([[1, 2]], [1, 2])


def test_an_error_amid_a_group_is_like_a_death(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(events=20)
    with pytest.raises(RetryError, match="amid"), run.marking:
        for number in range(3):
            run.group(number)
        run.group(3, dies=True)
    assert run.marks == run.marks[:1] == [[0, 1]], "a mark now would hide what was sent of 3"
    assert run.tracker.told == [0, 1]
    run = Run(events=10)
    run.log.away = True
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ValueError, match="other"),
        run.marking,
    ):
        run.group(1)
        raise ValueError("other")
    assert run.tracker.told == []
    assert "1 marks stay in the log for the next run" in caplog.text


def test_a_log_that_is_full_of_marked_units_is_given_free() -> None:
    run = Run(events=10)
    with run.marking:
        run.group(1)
        run.log.full.append(WalFullError("full"))
        run.group(2)
        assert run.tracker.told == [1]
    assert run.tracker.told == [1, 2]
    run = Run(events=10)
    with pytest.raises(WalFullError, match="nothing to give"):
        run.marking.make_room(WalFullError("nothing to give"))


def test_marks_of_a_dead_run_are_told_first_whatever_became_of_its_replay() -> None:
    run = Run()
    run.tracker.runs = False
    run.log.mark(orjson.dumps({"segments": [5]}))
    run.log.settled_lsn = 1
    said = {"replay": str(REPLAY), "segments": [5]}
    run.log.recovered.marks = [(1, orjson.dumps(said))]
    run.marking.recover()
    assert (run.tracker.told, run.log.confirmed) == ([5], 1)
    run.tracker.runs = True
    with run.marking:
        run.group(6)
    assert run.tracker.told == [5, 6]


def test_what_the_mark_says_is_put_together_once_though_it_is_written_at_the_second_try() -> None:
    run = Run(events=10)
    with pytest.raises(WalFullError), run.marking:
        run.log.full.append(WalFullError("full"))
        run.group(1)  # nothing waits that could make room: the unit is marked on the way out
    assert run.marks == [[1]]
    assert run.traced == [(str(REPLAY), 1)]
    assert run.tracker.told == [1]


def test_no_mark_comes_before_all_that_a_dead_run_sent_was_met_again() -> None:
    run = Run(events=10)
    left = [3]  # groups that a dead run has sent
    run.marking.begin(REPLAY, lambda: left[0] > 0)
    with run.marking:
        for number in range(1, 6):
            left[0] -= 1
            run.group(number)
            assert bool(run.marks) == (number >= 3)
    assert run.marks == [[1, 2], [3], [4], [5]]


def test_an_error_amid_what_a_dead_run_sent_writes_no_mark() -> None:
    run = Run(events=10)
    run.marking.begin(REPLAY, lambda: True)
    with pytest.raises(RetryError), run.marking:
        run.group(1)
        raise RetryError("between two slices")
    assert run.marks == []


def test_what_is_never_met_again_does_not_keep_the_last_mark_from_being_written() -> None:
    run = Run(events=10)
    with run.marking.begin(REPLAY, lambda: True):
        run.group(1)
        run.group(2)
    assert run.marks == [[1, 2]]


def test_events_that_are_never_met_again_do_not_hold_marks_back_until_the_log_is_full() -> None:
    run = Run(bytes=2_000)
    with run.marking.begin(REPLAY, lambda: True):
        for number in range(1, 10):
            run.group(number)  # of 1,000 bytes each
        assert run.marks == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert run.marks == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]


def test_a_replay_does_not_move_on_before_kafka_has_what_has_no_mark() -> None:
    run = Run()
    run.log.produce(3)  # as opening a dead run's log sends again
    run.log.away = True
    with pytest.raises(RetryError, match="3 events are waiting"):
        run.marking.end_generation()
    run.log.away = False
    assert run.marking.end_generation()
    assert len(run.log) == 0
