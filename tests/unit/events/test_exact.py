"""JSON in and out without changing a number."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from waybill.events import dumps, loads, loads_exact

SEED = 20260101


def test_the_fast_path_gives_what_the_exact_path_gives() -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    for _ in range(20_000):
        text = number(chance)
        value = b'{"n":%s}' % text.encode()
        fast, exact = loads(value)["n"], loads_exact(value)["n"]
        assert as_written(fast) == as_written(exact) == Decimal(text), text


def number(chance: random.Random) -> str:
    whole = str(chance.randrange(10 ** chance.randrange(1, 25)))
    text = chance.choice(["", "-"]) + whole
    if chance.random() < 0.6:
        text += "." + "".join(chance.choice("0123456789") for _ in range(chance.randrange(1, 22)))
    if chance.random() < 0.4:
        text += f"{chance.choice('eE')}{chance.choice(['', '+', '-'])}{chance.randrange(330)}"
    return text


def as_written(value: float | Decimal) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def test_a_number_beyond_a_double_is_kept_as_decimal() -> None:
    assert loads(b"1e400") == Decimal("1e400")
    assert loads(b"5e-324") == 5e-324
    assert loads(b"5e-325") == Decimal("5e-325")


def test_ordinary_numbers_are_ordinary() -> None:
    assert type(loads(b"[1, 1.5]")[0]) is int
    assert type(loads(b"[1, 1.5]")[1]) is float
    assert type(loads(b'[1.5, "1234567890123456"]')[0]) is float


def test_lone_surrogates_come_back_in_names_and_values() -> None:
    value = {"\ud800": ["\udfff", {"a\ud800": 2**70}], "plain": Decimal("1.50")}
    text = dumps(value)
    text.decode()  # it is UTF-8 all the same
    assert loads(text) == {"\ud800": ["\udfff", {"a\ud800": 2**70}], "plain": 1.5}
    assert json.loads(text)["\ud800"][0] == "\udfff"


def test_a_name_that_is_no_text_is_refused_beside_a_strange_one() -> None:
    with pytest.raises(TypeError):
        dumps({"\ud800": 1, 5: 2})


def test_times_are_written_in_utc() -> None:
    moment = datetime.fromisoformat("2026-01-01T12:00:00+05:30")
    assert dumps([moment, datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)]) == (
        b'["2026-01-01T12:00:00+05:30","2026-01-01T00:00:00Z","2026-01-01T00:00:00Z"]'
    )


def test_more_levels_than_can_be_written_are_a_recursion_error() -> None:
    deep: object = 1
    for _ in range(260):
        deep = {"a": deep}
    with pytest.raises(RecursionError):
        dumps(deep)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), Decimal("NaN"), Decimal("sNaN7"), Decimal("-Infinity")],
    ids=str,
)
def test_a_number_that_json_cannot_say_is_refused_wherever_it_stands(value: object) -> None:
    for payload in (value, {"a": {"b": [1, value]}}, [2**70, value], {"\ud800": value}):
        with pytest.raises(ValueError, match="NaN and Infinity"):
            dumps(payload)


def test_words_that_look_like_such_a_number_are_words() -> None:
    payload = {"NaN": None, "word": ["null", "Infinity", -0.0]}
    assert loads(dumps(payload)) == payload
