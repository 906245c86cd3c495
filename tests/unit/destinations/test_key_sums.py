"""What sums over keys tell of the rows that a table lacks."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from waybill.destinations.transactional.key_sums import (
    CELLS,
    CellSums,
    dumped,
    key_of,
    loaded,
    not_missing,
    rows_of,
    total,
    wanted_keys,
)


def sums_of(keys):
    found = {}
    for one in keys:
        key = key_of(one)
        found = total(found, {key.h % CELLS: key})
    return found


def known(keys):
    found = {}
    for one in keys:
        found.setdefault(key_of(one).h, []).append(one)
    return found


def nobody_misses(put, there, buried=(), since=()):
    lacks = total(sums_of(put), sums_of(there), -1)
    wanted = wanted_keys(lacks)
    seen = known({one for one in (*there, *buried) if key_of(one).h in wanted})
    return rows_of(not_missing(lacks, seen, sums_of(since)))


def hashes(draw, number):
    return [draw.randrange(-(2**63), 2**63) for _ in range(number)]


@pytest.mark.parametrize("seed", range(20))
def test_of_a_few_rows_it_is_known_which_came_back(seed):
    draw = random.Random(seed)
    keys = hashes(draw, 500)
    cells = Counter()
    gone = []
    for one in draw.sample(keys, 40):
        if cells[key_of(one).h % CELLS] < 2:
            cells[key_of(one).h % CELLS] += 1
            gone.append(one)
    back = draw.sample(gone, len(gone) // 2)
    there = [one for one in keys if one not in gone or one in back]
    assert nobody_misses([*keys, *back], there) == len(back)


def test_a_key_that_came_back_and_went_again_is_missing_once():
    keys = hashes(random.Random(1), 100)
    one, *others = keys
    assert nobody_misses([*keys, one, one], others) == 2
    assert nobody_misses([*keys, one, one], keys) == 2
    assert nobody_misses(keys, others) == 0


def test_a_key_that_the_source_deleted_as_well_is_missing_no_more():
    keys = hashes(random.Random(2), 100)
    assert nobody_misses(keys, keys[2:], buried=[keys[0], *hashes(random.Random(3), 50)]) == 1


def test_a_table_that_was_emptied_and_filled_again_lacks_nothing():
    keys = hashes(random.Random(4), 3_000)
    assert nobody_misses([*keys, *keys], keys, since=keys) == len(keys)
    assert nobody_misses([*keys, *keys], keys, since=keys[1:]) < len(keys)


def test_another_key_with_the_same_part_of_its_hash_is_not_taken_for_one_that_came_back():
    gone = 0x1234_5678_1234_5678
    other = gone ^ (1 << 40)
    assert key_of(gone).h == key_of(other).h
    assert nobody_misses([gone, other], [other]) == 0


def test_rows_that_others_added_are_left_alone():
    keys = hashes(random.Random(5), 10)
    assert nobody_misses(keys[:5], keys) == 0


def test_sums_are_kept_as_text_whatever_their_size():
    sums = sums_of(hashes(random.Random(6), 1_000))
    assert loaded(dumped(sums)) == sums
    assert loaded(None) == {}
    assert total(sums, sums, -1) == {}
    assert CellSums().keys(0) == Counter()
