import json
from dataclasses import MISSING, fields

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waybill.parking import ParkedEvent

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)
ANY_BYTES = st.one_of(
    st.binary(max_size=300),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)
HOSTILE = [
    b"",
    b"{}",
    b'{"a":"},\\"event\\":"}',
    b'{"error":{"x":1},"event":{}}',
    b'{"a":1}\n',
    b'{\n "a": 1\r\n}',
    b" \t{} ",
    b"NaN",
    b'{"a":NaN}',
    b'{"a":1,"a":2}',
    b'"\\ud800"',
    b'"\\u0000"',
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"a\x00b",
    b"[" * 2000 + b"]" * 2000,
    b"[" * 1024 + b"]" * 1024,
    b"123456789012345678901234567890",
    "é \u2028 😀".encode(),
]


def parked(value=b"{}", **changes):
    given = {
        "pipeline_id": "pl-flights",
        "event_name": "flight",
        "stage": "transformation",
        "error_type": "null_value",
        "message": "TypeError: NoneType",
        "where": "transformation.py:3 in transform",
        "stack_hash": "00112233",
        "pipeline_version": "abc",
        "event_at": "2013-01-01T05:00:00Z",
        "parked_at": "2026-01-01T00:00:00Z",
        "topic": "events.aviation.warehouse",
        "kafka_partition": 0,
        "kafka_offset": 7,
        "attempt": 0,
    }
    return ParkedEvent(**(given | changes), value=value)


@given(ANY_BYTES)
def test_any_bytes_come_back_byte_for_byte(value):
    line = parked(value).to_line()
    assert b"\n" not in line
    assert ParkedEvent.from_line(line).value == value


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes_come_back_byte_for_byte(value):
    assert ParkedEvent.from_line(parked(value).to_line()).value == value


@given(st.lists(ANY_TEXT, min_size=11, max_size=11), st.integers(-(2**80), 2**80))
@example(
    [
        "\ud800\\",
        '"},"event":',
        "\x00",
        "a\\u1234",
        "é",
        "\\\\ud800",
        "",
        "\n",
        "\u2028",
        "😀",
        "/",
    ],
    0,
)
def test_any_words_and_numbers_come_back(words, number):
    names = [f.name for f in fields(ParkedEvent) if f.type == "str" and f.default is MISSING]
    event = parked(**dict(zip(names, words, strict=True)), kafka_offset=number)
    assert ParkedEvent.from_line(event.to_line()) == event


@given(ANY_TEXT, ANY_BYTES)
def test_a_line_is_json_to_any_reader_with_the_event_at_its_end(words, value):
    line = parked(value, message=words, event_name=words).to_line()
    strict = line.decode()  # UTF-8
    outer = json.loads(strict)
    assert tuple(outer) in (("error", "event"), ("error", "event_base64"))
    orjson.loads(line)


def test_valid_json_stands_in_the_line_as_it_came():
    value = b'{"b": 1.0,  "a":[1,2 ]}'
    assert parked(value).to_line().endswith(b',"event":' + value + b"}")


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 5_000, "😀" * 5_000, "\ud800" * 5_000])
def test_a_huge_message_is_cut_to_4_kib_and_says_so(text):
    message = ParkedEvent.from_line(parked(message=text).to_line()).message
    assert len(message.encode("utf-8", "surrogatepass")) <= 4096
    assert message.endswith(f"[cut: {len(text)} characters]")
    assert message[:900] == text[:900]


def test_a_time_that_is_no_text_is_parked_all_the_same():
    event = parked(event_at=None, where=17)
    back = ParkedEvent.from_line(event.to_line())
    assert (back.event_at, back.where) == ("None", "17")


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_that_is_cut_is_refused(cut):
    with pytest.raises(ValueError, match="line"):
        ParkedEvent.from_line(parked(b"\xff" * 3).to_line()[:-cut])


@given(source=ANY_BYTES, words=ANY_TEXT)
def test_the_source_an_event_was_made_from_comes_back_byte_for_byte(source, words):
    event = parked(b'{"a":1}', source=source, where=words)
    assert ParkedEvent.from_line(event.to_line()).source == source


def test_a_line_without_a_source_is_as_older_releases_wrote_it():
    line = parked().to_line()
    assert b"source" not in line
    assert ParkedEvent.from_line(line).source == b""


def test_a_damaged_source_is_no_line():
    line = parked(source=b"abc").to_line().replace(b'"source":"YWJj"', b'"source":"YW"')
    with pytest.raises(ValueError, match="base64 is damaged"):
        ParkedEvent.from_line(line)
