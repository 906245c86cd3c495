"""The event on the wire: what goes in comes out, and nothing that comes in can do harm."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.errors import ParkError
from waybill.events import CATALOGUE, Event, decode, encode, encode_data

INT64 = 2**63
TEXT = st.text()  # no surrogates: attributes never hold them
CLEAN = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=120)
ANY_TEXT = st.text(st.characters())  # lone surrogates too: JSON can say them in a payload
NUMBERS = st.one_of(
    st.integers(-(2**80), 2**80),
    st.sampled_from(
        [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**200]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False),
)
PAYLOADS = st.recursive(
    st.none() | st.booleans() | NUMBERS | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.builds(
    Event,
    id=CLEAN,
    pipeline_id=CLEAN,
    team=CLEAN.filter(lambda text: "/" not in text),
    name=CLEAN,
    key=CLEAN,
    source_version=st.integers(-INT64, INT64 - 1),
    intake_version=st.integers(0, INT64 - 1),
    intake_minute=st.integers(0, 2**31 - 1),
    time=CLEAN,
    data=PAYLOADS,
    stage=st.sampled_from(["transformation", "mapping", "destination"]),
    attempt=st.integers(0, 2**31 - 1),
    replay_id=st.none() | CLEAN,
    op=st.sampled_from(["upsert", "delete"]),
)


def made(**changes: Any) -> Event:
    values: dict[str, Any] = {
        "id": "e1",
        "pipeline_id": "p1",
        "team": "t",
        "name": "order",
        "key": "[1]",
        "source_version": 5,
        "intake_version": 6,
        "intake_minute": 7,
        "time": "2026-01-01T00:00:00Z",
        "data": {"a": 1},
    }
    return Event(**{**values, **changes})


def wire(**changes: Any) -> bytes:
    """Return a message with some attributes changed; ``...`` leaves one out."""
    attributes = {**orjson.loads(encode(made())), **changes}
    return orjson.dumps({name: value for name, value in attributes.items() if value is not ...})


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_an_event_survives_the_wire(event: Event) -> None:
    assert same(decode(encode(event)), event)


def test_of_a_message_with_a_payload_and_a_reference_the_reference_counts() -> None:
    event = decode(wire(dataref="payloads/p/1"))
    assert (event.data, event.data_ref) == (None, "payloads/p/1")
    assert same(decode(encode(event)), event)


def same(found: Event, event: Event) -> bool:
    """Events equal in all; numbers by value and never by rounding."""
    attributes = [name for name in Event.__slots__ if name != "data"]
    return all(getattr(found, n) == getattr(event, n) for n in attributes) and same_data(
        found.data, event.data
    )


def same_data(found: Any, data: Any) -> bool:
    if isinstance(data, dict):
        return list(found) == list(data) and all(same_data(found[k], data[k]) for k in data)
    if isinstance(data, list):
        return len(found) == len(data) and all(map(same_data, found, data))
    if isinstance(data, float | Decimal) and not isinstance(data, bool):
        return written(found) == written(data)
    return type(found) is type(data) and found == data


def written(number: float | Decimal) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**300, 2**53 + 1])
def test_an_integer_of_any_size_keeps_every_digit(number: int) -> None:
    assert decode(encode(made(data={"n": number}))).data["n"] == number


@pytest.mark.parametrize(
    "digits",
    ["0.1234567890123456789012345", "123456789012345678901.5", "1E-400", "1E+400", "1E-7", "0.30"],
)
def test_a_decimal_keeps_every_digit(digits: str) -> None:
    found = decode(encode(made(data={"n": Decimal(digits)}))).data["n"]
    assert written(found) == Decimal(digits)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        Decimal("-Infinity"),
        [1, (2, float("nan"))],
        {"a": {"b": (Decimal("sNaN"),)}},
        object(),
        {1: 2},
        {"a": {1, 2}},
        {"a": b"bytes inside"},
        10**5000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_payload_without_a_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ParkError) as caught:
        encode(made(data=value))
    assert caught.value.code == "payload_not_json"


def test_nan_inside_a_dictionary_of_another_class_is_refused() -> None:
    from collections import OrderedDict

    with pytest.raises(ParkError):
        encode_data(OrderedDict(a=float("nan")))


@pytest.mark.parametrize("levels", [300, 5_000, 100_000])
def test_a_payload_that_is_too_deep_is_refused_and_never_a_crash(levels: int) -> None:
    data: Any = 1
    for _ in range(levels):
        data = [data]
    with pytest.raises(ParkError) as caught:
        encode(made(data=data))
    assert caught.value.code == "payload_too_deep"
    while isinstance(data, list):  # taken apart by hand: its own end would go as deep
        data = data[0]


@pytest.mark.parametrize("levels", [100, 900, 1_500, 200_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_deep_message_is_an_event_or_a_park_error(levels: int, brackets: Any) -> None:
    before, after = encode(made(data=None))[:-1].split(b'"data":null')[0], b"}"
    value = before + b'"data":' + brackets[0] * levels + b"1" + brackets[1] * levels + after
    try:
        assert decode(value).id == "e1"
        assert levels < 1_024
    except ParkError as error:
        assert error.code == "envelope_not_json"
        assert levels >= 900


def test_a_payload_that_is_not_json_travels_as_bytes() -> None:
    data = bytes(range(256))
    value = encode(made(data=data))
    assert orjson.loads(value)["data_base64"] == base64.b64encode(data).decode()
    assert decode(value).data == data


def test_empty_bytes_and_null_stay_apart() -> None:
    assert decode(encode(made(data=b""))).data == b""
    assert decode(encode(made(data=None))).data is None


def test_a_claim_check_carries_no_payload() -> None:
    value = encode(made(data_ref="payloads/p1/e1", data={"large": "x" * 1000}))
    assert len(value) < 500
    assert decode(value).data_ref == "payloads/p1/e1"
    assert decode(value).data is None


def test_a_delete_says_so_and_an_upsert_is_silent() -> None:
    assert orjson.loads(encode(made(op="delete")))["op"] == "delete"
    assert decode(encode(made(op="delete"))).op == "delete"
    assert "op" not in orjson.loads(encode(made()))


def test_a_delete_is_seen_whatever_else_is_left_out() -> None:
    assert decode(wire(op="delete", specversion=..., stage=..., attempt=...)).op == "delete"


def test_the_value_is_cloudevents_1_0_structured_json() -> None:
    assert orjson.loads(encode(made(replay_id="r", attempt=2, stage="mapping"))) == {
        "specversion": "1.0",
        "id": "e1",
        "source": "t/p1",
        "type": "order",
        "time": "2026-01-01T00:00:00Z",
        "subject": "[1]",
        "version": "5/6",
        "intakeminute": 7,
        "stage": "mapping",
        "attempt": 2,
        "replayid": "r",
        "data": {"a": 1},
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ...},
        {"id": 5},
        {"id": "a\0b"},
        {"source": 5},
        {"source": "t/p\0"},
        {"source": "t/" + "p" * 513},
        {"type": None},
        {"type": "n" * 513},
        {"type": "é" * 257},
        {"type": "a\0"},
        {"subject": ["a"]},
        {"subject": "\0"},
        {"time": 5},
        {"time": "\0"},
        {"version": 5},
        {"version": ""},
        {"version": "1"},
        {"version": "x/1"},
        {"version": "1/x"},
        {"version": f"{2**63:x}/1"},
        {"version": f"-{2**63 + 1:x}/1"},
        {"version": f"1/{2**63:x}"},
        {"version": "1/-1"},
        {"intakeminute": "5"},
        {"intakeminute": True},
        {"intakeminute": 5.0},
        {"intakeminute": -1},
        {"intakeminute": 2**31},
        {"attempt": None},
        {"attempt": -1},
        {"attempt": 2**31},
        {"stage": "ingestion"},
        {"stage": "nowhere"},
        {"stage": ["mapping"]},
        {"op": "merge"},
        {"op": None},
        {"replayid": 5},
        {"replayid": "\0"},
        {"dataref": 5},
        {"dataref": ""},
        {"dataref": "x" * 1025},
        {"dataref": "a\0"},
        {"data": ..., "data_base64": 5},
        {"data": ..., "data_base64": "*"},
        {"data": ..., "data_base64": "é"},
    ],
    ids=lambda changes: f"{next(iter(changes))}={str(next(reversed(changes.values())))[:12]!r}",
)
def test_an_attribute_that_the_books_cannot_hold_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ParkError) as caught:
        decode(wire(**changes))
    assert caught.value.code == "envelope_invalid"


def test_a_lone_surrogate_in_an_attribute_is_refused_and_in_a_payload_is_kept() -> None:
    plain = wire(data={"note": "MARK"}).replace(b"MARK", b"\\ud83d")
    assert decode(plain).data["note"] == "\ud83d"
    assert decode(encode(decode(plain))).data["note"] == "\ud83d"
    for name in ("id", "source", "type", "subject", "time", "replayid", "dataref"):
        with pytest.raises(ParkError, match="surrogates"):
            decode(wire(**{name: "t/MARK"}).replace(b"MARK", b"\\uD83D"))


def test_hostile_names_and_keys_that_the_books_can_hold_survive() -> None:
    for text in (
        "",
        "../../etc",
        "'; DROP TABLE ledger; --",
        "💥" * 100,
        "a" * 512,
        "\n\t\x7f",
        '"}',
    ):
        found = decode(encode(made(name=text, key=text, pipeline_id=text)))
        assert (found.name, found.key, found.pipeline_id) == (text, text, text)


def test_the_missing_attribute_is_named() -> None:
    with pytest.raises(ParkError, match="'subject' is missing") as caught:
        decode(wire(subject=...))
    assert caught.value.where == "subject"


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_an_event_or_a_park_error(value: bytes) -> None:
    check_decoded(value)


@given(
    st.dictionaries(
        st.sampled_from(
            "id source type time subject version intakeminute stage attempt op replayid dataref "
            "data data_base64".split()
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | ANY_TEXT,
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
            max_leaves=3,
        ),
    )
)
@settings(max_examples=150, deadline=None)
def test_any_attributes_are_an_event_or_a_park_error(changes: dict[str, Any]) -> None:
    import json

    attributes = {**orjson.loads(encode(made())), **changes}
    check_decoded(json.dumps(attributes).encode())


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_a_damaged_message_is_an_event_or_a_park_error(at: int, damage: bytes) -> None:
    value = encode(made(replay_id="r1", op="delete"))
    check_decoded(value[:at] + damage + value[at + len(damage) :])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"5",
        b"1e9999999999999999999999",
        b'{"n":1e-9999999999999999999999}',
        b"9" * 5000,
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'"\xed\xa0\x80"',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
    ],
    ids=lambda value: repr(value[:20]),
)
def test_strange_bytes_are_a_park_error(value: bytes) -> None:
    with pytest.raises(ParkError):
        decode(value)


def check_decoded(value: bytes) -> None:
    try:
        event = decode(value)
    except ParkError as error:
        assert error.code in CATALOGUE
        return
    # Whatever was let in can be counted, staged and written again.
    assert type(event.id) is type(event.name) is type(event.key) is type(event.time) is str
    assert -INT64 <= event.source_version < INT64
    assert 0 <= event.intake_minute < 2**31
    for text in (event.id, event.name, event.key, event.pipeline_id, event.time):
        assert "\0" not in text.encode().decode()
    assert same(decode(encode(event)), event)
