"""How much a load takes and when it is due: numbers in, numbers out, and a clock that is given."""

from __future__ import annotations

import random

import pytest
from pydantic import ValidationError

from waybill.ledger.positions import StagedSum
from waybill.loading.sizes import MOST_COMMITS, LoadSizes, is_due, is_small, last_of_load
from waybill.settings import DestinationSettings, Settings

ANY = LoadSizes()


def commits(*rows, first=1, size=10):
    return [StagedSum(first + i, number, number * size) for i, number in enumerate(rows)]


def never():
    raise AssertionError("the clock was asked for nothing")


def test_a_load_takes_whole_commits_up_to_its_rows():
    sizes = LoadSizes(max_rows=10)
    assert last_of_load(sizes, commits(4, 6, 1), after=0, last=3) == 2
    assert last_of_load(sizes, commits(4, 7, 1), after=0, last=3) == 1


def test_a_load_takes_whole_commits_up_to_its_bytes():
    sizes = LoadSizes(max_bytes=1024)
    assert last_of_load(sizes, commits(100, 2, 1), after=0, last=3) == 2


def test_few_rows_are_small_only_if_they_take_little_memory():
    assert is_small(2_000, 4 * 1024**2)
    assert not is_small(2_001, 1)
    assert not is_small(1, 5 * 1024**2)


def test_a_commit_larger_than_all_caps_goes_alone():
    sizes = LoadSizes(max_rows=10)
    assert last_of_load(sizes, commits(50, 1), after=0, last=2) == 1
    assert last_of_load(sizes, commits(1, 50, 1), after=0, last=3) == 1
    assert last_of_load(sizes, commits(50, 1, first=2), after=1, last=3) == 2


def test_commits_that_bring_nothing_go_with_the_one_before():
    """5 and 8 bring rows; 6, 7, 9 and 10 do not, nor does 4."""
    waiting = [StagedSum(5, 8, 80), StagedSum(8, 8, 80)]
    assert last_of_load(LoadSizes(max_rows=10), waiting, after=3, last=10) == 7
    assert last_of_load(LoadSizes(max_rows=16), waiting, after=3, last=10) == 10
    assert last_of_load(LoadSizes(max_rows=10), waiting[1:], after=7, last=10) == 10
    assert last_of_load(ANY, [], after=3, last=10) == 10


def test_a_load_has_a_bounded_number_of_commits():
    many = commits(*[1] * MOST_COMMITS)
    assert last_of_load(ANY, many, after=0, last=5 * MOST_COMMITS) == MOST_COMMITS
    assert last_of_load(ANY, [], after=7, last=5 * MOST_COMMITS) == 7 + MOST_COMMITS


def test_loads_over_any_commits_move_on_take_all_and_keep_to_the_caps():
    chance = random.Random(20261123)
    for _ in range(300):
        sizes = LoadSizes(max_rows=chance.randint(1, 30), max_bytes=chance.randint(1024, 3000))
        rows = {n: chance.choice([0, 0, 1, 5, 40]) for n in range(1, chance.randint(2, 40))}
        brings = [StagedSum(n, r, r * chance.choice([1, 100])) for n, r in rows.items() if r]
        after, last = 0, max(rows)
        while after < last:
            waiting = [item for item in brings if item.commit_number > after]
            until = last_of_load(sizes, waiting, after=after, last=last)
            taken = [item for item in waiting if item.commit_number <= until]
            assert after < until <= last
            assert len(taken) <= 1 or sum(item.rows for item in taken) <= sizes.max_rows
            assert len(taken) <= 1 or sum(item.row_bytes for item in taken) <= sizes.max_bytes
            after = until


def test_without_a_least_number_of_rows_nothing_waits():
    assert is_due(ANY, commits(1), never)
    assert is_due(ANY, [], never)


def test_a_load_waits_for_rows_or_until_its_first_commit_is_old():
    sizes = LoadSizes(min_rows=100, max_wait_s=60)
    assert is_due(sizes, commits(60, 40), never)
    assert not is_due(sizes, commits(60, 39), lambda: 59.9)
    assert is_due(sizes, commits(60, 39), lambda: 60.0)


def test_a_load_does_not_wait_when_its_bytes_are_full():
    sizes = LoadSizes(min_rows=100, max_wait_s=60, max_bytes=1024)
    assert is_due(sizes, commits(20, size=60), never)
    assert not is_due(sizes, commits(20, size=51), lambda: 0.0)


def test_as_many_commits_as_a_load_takes_do_not_wait():
    sizes = LoadSizes(min_rows=10**6, max_wait_s=3600)
    assert is_due(sizes, commits(*[1] * MOST_COMMITS), never)


def test_commits_without_rows_wait_as_well():
    sizes = LoadSizes(min_rows=1, max_wait_s=60)
    assert not is_due(sizes, [], lambda: 1.0)
    assert is_due(sizes, [], lambda: 61.0)


def test_sizes_are_those_of_the_destination():
    given = DestinationSettings(dsn="x", max_rows=7, max_bytes=2048, min_rows=3, max_wait_s=5)
    assert LoadSizes.of(given) == LoadSizes(7, 2048, 3, 5)
    assert LoadSizes.of(None) == LoadSizes.of(DestinationSettings(dsn="x"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_rows": 5}, "min_rows says nothing without max_wait_s"),
        ({"max_wait_s": 5}, "max_wait_s says nothing without min_rows"),
        ({"min_rows": 5, "max_rows": 4, "max_wait_s": 1}, "min_rows 5 is more than max_rows 4"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(given, words):
    with pytest.raises(ValidationError, match=words):
        DestinationSettings(dsn="x", **given)


def test_the_settings_that_sizes_had_before_say_where_they_went(monkeypatch):
    monkeypatch.setenv("WAYBILL_SPARK__MAX_LOAD_ROWS", "5")
    with pytest.raises(ValidationError, match="each destination has its own max_rows"):
        Settings()
