"""Payloads by column: only what is alike, and nothing of it changed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from waybill.processing.payload_columns import columns_of
from waybill.processing.sandbox.frames import pack_payloads, unpack, unpack_payloads


class Raising(str):
    """A name of a field that cannot be compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("eq")


def test_payloads_that_are_alike_are_read_by_field_and_by_index() -> None:
    rows = [{"a": n, "b": None} for n in range(3)]
    columns = columns_of(rows)
    assert columns is not None
    assert list(columns) == rows
    assert columns[1:] == rows[1:]
    assert list(columns.column("a")) == [0, 1, 2]
    assert list(columns.column("no such field")) == [None] * 3


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": 1}, OrderedDict(a=1)],
        [{1: 1}],
        [{Raising("a"): 1}],
        [{"a": 1}, {Raising("a"): 1}],
        [None],
        [["a"]],
    ],
    ids=repr,
)
def test_payloads_that_are_not_alike_stay_rows(rows: list[Any]) -> None:
    assert columns_of(rows) is None


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["a"], [[1]]),
        (["a"], [[1, 2], [3, 4]]),
        (["a", "a"], [[1, 2], [3, 4]]),
        ([], []),
        ([1], [[1, 2]]),
        ([b"a"], [[1, 2]]),
        (["a"], ["12"]),
        (["a"], None),
        (["a"], {"a": [1, 2]}),
    ],
)
def test_an_answer_by_column_that_does_not_fit_is_refused(names: Any, columns: Any) -> None:
    with pytest.raises(Exception):  # noqa: B017 - any will do: it is met as a crash
        unpack_payloads(names, columns, 2)


def test_an_answer_by_column_is_what_was_packed() -> None:
    columns = columns_of([{"a": n, "b": {"c": [n]}} for n in range(2)])
    assert columns is not None
    content = pack_payloads(columns, "printed")
    assert content is not None
    names, packed, printed = unpack(content)
    assert list(unpack_payloads(names, packed, 2)) == list(columns)
    assert printed == "printed"
