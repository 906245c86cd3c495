"""Columns of Arrow as values: the quick ways give what the slow ones do."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from waybill.ingestion.connectors import csv_table, file_formats
from waybill.ingestion.connectors.csv_table import dict_rows, listed, typed
from waybill.ingestion.connectors.sql_values import json_value

SEED = 42
COLUMNS = [
    pa.array(["a", None, "", "é\0", "x" * 99]),
    pa.array(["a", "b"], pa.large_string()),
    pa.array([None, None], pa.string()),
    pa.array([], pa.string()),
    pa.array([1, None, -(2**63), 2**63 - 1]),
    pa.array([1, 2**64 - 1, None], pa.uint64()),
    pa.array([1, -128, None], pa.int8()),
    pa.array([], pa.int32()),
    pa.array([True, None, False]),
    pa.array([True, False]),
    pa.array([None], pa.bool_()),
    pa.array([1.5, None, math.nan, -0.0, math.inf, 1e300]),
    pa.array([0.1, None, 3.4e38], pa.float32()),
    pa.array(np.array([1.5, 2.5], np.float16)),
    pa.array([b"\xff", None]),
    pa.array([[1], None]),
    pa.array([None, None]),
    pa.array([datetime(2026, 3, 1, tzinfo=UTC)]),
    pa.array(["a", "a", None]).dictionary_encode(),
]


@pytest.mark.parametrize("number", range(len(COLUMNS)))
def test_a_column_as_values_is_what_arrow_makes_of_it_one_by_one(number):
    column = COLUMNS[number]
    for part in (column, column.slice(1), column.slice(0, 1)):
        found, wanted = listed(part), part.to_pylist()
        assert repr(found) == repr(wanted)  # NaN, and -0.0
        assert list(map(type, found)) == list(map(type, wanted))


def test_text_that_is_not_utf8_is_refused_in_the_words_of_python():
    column = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    with pytest.raises(UnicodeDecodeError, match="invalid start byte"):
        listed(column)


def test_columns_are_rows_of_one_length():
    assert dict_rows(["a", "b"], [[1, 2], ["x", None]]) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        dict_rows(["a", "b"], [[1, 2], ["x"]])


TEXTS = ["7", " 7", "7 ", "-7", "+7", "007", "", " ", "0x1F", "0X1f", "1_000", "7.0", "7e3", "٣"]
TEXTS += ["9223372036854775807", "9223372036854775808", "2147483648", "1.5", "-1.5e-3", ".5", "5."]
TEXTS += ["NaN", "nan", "inf", "-Infinity", "1e309", "true", "null", "1,5", "1.5f", "0.1" * 9]


@pytest.mark.parametrize("kind", ["int32", "int64", "float64"])
def test_numbers_that_are_cast_at_once_are_those_that_are_cast_one_by_one(kind, monkeypatch):
    chance = random.Random(SEED)
    fitting = [text for text in TEXTS if not typed(pa.array([text]), kind)[1]]
    for number in range(200):
        texts = chance.choices(fitting if number % 2 else TEXTS, k=chance.randrange(1, 9))
        column = pa.array([*texts, None] if number % 3 else texts, pa.string())
        monkeypatch.undo()
        values, wrong = typed(column, kind)
        monkeypatch.setattr(csv_table, "_NUMBERS", frozenset())
        slowly, also_wrong = typed(column, kind)
        assert (values.type, repr(values.to_pylist())) == (slowly.type, repr(slowly.to_pylist()))
        assert wrong == also_wrong
        assert not (number % 2 and wrong)


def test_a_column_of_nothing_is_a_column_of_any_number():
    for kind, texts in (("int64", [None, None]), ("float64", [None]), ("int32", [])):
        values, wrong = typed(pa.array(texts, pa.string()), kind)
        assert (values.to_pylist(), wrong) == (texts, [])


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kathmandu", "-03:30"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_of_parquet_are_written_at_once_as_one_by_one(unit, zone):
    chance = random.Random(SEED)
    at = [datetime(1001, 1, 2), datetime(1582, 10, 10), datetime(1969, 12, 31, 23, 59, 59)]
    at += [datetime(9998, 12, 30, 23, 59, 59, 999_999), datetime(2026, 3, 1)]
    at += [
        datetime(2026, 3, 1) + timedelta(milliseconds=chance.randrange(10**9)) for _ in range(50)
    ]
    kind = pa.timestamp("us", zone)
    column = pa.array([*at, None], pa.timestamp("us")).cast(kind)
    column = column.cast(pa.timestamp(unit, zone), safe=False)
    for part in (column, column.slice(3), column.slice(len(at)), column.slice(0, 0)):
        assert file_formats._is_of_four_digits(part)
        found = file_formats._listed_values(part)
        assert found == [json_value(value) for value in part.to_pylist()]


@pytest.mark.parametrize("years", [-2_000, -1_100, 8_031, 10_000])
def test_times_beyond_four_digits_go_the_careful_way(years):
    second = years * 31_556_952
    column = pa.array([0, second, None], pa.timestamp("s"))
    assert not file_formats._is_of_four_digits(column)
