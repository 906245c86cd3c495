"""The quick way of sending a message back gives the bytes of the careful one, or leaves it alone."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from tests.unit.events.test_decoding import NAMES, NUMBERS, SEED, VALUES, message

from waybill.errors import ParkError
from waybill.events import Event, decode, encode, going_back, payload_bytes

AGAIN: dict[str, Any] = {"attempt": 3, "replay_id": "r1", "stage": "mapping"}


def carefully(value: bytes) -> tuple[str, bytes, bytes, int] | None:
    """Return what ``going_back`` promises; None: it is no message."""
    try:
        event = decode(value)
    except ParkError:
        return None
    changed = msgspec.structs.replace(event, **AGAIN)
    sent = encode(changed, content=payload_bytes(value))
    return event.id, event.key.encode(), sent, event.intake_minute


def check(value: bytes) -> bool:
    """Compare both ways; tell whether the quick one took it."""
    found = going_back(value, **AGAIN)
    assert found is None or found == carefully(value), value[:300]
    return found is not None


def written(**changes: Any) -> bytes:
    """Return a message with these attributes, in the form and order that ``encode`` gives."""
    order = [name for name in NAMES if name not in {"data", "data_base64", "other"}]
    named = message(**changes)
    known = [name for name in order if name in named]
    rest = [name for name in named if name not in known]
    ordered = {name: named[name] for name in [*known, *rest]}
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def test_what_encode_writes_goes_the_quick_way() -> None:
    event = Event(
        "e1", "p1", "team", "order", '["a\\b","ü",\t"\u2028"]', 2**55, 7, 29_000_000,
        "2026-01-01T00:00:00Z", {"text": '"é"\n', "amount": 1.25, "deep": [[None, True]]},
    )  # fmt: skip
    assert check(encode(event))
    assert check(encode(msgspec.structs.replace(event, replay_id="r0", attempt=9)))
    assert check(encode(msgspec.structs.replace(event, source_version=-5, data=None)))
    assert check(written(data={"n": 1}).replace(b'{"n":1}', b'{ "n" : [1.50, 2e3] }'))


def test_an_event_enters_where_it_said_when_no_stage_is_given() -> None:
    value = written(stage="destination")
    found = going_back(value, attempt=1, replay_id="r", stage=None)
    assert found is not None
    again = decode(found[2])
    assert (again.stage, again.attempt, again.replay_id) == ("destination", 1, "r")


@pytest.mark.parametrize("name", NAMES)
def test_each_attribute_with_each_value(name: str) -> None:
    for value in VALUES:
        check(written(**{name: value}))
        check(json.dumps(message(**{name: value})).encode())


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["data", "intakeminute", "attempt"])
def test_each_way_to_write_a_number(name: str, number: str) -> None:
    check(written(**{name: "@"}).replace(b'"@"', number.encode()))
    check(written(data={"deep": ["@"]}).replace(b'"@"', number.encode()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"data":', b'"data":1e99999999999,"data":'),
        (b'"id":', b'"id":"e0","id":'),
        (b'"specversion":"1.0"', b'"specversion":"1.1"'),
        (b'"version":"7/', b'"version":"07/'),
        (b'"version":"7/', b'"version":"0x7/'),
        (b'"stage":', b' "stage":'),
        (b'"stage":"transformation"', b'"stage":"nowhere"'),
        (b'"source":"team/p1"', b'"source":"team"'),
        (b'"type":', b'"op":"delete","type":'),
        (b'"text":"\xc3\xbc"', b'"text":"\\u0000"'),
        (b'"text":"\xc3\xbc"', b'"text":"\xc3"'),
        (b'"subject":"[1]"', b'"subject":"\\u0000"'),
    ],
)
def test_what_is_not_as_encode_writes_it_is_left_alone(old: bytes, new: bytes) -> None:
    whole = written()
    assert check(whole)
    changed = whole.replace(old, new, 1)
    assert changed != whole
    assert not check(changed)


def test_damaged_messages() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    whole = written()
    taken = 0
    for _ in range(5_000):
        value = bytearray(whole)
        value[chance.randrange(len(value))] = chance.choice(b'"\\{}[],:.-+eE0123456789abut\x00\xff')
        taken += check(bytes(value))
    assert taken > 100
