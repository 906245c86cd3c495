"""When a node gets a worker more, or one less."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from waybill.capacity import Enhancer, EnhancerLimits, EnhancerState, Usage, adjust
from waybill.capacity.enhancer import pool_size
from waybill.errors import InputError, RetryError

LIMITS = EnhancerLimits(configured=4, most=8)
ROOM, FULL = Usage(0.2, 0.05, 0.4), Usage(0.97, 0.0, 0.4)


def steps(usage: Usage, workers: int, running: int, looks: int) -> list[int]:
    state, found = EnhancerState(), []
    for _ in range(looks):
        step, _, state = adjust(state, usage, workers, running, LIMITS)
        found.append(step)
    return found


def test_a_worker_is_added_once_two_looks_agree_that_all_are_busy_and_there_is_room():
    assert steps(ROOM, 4, 4, 5) == [0, 1, 0, 1, 0]


def test_none_is_added_where_the_cpu_disks_or_memory_have_no_room_or_at_the_limit():
    for usage in (Usage(0.7, 0, 0.4), Usage(0.2, 0.5, 0.4), Usage(0.2, 0, 0.85)):
        assert steps(usage, 4, 4, 6) == [0] * 6
    assert steps(ROOM, 8, 8, 6) == [0] * 6


def test_between_the_two_levels_nothing_changes():
    assert steps(Usage(0.75, 0, 0.4), 6, 6, 9) == [0] * 9


def test_a_worker_is_taken_away_where_there_is_no_room_but_never_below_running_tasks():
    assert steps(FULL, 6, 4, 2) == [0, -1]
    assert steps(FULL, 6, 6, 6) == [0] * 6
    assert steps(FULL, 4, 1, 6) == [0] * 6, "the configured ones stay"


def test_a_worker_that_is_not_needed_goes_only_after_a_while():
    assert steps(ROOM, 6, 2, 6) == [0, 0, 0, 0, 0, -1]
    assert steps(ROOM, 6, 5, 20) == [0] * 20, "one is kept free"


def test_looks_that_disagree_begin_anew():
    state = EnhancerState()
    for running in (4, 2, 4, 2, 4):
        step, _, state = adjust(state, ROOM, 4, running, LIMITS)
        assert step == 0


def test_limits_that_contradict_say_what_is_wrong():
    with pytest.raises(InputError, match="at least one worker"):
        EnhancerLimits(configured=9, most=8)


@dataclass
class Pool:
    workers: int
    running: int
    drained: int = 0

    def read(self) -> tuple[int, int]:
        return self.workers, self.running

    def resize(self, workers: int, *, now: int) -> None:
        assert now == self.workers
        self.workers = workers

    def drain(self) -> None:
        self.drained += 1


def test_the_enhancer_acts_one_step_at_a_time_and_says_what_it_did():
    pool = Pool(4, 4)
    enhancer = Enhancer(pool, lambda: ROOM, LIMITS)
    reports = [enhancer.look() for _ in range(2)]
    assert [report.workers for report in reports] == [4, 5]
    assert reports[1].why.startswith("4 -> 5 workers: all 4 workers are busy")


def test_a_node_that_drains_gets_no_worker_and_takes_no_task():
    pool = Pool(4, 4)
    enhancer = Enhancer(pool, lambda: ROOM, LIMITS)
    for _ in range(4):
        report = enhancer.look(drains=True)
    assert (pool.workers, pool.drained, report.why) == (4, 4, "it drains: no new task is taken")


def test_a_task_that_comes_while_a_node_is_told_to_drain_is_counted():
    class Late(Pool):
        def drain(self) -> None:
            self.running = 1

    assert Enhancer(Late(4, 0), lambda: ROOM, LIMITS).look(drains=True).running == 1


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        ({"processes": [1, 2, 3], "writes": {"inqueues": {"total": 2}}}, (3, 1)),
        ({"processes": [1, 2], "writes": {"inqueues": {"total": 3}}}, (2, 0)),
        ({"processes": [1, 2], "writes": {"total": 0}}, (2, 0)),
        ({"processes": [1, 2], "writes": {"inqueues": {}}}, (2, 0)),
        ({"processes": [1, 2], "writes": "N/A"}, (2, 0)),
        ({"max-concurrency": 8}, (8, 0)),
    ],
)
def test_what_a_celery_worker_says_of_its_pool_is_read_whatever_kind_it_is(pool, size):
    assert pool_size({"pool": pool}) == size


@pytest.mark.parametrize("stats", [{}, {"pool": "N/A"}, "", {"pool": {"max-concurrency": "N/A"}}])
def test_a_celery_worker_without_a_pool_is_asked_again(stats):
    with pytest.raises(RetryError, match="pool"):
        pool_size(stats)
