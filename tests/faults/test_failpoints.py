"""The campaign's own tools: failpoints, and its judgement of versions and of what is staged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from tests import servers
from tests.faults import failpoints
from tests.faults.processing_campaign import KEYS, Tally, follows, of_one_commit

from waybill.clusters import Assignment, Move, Placement

CODE = """
from tests.faults.failpoints import behind, before, note, take_role
class Work:
    def begin(self): print("begun", flush=True)
    def end(self): note("ended")
take_role("worker")
before(Work, "begin", "not begun")
behind(Work, "end", "ended")
work = Work()
work.begin()
work.end()
print("over", flush=True)
"""


@pytest.fixture
def armed(tmp_path, monkeypatch):
    failpoints.put_up(monkeypatch, tmp_path / "failpoints")
    return failpoints.arm


def started() -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True)


def stopped(failpoint: str) -> psutil.Process:
    process = psutil.Process(servers.wait_for(lambda: failpoints.caught("worker", failpoint)))
    servers.wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
    return process


def test_a_process_stops_at_the_failpoints_that_are_armed_for_its_role_once(armed):
    armed("other", "ended")
    assert started().communicate(timeout=600)[0] == "begun\nover\n"
    assert failpoints.noted("ended") == 1
    armed("worker", "not begun")
    armed("worker", "ended")
    child = started()
    assert stopped("not begun").pid == child.pid
    os.kill(child.pid, signal.SIGCONT)
    assert stopped("ended").pid == child.pid
    assert failpoints.noted("ended") == 2
    child.kill()
    assert child.communicate(timeout=600)[0] == "begun\n"
    assert started().communicate(timeout=600)[0] == "begun\nover\n"


def version(number: int, places: dict[str, str], *moves: tuple[str, str | None, str]) -> Assignment:
    placements = {team: Placement(at, 0.0, "asked", "") for team, at in places.items()}
    return Assignment(number, placements, tuple(Move(*one, "asked", "") for one in moves))


def test_a_version_that_is_not_the_one_before_and_its_moves_is_known():
    first = version(1, {"red": "a", "blue": "a"})
    assert follows(first, version(2, {"red": "b", "blue": "a"}, ("red", "a", "b")))
    assert follows(first, version(2, {"red": "a", "blue": "a", "new": "b"}, ("new", None, "b")))
    for wrong in (
        version(2, {"red": "b", "blue": "a"}),
        version(2, {"red": "b"}, ("red", "a", "b")),
        version(2, {"red": "a", "blue": "a"}, ("red", "a", "b")),
        version(2, {"red": "b", "blue": "a"}, ("red", "a", "b"), ("red", "a", "b")),
        version(3, {"red": "b", "blue": "a"}, ("red", "a", "b")),
    ):
        assert not follows(first, wrong)


def test_what_is_staged_twice_or_behind_a_later_event_of_its_key_is_known():
    tally = Tally()
    tally.sent["red"] = 3 * KEYS
    tally.staged["red"] = [*range(KEYS, 2 * KEYS), *range(2 * KEYS, 3 * KEYS), 1, 0]
    assert (tally.lost, tally.doubled, tally.disordered) == (KEYS - 2, 0, 2)
    tally.staged["red"] = [*reversed(range(KEYS)), *range(KEYS, 3 * KEYS)]
    assert (tally.lost, tally.doubled, tally.disordered) == (0, 0, 0)
    tally.staged["blue"] = [0, 0]
    assert (tally.doubled, tally.disordered, tally.is_good) == (1, 0, False)


def test_objects_of_one_commit_have_no_order_among_themselves_but_each_has_its_own():
    tally = Tally()
    halves = [[KEYS + 1, 2 * KEYS + 1, 3 * KEYS], [1, 0, KEYS, 2 * KEYS]]
    tally.staged["red"] = of_one_commit(halves)
    assert sorted(tally.staged["red"]) == sorted(halves[0] + halves[1])
    assert tally.disordered == 0, "a partition was cut for two tasks"
    tally.staged["red"] = of_one_commit([[0, 2 * KEYS], [KEYS]])
    assert tally.disordered == 1, "the parts of one key overlap"
    tally.staged["red"] = of_one_commit([[KEYS, 0]])
    assert tally.disordered == 1
    tally.staged["red"] = [*of_one_commit([[KEYS]]), *of_one_commit([[0]])]
    assert tally.disordered == 1, "another commit came before"


def test_what_is_staged_and_in_no_table_or_twice_in_one_is_known():
    tally = Tally()
    tally.sent["red"] = 3
    tally.staged["red"] = [0, 1, 2]
    assert tally.is_good
    tally.loaded = {"red": [2, 0, 2]}
    assert (tally.rows, tally.lost, tally.doubled, tally.is_good) == (3, 1, 1, False)
    tally.loaded = {"red": [2, 0, 1]}
    assert (tally.rows, tally.lost, tally.doubled, tally.is_good) == (3, 0, 0, True)
    tally.met_again = 1
    assert not tally.is_good
