"""Singer's messages become pages that end with the tap's own state."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.errors import InputError
from waybill.ingestion.connectors import Page, Record, singer_messages
from waybill.ingestion.connectors.singer_messages import LARGEST_LINE_BYTES, SingerPages, lines_of


def line(**message: Any) -> bytes:
    return orjson.dumps(message)


def record(number: int, **more: Any) -> bytes:
    return line(type="RECORD", stream="orders", record={"id": number, **more})


def state(value: Any) -> bytes:
    return line(type="STATE", value=value)


def pages(
    lines: Iterable[bytes | None], *, page_rows: int = 3, start: Any = None, **keys: Any
) -> list[Page | None]:
    read = SingerPages("tap small", page_rows, keys, lambda name: name, start)
    return list(read.read(iter(lines)))


def read_pages(*given: bytes, **settings: Any) -> list[Page]:
    return [page for page in pages(given, **settings) if page is not None]


def test_a_page_ends_with_the_state_that_covers_it():
    found = read_pages(record(1), record(2), record(3), state({"n": 3}), record(4), state({"n": 4}))
    assert [[row.data["id"] for row in page.rows] for page in found] == [[1, 2, 3], [4]]
    assert [page.cursor for page in found] == [{"state": {"n": 3}}, {"state": {"n": 4}}]
    assert [page.start for page in found] == [None, {"state": {"n": 3}}]


def test_more_rows_than_a_page_takes_without_a_state_keep_the_one_before():
    found = read_pages(state(0), *map(record, range(7)), state(7))
    assert [len(page.rows) for page in found] == [3, 3, 1]
    assert [page.cursor["state"] for page in found] == [0, 0, 7]


def test_a_state_ends_a_page_that_has_enough():
    lines = [record(n) for n in range(1000)]
    found = read_pages(*lines, state({"n": 1}), *lines, state({"n": 2}), page_rows=10_000)
    assert [page.cursor for page in found] == [{"state": {"n": 1}}, {"state": {"n": 2}}]


def test_rows_behind_the_last_state_come_with_that_state():
    found = read_pages(record(1), state(1), record(2), page_rows=10)
    assert found[-1].cursor == {"state": 1}
    assert len(found[-1].rows) == 2


def test_a_tap_that_says_nothing_new_gives_no_page():
    assert read_pages(state({"n": 3}), start={"state": {"n": 3}}) == []
    assert read_pages() == []


def test_a_state_without_rows_is_kept():
    [page] = read_pages(state({"n": 9}), start={"state": {"n": 3}})
    assert (page.rows, page.cursor) == ([], {"state": {"n": 9}})


def test_a_row_that_was_deleted_at_its_source_is_a_delete():
    [page] = read_pages(record(1, _sdc_deleted_at=None), record(2, _sdc_deleted_at="2024-01-01"))
    assert [row.op for row in page.rows] == ["upsert", "delete"]


@pytest.mark.parametrize(
    "bad",
    [
        b"INFO something happened", b"[1]", b"{}", b'{"type": "RECORD", "stream": "orders"}',
        b'{"type": "RECORD", "record": {}}', b'{"type": "RECORD", "stream": 1, "record": {}}',
        b'{"type": ' + b"[" * 100_000, b"\xff\xfe", b"NaN",
    ],
)  # fmt: skip
def test_a_broken_line_parks_alone_with_its_place(bad):
    [page] = read_pages(record(1), bad, record(2))
    assert [row.data["id"] for row in page.rows] == [1, 2]
    [parked] = page.bad
    assert (parked.raw, parked.code, parked.place) == (
        bad,
        "source_row_malformed",
        "line 2 of the tap",
    )
    assert page.place is not None
    assert page.place(1) == "stream orders, line 3 of the tap"


def test_a_stream_without_a_field_of_the_declared_key_fails_before_its_first_row():
    schema = line(
        type="SCHEMA",
        stream="orders",
        schema={"properties": {"number": {}, "at": {}}},
        key_properties=["number"],
    )
    with pytest.raises(InputError, match=r"no field 'id'.*it has at, number, and its own key is"):
        read_pages(schema, record(1), orders=("id",))


def test_files_are_refused_and_unknown_messages_left_out():
    [page] = read_pages(line(type="HEARTBEAT"), line(type="ACTIVATE_VERSION"), record(1))
    assert page.rows == [Record({"id": 1}, event="orders")]
    with pytest.raises(InputError, match="BATCH"):
        read_pages(line(type="BATCH", stream="orders", manifest=[]))


def test_numbers_keep_every_digit():
    text = b'{"type":"RECORD","stream":"orders","record":{"id":123456789012345678901234567890}}'
    [page] = read_pages(text)
    assert page.rows[0].data["id"] == 123456789012345678901234567890


def test_a_line_without_an_end_is_refused_before_memory_is():
    chunks = (b"x" * (1024 * 1024) for _ in range(LARGEST_LINE_BYTES // 1024**2 + 2))
    with pytest.raises(InputError, match="128 MiB"):
        list(lines_of(chunks, "tap small"))


@given(
    st.lists(st.binary(max_size=20).filter(lambda one: b"\n" not in one and one), max_size=20),
    st.integers(1, 30),
)
def test_lines_are_the_same_however_they_are_cut(lines, size):
    content = b"\n".join(lines)
    chunks = (content[at : at + size] for at in range(0, len(content), size))
    assert list(lines_of(chunks, "tap")) == lines


@pytest.mark.parametrize(
    "schema",
    [
        {"schema": [1]},
        {"schema": "x"},
        {"schema": {"properties": ["id"]}},
        {"schema": {"properties": {"no": {}}}, "key_properties": [1, None]},
        {"schema": {"properties": {"no": {}}}, "key_properties": 5},
    ],
)
def test_a_schema_that_is_none_is_one_without_the_key(schema):
    with pytest.raises(InputError, match="stream 'orders' has no field 'id'"):
        read_pages(line(type="SCHEMA", stream="orders", **schema), orders=("id",))


def test_a_tap_that_sends_no_rows_is_heard_of_each_second_so_that_it_can_be_stopped(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr(singer_messages.time, "monotonic", lambda: float(next(now)))
    endless = itertools.cycle([b"", state({"n": 1}), line(type="NOISE")])
    read = SingerPages("tap small", 3, {}, lambda name: name, None).read(endless)
    assert [next(read) for _ in range(100)] == [None] * 100


def test_messages_of_unknown_types_do_not_fill_the_log(caplog):
    assert read_pages(*(line(type=f"NOISE {number}") for number in range(1000))) == []
    assert len(caplog.records) == 20
