"""The quick way of reading a message never differs from the careful one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from waybill.errors import ParkError
from waybill.events import Event, decode, encode
from waybill.events.decoding import _decode_carefully, _read

SEED = 20261121
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5.0, 5.5, 2**31, 2**31 - 1, -(2**63), 2**63, 2**64, 2**200, 1e300,
    "", "x", "0/0", "a/b/c", "delete", "upsert", "mapping", "destination", "nowhere", "1/-1",
    "-8000000000000000/1", "8000000000000000/1", "0/8000000000000000", "0x1/0x1", " 1/1", "1_0/1",
    "é" * 127, "é" * 129, "n" * 128, "n" * 129, "n" * 600, "\0", "\ud800", "\u2028", [], {}, [1], "1/1",
]  # fmt: skip
NUMBERS = [
    "1", "-0", "0.1", "1e5", "1E-7", "1e400", "-1e-400", "0.1000000000000000055", "123456789012345.5",
    "12345678901234567890", "1.7976931348623157e308", "9007199254740993.0", "3.14159265358979",
    "0.30000000000000004", "100000000000000000000.0", "1e99999999999", "01", "+1", ".5", "NaN",
    "Infinity", "-", "1.", "0x10", "9" * 5000,
]  # fmt: skip
NAMES = [
    "specversion", "id", "source", "type", "time", "subject", "version", "intakeminute", "stage",
    "attempt", "replayid", "op", "dataref", "data", "data_base64", "other",
]  # fmt: skip


def message(**changes: Any) -> dict[str, Any]:
    event = Event(
        "e1", "p1", "team", "order", "[1]", 7, 1_767_225_600_000_001, 29_000_000,
        "2026-01-01T00:00:00Z", {"id": 1, "text": "ü", "amount": 1.25},
    )  # fmt: skip
    return {**json.loads(encode(event)), **changes}


def read(decoder: Any, value: bytes) -> Any:
    try:
        event = decoder(value)
    except ParkError as error:
        return error.code, error.message, error.where
    return event, [type(getattr(event, name)) for name in Event.__struct_fields__], repr(event.data)


def check(value: bytes) -> None:
    assert read(decode, value) == read(_decode_carefully, value), value[:300]


def test_what_encode_writes_goes_the_quick_way() -> None:
    assert _read(json.dumps(message(replayid="r", attempt=3)).encode()).replayid == "r"


@pytest.mark.parametrize("name", NAMES)
def test_each_attribute_with_each_value(name: str) -> None:
    for value in VALUES:
        check(json.dumps(message(**{name: value})).encode())
        check(json.dumps(message(**{name: value}), ensure_ascii=False).encode(errors="replace"))
    check(json.dumps({k: v for k, v in message().items() if k != name}).encode())


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["data", "intakeminute", "attempt", "other"])
def test_each_way_to_write_a_number(name: str, number: str) -> None:
    text = json.dumps(message(**{name: "@"})).replace('"@"', number)
    check(text.encode())
    check(json.dumps(message(data={"deep": ["@"]})).replace('"@"', number).encode())


def test_damaged_messages() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    whole = json.dumps(message(), ensure_ascii=False).encode()
    for _ in range(5_000):
        value = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(value))
            way = chance.randrange(3)
            if way == 0:
                value[at] = chance.randrange(256)
            elif way == 1:
                del value[at : at + chance.randint(1, 9)]
            else:
                value[at:at] = bytes(chance.choice(b'{}[]",:\\u0019e-. \xff') for _ in range(2))
        check(bytes(value))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b"\xef\xbb\xbf{}",
        b'{"id":"a","id":"b"}',
    ],
    ids=repr,
)
def test_what_is_no_event(value: bytes) -> None:
    check(value)


def test_a_name_twice_is_its_last_value() -> None:
    text = json.dumps(message())
    check((text[:-1] + ',"id":"second","data":{"n":2}}').encode())
