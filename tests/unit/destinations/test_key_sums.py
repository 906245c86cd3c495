"""What sums over keys tell of the rows that a table lacks."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from waybill.destinations.key_sums import KeySums, key_hashes, not_missing


def some(number, seed=0):
    draw = random.Random(seed)
    return np.array([draw.randrange(2**64) for _ in range(number)], np.uint64)


def nobody_misses(put, there, *, buried=(), times=None):
    lacks = KeySums.of(put) - KeySums.of(there)
    times = np.zeros(len(there), np.int64) if times is None else times
    return not_missing(lacks, there, times, lambda: np.array(buried, np.uint64)).rows


@pytest.mark.parametrize("seed", range(10))
def test_of_fifty_rows_it_is_known_which_came_back(seed):
    draw, keys = random.Random(seed), some(5_000, seed)
    came_back = draw.randrange(51)
    gone, there = keys[:50], keys[50:]
    there = np.concatenate([there, gone[:came_back]])
    assert nobody_misses(np.concatenate([keys, gone[:came_back]]), there) == came_back


def test_a_key_that_came_back_and_went_again_is_missing_once():
    keys = some(100)
    one, others = keys[:1], keys[1:]
    assert nobody_misses(np.concatenate([keys, one, one]), others) == 2
    assert nobody_misses(np.concatenate([keys, one, one]), keys) == 2
    assert nobody_misses(keys, others) == 0


def test_a_key_that_the_source_deleted_as_well_is_missing_no_more():
    keys = some(100)
    assert nobody_misses(keys, keys[2:], buried=[keys[0], *some(50, 3)]) == 1


def test_a_table_that_was_emptied_and_read_again_lacks_nothing_but_what_did_not_come_back():
    keys, new = some(3_000), some(20, 9)
    put = np.concatenate([keys, keys[:-10], new])
    there = np.concatenate([keys[:-10], new])
    times = np.arange(len(there), dtype=np.int64) // 1_000
    assert nobody_misses(put, there, times=times) == len(keys) - 10


def test_more_rows_than_can_be_told_apart_are_left_as_they_are():
    keys = some(3_000)
    gone, there = keys[:1_000], keys[500:]  # of the rows of one old load, a half came back
    assert nobody_misses(np.concatenate([keys, gone[500:]]), there) == 0


def test_rows_that_others_added_are_none_that_came_back():
    keys = some(60)
    assert nobody_misses(keys[:40], keys) == 0
    put = np.concatenate([keys[:40], keys[:1]])  # 0 came back, 1 is missing, 20 are of others
    assert nobody_misses(put, np.concatenate([keys[:1], keys[2:]])) == 1


def test_sums_are_kept_as_text_whatever_their_size_and_strange_text_is_none():
    sums = KeySums.of(some(1_000)) - KeySums.of(some(7, 5))
    kept = KeySums.from_text(sums.to_text())
    assert (kept - sums).keys() == {}
    assert len(sums.to_text()) < 4_200
    assert sums.rows == 993
    assert not KeySums.none()
    for strange in (None, "", "{}", "é", "AAAA", sums.to_text()[:-8]):
        assert KeySums.from_text(strange) is None


def hashes(kind, values, arrow):
    return key_hashes([kind], [pa.chunked_array([pa.array(values, arrow)])]).tolist()


def test_equal_keys_have_one_hash_in_wider_types_and_as_servers_give_them():
    numbers = [0, 1, -5, 2**31 - 1]
    as_int = hashes("int32", numbers, pa.int32())
    assert as_int == hashes("int64", numbers, pa.int64())
    assert as_int == hashes("decimal(22,2)", map(Decimal, numbers), pa.decimal128(22, 2))
    assert as_int == hashes("decimal(22,2)", [f"{n}.00" for n in numbers], pa.string())
    assert as_int == hashes("float64", map(float, numbers), pa.float64())
    long = [10**18, 2**63 - 1, -(2**63)]
    of_longs = hashes("int64", long, pa.int64())
    assert of_longs == hashes("decimal(22,2)", map(Decimal, long), pa.decimal128(22, 2))
    assert of_longs == hashes("int64", map(str, long), pa.string()), "as keys of tombstones are"
    beyond = [str(2**63), str(-(2**63) - 1), "9" * 19, "1" * 20]
    assert len({*of_longs, *hashes("decimal(22,2)", beyond, pa.string())}) == 7
    tiny = ["0.0000000012", "12345678901234567890.5", "7"]
    of_arrow = hashes("decimal(38,12)", map(Decimal, tiny), pa.decimal128(38, 12))
    assert of_arrow == hashes("decimal(38,12)", tiny, pa.string())
    day = hashes("date", [date(2024, 2, 29)], pa.date32())
    moment = datetime(2024, 2, 29, tzinfo=UTC)
    assert day == hashes("timestamp", [moment], pa.timestamp("us", "UTC"))
    assert len(set(of_arrow + as_int + day)) == 8


def test_keys_that_differ_have_other_hashes_and_where_a_value_lies_does_not_matter():
    texts = [
        "",
        "a",
        "b",
        "ab",
        "a\0",
        "a\0\0",
        "é",
        "x" * 8,
        "x" * 9,
        "x" * 256,
        "x" * 257,
        "y" * 900,
    ]
    found = hashes("string", texts, pa.string())
    assert len(set(found)) == len(texts)
    assert found == hashes("string", texts, pa.large_string())
    parts = [pa.array(texts[:5]), pa.array(texts).slice(5)]
    assert key_hashes(["string"], [pa.chunked_array(parts)]).tolist() == found
    assert hashes("string", [], pa.string()) == []
    assert hashes("string", [None], pa.string()) == found[:1]
    pairs = [pa.chunked_array([["a", "ab", "b"]]), pa.chunked_array([["bc", "c", "a"]])]
    assert len(set(key_hashes(["string", "string"], pairs).tolist())) == 3


def test_json_has_one_hash_however_it_is_written_and_another_where_it_says_something_else():
    alike = [
        '{"b": 1.0, "a": [100, "é"]}',
        '{"a":[1e2,"\\u00e9"],"b":1}',
        '{"b":0,"b":1,"a":[1E+2,"é"]}',
    ]
    assert len(set(hashes("json", alike, pa.string()))) == 1
    others = [
        "0",
        "-0.0",
        "1",
        '"1"',
        "[1]",
        "null",
        "true",
        '"true"',
        "{}",
        "[]",
        '{"n": "1e0"}',
    ]
    found = hashes("json", others, pa.string())
    assert found[0] == found[1]
    assert len(set(found)) == len(others) - 1
    deep = ["[" * 5_000 + "]" * 5_000, "no JSON", "1e999999999"]
    assert len(set(hashes("json", deep, pa.string()))) == 3
    long = [
        "12345678901234567890123456789012345678901",
        "12345678901234567890123456789012345678902",
    ]
    assert len(set(hashes("json", long, pa.string()))) == 2


def test_hashes_are_those_that_were_noted_by_releases_before():
    """Books keep sums for years: another hash of a key would make every row missing."""
    assert hashes("int64", [1], pa.int64()) == [10451216379200822465]
    texts = ["cust-0000000000000001"]
    assert hashes("string", texts, pa.string()) == [1455389592230653298]
